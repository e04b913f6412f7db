"""mailonce.toml: what it may say, what holds without it, and how each mistake in it is reported."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from deduplication.media import MediaMode
from deduplication.subject_group import DEFAULT_PATTERNS, GroupMode, SubjectPattern
from orchestrator.config.model import EVERYTHING_ELSE, UNSUBSCRIBE, Config, DestinationConfig, load_config
from orchestrator.config.settings import SettingsError, load_settings
from orchestrator.operations.explain import shown

at_leisure = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
SECRET = "s3cr3t-that-must-not-be-shown"
SECTIONS = "destinations, routes, subject_patterns, media, alerts, providers"
SIGNING = [f"whsec_{base64.b64encode(bytes([each]) * 24).decode()}" for each in range(2)]


def config_of(text: str, **environ: str) -> Config:
    Path("mailonce.toml").write_text(text, encoding="utf-8")
    return load_config(load_settings(), environ)


def complaints_of(text: str, **environ: str) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        config_of(text, **environ)
    return str(raised.value).splitlines()


def urls(config: Config) -> dict[str, str]:
    return {name: destination.url for name, destination in config.destinations.items()}


@pytest.mark.parametrize("text", [None, "", "# only a comment\n"])
def test_without_a_word_in_it_the_shipped_defaults_hold(text: str | None) -> None:
    config = load_config(load_settings()) if text is None else config_of(text)
    assert urls(config) == {"default": "log:"}
    assert config.routes == (UNSUBSCRIBE, EVERYTHING_ELSE)
    assert config.patterns == DEFAULT_PATTERNS
    assert config.providers == {}


@pytest.mark.parametrize("secrets", [(), (SIGNING[0],), tuple(SIGNING)])
@pytest.mark.parametrize("text", [None, "[media]\nresolve = ['bit.ly']"])
def test_webhook_url_and_its_secrets_are_the_destination_where_the_file_names_none(
    text: str | None, secrets: tuple[str, ...]
) -> None:
    if text is not None:
        Path("mailonce.toml").write_text(text)
    config = load_config(load_settings(webhook_url="https://crm.example/hook", webhook_secret=",".join(secrets)))
    assert urls(config) == {"default": "https://crm.example/hook"}
    assert config.destinations["default"].secret == secrets


def test_a_wrong_webhook_secret_is_reported_without_showing_it() -> None:
    with pytest.raises(SettingsError, match="^WEBHOOK_SECRET takes Standard Webhooks secrets") as raised:
        load_config(load_settings(webhook_secret=f"{SIGNING[0]},{SECRET}"))
    assert SECRET not in str(raised.value)
    assert SIGNING[0] not in str(raised.value)


def test_a_destination_in_the_file_beside_webhook_url_is_an_error_that_names_both() -> None:
    Path("mailonce.toml").write_text('[destinations.crm]\nurl = "https://crm.example/in"')
    with pytest.raises(SettingsError, match=r"toml, line 1: destinations\.crm and WEBHOOK_URL both say where"):
        load_config(load_settings(webhook_url="https://other.example"))


def test_a_file_may_refer_to_webhook_url_as_to_any_variable() -> None:
    Path("mailonce.toml").write_text('[destinations.crm]\nurl = "env:WEBHOOK_URL"')
    config = load_config(load_settings(webhook_url=(url := "https://crm.example/in")), {"WEBHOOK_URL": url})
    assert urls(config) == {"crm": url}


def test_only_without_any_destination_it_is_a_trial() -> None:
    assert load_config(load_settings()).is_trial
    assert not load_config(load_settings(webhook_url="https://crm.example")).is_trial
    assert not config_of("[destinations.default]\nurl = 'log:'").is_trial, "printing is what was asked for"


def test_what_the_file_takes_from_the_environment_may_stand_in_dotenv() -> None:
    Path(".env").write_text("CRM_URL=https://crm.example/in\n")
    Path("mailonce.toml").write_text('[destinations.crm]\nurl = "env:CRM_URL"')
    assert urls(load_config(load_settings())) == {"crm": "https://crm.example/in"}


def test_what_a_destination_does_not_say_has_a_default() -> None:
    (destination,) = config_of("[destinations.crm]\nurl = 'log:'").destinations.values()
    assert destination.model_dump() == {
        "url": "log:",
        "secret": (),
        "format": "json",
        "fallback_form": False,
        "headers": {},
        "connect_timeout_s": 3,
        "read_timeout_s": 5,
        "max_attempts": 10,
        "rate": None,
        "content_window_s": None,
        "enabled": True,
        "breaker_failures": 5,
        "breaker_pause_s": 30,
    }


@pytest.mark.parametrize(
    ("said", "field", "read"),
    [
        ("url = 'https://u:p@crm.example:8443/hooks?a=b'", "url", "https://u:p@crm.example:8443/hooks?a=b"),
        (f"secret = '{SIGNING[0]}'", "secret", (SIGNING[0],)),
        (f"secret = {SIGNING}", "secret", tuple(SIGNING)),
        ("format = 'form'", "format", "form"),
        ("fallback_form = true", "fallback_form", True),
        ("headers = { X-Team = 'sales', x_1 = '' }", "headers", {"X-Team": "sales", "x_1": ""}),
        ("headers = { Authorization = 'Bearer \tab c~' }", "headers", {"Authorization": "Bearer \tab c~"}),
        ("connect_timeout_s = 0.1", "connect_timeout_s", 0.1),
        ("connect_timeout_s = 60", "connect_timeout_s", 60),
        ("read_timeout_s = 300", "read_timeout_s", 300),
        ("max_attempts = 1", "max_attempts", 1),
        ("max_attempts = 50", "max_attempts", 50),
        ("rate = '600/min'", "rate", "600/min"),
        ("content_window_s = 0", "content_window_s", 0),
        ("enabled = false", "enabled", False),
        ("breaker_failures = 0", "breaker_failures", 0),
        ("breaker_pause_s = 1", "breaker_pause_s", 1),
        ("breaker_pause_s = 86400", "breaker_pause_s", 86400),
        # What comes from a variable is text.
        ("max_attempts = 'env:SEVEN'", "max_attempts", 7),
        ("connect_timeout_s = 'env:SEVEN'", "connect_timeout_s", 7.0),
        ("enabled = 'env:NO'", "enabled", False),
        ("secret = ['env:SIGNING']", "secret", (SIGNING[1],)),
        ("headers = { X-Team = 'env:NO' }", "headers", {"X-Team": "false"}),
    ],
)
def test_a_destination_takes(said: str, field: str, read: Any) -> None:
    text = f"[destinations.crm]\n{said}\n" + ("" if field == "url" else "url = 'log:'")
    config = config_of(text, SEVEN="7", NO="false", SIGNING=SIGNING[1])
    assert getattr(config.destinations["crm"], field) == read


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
        match = [
            { field = "subject", contains = "unsubscribe", exact = true },
            { field = "recipient", equals = "list@example.org" },
        ]
        any = true
        destinations = ["crm"]
        subject_groups = "off"
        media = "all"
        content = true
        realtime_only = true
        identity_by_recipient = true
        stop = false

        [[routes]]
        name = "rest"
        destinations = ["archive", "crm"]
        """
    )
    opt_out, rest = config.routes
    assert opt_out.model_dump() == {
        "name": "opt out",
        "match": (
            {"field": "subject", "equals": None, "contains": "unsubscribe", "regex": None, "exact": True},
            {"field": "recipient", "equals": "list@example.org", "contains": None, "regex": None, "exact": False},
        ),
        "any": True,
        "destinations": ("crm",),
        "subject_groups": GroupMode.OFF,
        "media": MediaMode.ALL,
        "content": True,
        "realtime_only": True,
        "identity_by_recipient": True,
        "stop": False,
    }
    said = rest.model_dump(exclude={"name", "match", "any", "stop", "destinations"})
    assert set(said.values()) == {None}
    assert (rest.name, rest.match, rest.any, rest.stop) == ("rest", (), False, True)
    assert rest.destinations == ("archive", "crm")


