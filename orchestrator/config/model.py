"""mailonce.toml: destinations, routes, subject patterns and providers, validated before anything starts."""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    model_validator,
)

from deduplication.authentication import METHODS, Verdict
from deduplication.automated import AutomatedKind
from deduplication.media import DEFAULT_HOSTS, MediaMode
from deduplication.subject_group import DEFAULT_PATTERNS, GroupMode, SubjectPattern, normalize_no_accents_lower_trim
from deduplication.text import BadRegex, check_regex
from orchestrator.config.file import Document, read_document
from orchestrator.config.settings import Secret, Settings, SettingsError, WebAddress, environment, passes
from orchestrator.config.words import Loc, listed, problem, reason
from orchestrator.delivery.counters import parse_rate

LOG_URL = "log:"
DEFAULT_PATH = Path("mailonce.toml")
NO_FILE = Document(DEFAULT_PATH, "", {}, {})
OUR_HEADERS = (
    *("webhook-id", "webhook-timestamp", "webhook-signature", "idempotency-key"),
    *("content-type", "content-length", "transfer-encoding", "host"),
)
HEADER, AUTHENTICATION, SIZE = "header:", "authentication.", "size"
WORDS = {
    "automated": (*get_args(AutomatedKind), "none", ""),
    **{f"{AUTHENTICATION}{method}": (*get_args(Verdict), "") for method in METHODS},
    "has_attachments": ("true", "false"),
}
"""Tested fields that have one of a few values, the empty one if it is unknown."""
TESTED = (
    *("subject", "sender", "reply_to", "return_path", "recipient", "to", "cc", "body", "thread"),
    *("provider", "source", SIZE, *WORDS),
)
_HEADER_LINE = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+:(?:[!-~](?:[\t -~]*[!-~])?)?")
_HEADERS = f"""a table such as {{ X-Team = "sales" }}: of ASCII, each name once, and none of {", ".join(OUR_HEADERS)}"""
_SECRETS = 'a Standard Webhooks secret ("whsec_..." or "whsk_..."), or a list of them'
_NAMED = 'with names of small letters, digits, "-" and "_"'


def _check_regex(regex: str) -> None:
    try:
        check_regex(regex)
    except BadRegex as error:
        raise reason(f"must be a regular expression; {error}") from None


def _check_one_group(regex: str) -> str:
    if check_regex(regex) != 1:
        raise reason("must be a regular expression that captures exactly one value")
    return regex


def _check_headers(headers: dict[str, str]) -> dict[str, str]:
    names = {name.lower() for name in headers}
    are_printable = all(_HEADER_LINE.fullmatch(f"{name}:{value}") for name, value in headers.items())
    if not are_printable or len(names) < len(headers) or names & set(OUR_HEADERS):
        raise ValueError("not headers of a request, or headers of ours")
    return headers


_bool_as_text = BeforeValidator(lambda value: str(value).lower() if isinstance(value, bool) else value)
_Whole = Annotated[int, _bool_as_text]  # pydantic would read true as 1
_Number = Annotated[float, _bool_as_text]
_Name = Annotated[str, StringConstraints(pattern=r"\A[a-z0-9][a-z0-9_-]*\z")]
_one_or_several = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
# A list that has lost its last secret must not switch signing off.
_Secrets = Annotated[tuple[Secret, ...], _one_or_several, Field(min_length=1)]
_Names = Annotated[tuple[str, ...], Field(min_length=1)]
_Regex = Annotated[str, passes(_check_regex)]
_Headers = Annotated[dict[str, str], AfterValidator(_check_headers)]
_Rate = Annotated[str, Field(min_length=1), passes(parse_rate)]
_Text = Annotated[str, Field(min_length=1)]
_Tested = Annotated[str, StringConstraints(pattern=rf"\A(?:{'|'.join(TESTED)}|{HEADER}[!-9;-~]+)\z")]


