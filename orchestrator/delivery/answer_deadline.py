"""Holds a whole answer to the read timeout.

The read timeout of requests is one for each read from the socket. A receiver that sends a byte now and then, of its
headers or of its body, would hold a sender for as long as it likes.
"""

from __future__ import annotations

import io
import time
from http.client import HTTPResponse
from socket import socket
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool


class _DeadlineReader(io.RawIOBase):
    """Reads as ``raw`` does, but each time with what is left until the deadline as the socket's timeout."""

    def __init__(self, raw: io.RawIOBase, sock: socket, timeout_s: float) -> None:
        self._raw = raw
        self._sock = sock
        self._deadline_s = time.monotonic() + timeout_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer did not end in time")
        self._sock.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedResponse(HTTPResponse):
    """Its deadline runs from when the request was sent; the socket's timeout is the read timeout by then."""

    def __init__(self, sock: socket, debuglevel: int = 0, method: str | None = None, url: str | None = None) -> None:
        super().__init__(sock, debuglevel, method, url)
        timeout_s = sock.gettimeout()
        if timeout_s is not None:
            self.fp = io.BufferedReader(_DeadlineReader(self.fp.detach(), sock, timeout_s))


class _Connection(HTTPConnection):
    response_class = _TimedResponse


class _TlsConnection(HTTPSConnection):
    response_class = _TimedResponse


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class AnswerDeadlineAdapter(HTTPAdapter):
    """An adapter for a requests session whose read timeout is the time for the whole answer: status, headers, body."""

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **pool_kwargs: Any) -> None:
        super().init_poolmanager(connections, maxsize, block, **pool_kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
