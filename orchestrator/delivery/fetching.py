"""The HTTP client: pools of urllib3 that apply a read timeout to a whole answer, and ``fetch`` for something small.

The read timeout of urllib3 is one for each read from the socket. A receiver that sends a byte now and then, of its
headers or of its body, would block a sender for as long as it likes.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from http.client import HTTPResponse
from pathlib import Path
from socket import socket
from typing import Any

import certifi
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.util import parse_url

from deduplication.spool import Content, collected
from orchestrator.version import our_version

CHUNK_BYTES = 64 * 1024
# The caller reads the body, and closes. A redirect is an answer like any other.
UNREAD: dict[str, Any] = {"redirect": False, "preload_content": False}


class TimedResponse(HTTPResponse):
    """Status, headers and body must arrive within the timeout that the socket has when the request has been sent."""

    def __init__(self, sock: socket, *options: Any, **named: Any) -> None:
        super().__init__(sock, *options, **named)
        timeout_s = sock.gettimeout()
        if timeout_s is not None:
            self.fp.raw.readinto = partial(_receive_until, time.monotonic() + timeout_s, sock)  # type: ignore[method-assign]


def _receive_until(ends_at: float, sock: socket, buffer: Any) -> int:
    """Before each read, the timeout of the socket becomes the time that is left."""
    left_s = ends_at - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the answer did not end in time")
    sock.settimeout(left_s)
    return sock.recv_into(buffer)


class _Pool(HTTPConnectionPool):
    class ConnectionCls(HTTPConnection):
        response_class = TimedResponse


class _TlsPool(HTTPSConnectionPool):
    class ConnectionCls(HTTPSConnection):
        response_class = TimedResponse


class TimedPools(PoolManager):
    """Never repeats a request, keeps no cookies, reads neither proxies nor passwords from the environment."""

    def __init__(self, pool_size: int = 1) -> None:
        headers = {"User-Agent": f"Mailonce/{our_version()}", "Accept": "*/*"}
        super().__init__(headers=headers, maxsize=pool_size, retries=False, ca_certs=certifi.where())
        self.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}


class FetchFailed(Exception):
    """Trying again later may work, unless ``permanent``. The message names the host at most."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


def fetch(
    url: str, headers: Mapping[str, str], timeout_s: float, max_bytes: int, *, folder: Path | None = None
) -> Content:
    """The body of a 200 over https, within the time and the size; in the ``folder`` if it is large. Raises FetchFailed.
    The caller checks the host."""
    host = None
    try:
        scheme, _, host, *_ = parse_url(url)
        if scheme != "https" or not host:
            raise FetchFailed("only https is fetched")
        with (
            TimedPools() as pools,
            pools.urlopen("GET", url, headers={**pools.headers, **headers}, timeout=timeout_s, **UNREAD) as answer,
        ):
            if answer.status != 200:
                raise FetchFailed(f"{host} answered {answer.status}")
            return collected(_up_to(max_bytes, answer.stream(CHUNK_BYTES), host), folder)
    except HTTPError as error:
        raise FetchFailed(f"{host or 'not an address'}: {type(error).__name__}") from error


def _up_to(most_bytes: int, chunks: Iterable[bytes], host: str) -> Iterator[bytes]:
    left = most_bytes
    for chunk in chunks:
        left -= len(chunk)
        if left < 0:
            raise FetchFailed(f"{host} sent more than {most_bytes} bytes", permanent=True)
        yield chunk