class _Model(BaseModel):
    """Every field's description completes the sentence "<field> must be ..."; the text below it says what it does.

    docs/configuration.md is written from both (make docs-reference).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class DestinationConfig(_Model):
    url: Literal["log:"] | WebAddress = Field(
        min_length=1, repr=False, description=f'an http:// or https:// address, or "{LOG_URL}"'
    )
    """Where the webhook goes; "log:" prints it instead."""
    secret: _Secrets = Field(default=(), repr=False, description=_SECRETS)
    """Signs the webhook, with each of them while you rotate; without one, webhooks are not signed."""
    format: Literal["json", "form"] = "json"
    """The format of the webhook's body."""
    fallback_form: bool = False
    """Whether to send a form if the destination answers 415 to JSON."""
    headers: _Headers = Field(default={}, repr=False, description=_HEADERS)
    """Sent with every webhook."""
    connect_timeout_s: _Number = Field(default=3.0, ge=0.1, le=60, description="seconds")
    """How long connecting may take, and sending the body; raise it for large emails over slow lines."""
    read_timeout_s: _Number = Field(default=15.0, ge=0.1, le=300, description="seconds")
    """How long the whole response may take. A request waits at most 8 s for it, and leaves the rest to a retry."""
    max_attempts: _Whole = Field(default=11, ge=1, le=50, description="attempts, including the first")
    """After so many failed attempts a delivery is a dead letter."""
    rate: _Rate | None = Field(default=None, description='a rate such as "10/s"')
    """The highest rate of webhooks, across all processes of all servers."""
    content_window_s: _Whole | None = Field(default=None, ge=0, le=366 * 86_400, description="seconds, 0 for no gate")
    """How long an item with the same first ten words is a duplicate; by default 72 hours for messages, 0 for emails."""
    enabled: bool = True
    """With false, deliveries are stored until it is true again."""
    breaker_failures: _Whole = Field(default=5, ge=0, le=1000, description="failures in a row, 0 for no breaker")
    """The circuit breaker opens after so many failures in a row."""
    breaker_pause_s: _Number = Field(default=30.0, ge=1, le=86_400, description="seconds")
    """How long a failing destination is left alone before one stored delivery probes it."""


class Condition(_Model):
    """One test of one field; accents, case and extra white space matter only if ``exact``."""

    field: _Tested = Field(description=f"{listed(TESTED)}, or {HEADER} and a header's name")
    """The field that is tested: `recipient` is whom it was delivered to, `to` and `cc` are addresses of its headers."""
    equals: Annotated[str | None, _bool_as_text] = Field(default=None, description="text")
    """The field is this text, or empty for `""`; `true` or `false` for `has_attachments`."""
    contains: str | None = Field(default=None, description="text")
    """The field contains this text."""
    regex: _Regex | None = Field(default=None, description="a regular expression")
    """The field has a match of this RE2 expression, a body in its first 100,000 characters."""
    over: _Whole | None = Field(default=None, ge=0, le=10**12, description="bytes")
    """The `size` is more than this: of texts and attachments together."""
    under: _Whole | None = Field(default=None, ge=1, le=10**12, description="bytes")
    """The `size` is less than this."""
    exact: bool = False
    """Whether accents, case and white space matter."""

    @cached_property
    def text(self) -> str:
        """What the field is, or contains."""
        text = self.contains or "" if self.equals is None else self.equals
        return text if self.exact else normalize_no_accents_lower_trim(text)

    @property
    def tests(self) -> dict[str, Any]:
        """The name of its test, with what the field is compared with."""
        names = ("equals", "contains", "regex", "over", "under")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @model_validator(mode="after")
    def _check_one_test(self) -> Self:
        is_size = self.field == SIZE
        if len(self.tests) != 1 or is_size is self.tests.keys().isdisjoint(("over", "under")):
            raise reason(f"must have exactly one of {'over and under' if is_size else 'equals, contains and regex'}")
        if is_size:
            return self
        words = WORDS.get(self.field)
        if words and self.equals is not None and self.equals not in words:
            raise reason(f"must have an equals of {listed(words)}")
        if self.equals is None and not (self.regex or self.text):
            raise reason("must have some text to search for; every email has an empty one")
        return self


