"""One GET of something small, from an address that the caller has looked at."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

import requests

from orchestrator.delivery.answer_deadline import AnswerDeadlineAdapter

CHUNK_BYTES = 64 * 1024


class FetchFailed(Exception):
    """It could not be had; trying again later may work, unless ``permanent``. The message names the host at most."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


def fetch(url: str, headers: Mapping[str, str], timeout_s: float, max_bytes: int, ca_file: str | None = None) -> bytes:
    """The body of a 200 over https, within the time and the size. Follows no redirect, reads no proxy settings.

    Raises FetchFailed. ``ca_file`` replaces the public certificate authorities.
    """
    host = _host(url)
    try:
        with (
            _session() as session,
            session.get(
                url, headers=headers, timeout=timeout_s, allow_redirects=False, stream=True, verify=ca_file or True
            ) as answer,
        ):
            if answer.status_code != 200:
                raise FetchFailed(f"{host} answered {answer.status_code}")
            return _body(host, answer, max_bytes)
    except requests.RequestException as error:
        raise FetchFailed(f"{host}: {type(error).__name__}") from error


def _session() -> requests.Session:
    session = requests.Session()
    session.trust_env = False
    session.mount("https://", AnswerDeadlineAdapter(max_retries=0))
    return session


def _host(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise FetchFailed("not an address") from error
    if parts.scheme != "https" or not parts.hostname:
        raise FetchFailed("only https is fetched")
    return parts.hostname


def _body(host: str, answer: requests.Response, max_bytes: int) -> bytes:
    body = bytearray()
    for chunk in answer.iter_content(CHUNK_BYTES):
        body += chunk
        if len(body) > max_bytes:
            raise FetchFailed(f"{host} sent more than {max_bytes} bytes")
    return bytes(body)
