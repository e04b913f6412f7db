"""mailonce.toml: its keys, its defaults, and how each mistake in it is reported."""

import base64
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deduplication.media import MediaMode
from deduplication.subject_group import DEFAULT_PATTERNS, SubjectPattern
from orchestrator.config.model import (
    EVERYTHING_ELSE,
    OUR_HEADERS,
    UNSUBSCRIBE,
    Condition,
    Config,
    DestinationConfig,
    RouteConfig,
    load_config,
)
from orchestrator.config.settings import SettingsError, load_settings
from routes.commands.check import describe_config

SECRET = "s3cr3t-that-must-not-be-shown"
SECTIONS = "destinations, routes, subject_patterns, media, alerts, providers"
SIGNING = [f"whsec_{base64.b64encode(bytes([number]) * 24).decode()}" for number in range(2)]


def config_of(text: str, **environ: str) -> Config:
    Path("mailonce.toml").write_text(text, encoding="utf-8")
    return load_config(load_settings(), environ)


def problems_of(text: str, **environ: str) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        config_of(text, **environ)
    return str(raised.value).splitlines()


def urls(config: Config) -> dict[str, str]:
    return {name: destination.url for name, destination in config.destinations.items()}


@pytest.mark.parametrize("text", [None, "", "# only a comment\n"])
def test_without_destinations_routes_and_patterns_the_defaults_apply(text: str | None) -> None:
    config = load_config(load_settings()) if text is None else config_of(text)
    assert urls(config) == {"default": "log:"}
    assert config.routes == (UNSUBSCRIBE, EVERYTHING_ELSE)
    assert config.patterns == DEFAULT_PATTERNS
    assert config.providers == {}


@pytest.mark.parametrize("secrets", [(), (SIGNING[0],), tuple(SIGNING)])
@pytest.mark.parametrize("text", ["", "[media]\nhosts = ['we.tl']"])
def test_webhook_url_is_the_destination_if_the_file_has_none(text: str, secrets: tuple[str, ...]) -> None:
    Path("mailonce.toml").write_text(text)
    config = load_config(load_settings(webhook_url="https://crm.example/hook", webhook_secret=",".join(secrets)))
    assert urls(config) == {"default": "https://crm.example/hook"}
    assert config.destinations["default"].secret == secrets


def test_a_file_with_destinations_may_refer_to_webhook_url_but_not_contradict_it() -> None:
    url = "https://crm.example/in"
    Path("mailonce.toml").write_text('[destinations.crm]\nurl = "env:WEBHOOK_URL"')
    assert urls(load_config(load_settings(webhook_url=url), {"WEBHOOK_URL": url})) == {"crm": url}
    with pytest.raises(SettingsError, match=r"toml, line 1: destinations\.crm and WEBHOOK_URL both say where"):
        load_config(load_settings(webhook_url="https://other.example"), {"WEBHOOK_URL": url})


def test_only_without_any_destination_it_is_a_trial() -> None:
    assert load_config(load_settings()).is_trial
    assert not load_config(load_settings(webhook_url="https://crm.example")).is_trial
    assert not config_of("[destinations.default]\nurl = 'log:'").is_trial, "printing is what was asked for"


