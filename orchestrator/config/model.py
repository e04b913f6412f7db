"""mailonce.toml: destinations, routes, subject patterns and providers, checked before anything starts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from deduplication.media import DEFAULT_HOSTS, IDENTITY_PARAMETERS, MediaMode
from deduplication.regexes import BadRegex
from deduplication.regexes import check as check_regex
from deduplication.subject_group import DEFAULT_PATTERNS, GroupMode, SubjectPattern, normalize_no_accents_lower_trim
from orchestrator.config.file import Complaint, Document, Loc, quoted, read_document
from orchestrator.config.settings import Settings, SettingsError, environment, is_web_address
from orchestrator.delivery.guard import parse_rate
from orchestrator.delivery.signing import check_secret
from orchestrator.operations.alerts import AlertCondition

LOG_URL = "log:"
OUR_HEADERS = (
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
    "idempotency-key",
    "content-type",
    "content-length",
    "transfer-encoding",
    "host",
)
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"(?:[!-~](?:[\t -~]*[!-~])?)?")
_YES_OR_NO = "true or false"
_A_REGEX = "a regular expression"
_SIGNED_BY = 'a Standard Webhooks secret ("whsec_..." or "whsk_..."), or a list of them'


def _as_described() -> PydanticCustomError:
    """The complaint is what the field's description says it takes; the value is not shown."""
    return PydanticCustomError("as_described", "takes something else")


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError('takes small letters, digits, "-" and "_" in its name, and begins with a letter or a digit')
    return name


def _check_header_name(name: str) -> str:
    if name.lower() in OUR_HEADERS:
        raise ValueError(f"cannot be set: {', '.join(OUR_HEADERS)} are ours")
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError("takes letters, digits and !#$%&'*+-.^_`|~ in its name, as every HTTP header")
    return name


def _check_header_value(value: str) -> str:
    if not _HEADER_VALUE.fullmatch(value):
        raise ValueError("takes ASCII text without line breaks and without spaces around it")
    return value


def _no_bool(value: Any) -> Any:
    """true would pass as 1."""
    if isinstance(value, bool):
        raise _as_described()
    return value


def _one_or_several(value: Any) -> Any:
    if not value:  # a list that has lost its last secret must not switch signing off
        raise _as_described()
    return [value] if isinstance(value, str) else value


def _captured(regex: str) -> int:
    try:
        return check_regex(regex)
    except BadRegex as error:
        raise ValueError(f"takes {_A_REGEX}; {error}") from None


_Name = Annotated[str, AfterValidator(_check_name)]
_Secret = Annotated[str, AfterValidator(check_secret)]
_HeaderName = Annotated[str, AfterValidator(_check_header_name)]
_HeaderValue = Annotated[str, AfterValidator(_check_header_value)]
_Whole = Annotated[int, BeforeValidator(_no_bool)]
_Number = Annotated[float, BeforeValidator(_no_bool)]
_Text = Annotated[str, Field(min_length=1)]


