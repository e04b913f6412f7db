"""make docs-reference: writes docs/configuration.md and deploy/env.example from the models of the settings.

What a field takes is its description, what it does the text below it in the class. That text costs the service nothing:
Python drops it, and it is read from the source here.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Literal, get_args, get_origin

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
from routes.providers.options import Options
from routes.providers.registry import TYPES
from tests.support.surroundings import ROOT

PAGE = ROOT / "docs/configuration.md"
ENV_EXAMPLE = ROOT / "deploy/env.example"
TOML_EXAMPLE = ROOT / "deploy/mailonce.example.toml"

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Journal and Redis": (
        "redis_url",
        "redis_timeout_ms",
        "key_prefix",
        "on_store_failure",
        "data_dir",
        "stream_mb",
    ),
    "Tokens and proxies": ("ingress_token", "admin_token", "view_token", "metrics_token", "trusted_proxies"),
    "Destination": ("webhook_url", "webhook_secret", "mailonce_config"),
    "Queue and workers": ("queue_url", "worker_processes", "worker_threads", "worker_metrics_port"),
    "How emails are recognised": (
        "subject_groups",
        "subject_group_ttl_seconds",
        "timezone",
        "lease_seconds",
        "service_started_at",
    ),
    "What is kept, and how long": (
        "processed_ids_days",
        "decision_days",
        "dead_letter_days",
        "delivered_payload_days",
        "keep_suppressed",
        "privacy",
        "payload_mb",
        "disk_free_mb",
    ),
    "The web server": (
        "host",
        "port",
        "public_url",
        "web_concurrency",
        "web_threads",
        "max_body_mb",
        "memory_limit_mb",
        "log_format",
        "log_level",
    ),
}
TABLES: Mapping[str, type[BaseModel]] = {
    "[destinations.name]": DestinationConfig,
    "[[routes]]": RouteConfig,
    "Conditions of `match`": Condition,
    "[[subject_patterns]]": PatternConfig,
    "[media]": MediaConfig,
    "[alerts]": AlertsConfig,
}
ENV_WIDTH = 118
KINDS = {str: "a text", float: "a number", int: "a whole number", bool: "true or false", dict: "a table"}


def sentence(model: type[BaseModel], name: str) -> str:
    """The text below the field, in the class that has it; empty if there is none."""
    for each in model.__mro__:
        if name in each.__dict__.get("__annotations__", {}):
            return _texts(each).get(name, "")
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


def takes(field: FieldInfo) -> str:
    """Its description or, where it has none, its type in plain words."""
    return field.description or _in_words(field)


def _in_words(field: FieldInfo) -> str:
    kind = field.annotation
    if get_origin(kind) is Literal:
        return " or ".join(f'"{each}"' for each in get_args(kind))
    if get_origin(kind) is tuple:
        return "a text, or a list of texts"
    bounds = {name: value for each in field.metadata for name in ("gt", "le") if (value := getattr(each, name, None))}
    most = f" up to {bounds['le']}" if "le" in bounds else ""
    return KINDS[get_origin(kind) or kind] + most  # type: ignore[index]


def default(field: FieldInfo) -> str:
    """As it would be written in .env; empty for none."""
    match field.default:
        case None | () | "":
            return ""
        case bool() as yes:
            return "1" if yes else "0"
        case float() as number:
            return f"{number:g}"
        case StrEnum() as word:
            return word.value
        case other:
            return str(other)


def toml_default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    match value:
        case bool():
            return f"`{str(value).lower()}`"
        case None | () | "" | {}:
            return ""
        case float():
            return f"`{value:g}`"
        case str():
            return f'`"{value}"`'
        case tuple():
            return ", ".join(map(str, value))
        case _:
            return f"`{value}`"


def table(headings: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    cells = [headings, tuple("---" for _ in headings), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def setting_rows(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name in names:
        field = Settings.model_fields[name]
        shown = default(field)
        yield f"`{name.upper()}`", sentence(Settings, name), takes(field), f"`{shown}`" if shown else ""


def key_rows(model: type[BaseModel], names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name in names or tuple(model.model_fields):
        field = model.model_fields[name]
        yield f"`{name}`", sentence(model, name), takes(field), toml_default(field)


def provider_parts() -> Iterator[str]:
    """Each with what only it takes; what all of them take stands first."""
    common = tuple(Options.model_fields)
    yield "#### Every provider but Gmail and JSON\n\n" + table(KEY_HEADINGS, key_rows(Options))
    by_model: dict[type[BaseModel], list[str]] = {}
    for name, provider in TYPES.items():
        by_model.setdefault(provider.options_type, []).append(name)
    for model, names in by_model.items():
        own = tuple(name for name in model.model_fields if name not in common)
        if own:
            heading = "#### " + ", ".join(f"[providers.{name}]" for name in names)
            yield f"{heading}\n\n{table(KEY_HEADINGS, key_rows(model, own))}"


ABOUT_ENV = """\
# Every setting with its default. Copy to deploy/.env (compose) or /etc/mailonce/env (systemd), and remove the # in
# front of the lines that you change. Destinations and routes are in mailonce.toml. Generated by make docs-reference.
"""
SETTING_HEADINGS = ("setting", "what it does", "value", "default")
KEY_HEADINGS = ("key", "what it does", "value", "default")
INTRODUCTION = """\
# Configuration