def test_a_route_that_goes_on_may_leave_the_destinations_to_those_after_it() -> None:
    config = config_of(f"{TWO_DESTINATIONS}{ROUTE}stop = false\n{ROUTE}destinations = ['b']")
    assert [route.destinations for route in config.routes] == [None, ("b",)]


def test_what_the_file_says_of_providers_is_passed_on() -> None:
    config = config_of(
        """
        [providers.mailgun]
        signing_key = "env:KEY"
        [providers.ses]
        topics = ["arn:1", "env:KEY"]
        """,
        KEY=SECRET,
    )
    assert config.providers == {"mailgun": {"signing_key": SECRET}, "ses": {"topics": ["arn:1", SECRET]}}
    error = config.error(("providers", "ses", "topics"), "takes a list of ARNs")
    assert str(error) == "mailonce.toml, line 5: providers.ses.topics takes a list of ARNs"
    assert str(Config().error(("providers", "ses"), "takes topics")) == "providers.ses takes topics"


def test_secrets_stay_out_of_what_a_config_prints_as() -> None:
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
    assert SECRET not in repr(config)
    assert SIGNING[0] not in repr(config)


CRM = "[destinations.crm]\nurl = 'log:'\n"
TWO_DESTINATIONS = "[destinations.b]\nurl = 'log:'\n[destinations.c]\nurl = 'log:'\n"
ROUTE = "[[routes]]\nname = 'a'\n"
PATTERN = "[[subject_patterns]]\nname = 'a'\n"
ADDRESS = 'takes an http:// or https:// address, or "log:"'
YES_OR_NO = "takes true or false"
SIGNING_TAKES = "takes a Standard Webhooks secret"
NAME_TAKES = 'takes small letters, digits, "-" and "_" in its name'
ONE_LINE = "takes ASCII text without line breaks and without spaces around it"
HEADERS_TAKE = "takes a table of texts such as "
SOME_TEXT = "takes some text to look for; without any, every email has it"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("bogus = 1", f'line 1: takes no "bogus"; it takes {SECTIONS}'),
        ("[route]", 'line 1: takes no "route"; did you mean routes?'),
        ("'[key]' = 1", 'line 1: takes no "[key]"; it takes destinations'),
        ("'a\\nb' = 1", 'line 1: takes no "a\\\\nb"'),
        # destinations
        ("destinations = 3", "line 1: destinations takes tables, each written [destinations.name]"),
        ("[destinations]\ncrm = 3", "line 2: destinations takes tables, each written [destinations.name]"),
        ("[destinations]\nurl = 3", "line 2: destinations takes tables, each written [destinations.name]"),
        ("[destinations.CRM]\nurl = 'log:'", f"line 1: destinations.CRM {NAME_TAKES}"),
        ("[destinations.'']\nurl = 'log:'", f'line 1: destinations."" {NAME_TAKES}'),
        ("[destinations.'a\\n']\nurl = 'log:'", f'line 1: destinations."a\\\\n" {NAME_TAKES}'),
        ("[destinations.'[key]']\nurl = 'log:'", f'line 1: destinations."[key]" {NAME_TAKES}'),
        ("[destinations.-a]\nurl = 'log:'", f"line 1: destinations.-a {NAME_TAKES}"),
        ("[destinations.crm]", "line 1: destinations.crm.url is needed; it takes an http:// or"),
        ("[destinations.crm]\nurl = 3", f"line 2: destinations.crm.url {ADDRESS}"),
        (f"[destinations.crm]\nurl = 'ftp://{SECRET}@x'", f"line 2: destinations.crm.url {ADDRESS}"),
        (f"{CRM}secrt = 'x'", 'line 3: destinations.crm takes no "secrt"; did you mean secret?'),
        (f"{CRM}zzz = 'x'", 'line 3: destinations.crm takes no "zzz"; it takes url, secret, format'),
        (f"{CRM}secret = '{SECRET}'", f"line 3: destinations.crm.secret {SIGNING_TAKES}"),
        (f"{CRM}secret = ''", f"line 3: destinations.crm.secret {SIGNING_TAKES}"),
        (f"{CRM}secret = ['{SIGNING[0]}',\n'{SECRET}']", f"line 4: destinations.crm.secret.#2 {SIGNING_TAKES}"),
        (f"{CRM}secret = []", f"line 3: destinations.crm.secret {SIGNING_TAKES}"),
        (f"{CRM}secret = 3", f"line 3: destinations.crm.secret {SIGNING_TAKES}"),
        (f"{CRM}secret = [3]", f"line 3: destinations.crm.secret {SIGNING_TAKES}"),
        (f"{CRM}format = 'xml'", 'line 3: destinations.crm.format takes "json" or "form"'),
        (f"{CRM}fallback_form = 'perhaps'", f"line 3: destinations.crm.fallback_form {YES_OR_NO}"),
        (f"{CRM}enabled = 3", f"line 3: destinations.crm.enabled {YES_OR_NO}"),
        (f"{CRM}headers = 3", f"line 3: destinations.crm.headers {HEADERS_TAKE}"),
        (f"{CRM}headers.X-A = 3", f"line 3: destinations.crm.headers {HEADERS_TAKE}"),
        (f"{CRM}headers.'X A' = ''", 'line 3: destinations.crm.headers."X A" takes letters, digits and '),
        (f"{CRM}headers.X-É = ''".replace("X-É", "'X-É'"), 'destinations.crm.headers."X-É" takes letters'),
        (f"{CRM}headers.'' = ''", 'line 3: destinations.crm.headers."" takes letters, digits and '),
        (f'{CRM}headers.X-A = "{SECRET}\\r\\nX-B: c"', f"line 3: destinations.crm.headers.X-A {ONE_LINE}"),
        (f'{CRM}headers.X-A = "{SECRET}\\n"', f"line 3: destinations.crm.headers.X-A {ONE_LINE}"),
        (f'{CRM}headers.X-A = " {SECRET}"', f"line 3: destinations.crm.headers.X-A {ONE_LINE}"),
        (f'{CRM}headers.X-A = "é{SECRET}"', f"line 3: destinations.crm.headers.X-A {ONE_LINE}"),
        (f"{CRM}headers.X-A = ''\nheaders.x-a = ''", "line 3: destinations.crm.headers takes each header once"),
        (f"{CRM}connect_timeout_s = 0.09", "line 3: destinations.crm.connect_timeout_s takes 0.1 to 60 seconds"),
        (f"{CRM}connect_timeout_s = 60.1", "line 3: destinations.crm.connect_timeout_s takes 0.1 to 60 seconds"),
        (f"{CRM}connect_timeout_s = nan", "line 3: destinations.crm.connect_timeout_s takes 0.1 to 60 seconds"),
        (f"{CRM}read_timeout_s = 0", "line 3: destinations.crm.read_timeout_s takes 0.1 to 300 seconds"),
        (f"{CRM}read_timeout_s = 301", "line 3: destinations.crm.read_timeout_s takes 0.1 to 300 seconds"),
        (f"{CRM}read_timeout_s = true", "line 3: destinations.crm.read_timeout_s takes 0.1 to 300 seconds"),
        (f"{CRM}read_timeout_s = 1{'0' * 400}", "line 3: destinations.crm.read_timeout_s takes 0.1 to 300 seconds"),
        (f"{CRM}max_attempts = 0", "line 3: destinations.crm.max_attempts takes 1 to 50 attempts"),
        (f"{CRM}max_attempts = 51", "line 3: destinations.crm.max_attempts takes 1 to 50 attempts"),
        (f"{CRM}max_attempts = 1.5", "line 3: destinations.crm.max_attempts takes 1 to 50 attempts"),
        (f"{CRM}max_attempts = true", "line 3: destinations.crm.max_attempts takes 1 to 50 attempts"),
        (f"{CRM}rate = 'fast'", 'line 3: destinations.crm.rate takes a rate such as "10/s"'),
        (f"{CRM}rate = 10", 'line 3: destinations.crm.rate takes a rate such as "10/s"'),
        (f"{CRM}content_window_s = -1", "line 3: destinations.crm.content_window_s takes whole seconds"),
        (f"{CRM}content_window_s = 31622401", "line 3: destinations.crm.content_window_s takes whole seconds"),
        (f"{CRM}breaker_failures = -1", "line 3: destinations.crm.breaker_failures takes 0 to 1000 failures"),
        (f"{CRM}breaker_pause_s = 0", "line 3: destinations.crm.breaker_pause_s takes 1 to 86400 seconds"),
        (f"{CRM}breaker_pause_s = 86401", "line 3: destinations.crm.breaker_pause_s takes 1 to 86400 seconds"),
        # routes
        ("[routes]\nname = 'a'", "line 1: routes takes tables, each written [[routes]]"),
        ("routes = [\n3]", "line 2: routes takes tables, each written [[routes]]"),
        ("routes = []", "line 1: routes takes a last one without match, so that every email has a way"),
        ("[[routes]]", "line 1: routes.#1.name is needed; it takes a name"),
        ("[[routes]]\nname = ''", "line 2: routes.#1.name takes a name"),
        (f"{ROUTE}mtach = []", 'line 3: routes.a takes no "mtach"; did you mean match?'),
        (f"{ROUTE}match = 'x'", "line 3: routes.a.match takes a list of conditions such as"),
        (f"{ROUTE}match = {{ field = 'subject' }}", "line 3: routes.a.match takes a list of conditions such as"),
        (f"{ROUTE}match = [3]", "line 3: routes.a.match takes a list of conditions such as"),
        (f"{ROUTE}match = [{{ contains = 'b' }}]", 'routes.a.match.#1.field is needed; it takes "subject", "sender"'),
        (f"{ROUTE}match = [{{ field = 'to', contains = 'b' }}]", 'routes.a.match.#1.field takes "subject", "sender", '),
        (f"{ROUTE}match = [\n{{ field = 'subject' }}]", "line 4: routes.a.match.#1 takes exactly one of equals"),
        (f"{ROUTE}match = [{{ field = 'subject', equals = '', regex = 'a' }}]", "match.#1 takes exactly one of equals"),
        (
            f"{ROUTE}match = [{{ field = 'subject', regex = '(' }}]",
            "match.#1.regex takes a regular expression; missing",
        ),
        (f'{ROUTE}match = [{{ field = "body", regex = "(?\\n" }}]', "match.#1.regex takes a regular expression; inv"),
        (
            f"{ROUTE}match = [{{ field = 'body', regex = 'a(?=b)' }}]",
            r"a regular expression; invalid perl operator: (?=",
        ),
        (f"{ROUTE}match = [{{ field = 'body', regex = '(a)\\1' }}]", "no lookaround, no backreferences"),
        (f"{ROUTE}match = [{{ field = 'body', regex = '\\bété' }}]", "beside other letters than ASCII"),
        (f"{ROUTE}match = [{{ field = 'body', regex = 'a{{2000}}' }}]", "regex takes a regular expression; inv"),
        (f"{ROUTE}match = [{{ field = 'body', regex = '{'(' * 5000}' }}]", "regex takes a regular expression"),
        (f"{ROUTE}match = [{{ field = 'body', regex = 3 }}]", "match.#1.regex takes a regular expression"),
        (f"{ROUTE}match = [{{ field = 'body', contains = 3 }}]", "match.#1.contains takes text"),
        (f"{ROUTE}match = [{{ field = 'body', contains = '' }}]", f"match.#1 {SOME_TEXT}"),
        (f"{ROUTE}match = [{{ field = 'body', contains = ' ' }}]", f"match.#1 {SOME_TEXT}"),
        (f"{ROUTE}match = [{{ field = 'body', contains = '', exact = true }}]", f"match.#1 {SOME_TEXT}"),
        (f"{ROUTE}match = [{{ field = 'body', regex = '' }}]", f"match.#1 {SOME_TEXT}"),
        (f"{ROUTE}match = [{{ field = 'body', equals = '', exact = 3 }}]", f"match.#1.exact {YES_OR_NO}"),
        (f"{ROUTE}\nmatch = [{{ field = 'body', contains = 'b' }}]", "line 4: routes takes a last one without match"),
        (f"{ROUTE}any = 'x'", f"line 3: routes.a.any {YES_OR_NO}"),
        (f"{ROUTE}stop = 'x'", f"line 3: routes.a.stop {YES_OR_NO}"),
        (f"{ROUTE}content = 'x'", f"line 3: routes.a.content {YES_OR_NO}"),
        (f"{ROUTE}realtime_only = 'x'", f"line 3: routes.a.realtime_only {YES_OR_NO}"),
        (f"{ROUTE}identity_by_recipient = 'x'", f"line 3: routes.a.identity_by_recipient {YES_OR_NO}"),
        (
            f"{ROUTE}destinations = [\n'nowhere']",
            'line 4: routes.a.destinations takes one or more of default; not "now',
        ),
        (f"{ROUTE}destinations = 'default'", "line 3: routes.a.destinations takes a list of one or more names"),
        (f"{ROUTE}destinations = []", "line 3: routes.a.destinations takes a list of one or more names"),
        (f"{ROUTE}destinations = ['default', 'default']", "line 3: routes.a.destinations takes each destination once"),
        (f"{ROUTE}subject_groups = 'maybe'", 'line 3: routes.a.subject_groups takes "all", "patterns" or "off"'),
        (f"{ROUTE}media = 'some'", 'line 3: routes.a.media takes "off", "listed" or "all"'),
        (f"{TWO_DESTINATIONS}{ROUTE}", "line 5: routes.a.destinations is needed, one or more of b, c"),
        (f"{TWO_DESTINATIONS}{ROUTE}stop = false", "line 5: routes.a.destinations is needed, one or more of b, c"),
        (
            f"{TWO_DESTINATIONS}{ROUTE}[[routes]]\nname = 'z'\ndestinations = ['b']",
            "line 5: routes.a.destinations is needed, one or more of b, c",
        ),
        (TWO_DESTINATIONS, "mailonce.toml: routes is needed with several destinations, to say which emails go to b, c"),
        # subject patterns, media, providers
        ("[subject_patterns]", "line 1: subject_patterns takes tables, each written [[subject_patterns]]"),
        (f"{PATTERN}", "line 1: subject_patterns.a.regex is needed; it takes a regular expression"),
        (f"{PATTERN}regex = '('", "line 3: subject_patterns.a.regex takes a regular expression; missing )"),
        (f"{PATTERN}regex = 'lot'", "subject_patterns.a.regex takes a regex that captures exactly one value"),
        (f"{PATTERN}regex = '(lot) (1)'", "takes a regex that captures exactly one value"),
        (f"{PATTERN}regex = '(lot)'\nphrases = 'lot'", "line 4: subject_patterns.a.phrases takes a list of texts"),
        ("media = 3", "line 1: media takes a table, written [media]"),
        ("[media]\nhosts = 'a.example'", "line 2: media.hosts takes a list of hosts"),
        ("[media]\nhosts = [3]", "line 2: media.hosts takes a list of hosts"),
        ("[media]\nidentity = { 'a.example' = 'id' }", "line 2: media.identity takes a table such as"),
        ("alerts = 3", "line 1: alerts takes a table, written [alerts]"),
        ("[alerts]\nurl = 'log:'", "line 2: alerts.url takes an http:// or https:// address"),
        ("[alerts]\nurl = ''", "line 2: alerts.url takes an http:// or https:// address"),
        ("[alerts]\nurl = 'https://a.example'\nsecret = 'x'", "line 3: alerts.secret takes a Standard Webhooks secret"),
        ("[alerts]\nurl = 'https://a.example'\nsecret = []", "line 3: alerts.secret takes a Standard Webhooks secret"),
        (f"[alerts]\nsecret = '{SIGNING[0]}'", "line 1: alerts takes a url beside secret"),
        ("[alerts]\nafter_s = true", "line 2: alerts.after_s takes 0 to 86400 seconds"),
        ("[alerts]\noff = ['rain']", "line 2: alerts.off takes a list of some of redis_errors"),
        ("[alerts]\noff = 'no_worker'", "line 2: alerts.off takes a list of some of redis_errors"),
        ("[alerts]\nafter = 1", 'line 2: alerts takes no "after"; did you mean after_s?'),
        ("[media]\nhost = []", 'line 2: media takes no "host"; did you mean hosts?'),
        ("[providers]\nses = 3", "line 2: providers takes tables, each written [providers.name]"),
        ("[providers.SES]", f"line 1: providers.SES {NAME_TAKES}"),
        # the file itself
        ("routes = ", "line 1: Invalid value"),
        ("a = 1\na = 2", "line 2: Cannot overwrite a value"),
    ],
)
def test_a_mistake_is_reported_in_one_line_with_its_place(text: str, complaint: str) -> None:
    (line,) = complaints_of(text)
    assert line.startswith("mailonce.toml")
    assert complaint in line
    assert SECRET not in line
    assert SIGNING[0] not in line