class RouteConfig(_Model):
    """None leaves the decision to the next matching routes, then to the settings or the destination."""

    name: _Text = Field(description="a name")
    """Shown in decisions and by `mailonce check`."""
    match: tuple[Condition, ...] = Field(default=(), description='a list such as [{ field = "body", contains = "a" }]')
    """All of them must hold; a route without conditions, as the last one must be, matches every email."""
    any: bool = False
    """One condition is enough."""
    destinations: _Names | None = Field(default=None, description="a list of one or more names of destinations")
    """Where the email goes; may be left out if there is only one destination, or if a later route says it."""
    subject_groups: GroupMode | None = None
    """Overrides SUBJECT_GROUPS for the emails of this route."""
    media: MediaMode | None = None
    """Which links count as files: none, those to listed hosts, or all; by default `off`, but `listed` for messages."""
    content: bool | None = None
    """Whether emails with the same first words are duplicates; by default as the destination's `content_window_s`."""
    realtime_only: bool | None = None
    """Whether emails older than the start of the service are skipped; by default they are not."""
    identity_by_recipient: bool | None = None
    """Whether an email to two of your addresses counts as two, which no group and no file suppresses."""
    stop: bool = True
    """With false, later routes are evaluated too."""
    drop: bool = False
    """Whether the email is not sent, unless an earlier route has named destinations for it. It can be released."""
    otherwise: bool = False
    """On the last route: whether it takes only emails for which no earlier route has named destinations."""


class MediaConfig(_Model):
    hosts: tuple[str, ...] = Field(default=DEFAULT_HOSTS, description="a list of hosts")
    """Hosts whose links are files; replaces the default list."""
    identity: dict[str, tuple[str, ...]] = Field(default={}, description='a table such as { "files.example" = ["id"] }')
    """Hosts where query parameters identify the file, with these parameters; adds to the built-in table."""


class AlertCondition(StrEnum):
    REDIS_ERRORS = "redis_errors"
    LOCAL_JOURNAL = "local_journal"
    LOW_HIT_RATE = "low_hit_rate"
    DEAD_LETTERS = "dead_letters"
    BREAKER_OPEN = "breaker_open"
    OLDEST_WAITING = "oldest_waiting"
    NO_WORKER = "no_worker"
    EVICTION_POLICY = "eviction_policy"
    SUPPRESSED_ROOM = "suppressed_room"


class AlertsConfig(_Model):
    url: WebAddress = Field(default="", min_length=1, repr=False, description="an http:// or https:// address")
    """Where alarms are sent; without it, they are only shown on /health."""
    secret: _Secrets = Field(default=(), repr=False, description=_SECRETS)
    """Signs alarms like a destination's secret."""
    after_s: _Number = Field(default=60.0, ge=0, le=86_400, description="seconds")
    """How long a problem must last before an alarm is sent, and be over before it is cleared."""
    off: tuple[AlertCondition, ...] = Field(default=(), description=f"a list of some of {', '.join(AlertCondition)}")
    """Alarms that are disabled."""


class PatternConfig(_Model):
    name: _Text = Field(description="a name")
    """The group is named after this, an underscore and the text that the regex captured."""
    phrases: tuple[str, ...] = Field(default=(), description="a list of texts")
    """All of them must be in the subject."""
    regex: Annotated[_Regex, AfterValidator(_check_one_group)] = Field(description="a regular expression")
    """Captures exactly one value."""


UNSUBSCRIBE = RouteConfig(
    name="unsubscribe", match=(Condition(field="subject", contains="desabo"),), subject_groups=GroupMode.OFF
)
EVERYTHING_ELSE = RouteConfig(name="everything else", realtime_only=False)