@pytest.mark.parametrize(
    ("line_of_toml", "field", "read"),
    [
        ("url = 'https://u:p@crm.example:8443/hooks?a=b'", "url", "https://u:p@crm.example:8443/hooks?a=b"),
        (f"secret = '{SIGNING[0]}'", "secret", (SIGNING[0],)),
        (f"secret = {SIGNING}", "secret", tuple(SIGNING)),
        ("headers = { X-Team = 'sales', x_1 = '' }", "headers", {"X-Team": "sales", "x_1": ""}),
        ("headers = { Authorization = 'Bearer \tab c~' }", "headers", {"Authorization": "Bearer \tab c~"}),
        ("connect_timeout_s = 0.1", "connect_timeout_s", 0.1),
        ("read_timeout_s = 300", "read_timeout_s", 300),
        ("max_attempts = 50", "max_attempts", 50),
        ("content_window_s = 0", "content_window_s", 0),
        ("breaker_failures = 0", "breaker_failures", 0),
        ("breaker_pause_s = 86400", "breaker_pause_s", 86400),
        # What comes from a variable is text.
        ("max_attempts = 'env:SEVEN'", "max_attempts", 7),
        ("content_window_s = 'env:SEVEN'", "content_window_s", 7),
        ("read_timeout_s = 'env:SEVEN'", "read_timeout_s", 7.0),
        ("enabled = 'env:NO'", "enabled", False),
        ("secret = ['env:SIGNING']", "secret", (SIGNING[1],)),
    ],
)
def test_a_destination_accepts(line_of_toml: str, field: str, read: Any) -> None:
    text = f"[destinations.crm]\n{line_of_toml}\n" + ("" if field == "url" else "url = 'log:'")
    config = config_of(text, SEVEN="7", NO="false", SIGNING=SIGNING[1])
    assert getattr(config.destinations["crm"], field) == read


def test_routes_and_patterns_in_the_file_replace_the_default_ones() -> None:
    config = config_of(
        f"""
        {TWO_DESTINATIONS}
        [[routes]]
        name = "opt out"
        match = [{{ field = "subject", contains = "unsubscribe", exact = true }}]
        destinations = ["b"]
        media = "all"
        [[routes]]
        name = "rest"
        destinations = ["c", "b"]
        [[subject_patterns]]
        name = "ticket"
        phrases = ["Société"]
        regex = '\\bref (\\w+)\\b'
        """
    )
    unsubscribe = Condition(field="subject", contains="unsubscribe", exact=True)
    opt_out = RouteConfig(name="opt out", match=(unsubscribe,), destinations=("b",), media=MediaMode.ALL)
    assert config.routes == (opt_out, RouteConfig(name="rest", destinations=("c", "b")))
    assert config.patterns == (SubjectPattern("ticket", ("Société",), r"\bref (\w+)\b"),)
    assert config_of("subject_patterns = []").patterns == ()


def test_a_route_that_goes_on_may_leave_the_destinations_to_those_after_it() -> None:
    config = config_of(f"{TWO_DESTINATIONS}{ROUTE}stop = false\n{ROUTE}destinations = ['b']")
    assert [route.destinations for route in config.routes] == [None, ("b",)]


def test_sections_of_providers_are_passed_on_and_their_problems_have_a_name() -> None:
    config = config_of("[providers.ses]\ntopics = ['arn:1', 'env:KEY']", KEY=SECRET)
    assert config.providers == {"ses": {"topics": ["arn:1", SECRET]}}
    error = config.error(("providers", "ses", "topics"), "must be a list of ARNs")
    assert str(error) == "mailonce.toml, line 2: providers.ses.topics must be a list of ARNs"
    assert (
        str(Config().error(("providers", "ses"), "must have topics")) == "mailonce.toml: providers.ses must have topics"
    )


def test_secrets_are_not_in_the_repr_of_a_config() -> None:
    config = config_of(
        f"""
        [destinations.crm]
        url = "https://user:{SECRET}@crm.example/{SECRET}"
        secret = "{SIGNING[0]}"
        headers = {{ Authorization = "Bearer {SECRET}" }}
        [providers.mailgun]
        signing_key = "{SECRET}"
        """
    )
    assert SECRET not in repr(config) and SIGNING[0] not in repr(config)


CRM = "[destinations.crm]\nurl = 'log:'\n"
TWO_DESTINATIONS = "[destinations.b]\nurl = 'log:'\n[destinations.c]\nurl = 'log:'\n"
ROUTE = "[[routes]]\nname = 'a'\n"
PATTERN = "[[subject_patterns]]\nname = 'a'\n"
CONDITION = f"{ROUTE}match = [{{{{ field = 'body', {{}} }}}}]\n[[routes]]\nname = 'rest'"