Generated from the code by `make docs-reference`; do not edit this page.

All servers of a fleet have the same settings, except DATA_DIR, HOST and PORT.

## Settings

Settings come from the environment, or else from a `.env` in the folder where the service is started.
`deploy/env.example` lists them all. A wrong value, a port in use, or a password that Redis or the queue refuses
stops the start with one line that names the setting, before anything listens. Misspelt names cause a warning. A
change takes effect with the next start.
"""
ABOUT_TOML = """\
## mailonce.toml

In the folder where the service is started, or at MAILONCE_CONFIG. `.venv/bin/mailonce check` explains the file;
with `--email FILE.eml` or `--json FILE` it also shows which route, names and gates that email would meet, and what
would happen to it now. An invalid file stops the start, with the line and what is wrong. `kill -HUP` (or `systemctl
reload mailonce`) reads it again, and an invalid one changes nothing.

Any value may be `env:NAME` or `file:PATH`, so that secrets stay out of the file. Secrets may be lists while you
[rotate](operating.md#rotate-secrets) them.

This is `deploy/mailonce.example.toml`. All of it is optional; it shows the defaults:
"""
ABOUT_KEYS = """\
With `stop = false` the email goes to the destinations of all matching routes, and for each gate (`subject_groups`,
`media`, `content`, `realtime_only`, `identity_by_recipient`) the first matching route that sets it decides.

Regular expressions run on [RE2](https://github.com/google/re2/wiki/Syntax), so that no sender can write a text that
hangs one. It has no lookaround and no backreferences, and `\\b`, `\\w`, `\\d` and `\\s` match ASCII only (`\\pL` is
any letter); an unsupported regex stops the start and is named. Of a body, a regex sees the first 100,000
characters, `contains` and `equals` the first million.
"""
ABOUT_PROVIDERS = """\
### [providers.name]

A provider is enabled by its section; without it, its URL answers 404 and names the missing key. Gmail and raw MIME
need no section: they use INGRESS_TOKEN. The name is the last part of the URL, `/api/ingress/<name>`; under another
name, `type` says which provider it is, such as `type = "json"`. [Providers](providers.md) explains how to configure
each of them.
"""


def configuration_page() -> str:
    parts = [INTRODUCTION]
    parts += [f"### {title}\n\n{table(SETTING_HEADINGS, setting_rows(names))}\n" for title, names in SECTIONS.items()]
    parts += [ABOUT_TOML, f"```toml\n{TOML_EXAMPLE.read_text()}```\n", ABOUT_KEYS]
    parts += [f"### {title}\n\n{table(KEY_HEADINGS, key_rows(model))}\n" for title, model in TABLES.items()]
    parts += [ABOUT_PROVIDERS, *(f"{part}\n" for part in provider_parts())]
    return "\n".join(parts)


def env_example() -> str:
    parts = [ABOUT_ENV]
    for title, names in SECTIONS.items():
        parts.append(f"# --- {title}\n")
        for name in names:
            field = Settings.model_fields[name]
            said = f"{sentence(Settings, name)} Takes {takes(field)}.".replace("`", "")
            lines = textwrap.wrap(said, ENV_WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
            parts.append("\n".join([*lines, f"#{name.upper()}={default(field)}\n"]))
    return "\n".join(parts)


def main() -> None:
    PAGE.write_text(configuration_page())
    ENV_EXAMPLE.write_text(env_example())


if __name__ == "__main__":
    main()
