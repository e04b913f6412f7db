"""Limits for clients: gunicorn's threaded worker with deadlines, and requests with bounded bodies.

gunicorn gives a thread to every connection that has sent something, and that thread waits for the rest without end. So
there are many more threads than requests that are processed at a time, and a request counts only once it is complete.
"""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from flask import Request
from gunicorn.glogging import Logger
from gunicorn.http.errors import ChunkMissingTerminator, NoMoreData, ParseException
from gunicorn.workers.gthread import TConn, ThreadWorker
from werkzeug.exceptions import BadRequest, ClientDisconnected, RequestEntityTooLarge, ServiceUnavailable

from deduplication.spool import Blob, Content, Spool, read_all
from orchestrator.logs import request_id

if TYPE_CHECKING:  # gunicorn keeps the folder in which its configuration is imported
    from gunicorn.config import Config
    from gunicorn.http.message import Request as Head

log = logging.getLogger(__name__)

CONNECTIONS = 200  # of each worker process; a thread that only waits costs next to nothing
HEAD_S = 10.0
BODY_S = 60.0
LINGER_S = 30.0
SILENCE_S = 2.0
PIECE_BYTES = 128 * 1024  # what a connection may hold in memory; larger bodies go to a temporary file
UNPROVEN_BYTES = 128 * 1024 * 1024  # for larger bodies in each worker process while their senders are not verified
UNPROVEN_WAIT_S = 5.0  # Amazon SNS and Resend give up after 15
LIMIT = "mailonce.limit"
IS_COUNTED = "mailonce.is_counted"


# Connections


class ClientSocket(socket.socket):
    """Reads until its deadline, however slowly the client sends."""

    deadline = 0.0

    def expect_within(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds

    def recv(self, size: int, flags: int = 0) -> bytes:
        """At most PIECE_BYTES: gunicorn asks for a megabyte, and keeps in memory what the request does not read yet."""
        size = min(size, PIECE_BYTES)
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise NoMoreData
        with suppress(BlockingIOError):
            return super().recv(size, flags | socket.MSG_DONTWAIT)  # most requests have arrived as a whole
        self.settimeout(left_s)
        try:
            return super().recv(size, flags)
        except TimeoutError:
            raise NoMoreData from None  # gunicorn's error for a client that went away
        finally:
            self.settimeout(None)

    def hang_up(self) -> None:
        """Lets a client that still sends finish and read its answer: with bytes unread, it would see a reset.

        gunicorn does the same for 64 KB only, and in the one thread that accepts connections.
        """
        ends_at = time.monotonic() + LINGER_S
        with suppress(OSError):  # it went away, or fell silent
            self.shutdown(socket.SHUT_WR)
            self.expect_within(SILENCE_S)
            while self.recv(PIECE_BYTES) and time.monotonic() < ends_at:
                self.expect_within(SILENCE_S)
        with suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)  # so that closing it waits for nothing


class ConnectionWorker(ThreadWorker):
    def init_signals(self) -> None:
        """From a terminal, SIGINT reaches all processes. The master ends us by SIGQUIT, and gunicorn fails on both."""
        super().init_signals()
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def handle(self, conn: TConn) -> Any:
        if type(conn.sock) is socket.socket:
            conn.sock = ClientSocket(fileno=conn.sock.detach())
        client = conn.sock
        if not isinstance(client, ClientSocket):  # gunicorn's own TLS
            return super().handle(conn)
        client.expect_within(HEAD_S)
        is_kept = super().handle(conn)
        if is_kept is False:
            client.hang_up()
        return is_kept

    def handle_request(self, req: Head, conn: TConn) -> bool:
        if isinstance(conn.sock, ClientSocket):
            conn.sock.expect_within(BODY_S)
        return super().handle_request(req, conn)


class Log(Logger):
    """gunicorn's own lines, in the format of ours."""

    def setup(self, cfg: Config) -> None:
        super().setup(cfg)
        for handler in [*self.error_log.handlers, *self.access_log.handlers]:
            handler.setFormatter(logging.getLogger().handlers[0].formatter)


# Requests