TABLES = "must be tables [{0}.name] with names of small letters"

# What is in the file, the name, and how the sentence goes on.
MISTAKES: tuple[tuple[str, str, str], ...] = (
    ("bogus = 1", "bogus", f"is unknown; known are {SECTIONS}"),
    ("[route]", "route", "is unknown; known are destinations"),
    ("'[key]' = 1", '"[key]"', "is unknown; known are destinations"),
    ("'a\\nb' = 1", '"a\\\\nb"', "is unknown"),
    ("destinations = 3", "destinations", TABLES.format("destinations")),
    ("[destinations]\ncrm = 3", "destinations", TABLES.format("destinations")),
    *(
        (f"[destinations.a]\nurl = 'log:'\n[destinations.{name}]\nurl = 'log:'", "destinations", "must be tables")
        for name in ("CRM", "''", "'a\\n'", "'[key]'", "-a")
    ),
    ("[destinations.crm]", "destinations.crm.url", "is required; it must be an http:// or https:// address, or"),
    *(
        (f"[destinations.crm]\nurl = {url}", "destinations.crm.url", "must be an http:// or https:// address, or")
        for url in ("3", "''", f"'ftp://{SECRET}@x'")
    ),
    ("[destinations.url]\nurl = 'log:'\nformat = 1", "destinations.url.format", 'must be "json" or "form"'),
    (f"{CRM}secrt = 'x'", "destinations.crm.secrt", "is unknown; known are url, secret"),
    *(
        (f"{CRM}secret = {value}", "destinations.crm.secret", "must be a Standard Webhooks secret")
        for value in (f"'{SECRET}'", "''", f"['{SIGNING[0]}',\n'{SECRET}']", "[]", "3", "[3]")
    ),
    *(
        (f"{CRM}headers{header}", "destinations.crm.headers", "must be a table such as ")
        for header in (" = 3", ".X-A = 3", ".'X A' = ''", ".'X-É' = ''", ".'' = ''", ".X-A = ''\nheaders.x-a = ''")
        + tuple(
            f".X-A = {value}" for value in (f'"{SECRET}\\r\\nX-B: c"', f'"{SECRET}\\n"', f"' {SECRET}'", f"'é{SECRET}'")
        )
        + tuple(f".{name} = 'x'" for name in (*OUR_HEADERS, "Webhook-Id", "HOST"))
    ),
    *(
        (f"{CRM}{key} = {value}", f"destinations.crm.{key}", f"must be {described}")
        for key, described, values in (
            ("format", '"json" or "form"', ("'xml'",)),
            ("enabled", "true or false", ("3",)),
            ("connect_timeout_s", "0.1 to 60 seconds", ("0.09", "60.1", "nan", "true")),
            ("read_timeout_s", "0.1 to 300 seconds", ("301", f"1{'0' * 400}", "true")),
            ("max_attempts", "1 to 50 attempts, including the first", ("0", "51", "1.5", "true")),
            ("rate", 'a rate such as "10/s"', ("'fast'", "10")),
            ("content_window_s", "0 to 31622400 seconds, 0 for no gate", ("-1", "true")),
            ("breaker_failures", "0 to 1000 failures in a row, 0 for no breaker", ("true",)),
            ("breaker_pause_s", "1 to 86400 seconds", ("true",)),
        )
        for value in values
    ),
    *((text, "routes", "must be tables [[routes]]") for text in ("[routes]\nname = 'a'", "routes = [\n3]")),
    ("routes = []", "routes", "must end with a route that has no match"),
    ("[[routes]]", "routes.#1.name", "is required; it must be a name"),
    ("[[routes]]\nname = ''", "routes.#1.name", "must be a name"),
    (f"{ROUTE}mtach = []", "routes.a.mtach", "is unknown; known are name, match"),
    *(
        (f"{ROUTE}match = {value}", "routes.a.match", "must be a list such as")
        for value in ("'x'", "{ field = 'subject' }", "[3]")
    ),
    (f"{ROUTE}match = [{{ contains = 'b' }}]", "routes.a.match.#1.field", 'is required; it must be "subject", '),
    (f"{ROUTE}match = [{{ field = 'colour', contains = 'b' }}]", "routes.a.match.#1.field", 'must be "subject", '),
    (f"{ROUTE}match = [\n{{ field = 'subject' }}]", "routes.a.match.#1", "must have exactly one of equals"),
    (CONDITION.format("equals = '', regex = 'a'"), "routes.a.match.#1", "must have exactly one of equals"),
    *(
        (CONDITION.format(f"regex = {regex}"), "routes.a.match.#1.regex", f"must be a regular expression{problem}")
        for regex, problem in (
            ("'('", "; missing"),
            ("'a(?=b)'", "; invalid perl operator: (?="),
            ("'(a)\\1'", "; invalid escape"),
            (f"'{'(' * 5000}'", "; "),
            ("3", ""),
        )
    ),
    *(
        (f"{ROUTE}match = [{{ field = {field}, {test} }}]\n[[routes]]\nname = 'z'", "routes.a.match.#1", problem)
        for field, test, problem in (
            ("'size'", "equals = '3'", "must have exactly one of over and under"),
            ("'size'", "over = 1, under = 3", "must have exactly one of over and under"),
            ("'subject'", "over = 1", "must have exactly one of equals, contains and regex"),
            ("'automated'", "equals = 'bounced'", 'must have an equals of "auto_reply", "bounce", '),
            ("'authentication.dmarc'", "equals = 'passed'", 'must have an equals of "pass", "fail", "none" or ""'),
            ("'has_attachments'", "equals = 'yes'", 'must have an equals of "true" or "false"'),
        )
    ),
    *(
        (f"{ROUTE}match = [{{ field = '{field}', equals = 'b' }}]", "routes.a.match.#1.field", 'must be "subject", ')
        for field in ("authentication", "header:", "header:X Y", "Header:X", "headers")
    ),
    (CONDITION.replace("subject", "size").format("over = true"), "routes.a.match.#1.over", "must be 0 to 1000000000"),
    (CONDITION.replace("subject", "size").format("over = 0.5"), "routes.a.match.#1.over", "must be 0 to 1000000000"),
    (CONDITION.replace("subject", "size").format("under = 0"), "routes.a.match.#1.under", "must be 1 to 1000000000"),
    (f"{ROUTE}drop = true\nstop = false", "routes.a.stop", "must be left out of a route with drop = true"),
    (
        f"{TWO_DESTINATIONS}{ROUTE}drop = true\ndestinations = ['b']",
        "routes.a.destinations",
        "must be left out of a route with drop = true",
    ),
    (f"{ROUTE}otherwise = true\n[[routes]]\nname = 'z'", "routes.a.otherwise", "must be left out of all routes but"),
    (CONDITION.format("contains = 3"), "routes.a.match.#1.contains", "must be text"),
    *(
        (CONDITION.format(test), "routes.a.match.#1", "must have some text to search for")
        for test in ("contains = ''", "contains = ' '", "contains = '', exact = true", "regex = ''")
    ),
    (CONDITION.partition("\n[[")[0].format("contains = 'b'"), "routes", "must end with a route that has no match"),
    (f"{ROUTE}stop = 'x'", "routes.a.stop", "must be true or false"),
    (f"{ROUTE}content = 'x'", "routes.a.content", "must be true or false"),
    (f"{ROUTE}destinations = [\n'nowhere']", "routes.a.destinations.#1", "must be one of default"),
    (f"{ROUTE}destinations = 'default'", "routes.a.destinations", "must be a list of one or more names"),
    (f"{ROUTE}destinations = []", "routes.a.destinations", "must be a list of one or more names"),
    (f"{ROUTE}subject_groups = 'maybe'", "routes.a.subject_groups", 'must be "all", "patterns" or "off"'),
    *(
        (f"{TWO_DESTINATIONS}{ROUTE}{rest}", "routes.a.destinations", "is required; it must be one or more of b, c")
        for rest in ("", "stop = false", "[[routes]]\nname = 'z'\ndestinations = ['b']")
    ),
    (TWO_DESTINATIONS, "routes", "is required with several destinations, to say which emails go to b, c"),
    ("[subject_patterns]", "subject_patterns", "must be tables [[subject_patterns]]"),
    (PATTERN, "subject_patterns.a.regex", "is required; it must be a regular expression"),
    (f"{PATTERN}regex = ''", "subject_patterns.a.regex", "must be a regular expression that captures"),
    (f"{PATTERN}regex = 'lot'", "subject_patterns.a.regex", "must be a regular expression that captures"),
    (f"{PATTERN}regex = '(lot) (1)'", "subject_patterns.a.regex", "must be a regular expression that captures"),
    ("[media]\nhosts = [3]", "media.hosts", "must be a list of hosts"),
    ("[media]\nhost = []", "media.host", "is unknown; known are hosts"),
    ("[media]\nidentity = { 'a.example' = 'id' }", "media.identity", "must be a table such as"),
    ("alerts = 3", "alerts", "must be a table [alerts]"),
    ("[alerts]\nurl = 'log:'", "alerts.url", "must be an http:// or https:// address"),
    ("[alerts]\nafter_s = true", "alerts.after_s", "must be 0 to 86400 seconds"),
    (f"[alerts]\nsecret = '{SIGNING[0]}'", "alerts", "must have a url, since it has a secret"),
    ("[alerts]\nurl = ''", "alerts.url", "must be an http:// or https:// address"),
    ("[alerts]\noff = ['rain']", "alerts.off", "must be a list of some of redis_errors"),
    ("[providers]\nses = 3", "providers", TABLES.format("providers")),
    ("[providers.SES]", "providers", TABLES.format("providers")),
)