class Config(_Model):
    """Without a file, or without a section in it, the defaults apply. Each provider validates its own section."""

    destinations: dict[_Name, DestinationConfig] = Field(default={}, description=f"tables [destinations.name] {_NAMED}")
    """Where webhooks go."""
    routes: tuple[RouteConfig, ...] = Field(default=(UNSUBSCRIBE, EVERYTHING_ELSE), description="tables [[routes]]")
    """Which emails go where, and which gates apply to them; evaluated in order."""
    subject_patterns: tuple[PatternConfig, ...] | None = Field(default=None, description="tables [[subject_patterns]]")
    """Which subjects form a group; replaces the two default patterns."""
    media: MediaConfig = Field(default=MediaConfig(), description="a table [media]")
    """Which links are files."""
    alerts: AlertsConfig = Field(default=AlertsConfig(), description="a table [alerts]")
    """Where alarms are sent."""
    providers: dict[_Name, dict[str, Any]] = Field(
        default={}, repr=False, description=f"tables [providers.name] {_NAMED}"
    )
    """Which providers are enabled, and their credentials."""
    _document: Document = PrivateAttr(NO_FILE)
    _is_trial: bool = PrivateAttr(False)

    @property
    def is_trial(self) -> bool:
        """Whether no destination is configured: webhooks are printed, which does not count as delivered."""
        return self._is_trial

    @cached_property
    def patterns(self) -> tuple[SubjectPattern, ...]:
        if self.subject_patterns is None:
            return DEFAULT_PATTERNS
        return tuple(SubjectPattern(p.name, p.phrases, p.regex) for p in self.subject_patterns)

    def error(self, loc: Loc, text: str) -> SettingsError:
        """For code that validates a section: ``error(("providers", "ses", "topics"), "must be a list of ARNs")``."""
        return self._document.error([(loc, text)])


def load_config(settings: Settings, environ: Mapping[str, str] | None = None) -> Config:
    """Raises SettingsError with a line for each problem in the file.

    ``environ`` is what env:NAME in the file refers to, by default the environment of the process.
    """
    path, document = settings.mailonce_config or DEFAULT_PATH, NO_FILE
    if settings.mailonce_config or path.is_file():
        document = read_document(path, environment() if environ is None else environ)
    try:
        config = Config.model_validate(document.values)
    except ValidationError as error:
        raise document.error(problem(Config, details) for details in error.errors()) from None
    config._document = document
    if not config.destinations:
        default = DestinationConfig.model_construct(url=settings.webhook_url or LOG_URL, secret=settings.webhook_secret)
        config = config.model_copy(update={"destinations": {"default": default}})
        config._is_trial = not settings.webhook_url
    if problems := list(_contradictions(config, settings)):
        raise document.error(problems)
    return config


def _contradictions(config: Config, settings: Settings) -> Iterator[tuple[Loc, str]]:
    known = ", ".join(config.destinations)
    if config.alerts.secret and not config.alerts.url:
        yield ("alerts",), "must have a url, since it has a secret"
    if settings.webhook_url and all(each.url != settings.webhook_url for each in config.destinations.values()):
        text = "and WEBHOOK_URL both say where webhooks go; remove one of them"
        yield ("destinations", next(iter(config.destinations))), text
    if "routes" not in config.model_fields_set:
        if len(config.destinations) > 1:
            yield ("routes",), f"is required with several destinations, to say which emails go to {known}"
        return
    for index, route in enumerate(config.routes):
        loc = ("routes", index, "destinations")
        is_last = index == len(config.routes) - 1  # others may leave the destinations to later routes
        if route.drop:
            for name in route.model_fields_set & {"destinations", "stop"}:
                yield ("routes", index, name), "must be left out of a route with drop = true"
        elif route.destinations is None and (route.stop or is_last) and len(config.destinations) > 1:
            yield loc, f"is required; it must be one or more of {known}"
        for place, name in enumerate(route.destinations or ()):
            if name not in config.destinations:
                yield (*loc, place), f"must be one of {known}"
        if route.otherwise and not is_last:
            yield ("routes", index, "otherwise"), "must be left out of all routes but the last"
    if not config.routes or config.routes[-1].match:
        yield ("routes",), "must end with a route that has no match, for all other emails"
