"""Fetches something small over https."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from urllib3.exceptions import HTTPError

from orchestrator.delivery.client import TimedPools

CHUNK_BYTES = 64 * 1024


class FetchFailed(Exception):
    """Trying again later may work, unless ``permanent``. The message names the host at most."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


def fetch(url: str, headers: Mapping[str, str], timeout_s: float, max_bytes: int, ca_file: str | None = None) -> bytes:
    """The body of a 200, within the time and the size. Raises FetchFailed.

    The caller has checked the host. ``ca_file`` replaces the public certificate authorities.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise FetchFailed("not an address") from error
    host = parts.hostname
    if parts.scheme != "https" or not host:
        raise FetchFailed("only https is fetched")
    body = bytearray()
    try:
        with (
            TimedPools(ca_file=ca_file) as pools,
            pools.ask("GET", url, {**pools.headers, **headers}, timeout_s) as answer,
        ):
            if answer.status != 200:
                raise FetchFailed(f"{host} answered {answer.status}")
            for chunk in answer.stream(CHUNK_BYTES):
                body += chunk
                if len(body) > max_bytes:
                    raise FetchFailed(f"{host} sent more than {max_bytes} bytes")
    except HTTPError as error:
        raise FetchFailed(f"{host}: {type(error).__name__}") from error
    return bytes(body)
