"""What the pages name within their lines exists: settings, commands, addresses, keys of mailonce.toml."""

import itertools
import re
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from pydantic import BaseModel

from orchestrator.build import build
from orchestrator.config import model
from orchestrator.config.model import AlertCondition, AlertsConfig
from orchestrator.config.settings import Settings, load_settings
from routes.app import create_app
from routes.command_line import main
from routes.providers.registry import TYPES
from routes.webhooks import Email
from tests.docs.conftest import values_of
from tests.docs.pages import FOR_CONTRIBUTORS, PAGES, all_blocks, anchors, blocks, code, code_in_lines, name_of, prose
from tests.support.surroundings import ROOT

SETTINGS = {name.upper() for name in Settings.model_fields}
NOT_OURS = {
    "FORWARDED_ALLOW_IPS",
    "EX_TEMPFAIL",
    "LISTEN_FDS",
    "NO_PROXY",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "REDIS_PASSWORD",
    "SCRIPT_NAME",
}
NAMED_ADDRESS = re.compile(
    r"(?:(GET|POST|PUT|DELETE) (?!/hooks/)(?=/)|(?=/(?:api|health|livez|readyz|metrics)))([^\s?]*)"
)
ADDRESS_PART = re.compile(r"<.*?>|\{.*?\}")
PROVIDERS = (ROOT / "docs/providers.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def _exists(path: str) -> bool:
    return (ROOT / path).exists()


def _is_test(name: str) -> bool:
    return f"def {name}(" in code()


def _is_target(name: str) -> bool:
    return re.search(rf"^{name}:", MAKEFILE, re.MULTILINE) is not None


def _is_key(name: str) -> bool:
    models = [each for each in vars(model).values() if isinstance(each, type) and issubclass(each, BaseModel)]
    models += [provider.options_type for provider in TYPES.values()]
    return name == "type" or any(name in each.model_fields for each in models)


# Code within lines, and whether what it names exists.
NAMED: dict[str, Callable[[str], bool]] = {
    r"((?:deploy|docs|examples|tests|routes|orchestrator|deduplication)/[\w./-]*)$": _exists,
    r"(test_\w+)$": _is_test,
    r"make ([a-z][a-z-]*)": _is_target,
    r"([a-z_]+) = \S": _is_key,
}


@pytest.mark.parametrize("page", (*PAGES, *FOR_CONTRIBUTORS), ids=name_of)
def test_what_code_within_lines_names_exists(page: Path) -> None:
    for span, (pattern, exists) in itertools.product(code_in_lines(page), NAMED.items()):
        if found := re.match(pattern, span):
            assert exists(found[1]), f"there is no {span}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_settings_that_are_named_exist(page: Path) -> None:
    named = set(re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", prose(page)))
    scripts = "".join((ROOT / path).read_text() for path in ("deploy/gmail/Code.gs", "examples/bridge/bridge.py"))
    elsewhere = NOT_OURS | set(values_of("\n".join(block.text for block in all_blocks("toml"))))
    unknown = [name for name in named - SETTINGS - elsewhere if name not in scripts and not name.startswith("AWS_")]
    assert not [name for name in unknown if f" {name} = " not in code()], "neither a setting nor a constant of the code"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_values_of_settings_are_taken(page: Path) -> None:
    for span in code_in_lines(page):
        if found := re.fullmatch(r"([A-Z][A-Z0-9_]+)=([^\s<>.]+)", span):
            assert found[1] in SETTINGS | NOT_OURS, span
            if found[1] in SETTINGS:
                load_settings(**{found[1].lower(): found[2]})


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_that_are_named_exist_with_their_options(page: Path) -> None:
    for span in code_in_lines(page):
        if re.match(r"(\S*/)?mailonce [a-z]", span):
            _check_command(shlex.split(span)[1:])


def _check_command(words: list[str]) -> None:
    command = main.commands.get(words[0])
    assert command, f"there is no mailonce {words[0]}"
    while isinstance(command, click.Group) and len(words) > 1:
        command, words = command.commands[words[1]], words[1:]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help", "-h"}
    asked = {word.split("=")[0] for word in words if re.match("--?[a-z]", word)}
    assert asked <= known, f"mailonce {words[0]} takes no {asked - known}"


def test_addresses_of_the_api_that_are_named_exist(tmp_path: Path) -> None:
    """With its method where one is named; the beginning of an address will do where none is."""
    service = build(load_settings(data_dir=tmp_path / "data"))
    rules = [
        (ADDRESS_PART.sub("<>", rule.rule), rule.methods or set()) for rule in create_app(service).url_map.iter_rules()
    ]
    service.close()
    for span in (span for page in PAGES for span in code_in_lines(page)):
        if found := NAMED_ADDRESS.match(ADDRESS_PART.sub("<>", span)):
            method, path = found.groups()
            takes = [methods for rule, methods in rules if rule == path and (not method or method in methods)]
            begins = not method and any(rule.startswith(path.rstrip("/") + "/") for rule, _ in rules)
            assert takes or begins or _is_of_a_provider_of_ones_own(path), f"there is no {span}"


def _is_of_a_provider_of_ones_own(path: str) -> bool:
    name = path.removeprefix("/api/ingress/")
    return name == "<>" or any(f"[providers.{name}]" in block.text for block in all_blocks("toml"))


@pytest.mark.parametrize("name", sorted(TYPES.keys() - {"json"}))
def test_every_provider_has_its_row_and_its_section(name: str) -> None:
    (row,) = re.findall(rf"^\| .*`/api/ingress/{name}`.*$", PROVIDERS, re.MULTILINE)
    assert str(TYPES[name].rejected_status or "4xx") in row
    assert f"/ {TYPES[name].retry_status} |" in row
    (anchor,) = re.findall(r"\(#([\w-]+)\)", row)
    assert anchor in anchors(ROOT / "docs/providers.md")
    needed = [field for field, info in TYPES[name].options_type.model_fields.items() if info.is_required()]
    assert not [field for field in needed if f"`{field}`" not in row]


def test_fields_that_recipes_name_are_those_of_the_webhook() -> None:
    fields = {field.alias or name for name, field in Email.model_fields.items()} | {"webhook-id"}
    rows = [row for row in (ROOT / "docs/recipes.md").read_text().splitlines() if row.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    used = re.findall(r"(?:\$json\.body\.|{{1\.)(\w+)", "\n".join(rows))
    assert len(named) > 30 and len(used) > 10
    assert not {*named, *used} - fields


def test_every_condition_of_an_alarm_has_its_row() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \|$", (ROOT / "docs/seeing.md").read_text(), re.MULTILINE)
    assert set(AlertCondition) <= set(rows)


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    names = {re.split(r"[\[>=<]", each)[0] for each in asked} - {"mailonce"}
    explained = set(re.findall(r"[\w-]+", (ROOT / "docs/dependencies.md").read_text()))
    unexplained = {
        name for name in names if name not in explained and not (name.startswith("types-") and "types-" in explained)
    }
    assert not unexplained, "docs/dependencies.md says why"


def test_the_alarms_that_are_shown_are_what_ships(tmp_path: Path) -> None:
    (block,) = [block for block in blocks(ROOT / "docs/seeing.md") if block.text.startswith("[alerts]")]
    shown, shipped = AlertsConfig.model_validate(tomllib.loads(block.text)["alerts"]), AlertsConfig()
    assert (shown.after_s, shown.off, shown.secret) == (shipped.after_s, shipped.off, shipped.secret)