class _Model(BaseModel):
    """Every field's description completes the sentence "<field> takes ..."; the text below it says what it does.

    docs/configuration.md is written from both (make docs-reference).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class DestinationConfig(_Model):
    """``content_window_s`` None: no content gate for emails, 72 hours for messages; 0: none at all.

    ``secret`` holds all that are signed with, none for unsigned webhooks; ``rate`` is text that parse_rate reads.
    """

    url: str = Field(repr=False, description=f'an http:// or https:// address, or "{LOG_URL}"')
    """Where the webhook goes; "log:" prints it instead."""
    secret: tuple[_Secret, ...] = Field(default=(), repr=False, description=_SIGNED_BY)
    """Signs the webhook, with each of them while you rotate; without one it is not signed."""
    format: Literal["json", "form"] = Field(default="json", description='"json" or "form"')
    """How the webhook is written."""
    fallback_form: bool = Field(default=False, description=_YES_OR_NO)
    """Whether a form is tried where JSON is answered with 415."""
    headers: dict[_HeaderName, _HeaderValue] = Field(
        default_factory=dict, repr=False, description='a table of texts such as { X-Team = "sales" }'
    )
    """Sent with every webhook; those of the webhook itself cannot be set."""
    connect_timeout_s: _Number = Field(default=3.0, ge=0.1, le=60, description="0.1 to 60 seconds")
    """How long connecting may take, and sending the body; more for large emails over slow lines."""
    read_timeout_s: _Number = Field(default=5.0, ge=0.1, le=300, description="0.1 to 300 seconds")
    """How long the whole answer may take."""
    max_attempts: _Whole = Field(default=10, ge=1, le=50, description="1 to 50 attempts, the first one counted")
    """After so many a delivery is a dead letter."""
    rate: str | None = Field(default=None, description='a rate such as "10/s"')
    """Never exceeded, over all processes of all servers."""
    content_window_s: _Whole | None = Field(
        default=None, ge=0, le=366 * 86_400, description="whole seconds up to 366 days, 0 for no content gate"
    )
    """How long the same first ten words are a duplicate here; left out, 72 hours for messages and not at all for
    emails."""
    enabled: bool = Field(default=True, description=_YES_OR_NO)
    """With false, deliveries are stored and wait until it is true again."""
    breaker_failures: _Whole = Field(
        default=5, ge=0, le=1000, description="0 to 1000 failures in a row, 0 for no breaker"
    )
    """After so many failures in a row the destination is left alone."""
    breaker_pause_s: _Number = Field(default=30.0, ge=1, le=86_400, description="1 to 86400 seconds")
    """How long it is left alone before one delivery tries it."""

    _one_or_several = field_validator("secret", mode="before")(_one_or_several)

    @property
    def content_window_ms(self) -> int | None:
        return None if self.content_window_s is None else self.content_window_s * 1000

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        if value != LOG_URL and not is_web_address(value):
            raise _as_described()
        return value

    @field_validator("headers")
    @classmethod
    def _check_each_once(cls, value: dict[str, str]) -> dict[str, str]:
        if len({name.lower() for name in value}) < len(value):
            raise ValueError("takes each header once, in capitals or not")
        return value

    @field_validator("rate")
    @classmethod
    def _check_rate(cls, value: str | None) -> str | None:
        if value is not None:
            parse_rate(value)
        return value


class Condition(_Model):
    """One of equals, contains and regex, on one field; accents, case and extra white space matter only if ``exact``."""

    field: Literal["subject", "sender", "recipient", "body", "provider", "source"] = Field(
        description='"subject", "sender", "recipient", "body", "provider" or "source"'
    )
    """What is looked at."""
    equals: str | None = Field(default=None, description="text")
    """All of the field."""
    contains: str | None = Field(default=None, description="text")
    """A part of the field."""
    regex: str | None = Field(default=None, description=_A_REGEX)
    """Found somewhere in the field; RE2, of a body in the first 100,000 characters."""
    exact: bool = Field(default=False, description=_YES_OR_NO)
    """Whether accents, case and white space matter."""

    @field_validator("regex")
    @classmethod
    def _check_regex(cls, value: str | None) -> str | None:
        if value is not None:
            _captured(value)
        return value

    @model_validator(mode="after")
    def _check_one_test(self) -> Self:
        if len([test for test in (self.equals, self.contains, self.regex) if test is not None]) != 1:
            raise ValueError("takes exactly one of equals, contains and regex")
        if self.equals is None and not self._looks_for_something():
            raise ValueError("takes some text to look for; without any, every email has it")
        return self

    def _looks_for_something(self) -> bool:
        if self.contains is None or self.exact:
            return bool(self.contains or self.regex)
        return bool(normalize_no_accents_lower_trim(self.contains))


class RouteConfig(_Model):
    """None means: not said here. Then the next matching routes say it, or the settings, or the destination.

    ``stop``: no route after this one is asked.
    """

    name: _Text = Field(description="a name")
    """Shown in decisions and by `mailonce check`."""
    match: tuple[Condition, ...] = Field(
        default=(), description='a list of conditions such as [{ field = "subject", contains = "lot" }]'
    )
    """All of them must hold; without any, every email does. The last route has none."""
    any: bool = Field(default=False, description=_YES_OR_NO)
    """One condition is enough."""
    destinations: tuple[str, ...] | None = Field(
        default=None, description="a list of one or more names of destinations"
    )
    """Where the email goes; left out where there is only one destination, or where a later route says it."""
    subject_groups: GroupMode | None = Field(default=None, description='"all", "patterns" or "off"')
    """Instead of SUBJECT_GROUPS, for the emails of this route."""
    media: MediaMode | None = Field(default=None, description='"off", "listed" or "all"')
    """Which links count as files: none, those of the listed hosts, or all; left out, `"listed"`."""
    content: bool | None = Field(default=None, description=_YES_OR_NO)
    """Whether the words decide, too; left out, as the destination's `content_window_s` says."""
    realtime_only: bool | None = Field(default=None, description=_YES_OR_NO)
    """Whether what is older than the start of the service is skipped; left out, it is not."""
    identity_by_recipient: bool | None = Field(default=None, description=_YES_OR_NO)
    """Whether one email to two of your addresses is two, which no group and no file stops; left out, it is one."""
    stop: bool = Field(default=True, description=_YES_OR_NO)
    """With false, the routes after this one have their say, too."""

    @field_validator("destinations")
    @classmethod
    def _check_each_once(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value == ():
            raise _as_described()
        if value and len(set(value)) < len(value):
            raise ValueError("takes each destination once")
        return value


class MediaConfig(_Model):
    """``hosts`` replaces the shipped list, ``identity`` adds to the shipped table, ``resolve`` is empty by default."""

    hosts: tuple[str, ...] = Field(default=DEFAULT_HOSTS, description="a list of hosts")
    """Whose links hand over files, instead of the shipped list."""
    identity: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description='a table such as { "files.example" = ["id"] }'
    )
    """Where the query says which file it is: the host, and the parameters that do."""
    resolve: tuple[str, ...] = Field(default=(), description="a list of hosts")
    """Whose links are followed to where they lead, such as bit.ly: all links of an email within two seconds."""

    @property
    def identity_parameters(self) -> dict[str, tuple[str, ...]]:
        return {**IDENTITY_PARAMETERS, **self.identity}


