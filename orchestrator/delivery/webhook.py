"""A webhook, one POST of it to its destination, what the response means, and how a webhook is stored."""

import hashlib
import json
import math
import re
import ssl
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from http.client import HTTPException
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from urllib3 import HTTPHeaderDict, Retry, Timeout, make_headers
from urllib3 import exceptions as errors

from deduplication.journal.entry import Delivery, Entry
from deduplication.values import frozen
from orchestrator.config.model import LOG_URL, DestinationConfig
from orchestrator.delivery.fetching import UNREAD, TimedPools
from orchestrator.delivery.signing import signature_headers

Payload = Mapping[str, Any]

GONE = 410  # the destination accepts no webhooks any more
MISPLACED = (401, 403, 404, 405)  # whatever is sent there: wrong credentials, a wrong address, a bad deploy
MAX_ANSWER_BYTES = 64 * 1024
LARGE_BYTES = 256 << 10
PIECE_BYTES = 16 << 10
SLOWEST_BYTES_PER_S = 256 << 10  # a large webhook gets the time that this line would take, on top of its timeouts
MAX_RECEIVER_ID_CHARACTERS = 200
TIMESTAMP = "%Y-%m-%dT%H:%M:%SZ"  # when an event happened, in UTC

_UNSUPPORTED_MEDIA_TYPE = 415
_CONTENT_TYPES = {"json": "application/json", "form": "application/x-www-form-urlencoded"}
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")  # W3C Trace Context
# The first that is among the causes of an error is its reason: the texts of the errors show the address and the path.
_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (errors.LocationValueError, "its URL cannot be used"),
    (errors.ReadTimeoutError, "no answer within {read_s:g} s"),
    (ConnectionRefusedError, "connection refused"),
    (errors.NameResolutionError, "host name not found"),
    (ssl.SSLCertVerificationError, "TLS certificate not accepted"),
    (errors.SSLError, "TLS connection failed"),
    (errors.NewConnectionError, "no connection"),
    (errors.ConnectTimeoutError, "no connection within {connect_s:g} s"),
    (TimeoutError, "not sent in time"),
    (ConnectionError, "connection closed without an answer"),
    (HTTPException, "the answer is not HTTP"),
    (errors.InvalidHeader, "the answer is not HTTP"),
    (Exception, "could not be sent"),
)


class EventType(StrEnum):
    """``email.released``: a gate suppressed the email, and an operator released it."""

    EMAIL_RECEIVED = "email.received"
    EMAIL_RELEASED = "email.released"
    MESSAGE_RECEIVED = "message.received"
    ALERT = "mailonce.alert"
    TEST = "mailonce.test"


@frozen
class PostResult:
    """``error``: why the destination did not accept the webhook, which is then tried again, whatever the answer was;
    None if it did. ``receiver_id`` is its own id for it, if its answer has one."""

    status_code: int | None = None
    error: str | None = None
    retry_after_s: int | None = None
    receiver_id: str | None = None

    @property
    def is_about_this_webhook(self) -> bool:
        """The destination works, and refused this one: others may be accepted, so its circuit breaker stays closed."""
        return self.status_code is not None and 400 <= self.status_code < 500 and self.status_code not in MISPLACED


@frozen
class Webhook:
    """One (item, destination). The id is the same for all attempts, so that a receiver can recognise it.

    ``traceparent`` is that of the request that brought the item (W3C Trace Context), if it had one.
    """

    webhook_id: str
    payload: Payload
    traceparent: str = ""