class RequestLimit:
    """At most ``count`` requests are processed at a time. A POST counts once its body has been received.

    ``most_unproven``: how many large bodies of unverified senders may be received at a time. ``folder``: where large
    bodies are kept while they are processed.
    """

    def __init__(self, app: WSGIApplication, count: int, most_unproven: int = 1, folder: Path | None = None) -> None:
        self.folder = folder
        self.unproven = threading.BoundedSemaphore(most_unproven)
        self._app = app
        # A semaphore. Python's own is written in Python: with requests waiting, it took a sixth of the time of each.
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(count):
            self._free.put(None)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        environ[LIMIT] = self
        if environ["REQUEST_METHOD"] != "POST":
            self.acquire(environ)
        try:
            return self._app(environ, start_response)
        finally:
            if environ.pop(IS_COUNTED, False):
                self._free.put(None)

    def acquire(self, environ: WSGIEnvironment) -> None:
        self._free.get()
        environ[IS_COUNTED] = True


class InvalidChunks(BadRequest):
    """Where the next request would begin is unknown, so the connection cannot be kept."""

    description = "the body must have valid chunks (Transfer-Encoding: chunked)"

    def get_headers(self, *args: Any, **kwargs: Any) -> list[tuple[str, str]]:
        return [*super().get_headers(*args, **kwargs), ("Connection", "close")]


class NoRoomForBody(ServiceUnavailable):
    """Too many large bodies from unverified senders, or the disk for temporary files is full."""

    description = "too many large requests at once"


class BoundedRequest(Request):
    is_proven = False
    _is_among_unproven = False
    _content: Content | None = None

    def mark_proven(self) -> None:
        """Its sender is verified, or the request is over: its body makes room for that of another unverified sender."""
        self.is_proven = True
        if self._is_among_unproven:
            self._is_among_unproven = False
            self.environ[LIMIT].unproven.release()

    def close(self) -> None:
        """Flask calls this when the request is over."""
        request_id.set("")
        self.mark_proven()
        super().close()

    def get_data(self, *args: Any, **kwargs: Any) -> Any:
        if "_cached_data" not in vars(self):
            self._cached_data = read_all(self.content())
        return super().get_data(*args, **kwargs)

    def content(self) -> Content:
        """The whole body or an error. werkzeug alone would return half of a body that broke off or is too large."""
        if self._content is None:
            self._content, received = self._read_body()
            if received < (self.content_length or 0):
                raise ClientDisconnected
            if IS_COUNTED not in self.environ:
                self.environ[LIMIT].acquire(self.environ)
        return self._content

    def _read_body(self) -> tuple[Content, int]:
        """In a temporary file if it is large, and its length: a client that stops half-way then holds no memory."""
        length, most_bytes = self.content_length, self.max_content_length or 0
        if length is None and "wsgi.input_terminated" not in self.environ:
            return b"", 0  # its end is unknown
        if (length or 0) > most_bytes:
            raise RequestEntityTooLarge
        wanted = most_bytes + 1 if length is None else length
        first = self._receive(min(wanted, PIECE_BYTES))
        if len(first) < PIECE_BYTES:
            return first, len(first)
        if not self.is_proven:
            if not self.environ[LIMIT].unproven.acquire(timeout=UNPROVEN_WAIT_S):
                raise NoRoomForBody
            self._is_among_unproven = True
        try:
            spool = Spool(self.environ[LIMIT].folder)
            spool.write(first)
            while piece := self._receive(min(wanted - spool.size, PIECE_BYTES)):
                spool.write(piece)
        except OSError as error:
            log.error("a body cannot be kept in a temporary file: %s", error)
            raise NoRoomForBody from error
        if spool.size > most_bytes:
            raise RequestEntityTooLarge
        return Blob(spool, 0, spool.size), spool.size

    def _receive(self, size: int) -> bytes:
        try:
            received: bytes = self.environ["wsgi.input"].read(size)
        except (OSError, ValueError):
            raise ClientDisconnected from None
        except ParseException as error:
            if isinstance(error, ChunkMissingTerminator) and len(error.term) < 2:
                raise ClientDisconnected from None  # it ended where the end of a chunk was due
            log.warning("%s %s: invalid chunked body (%s)", self.method, self.path, type(error).__name__)
            raise InvalidChunks from None
        return received