class AlertsConfig(_Model):
    """Whom alarms are told; without ``url`` nobody: they are shown on /health."""

    url: str = Field(default="", repr=False, description="an http:// or https:// address")
    """Where alarms are sent; without it, they are only shown."""
    secret: tuple[_Secret, ...] = Field(default=(), repr=False, description=_SIGNED_BY)
    """Signs them, as a destination's does."""
    after_s: _Number = Field(default=60.0, ge=0, le=86_400, description="0 to 86400 seconds")
    """How long something has to be wrong, or right again."""
    off: tuple[AlertCondition, ...] = Field(default=(), description=f"a list of some of {', '.join(AlertCondition)}")
    """Conditions that nobody wants to hear of."""

    _one_or_several = field_validator("secret", mode="before")(_one_or_several)

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        if not is_web_address(value):
            raise _as_described()
        return value

    @model_validator(mode="after")
    def _check_whom_to_tell(self) -> Self:
        if self.secret and not self.url:
            raise ValueError("takes a url beside secret, to send the alarms to")
        return self


class PatternConfig(_Model):
    name: _Text = Field(description="a name")
    """The group is this, an underscore and what the regex captured."""
    phrases: tuple[str, ...] = Field(default=(), description="a list of texts")
    """All of them must stand in the subject."""
    regex: str = Field(description=_A_REGEX)
    """Captures exactly one value."""

    @field_validator("regex")
    @classmethod
    def _check_regex(cls, value: str) -> str:
        if _captured(value) != 1:
            raise ValueError("takes a regex that captures exactly one value")
        return value