class Destination:
    """POSTs over pooled connections. One call of ``deliver`` is one POST.

    There is a second one only if the first was refused with a 415 and ``fallback_form`` is set.
    """

    def __init__(self, name: str, config: DestinationConfig, pool_size: int) -> None:
        self._name = name
        self.config = config
        self._format: str = config.format
        self._pools = TimedPools(pool_size)
        parts = urlsplit(config.url)
        user = unquote(f"{parts.username}:{parts.password or ''}") if parts.username else None
        self._headers = HTTPHeaderDict({**self._pools.headers, **make_headers(basic_auth=user)})
        self._headers.update(config.headers)

    def deliver(self, webhook: Webhook, within_s: float | None = None) -> PostResult:
        """``within_s`` is the time left for all of it, if that is less than the destination's own timeouts."""
        if self.config.url == LOG_URL:
            return _print(webhook)
        ends_at = math.inf if within_s is None else time.monotonic() + within_s
        format = self._format
        result = self._post(webhook, format, ends_at)
        if result.status_code == _UNSUPPORTED_MEDIA_TYPE and format == "json" and self.config.fallback_form:
            result = self._post(webhook, "form", ends_at)
            if result.status_code not in (None, _UNSUPPORTED_MEDIA_TYPE):
                self._format = "form"
        return result

    def _post(self, webhook: Webhook, format: str, ends_at: float) -> PostResult:
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            return PostResult(error=f"{self._name}: no time left")
        body = _form(webhook.payload) if format == "form" else json.dumps(dict(webhook.payload))
        content = body.encode()
        more_s = len(content) / SLOWEST_BYTES_PER_S if len(content) > LARGE_BYTES else 0.0
        connect_s, read_s = self.config.connect_timeout_s, self.config.read_timeout_s + more_s
        headers = self._headers.copy()
        headers["webhook-id"] = headers["Idempotency-Key"] = webhook.webhook_id
        headers["Content-Type"] = _CONTENT_TYPES[format]
        headers["Content-Length"] = str(len(content))
        if self.config.secret:
            headers.update(signature_headers(self.config.secret, webhook.webhook_id, datetime.now(UTC), body))
        if _TRACEPARENT.fullmatch(webhook.traceparent):
            headers["traceparent"] = webhook.traceparent
        try:
            large = _pieces(content, time.monotonic() + min(left_s, read_s)) if more_s else None
            options = {"body": large or content, "timeout": Timeout(left_s, connect_s, read_s), **UNREAD}
            with self._pools.urlopen("POST", self.config.url, headers=headers, **options) as response:
                status, retry_after, start = response.status, response.headers.get("Retry-After", ""), b""
                # If the rest of the answer is lost or late, its status has still said whether the webhook was
                # accepted: sending it again would only make a duplicate.
                with suppress(errors.HTTPError):
                    start = response.read(MAX_ANSWER_BYTES, decode_content=False)
        except errors.HTTPError as error:
            connect_s, read_s = (round(min(limit_s, left_s), 1) for limit_s in (connect_s, read_s))
            # The text of the error would show the path: for some receivers that is the secret.
            return PostResult(error=f"{self._name}: {_reason(error).format(connect_s=connect_s, read_s=read_s)}")
        if 200 <= status < 300:
            return PostResult(status, receiver_id=_receiver_id(start))
        refusal = f"{self._name}: answered {status}{' Gone' if status == GONE else ''}"
        return PostResult(status, refusal, _retry_after_s(retry_after))


def _print(webhook: Webhook) -> PostResult:
    """For trying out the service without a receiver."""
    indent = 2 if sys.stdout.isatty() else None  # a log has one line for each
    shown = json.dumps(dict(webhook.payload), indent=indent)
    print(f"webhook {webhook.webhook_id} would be sent: {shown}", flush=True)
    return PostResult()


def _pieces(content: bytes, ends_at: float) -> Iterator[bytes]:
    """A large body is sent in pieces: the timeout of a socket is for each call that sends."""
    for start in range(0, len(content), PIECE_BYTES):
        if time.monotonic() > ends_at:
            raise TimeoutError("not sent in time")
        yield content[start : start + PIECE_BYTES]


def _form(payload: Payload) -> str:
    fields = {
        key: "" if value is None else value if isinstance(value, str) else json.dumps(value)
        for key, value in payload.items()
    }
    return urlencode(fields, errors="replace")  # a lone surrogate, which has no UTF-8, becomes a question mark


def _receiver_id(body: bytes) -> str | None:
    """The receiver's own id, if the answer has one that can be shown and stored."""
    try:
        answer = json.loads(body, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    if isinstance(answer, dict):
        for value in (answer.get("id"), answer.get("postId")):
            if isinstance(value, str) and 0 < len(value) <= MAX_RECEIVER_ID_CHARACTERS and value.isprintable():
                return value
    return None


def _retry_after_s(text: str) -> int | None:
    """A Retry-After of seconds or of a date, in seconds from now; None if there is none or it is neither."""
    try:
        return math.ceil(Retry().parse_retry_after(text))
    except (errors.InvalidHeader, ValueError, OverflowError):
        return None


def _reason(error: BaseException) -> str:
    causes = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    return next(reason for kind, reason in _REASONS if any(isinstance(cause, kind) for cause in causes))


# Stored


def pack(payload: Payload, traceparent: str = "") -> bytes:
    """For storage. Mail is text, and shrinks to a fraction."""
    return zlib.compress(json.dumps([payload, traceparent]).encode(), level=1)


def unpack(stored: bytes) -> Payload:
    payload: Payload = json.loads(zlib.decompress(stored))[0]
    return payload


def stored_event(stored: bytes, entry: Entry, delivery: Delivery) -> tuple[Payload, str]:
    """The stored payload as it is sent now, and the traceparent of its request. An email that an operator has released
    is of another type."""
    payload, traceparent = json.loads(zlib.decompress(stored))
    if entry.released_ms and delivery.generation and payload["type"] == EventType.EMAIL_RECEIVED:
        released_at = datetime.fromtimestamp(entry.released_ms / 1000, UTC)
        payload |= {"type": EventType.EMAIL_RELEASED, "timestamp": f"{released_at:{TIMESTAMP}}"}
    return payload, traceparent


def webhook_id(destination: str, key: str) -> str:
    """The same for every attempt, replay and machine; ``key`` does not depend on how a provider formats the email."""
    digest = hashlib.sha256(json.dumps([destination, key]).encode()).hexdigest()
    return f"msg_{digest[:32]}"
