"""Sends one webhook over HTTP and judges the answer."""

from __future__ import annotations

import json
import math
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from http.cookiejar import DefaultCookiePolicy
from typing import Any, Literal
from urllib.parse import urlencode

import requests
from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema
from urllib3 import Timeout
from urllib3.exceptions import HTTPError, LocationValueError, NewConnectionError

from orchestrator.delivery.answer_deadline import AnswerDeadlineAdapter
from orchestrator.delivery.signing import Signer
from orchestrator.delivery.webhook import GONE, DeliveryFailed, Receipt, Webhook
from orchestrator.version import our_version

Format = Literal["json", "form"]

MAX_ANSWER_BYTES = 64 * 1024
LARGE_BYTES, PIECE_BYTES = 256 << 10, 64 << 10
SLOWEST_BYTES_PER_S = 256 << 10  # a large webhook gets the time that this line would take, on top of its timeouts
MAX_RECEIVER_ID_CHARACTERS = 200

_RETRYABLE = {408, 409, 425, 429}
_UNSUPPORTED_MEDIA_TYPE = 415
_CONTENT_TYPES: Mapping[Format, str] = {"json": "application/json", "form": "application/x-www-form-urlencoded"}
_RESERVED_HEADERS = {"idempotency-key", "content-type", "content-length", "transfer-encoding", "host"}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"([!-~][\t -~]*)?")
_UNUSABLE_URL = (InvalidSchema, InvalidURL, MissingSchema, LocationValueError)
# The first that is among an error's causes says it. The errors' own texts name the address and the path.
_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (ConnectionRefusedError, "connection refused"),
    (socket.gaierror, "host name not found"),
    (ssl.SSLCertVerificationError, "TLS certificate not accepted"),
    (requests.exceptions.SSLError, "TLS connection failed"),
    (NewConnectionError, "no connection"),
    (TimeoutError, "not sent in time"),
    (ConnectionError, "connection closed without an answer"),
    (HTTPException, "the answer is not HTTP"),
    (requests.exceptions.InvalidHeader, "the answer is not HTTP"),
)


@dataclass(frozen=True)
class HttpOptions:
    """How one destination wants it. Headers that cannot be sent are a ValueError that names the header alone."""

    url: str = field(repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    format: Format = "json"
    fallback_form: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    connect_timeout_s: float = 3.0
    read_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
                raise ValueError(f"header {name!r} takes ASCII text on one line")


@dataclass(frozen=True)
class _Answer:
    status_code: int
    retry_after: str | None
    body: bytes


def utc_now() -> datetime:
    return datetime.now(UTC)


class HttpDestination:
    """POSTs over pooled connections. Sends no cookies, follows no redirects, reads no proxy or netrc settings.

    It never repeats a POST by itself: one call of ``deliver`` is one POST, and a second one only where a 415 has
    turned the first one away and ``fallback_form`` is set.
    """

    def __init__(self, name: str, options: HttpOptions, pool_size: int, now: Callable[[], datetime] = utc_now) -> None:
        self._name = name
        self._options = options
        self._format = options.format
        self._now = now
        self._signer = Signer(options.secrets)
        self._session = _session(options.headers, pool_size)

    def deliver(self, webhook: Webhook, within_s: float | None = None) -> Receipt:
        deadline_s = math.inf if within_s is None else time.monotonic() + within_s
        first_format = self._format
        answer = self._post(webhook, first_format, deadline_s)
        wants_form = answer.status_code == _UNSUPPORTED_MEDIA_TYPE and first_format == "json"
        if wants_form and self._options.fallback_form:
            answer = self._post(webhook, "form", deadline_s)
            if answer.status_code != _UNSUPPORTED_MEDIA_TYPE:
                self._format = "form"
        return self._judge(answer)

    def _post(self, webhook: Webhook, format: Format, deadline_s: float) -> _Answer:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise self._failed("no time left", permanent=False)
        body = _form(webhook.payload) if format == "form" else json.dumps(dict(webhook.payload))
        content = body.encode()
        more_s = len(content) / SLOWEST_BYTES_PER_S if len(content) > LARGE_BYTES else 0.0
        ends_at = time.monotonic() + min(left_s, self._options.read_timeout_s + more_s)
        try:
            with self._session.post(
                self._options.url,
                data=_TimedBody(content, ends_at) if more_s else content,
                headers=self._headers(webhook.webhook_id, format, body),
                timeout=self._timeout(left_s, more_s),  # type: ignore[arg-type]  # the stubs leave out urllib3's Timeout
                allow_redirects=False,
                stream=True,
            ) as response:
                return _Answer(response.status_code, response.headers.get("Retry-After"), _start_of_body(response))
        except (requests.RequestException, HTTPError) as error:
            failure = self._unanswered(error, left_s, more_s)
        # Raised out here it has no cause, whose text would tell the path: with some receivers that is the secret.
        raise failure

    def _headers(self, webhook_id: str, format: Format, body: str) -> dict[str, str]:
        return {
            "webhook-id": webhook_id,
            "Idempotency-Key": webhook_id,
            "Content-Type": _CONTENT_TYPES[format],
            **self._signer.headers(webhook_id, self._now(), body),
        }

    def _timeout(self, left_s: float, more_s: float) -> Timeout:
        read_s = self._options.read_timeout_s + more_s
        return Timeout(total=left_s, connect=self._options.connect_timeout_s, read=read_s)

    def _judge(self, answer: _Answer) -> Receipt:
        status = answer.status_code
        if 200 <= status < 300:
            return Receipt(status, _receiver_id(answer.body))
        if 300 <= status < 400:
            raise self._failed(f"answered {status}, and redirects are not followed", permanent=True, status=status)
        if status == GONE:
            raise self._failed(f"answered {status} Gone", permanent=False, status=status)
        if 400 <= status < 500 and status not in _RETRYABLE:
            raise self._failed(f"answered {status}", permanent=True, status=status)
        retry_after_s = _seconds(answer.retry_after, self._now())
        raise self._failed(f"answered {status}", permanent=False, status=status, retry_after_s=retry_after_s)

    def _unanswered(self, error: Exception, left_s: float, more_s: float) -> DeliveryFailed:
        if isinstance(error, _UNUSABLE_URL):
            return self._failed("its URL cannot be used", permanent=True)
        if isinstance(error, requests.ConnectTimeout):
            waited_s = min(self._options.connect_timeout_s, left_s)
            return self._failed(f"no connection within {round(waited_s, 1):g} s", permanent=False)
        if isinstance(error, requests.ReadTimeout):
            waited_s = min(self._options.read_timeout_s + more_s, left_s)
            return self._failed(f"no answer within {round(waited_s, 1):g} s", permanent=False)
        return self._failed(_reason(error), permanent=False)

    def _failed(
        self, reason: str, *, permanent: bool, status: int | None = None, retry_after_s: int | None = None
    ) -> DeliveryFailed:
        reason = f"{self._name}: {reason}"
        return DeliveryFailed(reason, permanent=permanent, status_code=status, retry_after_s=retry_after_s)


class _TimedBody:
    """Sent piece by piece, so that none of it has to be through within the timeout of a connection, and all of it until
    ``ends_at``: the timeout of a socket is one for everything that is sent by one call."""

    def __init__(self, content: bytes, ends_at: float) -> None:
        self._content = content
        self._ends_at = ends_at

    def __len__(self) -> int:
        return len(self._content)

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._content), PIECE_BYTES):
            if time.monotonic() > self._ends_at:
                raise TimeoutError("not sent in time")
            yield self._content[start : start + PIECE_BYTES]