UNSUBSCRIBE = RouteConfig(
    name="unsubscribe",
    match=(Condition(field="subject", regex="desabo"),),
    subject_groups=GroupMode.OFF,
)
EVERYTHING_ELSE = RouteConfig(name="everything else", media=MediaMode.LISTED, realtime_only=False)


class Config(_Model):
    """Without a file, or without a section in it, these are the shipped defaults.

    ``providers`` is what the file says; each provider checks its own.
    """

    destinations: dict[_Name, DestinationConfig] = Field(
        default_factory=dict, description="tables, each written [destinations.name]"
    )
    """Where webhooks go."""
    routes: tuple[RouteConfig, ...] = Field(
        default=(UNSUBSCRIBE, EVERYTHING_ELSE), description="tables, each written [[routes]]"
    )
    """Which emails go where, and which gates they meet; asked in order."""
    subject_patterns: tuple[PatternConfig, ...] | None = Field(
        default=None, description="tables, each written [[subject_patterns]]"
    )
    """Which subjects mean the same, instead of the shipped two."""
    media: MediaConfig = Field(default=MediaConfig(), description="a table, written [media]")
    """Which links are files."""
    alerts: AlertsConfig = Field(default=AlertsConfig(), description="a table, written [alerts]")
    """Whom alarms are told."""
    providers: dict[_Name, dict[str, Any]] = Field(
        default_factory=dict, repr=False, description="tables, each written [providers.name]"
    )
    """Which providers are open, and what proves that a request is theirs."""
    _document: Document | None = PrivateAttr(None)
    _is_trial: bool = PrivateAttr(False)

    @property
    def is_trial(self) -> bool:
        """No destination is given: webhooks are printed, and what was only printed is not delivered."""
        return self._is_trial

    def in_trial(self, is_trial: bool) -> Self:
        """For a command that works on the journal of a service, whose own environment said where webhooks go."""
        config = self.model_copy()
        config._is_trial = is_trial
        return config

    @property
    def patterns(self) -> tuple[SubjectPattern, ...]:
        if self.subject_patterns is None:
            return DEFAULT_PATTERNS
        return tuple(SubjectPattern(p.name, p.phrases, p.regex) for p in self.subject_patterns)

    def error(self, loc: Loc, text: str) -> SettingsError:
        """For those who check a part themselves: ``error(("providers", "ses", "topics"), "takes a list of ARNs")``."""
        if self._document is None:
            return SettingsError(f"{'.'.join(map(str, loc))} {text}")
        return self._document.error([Complaint(loc, text)])


def load_config(settings: Settings, environ: Mapping[str, str] | None = None) -> Config:
    """Raises SettingsError with a line for each thing that is wrong in the file.

    ``environ`` is what env:NAME in the file refers to, by default the environment of the process.
    """
    if settings.config_path is None:
        return _with_a_destination(Config(), settings)
    document = read_document(settings.config_path, environment() if environ is None else environ)
    config = _with_a_destination(_validated(document), settings)
    complaints = list(_route_complaints(config, document))
    if complaints:
        raise document.error(complaints)
    return config


def _with_a_destination(config: Config, settings: Settings) -> Config:
    if config.destinations:
        if settings.webhook_url and settings.webhook_url not in {each.url for each in config.destinations.values()}:
            first = next(iter(config.destinations))
            text = "and WEBHOOK_URL both say where webhooks go; take one of them away"
            raise config.error(("destinations", first), text)
        return config
    signed = {"secret": settings.webhook_secret} if settings.webhook_secret else {}
    try:
        destination = DestinationConfig.model_validate({"url": settings.webhook_url or LOG_URL, **signed})
    except ValidationError:
        takes = Settings.model_fields["webhook_secret"].description
        raise SettingsError(f"WEBHOOK_SECRET takes {takes}; its value is not that") from None
    filled_in = config.model_copy(update={"destinations": {"default": destination}})
    return filled_in.in_trial(not settings.webhook_url)


