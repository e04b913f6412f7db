"""How long a stranger may keep us waiting: gunicorn's threaded worker, with bounds.

gunicorn gives a thread to every connection that has sent something, and that thread waits for the rest for ever. So
there are many more threads than places to work at: a request takes a place only once it is here as a whole.
"""

from __future__ import annotations

import logging
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, cast

from flask import Request, request
from gunicorn.glogging import Logger
from gunicorn.http.errors import ChunkMissingTerminator, NoMoreData, ParseException
from gunicorn.workers.gthread import TConn, ThreadWorker
from werkzeug.exceptions import BadRequest, ClientDisconnected, RequestEntityTooLarge, ServiceUnavailable

from orchestrator.logs import LogFormat, make_formatter

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment
    from gunicorn.config import Config
    from gunicorn.http.message import Request as Head

log = logging.getLogger(__name__)

CONNECTIONS = 200  # of each worker process; a thread that only waits costs next to nothing
HEAD_S = 10.0
BODY_S = 60.0
LINGER_S = 30.0
SILENCE_S = 2.0
MOST_DISCARDED_BYTES = 256 * 1024 * 1024
PIECE_BYTES = 128 * 1024  # what a connection may hold in memory; larger bodies go to a temporary file
UNPROVEN_BYTES = 128 * 1024 * 1024  # of larger bodies in each worker process, while their sender is not verified
UNPROVEN_WAIT_S = 5.0  # Amazon SNS and Resend give up after 15
PLACES = "mailonce.places"
UNPROVEN = "mailonce.unproven"


class Places:
    """A semaphore. Python's own is written in Python: with requests waiting, it took a sixth of the time of each."""

    def __init__(self, count: int) -> None:
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(count):
            self.release()

    def acquire(self) -> None:
        self._free.get()

    def release(self) -> None:
        self._free.put(None)


class ByteBudget:
    """Bytes that requests reserve and return; a request that finds too few waits."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._returned = threading.Condition()

    def reserve(self, count: int, timeout_s: float) -> bool:
        """False if they were not free in time."""
        with self._returned:
            is_free = self._returned.wait_for(lambda: self._free >= count, timeout_s)
            if is_free:
                self._free -= count
            return is_free

    def give_back(self, count: int) -> None:
        with self._returned:
            self._free += count
            self._returned.notify_all()


class ClientSocket(socket.socket):
    """Reads until its deadline, however slowly the other side sends.

    ``places``: where its request has one of these, that is given to another for as long as there is nothing to read.
    """

    deadline = 0.0
    places: Places | None = None

    def expect_within(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds

    def recv(self, size: int, flags: int = 0) -> bytes:
        """At most a piece: gunicorn asks for a megabyte, and keeps in memory what the request does not read yet."""
        size = min(size, PIECE_BYTES)
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise NoMoreData
        with suppress(BlockingIOError):
            return super().recv(size, flags | socket.MSG_DONTWAIT)  # most requests are here as a whole already
        places = self.places
        if places:
            places.release()
        self.settimeout(left_s)
        try:
            return super().recv(size, flags)
        except TimeoutError:
            raise NoMoreData from None  # gunicorn's word for a client that went away
        finally:
            self.settimeout(None)
            if places:
                places.acquire()

    def hang_up(self) -> None:
        """Lets a client that still sends come to its end and read its answer: with bytes unread, it would see a reset.

        gunicorn does the same for 64 KB only, and in the one thread that accepts connections.
        """
        ends_at, discarded = time.monotonic() + LINGER_S, 0
        with suppress(OSError):  # it went away, or fell silent
            self.shutdown(socket.SHUT_WR)
            while discarded < MOST_DISCARDED_BYTES and time.monotonic() < ends_at:
                self.expect_within(SILENCE_S)
                chunk = self.recv(PIECE_BYTES)
                if not chunk:
                    break
                discarded += len(chunk)
        with suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)  # nothing more to wait for, whoever closes it


class ConnectionWorker(ThreadWorker):
    def init_signals(self) -> None:
        """From a terminal, SIGINT reaches all: the master ends us by SIGQUIT, and gunicorn cannot bear both."""
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
    """gunicorn's own lines look as ours."""

    log_format: LogFormat = "text"

    def setup(self, cfg: Config) -> None:
        super().setup(cfg)
        for handler in [*self.error_log.handlers, *self.access_log.handlers]:
            handler.setFormatter(make_formatter(self.log_format))


class JsonLog(Log):
    log_format = "json"


