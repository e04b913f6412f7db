"""mailonce.toml: what it may say, what holds without it, and how each mistake in it is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from deduplication.subject_group import DEFAULT_PATTERNS, GroupMode, SubjectPattern
from orchestrator.config import EVERYTHING_ELSE, UNSUBSCRIBE, Config, load_config
from orchestrator.settings import SettingsError, load_settings

SECRET = "s3cr3t-that-must-not-be-shown"


def config_of(text: str) -> Config:
    Path("mailonce.toml").write_text(text, encoding="utf-8")
    return load_config(load_settings())


def urls(config: Config) -> dict[str, str]:
    return {name: destination.url for name, destination in config.destinations.items()}


@pytest.mark.parametrize("text", [None, "", "# only a comment\n"])
def test_without_a_word_in_it_the_shipped_defaults_hold(text: str | None) -> None:
    config = load_config(load_settings()) if text is None else config_of(text)
    assert urls(config) == {"default": "log:"}
    assert config.routes == (UNSUBSCRIBE, EVERYTHING_ELSE)
    assert config.patterns == DEFAULT_PATTERNS


def test_webhook_url_is_the_destination_where_the_file_names_none() -> None:
    assert urls(load_config(load_settings(webhook_url="https://crm.example/hook"))) == {
        "default": "https://crm.example/hook"
    }


def test_a_destination_in_the_file_wins_over_webhook_url() -> None:
    Path("mailonce.toml").write_text('[destinations.crm]\nurl = "https://crm.example/in"')
    assert urls(load_config(load_settings(webhook_url="https://other.example"))) == {"crm": "https://crm.example/in"}


def test_patterns_in_the_file_replace_the_shipped_ones() -> None:
    config = config_of(
        """
        [[subject_patterns]]
        name = "ticket"
        phrases = ["Société Générale"]
        regex = '\\bref (\\w+)\\b'
        """
    )
    assert config.patterns == (SubjectPattern("ticket", ("Société Générale",), r"\bref (\w+)\b"),)
    assert config_of("subject_patterns = []").patterns == ()


def test_routes_in_the_file_replace_the_shipped_ones() -> None:
    config = config_of(
        """
        [destinations.crm]
        url = "https://crm.example/in"
        [destinations.archive]
        url = "log:"

        [[routes]]
        name = "opt out"
        match = [{ field = "subject", contains = "unsubscribe" }, { field = "sender", equals = "list@example.org" }]
        any = true
        destinations = ["crm"]
        subject_groups = "off"

        [[routes]]
        name = "rest"
        destinations = ["archive"]
        """
    )
    opt_out, rest = config.routes
    assert (opt_out.name, opt_out.any, opt_out.destinations) == ("opt out", True, ("crm",))
    assert [condition.field for condition in opt_out.match] == ["subject", "sender"]
    assert opt_out.subject_groups is GroupMode.OFF
    assert (rest.name, rest.match, rest.subject_groups) == ("rest", (), None)


ROUTE = "[[routes]]\nname = 'a'\n"
PATTERN = "[[subject_patterns]]\nname = 'a'\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("routes = ", "Invalid value"),
        ("[bogus]", "bogus: Extra inputs"),
        ("destinations = 3", "destinations: "),
        ("[destinations.crm]", "destinations.crm.url: "),
        ("[destinations.crm]\nurl = 3", "destinations.crm.url: "),
        (f"[destinations.crm]\nurl = 'ftp://{SECRET}@x'", "destinations.crm.url: takes an http:// or https:// address"),
        ("[destinations.CRM]\nurl = 'log:'", "destinations.CRM"),
        ("[destinations.crm]\nurl = 'log:'\nsecert = 'x'", "destinations.crm.secert: Extra inputs"),
        ("routes = []", "routes: the last one takes no match"),
        ("[[routes]]", "routes.0.name: "),
        (f"{ROUTE}match = [{{ field = 'subject', contains = 'b' }}]", "routes: the last one takes no match"),
        (f"{ROUTE}match = [{{ field = 'to', contains = 'b' }}]", "routes.0.match.0.field: "),
        (f"{ROUTE}match = [{{ field = 'subject' }}]", "routes.0.match.0: takes exactly one of equals"),
        (f"{ROUTE}match = [{{ field = 'subject', equals = '', regex = '' }}]", "takes exactly one of equals"),
        (f"{ROUTE}match = [{{ field = 'subject', regex = '(' }}]", "routes.0.match.0.regex: takes a regular expr"),
        (f"{ROUTE}destinations = ['nowhere']", "route 'a': destinations takes one of default; not 'nowhere'"),
        (f"{ROUTE}destinations = []", "routes.0.destinations: "),
        (f"{ROUTE}destinations = ['default', 'default']", "routes.0.destinations: "),
        (f"{ROUTE}subject_groups = 'maybe'", "routes.0.subject_groups: Input should be 'all', 'patterns' or 'off'"),
        (
            f"{ROUTE}[destinations.b]\nurl = 'log:'\n[destinations.c]\nurl = 'log:'",
            "destinations is needed, one of b, c",
        ),
        (f"{PATTERN}regex = '('", "subject_patterns.0.regex: takes a regular expression"),
        (f"{PATTERN}regex = 'lot'", "subject_patterns.0.regex: takes a regex that captures exactly one value"),
        (f"{PATTERN}regex = '(lot) (1)'", "takes a regex that captures exactly one value"),
        (f"{PATTERN}regex = '(lot)'\nphrases = 'lot'", "subject_patterns.0.phrases: "),
    ],
)
def test_a_mistake_is_reported_in_one_line_with_its_place(text: str, complaint: str) -> None:
    with pytest.raises(SettingsError) as raised:
        config_of(text)
    line = str(raised.value)
    assert line.startswith("mailonce.toml: ")
    assert complaint in line
    assert "\n" not in line
    assert SECRET not in line


def test_a_file_that_is_not_utf8_is_reported() -> None:
    Path("mailonce.toml").write_bytes(b"# caf\xe9")
    with pytest.raises(SettingsError, match="mailonce.toml: .*utf-8"):
        load_config(load_settings())


def test_a_file_that_cannot_be_read_is_reported() -> None:
    Path("here.toml").touch()
    settings = load_settings(mailonce_config=Path("here.toml"))
    Path("here.toml").unlink()
    with pytest.raises(SettingsError, match="here.toml: .*No such file"):
        load_config(settings)
