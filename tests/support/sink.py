"""A real HTTP receiver that records requests and sends configured responses; and our own sender, for others."""

import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl

from orchestrator.config.model import DestinationConfig
from orchestrator.delivery.webhook import Destination, Webhook

RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Received:
    """``payload`` is what the body holds, be it JSON or a form, whose fields are all text."""

    path: str
    webhook_id: str
    payload: dict[str, Any]
    headers: dict[str, str]
    status: int
    body: bytes = b""
    method: str = "POST"
    at: float = field(default_factory=time.monotonic)

    @property
    def subject(self) -> str:
        return str(self.payload["subject"])


@dataclass(frozen=True)
class Reply:
    """How the sink answers one request. ``status`` 0 closes the connection without an answer.

    It waits for ``after`` before anything else, so the test decides when the answer comes.
    ``reset_after_bytes`` of the body the connection is reset (with ``status`` 0: before any answer). The drips are the
    pause after each byte, of the headers or of the body. ``hangs_up`` closes the connection after the answer, although
    the answer did not announce it.
    """

    status: int = 200
    after: threading.Event | None = None
    delay_s: float = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"{}"
    reset_after_bytes: int | None = None
    header_drip_s: float = 0
    body_drip_s: float = 0
    hangs_up: bool = False


class Sink:
    """``answers`` has replies to a subject, to a path, or to a method and path. The ``replies`` are for other requests:
    they are used up one by one, and after them every request gets ``otherwise``."""

    def __init__(self, *replies: Reply, otherwise: Reply | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.answers: dict[str, Reply] = {}
        self._replies = list(replies)
        self.otherwise = otherwise or Reply()
        self._lock = threading.Lock()
        self.received: list[Received] = []
        self.arrived = threading.Event()
        self.connections = 0
        self.connection_ended = threading.Event()
        self.cut_off = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"
        self._is_open = True
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open = False
        with contextlib.suppress(OSError):  # wakes the thread that waits for a connection
            self._server.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.server_close()

    def _serve(self) -> None:
        while self._is_open:
            self._server.handle_request()

    def reply_to(self, subject: str, *request: str) -> Reply:
        answers = (self.answers[key] for key in (subject, *request) if key in self.answers)
        with self._lock:
            return next(answers, None) or (self._replies.pop(0) if self._replies else self.otherwise)

    @property
    def accepted(self) -> list[Received]:
        """Those that were answered with 2xx: what the client of the sink must count as delivered."""
        with self._lock:
            return [each for each in self.received if 200 <= each.status < 300]

    def counts(self, key: Callable[[Received], str] = lambda each: each.webhook_id) -> Counter[str]:
        return Counter(key(each) for each in self.accepted)

    @property
    def subjects(self) -> Counter[str]:
        """How often each subject was accepted."""
        return self.counts(lambda each: each.subject)


def deliver(url: str, payload: Mapping[str, Any], *secrets: str, webhook_id: str = "msg_1") -> int:
    """By our own sender, which signs with these; the status of the answer, or 0."""
    config = DestinationConfig.model_construct(url=url, secret=secrets)
    return Destination("here", config, 1).deliver(Webhook(webhook_id, dict(payload)), 60).status_code or 0


def _payload(content_type: str, body: bytes) -> dict[str, Any]:
    if content_type == "application/x-www-form-urlencoded":
        return dict(parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=True))
    parsed: dict[str, Any] = json.loads(body or b"{}")
    return parsed


def _handler(sink: Sink) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle(self) -> None:
            with sink._lock:
                sink.connections += 1
            try:
                super().handle()
            except ConnectionError:
                sink.cut_off.set()

        def finish(self) -> None:
            super().finish()
            self.server.shutdown_request(self.request)
            sink.connection_ended.set()

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(length)
            if len(body) < length:
                raise ConnectionResetError("the client left in the middle of its request")
            payload = _payload(self.headers.get("Content-Type", ""), body)
            reply = sink.reply_to(payload.get("subject", ""), f"{self.command} {self.path}", self.path)
            sink.arrived.set()
            if reply.after:
                reply.after.wait(120)
            time.sleep(reply.delay_s)
            webhook_id = self.headers.get("webhook-id", "")
            received = Received(self.path, webhook_id, payload, dict(self.headers), reply.status, body, self.command)
            with sink._lock:
                sink.received.append(received)
            self._answer(reply)

        do_GET = do_HEAD = do_POST

        def _answer(self, reply: Reply) -> None:
            resets = reply.reset_after_bytes is not None
            if reply.status:
                self._send_answer(reply)
            if resets:
                self._reset()
            if resets or reply.hangs_up or reply.status == 0:
                self.close_connection = True

        def _send_answer(self, reply: Reply) -> None:
            body = b"" if reply.status == 204 or self.command == "HEAD" else reply.body
            status_line = f"HTTP/1.1 {reply.status} As Configured\r\n".encode()
            headers = {"Content-Length": len(body), **reply.headers}
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            self._send(
                status_line + f"{lines}\r\n".encode("utf-8", "surrogateescape"),
                reply.header_drip_s,
                at_once=len(status_line),
            )
            self._send(body[: reply.reset_after_bytes], reply.body_drip_s)

        def _send(self, content: bytes, drip_s: float, at_once: int = 0) -> None:
            if not drip_s:
                self.wfile.write(content)
                return
            self.wfile.write(content[:at_once])
            for byte in content[at_once:]:
                self.wfile.write(bytes([byte]))
                time.sleep(drip_s)

        def _reset(self) -> None:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            self.rfile.close()
            self.connection.close()

        def log_message(self, format: str, *args: object) -> None:
            """The sink keeps silent; the tests look at what it received."""

    return Handler