class Workplaces:
    """At most ``count`` requests are worked at; one that waits for its own body gives its place to another."""

    def __init__(self, app: WSGIApplication, count: int, unproven_bytes: int = UNPROVEN_BYTES) -> None:
        self._app = app
        self._places = Places(count)
        self._unproven = ByteBudget(unproven_bytes)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        environ[PLACES], environ[UNPROVEN] = self._places, self._unproven
        self._places.acquire()
        try:
            return self._app(environ, start_response)
        finally:
            self._places.release()


class BrokenChunks(BadRequest):
    """Where the next request would begin is unknown, so that the connection cannot be kept."""

    description = "Transfer-Encoding takes valid chunks"

    def get_headers(self, *args: Any, **kwargs: Any) -> list[tuple[str, str]]:
        return [*super().get_headers(*args, **kwargs), ("Connection", "close")]


class NoRoomForBody(ServiceUnavailable):
    """Too many large bodies from unverified senders, or the disk for temporary files is full."""

    description = "too many large requests at once"


class PatientRequest(Request):
    is_proven = False
    _reserved_bytes = 0

    def mark_proven(self) -> None:
        self.is_proven = True
        self._return_bytes()

    def close(self) -> None:
        """Flask calls this when the request is over."""
        self._return_bytes()
        super().close()

    def get_data(self, *args: Any, **kwargs: Any) -> Any:
        """The whole body or an error: werkzeug alone takes half an email that broke off, or is cut at the limit."""
        if "_cached_data" in vars(self):
            return super().get_data(*args, **kwargs)
        places: Places = self.environ[PLACES]
        client = self.environ.get("gunicorn.socket")
        if isinstance(client, ClientSocket):
            client.places = places
        else:
            places.release()
        try:
            self._cached_data = self._read_body()
        except (NoMoreData, ParseException) as error:
            if isinstance(error, NoMoreData) or (isinstance(error, ChunkMissingTerminator) and len(error.term) < 2):
                raise ClientDisconnected from None  # it ended where the end of a chunk was due
            log.warning("%s %s: the body is no chunked one (%s)", self.method, self.path, type(error).__name__)
            raise BrokenChunks from None
        finally:
            if isinstance(client, ClientSocket):
                client.places = None
            else:
                places.acquire()
        if len(self._cached_data) < (self.content_length or 0):
            raise ClientDisconnected
        return super().get_data(*args, **kwargs)

    def _read_body(self) -> bytes:
        """By way of a temporary file if it is large: a client that stops half-way then holds no memory."""
        length, most_bytes = self.content_length, self.max_content_length or 0
        if length is None and "wsgi.input_terminated" not in self.environ:
            return b""  # nobody knows where it ends
        if (length or 0) > most_bytes:
            raise RequestEntityTooLarge
        wanted = most_bytes + 1 if length is None else length
        first = self._receive(min(wanted, PIECE_BYTES))
        if len(first) < PIECE_BYTES:
            return first
        self._reserve(wanted)
        try:
            with tempfile.TemporaryFile() as file:
                file.write(first)
                while piece := self._receive(min(wanted - file.tell(), PIECE_BYTES)):
                    file.write(piece)
                if file.tell() > most_bytes:
                    raise RequestEntityTooLarge
                file.seek(0)
                return file.read()
        except OSError as error:
            log.error("a body cannot be kept in a temporary file: %s", error)
            raise NoRoomForBody from error

    def _receive(self, size: int) -> bytes:
        try:
            received: bytes = self.environ["wsgi.input"].read(size)
        except (OSError, ValueError):
            raise ClientDisconnected from None
        return received

    def _reserve(self, count: int) -> None:
        """Another request gets the place of one that waits."""
        if self.is_proven:
            return
        budget: ByteBudget = self.environ[UNPROVEN]
        if not budget.reserve(count, 0):
            places = getattr(self.environ.get("gunicorn.socket"), "places", None)
            if places:
                places.release()
            try:
                if not budget.reserve(count, UNPROVEN_WAIT_S):
                    raise NoRoomForBody
            finally:
                if places:
                    places.acquire()
        self._reserved_bytes = count

    def _return_bytes(self) -> None:
        if self._reserved_bytes:
            self.environ[UNPROVEN].give_back(self._reserved_bytes)
            self._reserved_bytes = 0


def mark_proven() -> None:
    """The sender of this request is verified: its body no longer counts against the budget of unproven bytes."""
    cast(PatientRequest, request).mark_proven()