def _route_complaints(config: Config, document: Document) -> Iterator[Complaint]:
    if "routes" in document.written:
        for index in range(len(config.routes)):
            yield from _destination_complaints(config, index, document)
        if not config.routes or config.routes[-1].match:
            last: Loc = ("routes", len(config.routes) - 1, "match")
            yield Complaint(last, "takes a last one without match, so that every email has a way", named=("routes",))
    elif len(config.destinations) > 1:
        known = ", ".join(config.destinations)
        yield Complaint(("routes",), f"is needed with several destinations, to say which emails go to {known}")


def _destination_complaints(config: Config, index: int, document: Document) -> Iterator[Complaint]:
    """Only a route after which others follow may leave it to them where an email goes."""
    route, loc = config.routes[index], ("routes", index, "destinations")
    known = ", ".join(config.destinations)
    decides = route.stop or index == len(config.routes) - 1
    if route.destinations is None and decides and len(config.destinations) > 1:
        yield Complaint(loc, f"is needed, one or more of {known}")
    for place, name in enumerate(route.destinations or ()):
        if name not in config.destinations:
            written = quoted(document.written_at((*loc, place)))
            yield Complaint((*loc, place), f"takes one or more of {known}; not {written}", named=loc)


def _validated(document: Document) -> Config:
    try:
        config = Config.model_validate(document.values)
    except ValidationError as error:
        found = [_complaint(each["loc"], each["type"], each["msg"], document) for each in error.errors()]
        resolved = [each for each in found if not document.is_unresolved(each.loc)]
        raise document.error([*document.unresolved, *resolved]) from None
    if document.unresolved:
        raise document.error(document.unresolved)
    config._document = document
    return config


_MODELS: Mapping[Loc, type[BaseModel]] = {
    (): Config,
    ("destinations", "*"): DestinationConfig,
    ("routes", "*"): RouteConfig,
    ("routes", "*", "match", "*"): Condition,
    ("subject_patterns", "*"): PatternConfig,
    ("media",): MediaConfig,
    ("alerts",): AlertsConfig,
}


def _complaint(loc: Loc, kind: str, message: str, document: Document) -> Complaint:
    """pydantic's words in ours."""
    if kind == "extra_forbidden":
        return _unknown_key(loc)
    loc = loc[:-1] if loc[-1] == "[key]" else loc
    described, takes = _description(loc)
    if kind == "missing":
        return Complaint(loc, f"is needed; it takes {takes}")
    if kind != "value_error":
        return Complaint(loc, f"takes {takes}", named=described)
    words = message.removeprefix("Value error, ")
    return Complaint(loc, words.partition(";")[0] if document.is_filled_in(loc) else words)


def _unknown_key(loc: Loc) -> Complaint:
    key = str(loc[-1])
    taken = list(_fields_at(loc[:-1]))
    close = difflib.get_close_matches(key, taken, n=1)
    hint = f"did you mean {close[0]}?" if close else f"it takes {', '.join(taken)}"
    return Complaint(loc, f"takes no {quoted(key)}; {hint}", named=loc[:-1])


def _description(loc: Loc) -> tuple[Loc, str]:
    """The innermost field that the place is in, and what that takes."""
    lengths = range(len(loc), 0, -1)
    length = next(each for each in lengths if loc[each - 1] in _fields_at(loc[: each - 1]))
    return loc[:length], str(_fields_at(loc[: length - 1])[str(loc[length - 1])].description)


def _fields_at(loc: Loc) -> Mapping[str, FieldInfo]:
    """Every second part of a place is the name or the number of an entry."""
    model = _MODELS.get(tuple("*" if index % 2 else part for index, part in enumerate(loc)))
    return model.model_fields if model else {}