@pytest.mark.parametrize(("text", "name", "problem"), MISTAKES)
def test_a_mistake_is_reported_in_one_line_with_its_place(text: str, name: str, problem: str) -> None:
    (line,) = problems_of(text)
    assert re.fullmatch(rf"mailonce\.toml(, line \d+)?: {re.escape(name)} {re.escape(problem)}.*", line), line
    assert SECRET not in line
    assert SIGNING[0] not in line


def test_every_mistake_gets_its_line_in_the_order_of_the_file() -> None:
    conditional = f"{ROUTE}match = [{{ field = 'body', contains = 'b' }}]\n"
    assert problems_of(f"bogus = 1\n{ROUTE}media = 'some'\n{CRM}format = 'xml'") == [
        f"mailonce.toml, line 1: bogus is unknown; known are {SECTIONS}",
        'mailonce.toml, line 4: routes.a.media must be "off", "listed" or "all"',
        'mailonce.toml, line 7: destinations.crm.format must be "json" or "form"',
    ]
    assert problems_of(f"{TWO_DESTINATIONS}{ROUTE}destinations = ['b', 'd', 'e']\n{conditional}") == [
        "mailonce.toml, line 5: routes must end with a route that has no match, for all other emails",
        "mailonce.toml, line 7: routes.a.destinations.#2 must be one of b, c",
        "mailonce.toml, line 7: routes.a.destinations.#3 must be one of b, c",
        "mailonce.toml, line 8: routes.a.destinations is required; it must be one or more of b, c",
    ]
    assert problems_of(f"{CRM}headers.X-A = 'env:NOWHERE'\n[providers.ses]\ntopics = ['file:none']") == [
        'mailonce.toml, line 3: destinations.crm.headers.X-A refers to the environment variable "NOWHERE", '
        "which is not set or empty",
        'mailonce.toml, line 5: providers.ses.topics.#1 refers to the file "none", which does not exist, is empty, or '
        "is not UTF-8 text",
    ]


