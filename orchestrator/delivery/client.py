"""The HTTP client: pools of urllib3 that apply a read timeout to a whole answer.

The read timeout of urllib3 is one for each read from the socket. A receiver that sends a byte now and then, of its
headers or of its body, would block a sender for as long as it likes.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from http.client import HTTPResponse
from socket import socket
from typing import IO, Any

import certifi
from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPSConnectionPool, PoolManager, Timeout
from urllib3.connection import HTTPConnection, HTTPSConnection

from orchestrator.version import our_version


class _DeadlineReader(io.RawIOBase):
    """Before each read, sets the timeout of the socket to the time that is left."""

    def __init__(self, raw: io.RawIOBase, sock: socket, timeout_s: float) -> None:
        self._raw = raw
        self._sock = sock
        self._ends_at = time.monotonic() + timeout_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._ends_at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer did not end in time")
        self._sock.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class TimedResponse(HTTPResponse):
    """Status, headers and body must arrive within the timeout that the socket has when the request has been sent."""

    def __init__(self, sock: socket, debuglevel: int = 0, method: str | None = None, url: str | None = None) -> None:
        super().__init__(sock, debuglevel, method, url)
        timeout_s = sock.gettimeout()
        if timeout_s is not None:
            self.fp = io.BufferedReader(_DeadlineReader(self.fp.detach(), sock, timeout_s))


class _Pool(HTTPConnectionPool):
    class ConnectionCls(HTTPConnection):
        response_class = TimedResponse


class _TlsPool(HTTPSConnectionPool):
    class ConnectionCls(HTTPSConnection):
        response_class = TimedResponse


class TimedPools(PoolManager):
    """Never repeats a request, keeps no cookies, reads neither proxies nor passwords from the environment."""

    def __init__(self, pool_size: int = 1, ca_file: str | None = None) -> None:
        """``ca_file`` replaces the public certificate authorities."""
        headers = {"User-Agent": f"Mailonce/{our_version()}", "Accept": "*/*"}
        super().__init__(headers=headers, maxsize=pool_size, retries=False, ca_certs=ca_file or certifi.where())
        self.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}

    def ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        timeout: Timeout | float,
        body: bytes | IO[bytes] | None = None,
    ) -> BaseHTTPResponse:
        """Status and headers; the caller reads the body, and closes. A redirect is an answer like any other."""
        options: dict[str, Any] = {"timeout": timeout, "redirect": False, "preload_content": False}
        return self.urlopen(method, url, body=body, headers=headers, **options)