@pytest.mark.parametrize(
    "name",
    [
        "webhook-id",
        "Webhook-Timestamp",
        "WEBHOOK-SIGNATURE",
        "Idempotency-Key",
        "content-type",
        "Content-Length",
        "transfer-encoding",
        "Host",
    ],
)
def test_the_headers_we_set_ourselves_are_refused(name: str) -> None:
    (line,) = complaints_of(f"{CRM}headers.{name} = 'x'")
    assert line.startswith(f"mailonce.toml, line 3: destinations.crm.headers.{name} cannot be set: webhook-id, ")
    assert line.endswith(" are ours")


def test_every_mistake_gets_its_line_in_the_order_of_the_file() -> None:
    text = f"""bogus = 1
[[routes]]
media = "some"
[destinations.crm]
url = "env:NOWHERE"
secret = ["env:NOWHERE", "{SECRET}"]
rate = "file:none"
format = "xml"
"""
    assert complaints_of(text) == [
        f'mailonce.toml, line 1: takes no "bogus"; it takes {SECTIONS}',
        "mailonce.toml, line 2: routes.#1.name is needed; it takes a name",
        'mailonce.toml, line 3: routes.#1.media takes "off", "listed" or "all"',
        "mailonce.toml, line 5: destinations.crm.url takes what the variable NOWHERE says, which is not set",
        "mailonce.toml, line 6: destinations.crm.secret.#1 takes what the variable NOWHERE says, which is not set",
        "mailonce.toml, line 6: destinations.crm.secret.#2 takes a Standard Webhooks secret such as whsec_ and Base64 "
        "of 24 to 64 bytes",
        'mailonce.toml, line 7: destinations.crm.rate takes what the file "none" says, which cannot be read: '
        "No such file or directory",
        'mailonce.toml, line 8: destinations.crm.format takes "json" or "form"',
    ]


