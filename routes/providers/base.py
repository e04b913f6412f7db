"""What a provider is, what its parser may raise, and how JSON bodies are read."""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Generic, Protocol

from deduplication.email import Email, well_formed
from deduplication.kept_property import kept_property
from routes.providers.forms import Form, NotAForm, parse_form
from routes.providers.options import MB, AnyOptions

BEARER = "Bearer"
BASIC = 'Basic realm="mailonce"'
MAX_NESTING = 100  # deeper than any real payload, and safe to write out again
MOST_VALUES = 200_000  # a thousand messages have a tenth of that; millions of them take seconds to read
MOST_DIGITS = 1000  # Python reads and writes numbers of up to 4,300
_TEXT = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_HALF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")  # maybe: the other half may follow


class InvalidPayload(Exception):
    """The request can never be taken as it is; ``field`` names the part that is wrong, if it is one."""

    def __init__(self, message: str, *, field: str = "", http_status: int = 400) -> None:
        super().__init__(message)
        self.field = field
        self.http_status = http_status


class Headers(Protocol):
    def get(self, name: str, default: str, /) -> str | None:
        """Is asked for names in lower case."""
        ...


@dataclass(frozen=True)
class ProviderRequest:
    """One HTTP request, free of the framework it came through.

    The body is read when it is first asked for: a proof that stands in the headers is checked before that. Asked again,
    ``read_body`` gives the same.
    """

    headers: Headers
    read_body: Callable[[], bytes]
    now: datetime

    def header(self, name: str) -> str:
        return self.headers.get(name.lower(), "") or ""

    @property
    def media_type(self) -> str:
        return self.header("Content-Type").partition(";")[0].strip().lower()

    @property
    def body(self) -> bytes:
        return self.read_body()

    @kept_property
    def form(self) -> Form:
        try:
            return parse_form(self.header("Content-Type"), self.body)
        except NotAForm as error:
            raise InvalidPayload(str(error)) from error


@dataclass(frozen=True)
class Statuses:
    """What makes a provider forget an email, give it up, or send it again. ``rejected`` None: the error's own 4xx."""

    accepted: int = 200
    rejected: int | None = None
    retry: int = 503
    unauthorized: int = 401


class Fetch(Protocol):
    def __call__(self, url: str, headers: Mapping[str, str], timeout_s: float, max_bytes: int) -> bytes: ...


@dataclass(frozen=True)
class Surroundings:
    """What a provider may need of the service. ``max_email_bytes``: of what it fetches, as MAX_BODY_MB of requests."""

    ingress_tokens: tuple[str, ...]
    fetch: Fetch
    max_email_bytes: int = 25 * MB


Parsed = Email | InvalidPayload


class Provider(ABC, Generic[AnyOptions]):
    """From a provider's request to its emails. ``name`` is the last part of its URL, and of its emails' ``provider``.

    The order is fixed by api_ingress.py: verify, handshake, parse. Nothing is recorded before ``verify`` is through.
    """

    options_type: type[AnyOptions]
    needs: ClassVar[str] = ""
    """The settings without which it stays shut."""
    statuses: ClassVar[Statuses] = Statuses()
    challenge: str = ""
    """BEARER or BASIC where the proof is in the Authorization header: some show it only if they are asked for it."""
    endings: ClassVar[tuple[str, ...]] = ("",)
    """What may follow its name in the URL."""
    media_types: ClassVar[tuple[str, ...]] = ("application/json",)
    """What its requests are; routes/openapi tells it."""
    security: ClassVar[tuple[str, ...]] = ()
    """Which of SECURITY in routes/openapi/doors.py prove a request's origin. None: the proof stands in the body."""
    answers_probes: ClassVar[bool] = False
    """Whether it looks with GET or HEAD if anybody is there."""

    def __init__(self, name: str, options: AnyOptions, surroundings: Surroundings) -> None:
        self.name = name
        self.options = options
        self.surroundings = surroundings

    @abstractmethod
    def verify(self, request: ProviderRequest) -> None:
        """Raises Unauthorized, whatever else is wrong with the request."""

    @abstractmethod
    def parse(self, request: ProviderRequest) -> list[Parsed]:
        """The emails of a verified request, in their order; one that can never be taken stands as InvalidPayload.

        Raises InvalidPayload if that is true of all, and FetchFailed if a part is out of reach for now.
        """

    def handshake(self, request: ProviderRequest) -> str | None:
        """Settles a verified request that carries no email, and says what it was about."""
        return None

    def once(self, request: ProviderRequest) -> str | None:
        """What a verified request must not be used with for another email, where its proof does not cover the body."""
        return None

    def own_id(self, event_id: str) -> str:
        """The provider's id, told apart from those that others give."""
        return f"{self.name}:{event_id.strip()}" if event_id.strip() else ""


