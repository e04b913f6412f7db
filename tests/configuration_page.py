"""make docs-reference: writes the tables of docs/configuration.md, and deploy/env.example, from the models.

The description of a field says what its value must be, the text below it in the class what it does. That text costs the
service nothing: Python drops it, and it is read from the source here.
"""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from orchestrator.config.model import (
    AlertsConfig,
    Condition,
    DestinationConfig,
    MediaConfig,
    PatternConfig,
    RouteConfig,
)
from orchestrator.config.settings import Settings
from orchestrator.config.words import must_be
from routes.providers.base import Options
from routes.providers.registry import TYPES
from tests.support.surroundings import ROOT

PAGE = ROOT / "docs/configuration.md"
ENV_EXAMPLE = ROOT / "deploy/env.example"
TOML_EXAMPLE = ROOT / "deploy/mailonce.example.toml"

# The sections of settings, each with its first setting; the others follow in the order of the class.
FIRST_OF_SECTION = {
    "Journal and Redis": "redis_url",
    "Tokens and proxies": "ingress_token",
    "Destination": "webhook_url",
    "Workers": "deliver_by",
    "How emails are recognised": "subject_groups",
    "What is kept, and how long": "processed_ids_days",
    "The web server": "host",
}
TABLES: Mapping[str, type[BaseModel]] = {
    "[destinations.name]": DestinationConfig,
    "[[routes]]": RouteConfig,
    "Conditions of `match`": Condition,
    "[[subject_patterns]]": PatternConfig,
    "[media]": MediaConfig,
    "[alerts]": AlertsConfig,
    "Every provider but JSON": Options,
}
ENV_WIDTH = 118


def sections() -> dict[str, list[str]]:
    names = list(Settings.model_fields)
    starts = [names.index(first) for first in FIRST_OF_SECTION.values()]
    spans = zip(FIRST_OF_SECTION, starts, [*starts[1:], len(names)], strict=True)
    return {title: names[start:end] for title, start, end in spans}


def sentence(model: type[BaseModel], name: str) -> str:
    """The text below the field, in the class that has it; empty if there is none."""
    for ancestor in model.__mro__:
        if name in ancestor.__dict__.get("__annotations__", {}):
            return _texts(ancestor).get(name, "")
    return ""


def _texts(model: type) -> dict[str, str]:
    (written,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(written, ast.ClassDef)
    found = {}
    for field, below in zip(written.body, written.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                found[name] = " ".join(text.split())
    return found


def default(field: FieldInfo) -> str:
    """As it would be written in .env."""
    match field.default:
        case None | () | "":
            return ""
        case bool() as yes:
            return f"`{yes:d}`"
        case float() as number:
            return f"`{number:g}`"
        case other:
            return f"`{other}`"


def toml_default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    match field.get_default(call_default_factory=True):
        case None | () | "" | {}:
            return ""
        case str() as text:
            return f'`"{text}"`'
        case tuple() as entries:
            return ", ".join(map(str, entries))
        case value:
            return f"`{json.dumps(value)}`"


def table(model: type[BaseModel], names: Iterable[str] = ()) -> str:
    is_setting = model is Settings
    lines = [f"| {'setting' if is_setting else 'key'} | what it does | value | default |", "|" + " --- |" * 4]
    for name in names or model.model_fields:
        field = model.model_fields[name]
        shown = default(field) if is_setting else toml_default(field)
        cells = (name.upper() if is_setting else name, sentence(model, name), must_be(field), shown)
        lines.append("| `{}` | {} | {} | {} |".format(*cells))
    return "\n".join(lines) + "\n"


def tables() -> Iterator[tuple[str, str]]:
    """Each with the heading above it: of settings, of mailonce.toml, of all providers, and of each provider."""
    for title, names in sections().items():
        yield title, table(Settings, names)
    for title, model in TABLES.items():
        yield title, table(model)
    by_model: dict[type[BaseModel], list[str]] = {}
    for name, provider in TYPES.items():
        by_model.setdefault(provider.options_type, []).append(f"[providers.{name}]")
    for model, providers in by_model.items():
        common = Options.model_fields if issubclass(model, Options) else {}
        if own := [name for name in model.model_fields if name not in common]:
            yield ", ".join(providers), table(model, own)


def configuration_page() -> str:
    """The page with its tables and its example replaced; the text between them is written by hand."""
    page = PAGE.read_text()
    page = re.sub("(?s)```toml\n.*?```", lambda _: f"```toml\n{TOML_EXAMPLE.read_text()}```", page)
    for title, written in tables():
        above = rf"(?m)^(#+ {re.escape(title)}\n\n)(?:\|.*\n)*"
        page, count = re.subn(above, lambda found, written=written: found[1] + written, page)  # type: ignore[misc]
        assert count == 1, f"{PAGE} must have one heading {title}"
    return page


ABOUT_ENV = """\
# Every setting with its default. Copy to deploy/.env (compose) or /etc/mailonce/env (systemd), and remove the # in
# front of the lines that you change. Destinations and routes are in mailonce.toml. Generated by make docs-reference.
"""


def env_example() -> str:
    parts = [ABOUT_ENV]
    for title, names in sections().items():
        parts.append(f"# --- {title}\n")
        for name in names:
            field = Settings.model_fields[name]
            text = f"{sentence(Settings, name)} Must be {must_be(field)}.".replace("`", "")
            lines = textwrap.wrap(text, ENV_WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
            parts.append("\n".join([*lines, f"#{name.upper()}={default(field).strip('`')}\n"]))
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(configuration_page())
    ENV_EXAMPLE.write_text(env_example())