def test_every_mistake_in_the_routes_gets_its_line() -> None:
    conditional = f"{ROUTE}match = [{{ field = 'body', contains = 'b' }}]\n"
    assert complaints_of(f"{TWO_DESTINATIONS}{ROUTE}destinations = ['b', 'd', 'e']\n{conditional}") == [
        'mailonce.toml, line 7: routes.a.destinations takes one or more of b, c; not "d"',
        'mailonce.toml, line 7: routes.a.destinations takes one or more of b, c; not "e"',
        "mailonce.toml, line 8: routes.a.destinations is needed, one or more of b, c",
        "mailonce.toml, line 10: routes takes a last one without match, so that every email has a way",
    ]


EVERY_TEXT = """
destinations.crm = { url = "V", secret = ["V"], format = "V", rate = "V", max_attempts = "V", enabled = "V" }
destinations.web = { url = "V", secret = "V", read_timeout_s = "V", headers = { X-A = "V", Host = "V" } }
subject_patterns = [{ name = "V", phrases = "V", regex = "V" }, "V"]
media = { hosts = "V", identity = { "a.example" = "V" }, resolve = "V" }
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
def test_what_a_variable_says_is_never_shown(value: str) -> None:
    lines = complaints_of(EVERY_TEXT.replace('"V"', '"env:V"'), V=value)
    assert len(lines) >= 20
    assert not any("s3cr3t" in line or "second line" in line for line in lines)


def test_what_cannot_be_filled_in_is_reported_also_where_nobody_else_would_complain() -> None:
    text = f"{CRM}headers.X-A = 'env:NOWHERE'\n[providers.ses]\ntopics = ['file:none']"
    assert [line.partition(" takes")[0] for line in complaints_of(text)] == [
        "mailonce.toml, line 3: destinations.crm.headers.X-A",
        "mailonce.toml, line 5: providers.ses.topics.#1",
    ]


def test_a_destination_named_by_a_variable_is_shown_as_written() -> None:
    (line,) = complaints_of(f"{ROUTE}destinations = ['env:V']", V=SECRET)
    assert line == 'mailonce.toml, line 3: routes.a.destinations takes one or more of default; not "env:V"'


def test_the_environment_of_the_process_is_asked_unless_another_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_ADDRESS", "https://crm.example/in")
    Path("mailonce.toml").write_text("[destinations.crm]\nurl = 'env:CRM_ADDRESS'")
    assert urls(load_config(load_settings())) == {"crm": "https://crm.example/in"}
    with pytest.raises(SettingsError, match="CRM_ADDRESS says, which is not set"):
        load_config(load_settings(), {})


def test_a_file_value_is_looked_for_beside_the_toml(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "secret").write_text(f"{SIGNING[0]}\n")
    (tmp_path / "etc" / "my.toml").write_text("[destinations.crm]\nurl = 'log:'\nsecret = 'file:secret'")
    config = load_config(load_settings(mailonce_config=tmp_path / "etc" / "my.toml"), {})
    assert config.destinations["crm"].secret == (SIGNING[0],)


SNIPPETS = (
    "[ ] [[ ]] { } = . , # ' \" ''' \"\"\" \\ : - _ + é 0 1 1.5 inf nan true false 1979-05-27 env: file: env:V V name "
    "destinations routes match field subject contains regex exact subject_patterns phrases media hosts identity "
    "providers crm url log: https:// secret whsec_ headers X-A rate 10/s format json ( [[routes]] [destinations.crm] "
    "[[subject_patterns]] [media] [providers.ses] url='log:' name='a' match=[{field='subject',regex='a'}]"
)
WORDS = st.sampled_from(SNIPPETS.split())
GARBAGE = st.one_of(
    st.text(),
    st.lists(WORDS | st.just("\n") | st.just(" ") | st.text(max_size=3), max_size=30).map("".join),
    st.lists(WORDS, max_size=12).map("\n".join),
)
KEYS = (
    *DestinationConfig.model_fields,
    *type(EVERYTHING_ELSE).model_fields,
    *("field", "equals", "contains", "regex", "exact", "phrases", "hosts", "identity", "resolve", "crm", "[key]", ""),
)
LEAVES = st.one_of(
    st.sampled_from(
        ["''", "'a'", "'log:'", "'('", "'(a)'", "'off'", "'env:V'", "'env:X'", "'file:x'", "0", "1", "-1", "1e400"]
        + ["nan", "true", "1979-05-27", "07:32:00", "'subject'", "'https://a/'", "'https://[/'", "9" * 400, "'crm'"]
    )
)


def _table(pairs: list[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"'{key}' = {value}" for key, value in dict(pairs).items()) + "}"


NODES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda each: f"[{', '.join(each)}]")
        | st.lists(st.tuples(st.sampled_from(KEYS), inner), max_size=5).map(_table)
    ),
)
ALMOST_RIGHT = (
    "[destinations.crm]\nurl = 'log:'\n'{}' = {}",
    "[[routes]]\nname = 'a'\n'{}' = {}",
    "[[routes]]\nname = 'a'\nmatch = [{{ field = 'subject', '{}' = {} }}]\n[[routes]]\nname = 'b'",
    "[[subject_patterns]]\nname = 'a'\n'{}' = {}",
    "[media]\n'{}' = {}",
    "[providers.'{}']\na = {}",
)
TOPS = st.lists(st.tuples(st.sampled_from([*Config.model_fields, "bogus"]), NODES), max_size=5)


def _is_a_config_or_refused(content: bytes) -> None:
    Path("mailonce.toml").write_bytes(content)
    try:
        config = load_config(load_settings(), {"V": SECRET})
    except SettingsError as error:
        assert str(error).startswith("mailonce.toml")
        assert SECRET not in str(error)
    else:
        assert shown(config)


@at_leisure
@given(st.binary() | GARBAGE.map(lambda text: text.encode(errors="surrogatepass")))
@example(b"")
def test_garbage_is_refused_or_taken_but_never_crashes(content: bytes) -> None:
    _is_a_config_or_refused(content)


@at_leisure
@given(TOPS)
@example([("routes", "[{'name' = 'a', 'destinations' = []}]")])
@example([("destinations", "{'crm' = {'url' = 'https://[/'}}")])
def test_no_value_in_any_place_crashes(pairs: list[tuple[str, str]]) -> None:
    text = "\n".join(f"{key} = {value}" for key, value in dict(pairs).items())
    _is_a_config_or_refused(text.encode())


@at_leisure
@given(st.sampled_from(ALMOST_RIGHT), st.sampled_from(KEYS), NODES)
def test_no_value_in_a_file_that_is_right_otherwise_crashes(text: str, key: str, value: str) -> None:
    _is_a_config_or_refused(text.format(key, value).encode())


@pytest.mark.parametrize("depth", range(200, 1000, 25))
@pytest.mark.parametrize(("opens", "closes"), [("[", "]"), ("{a=", "}")])
def test_no_depth_crashes(depth: int, opens: str, closes: str) -> None:
    _is_a_config_or_refused(f"[providers.ses]\na = {opens * depth}1{closes * depth}".encode())


def test_a_file_that_cannot_be_read_is_reported() -> None:
    Path("here.toml").touch()
    settings = load_settings(mailonce_config=Path("here.toml"))
    Path("here.toml").unlink()
    with pytest.raises(SettingsError, match="here.toml: .*No such file"):
        load_config(settings)