def each(parse: Callable[[Any], Email], documents: Iterable[Any]) -> list[Parsed]:
    """One that cannot be taken does not stop the others."""
    return [_parsed(parse, document) for document in documents]


def _parsed(parse: Callable[[Any], Email], document: Any) -> Parsed:
    try:
        return parse(document)
    except InvalidPayload as error:
        return error


def sound(email: Email) -> Email:
    """What has none of these is no email, whatever else was sent."""
    if not (email.sender.strip() or email.date.strip() or email.message_id.strip()):
        raise InvalidPayload("the request holds no email: neither a sender nor a date nor a Message-ID")
    return email


def json_object(content_type: str | None, body: bytes) -> dict[str, Any]:
    return as_object(json_value(content_type, body))


def json_value(content_type: str | None, body: bytes) -> Any:
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise InvalidPayload("Content-Type takes application/json", http_status=415)
    return parse_json(body)


def parse_json(body: bytes | str) -> Any:
    """Every text in it can be hashed, stored and sent. A number that is too big for one stays a text, as written."""
    try:
        text = body if isinstance(body, str) else body.decode(json.detect_encoding(body), "surrogatepass")
        if text.count(",") > MOST_VALUES and _TEXT.sub("", text).count(",") > MOST_VALUES:
            raise InvalidPayload(f"the body takes at most {MOST_VALUES} values")
        document = json.loads(well_formed(text), parse_constant=_refuse_constant, parse_int=_whole, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise InvalidPayload("the body is not valid JSON") from error
    if text.count("{") + text.count("[") > MAX_NESTING and not _is_within(document, MAX_NESTING):
        raise InvalidPayload(f"the body takes at most {MAX_NESTING} levels of nesting")
    return _mended(document) if _HALF_A_PAIR.search(text) else document


def as_object(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise InvalidPayload("the body takes a JSON object")
    return document


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _whole(digits: str) -> int | str:
    """Of several items in a request, one with a number of a thousand digits must not spoil the others."""
    return int(digits) if len(digits) <= MOST_DIGITS else digits


def _finite(text: str) -> float | str:
    number = float(text)
    return text if math.isinf(number) else number  # would be written out again as Infinity, which is not JSON


def _is_within(document: Any, levels: int) -> bool:
    containers = [document] if isinstance(document, dict | list) else []
    for _ in range(levels):
        if not containers:
            return True
        inner = (each.values() if isinstance(each, dict) else each for each in containers)
        containers = [value for values in inner for value in values if isinstance(value, dict | list)]
    return not containers


def _mended(value: Any) -> Any:
    """With no half of a surrogate pair in any text or name."""
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {well_formed(name): _mended(inner) for name, inner in value.items()}
    return [_mended(inner) for inner in value] if isinstance(value, list) else value


def text_field(document: dict[str, Any], field: str) -> str:
    """Absent and null are empty; anything else but text is refused."""
    value = document.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidPayload(f"{field} takes a string", field=field)
    return value