_in_json = json.JSONEncoder().encode  # json.dumps asks about its options anew for every value


class LogDestination:
    """Prints each webhook it would send, so that the first email shows something. For trying out only."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def deliver(self, webhook: Webhook, within_s: float | None = None) -> Receipt:
        lines = ",\n".join([f'  "{name}": {_in_json(value)}' for name, value in webhook.payload.items()])
        self._write(f"webhook {webhook.webhook_id} would be sent:\n{{\n{lines}\n}}")
        return Receipt()


class _Session(requests.Session):
    def get_redirect_target(self, resp: requests.Response) -> None:
        """Nowhere. Even if it does not follow a redirect, requests would read all of its body to prepare for it."""


def _session(chosen_headers: Mapping[str, str], pool_size: int) -> _Session:
    session = _Session()
    session.trust_env = False
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    session.headers.clear()
    session.headers.update({"User-Agent": f"Mailonce/{our_version()}", "Accept": "*/*"})
    session.headers.update({name: value for name, value in chosen_headers.items() if not _is_reserved(name)})
    for scheme in ("http://", "https://"):
        session.mount(scheme, AnswerDeadlineAdapter(pool_maxsize=pool_size, max_retries=0))
    return session


def _is_reserved(header: str) -> bool:
    return header.lower() in _RESERVED_HEADERS or header.lower().startswith("webhook-")


def _form(payload: Mapping[str, Any]) -> str:
    # A lone surrogate, which has no UTF-8, becomes a question mark.
    return urlencode({key: _field(value) for key, value in payload.items()}, errors="replace")


def _field(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _start_of_body(response: requests.Response) -> bytes:
    try:
        return bytes(response.raw.read(MAX_ANSWER_BYTES, decode_content=False))
    except HTTPError:
        # It broke off, or dripped in beyond the deadline. The status line has said already whether it was taken:
        # to send it again because of a lost rest of the answer would only make a duplicate.
        return b""


def _receiver_id(body: bytes) -> str | None:
    try:
        answer = json.loads(body, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict):
        return None
    return next((value for value in (answer.get("id"), answer.get("postId")) if _is_id(value)), None)


def _is_id(value: object) -> bool:
    """Printable as well: it will stand in logs and stores."""
    return isinstance(value, str) and 0 < len(value) <= MAX_RECEIVER_ID_CHARACTERS and value.isprintable()


def _seconds(retry_after: str | None, now: datetime) -> int | None:
    """From now, whether it was told in seconds or as a date; None if it was not told or is neither."""
    text = (retry_after or "").strip()
    try:
        if text.isascii() and text.isdigit():
            return int(text)
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0, math.ceil((aware - now).total_seconds()))


def _reason(error: Exception) -> str:
    causes = list(_causes(error))
    told = (reason for kind, reason in _REASONS if any(isinstance(cause, kind) for cause in causes))
    return next(told, "could not be sent")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error:
        yield error
        error = error.__cause__ or error.__context__