EVERY_TEXT = """
destinations.crm = { url = "V", secret = ["V"], format = "V", rate = "V", max_attempts = "V", enabled = "V" }
destinations.web = { url = "V", secret = "V", read_timeout_s = "V", headers = { X-A = "V", Host = "V" } }
subject_patterns = [{ name = "V", phrases = "V", regex = "V" }, "V"]
media = { hosts = "V", identity = { "a.example" = "V" } }
providers = { a = "V" }
[[routes]]
name = "V"
match = [{ field = "V", equals = "V", exact = "V" }, { field = "subject", regex = "V" }, "V"]
destinations = ["V", "V"]
subject_groups = "V"
media = "V"
stop = "V"
"""


@pytest.mark.parametrize(
    "value", [SECRET, f"(?P<{SECRET}>", f"(?{SECRET}", f"{SECRET}\nsecond line", f"{SECRET}\udcff"]
)
def test_the_value_of_a_variable_is_never_shown(value: str) -> None:
    lines = problems_of(EVERY_TEXT.replace('"V"', '"env:V"'), V=value)
    assert len(lines) >= 20
    assert not any("s3cr3t" in line or "second line" in line for line in lines)


def test_the_file_is_the_one_named_or_the_one_in_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_ADDRESS", "https://crm.example/in")
    Path("mailonce.toml").write_text("[destinations.crm]\nurl = 'env:CRM_ADDRESS'")
    assert urls(load_config(load_settings())) == {"crm": "https://crm.example/in"}
    Path("other.toml").write_text("[destinations.other]\nurl = 'log:'")
    assert urls(load_config(load_settings(mailonce_config="other.toml"))) == {"other": "log:"}


