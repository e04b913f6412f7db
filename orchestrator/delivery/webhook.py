"""What is sent, to whom, and what the answer means."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.cookiejar import DefaultCookiePolicy
from typing import Any, Protocol

import requests
from requests.adapters import HTTPAdapter

CONNECT_TIMEOUT_S = 3.0
READ_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 64 * 1024
_RETRYABLE = {408, 409, 425, 429}


class DeliveryFailed(Exception):
    """The destination did not take the webhook; ``permanent`` says that trying again will not help."""

    def __init__(self, reason: str, *, permanent: bool, retry_after_s: int | None = None) -> None:
        super().__init__(reason)
        self.permanent = permanent
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Webhook:
    """One (email, destination). The id is the same over all attempts, so that a receiver can recognise it."""

    webhook_id: str
    payload: Mapping[str, Any]


class Destination(Protocol):
    def deliver(self, webhook: Webhook) -> None:
        """Returns once the destination has taken it; raises DeliveryFailed otherwise."""
        ...


def webhook_id(canonical_id: str, fingerprint: str, destination: str) -> str:
    digest = hashlib.sha256(json.dumps([canonical_id, fingerprint, destination]).encode()).hexdigest()
    return f"msg_{digest[:32]}"


class HttpDestination:
    """POSTs JSON over pooled connections. Sends no cookies, follows no redirects, reads no proxy or netrc settings."""

    def __init__(self, name: str, url: str, pool_size: int) -> None:
        self._name = name
        self._url = url
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=pool_size, max_retries=0))

    def deliver(self, webhook: Webhook) -> None:
        try:
            with self._session.post(
                self._url,
                data=json.dumps(webhook.payload).encode(),
                headers={"Content-Type": "application/json", "webhook-id": webhook.webhook_id},
                timeout=(CONNECT_TIMEOUT_S, READ_TIMEOUT_S),
                allow_redirects=False,
                stream=True,
            ) as answer:
                next(answer.iter_content(MAX_ANSWER_BYTES), b"")
        except requests.RequestException as error:
            raise DeliveryFailed(f"{self._name}: {type(error).__name__}", permanent=False) from error
        _judge(self._name, answer)


def _judge(name: str, answer: requests.Response) -> None:
    status = answer.status_code
    if 200 <= status < 300:
        return
    if 300 <= status < 400:
        raise DeliveryFailed(f"{name}: answered {status}, and redirects are not followed", permanent=True)
    retryable = status in _RETRYABLE or status >= 500
    raise DeliveryFailed(
        f"{name}: answered {status}", permanent=not retryable, retry_after_s=_seconds(answer.headers.get("Retry-After"))
    )


def _seconds(retry_after: str | None) -> int | None:
    return int(retry_after) if retry_after and retry_after.isascii() and retry_after.isdigit() else None


class LogDestination:
    """Prints each webhook it would send, so that the first email shows something. For trying out only."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def deliver(self, webhook: Webhook) -> None:
        shown = json.dumps(dict(webhook.payload), indent=2)
        self._write(f"webhook {webhook.webhook_id} would be sent:\n{shown}")