KEYS = (*DestinationConfig.model_fields, *RouteConfig.model_fields, *Condition.model_fields, "phrases", "[key]", "")
LEAVES = st.sampled_from(
    ["''", "'a'", "'log:'", "'('", "'(a)'", "'off'", "'env:V'", "'env:X'", "'file:x'", "0", "1", "-1", "1e400", "nan"]
    + ["true", "1979-05-27", "07:32:00", "'subject'", "'https://a/'", "'https://[/'", "9" * 400, "'crm'"]
)


def _table(pairs: list[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"'{key}' = {value}" for key, value in dict(pairs).items()) + "}"


NODES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda values: f"[{', '.join(values)}]")
        | st.lists(st.tuples(st.sampled_from(KEYS), inner), max_size=5).map(_table)
    ),
)
ALMOST_RIGHT = (
    *(f"{section} = {{1}} # {{0}}" for section in (*Config.model_fields, "bogus")),
    "[destinations.crm]\nurl = 'log:'\n'{}' = {}",
    "[[routes]]\nname = 'a'\n'{}' = {}",
    "[[routes]]\nname = 'a'\nmatch = [{{ field = 'subject', '{}' = {} }}]\n[[routes]]\nname = 'b'",
    "[[subject_patterns]]\nname = 'a'\n'{}' = {}",
    "[media]\n'{}' = {}",
    "[providers.'{}']\na = {}",
)


FILES = st.binary() | st.builds(
    lambda text, key, value: text.format(key, value).encode(),
    st.sampled_from(ALMOST_RIGHT),
    st.sampled_from(KEYS),
    NODES,
)


@given(FILES)
@example(f"[providers.ses]\na = {'[' * 200}1{']' * 200}".encode())
@example(f"[providers.ses]\na = {'{a=' * 900}1{'}' * 900}".encode())
@example(b"routes = [{'name' = 'a', 'destinations' = []}]")
@example(b"destinations = {'crm' = {'url' = 'https://[/'}}")
def test_no_file_crashes(content: bytes) -> None:
    Path("mailonce.toml").write_bytes(content)
    try:
        settings = load_settings()
        config = load_config(settings, {"V": SECRET})
    except SettingsError as error:
        assert str(error).startswith("mailonce.toml")
        assert SECRET not in str(error)
    else:
        assert describe_config(settings, config)
