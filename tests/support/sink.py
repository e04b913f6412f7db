"""A real HTTP receiver that counts what it gets and answers as it is told."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Received:
    path: str
    webhook_id: str
    payload: dict[str, Any]
    headers: dict[str, str]
    status: int


@dataclass(frozen=True)
class Reply:
    """How the sink answers one request. ``status`` 0 closes the connection without an answer."""

    status: int = 200
    delay_s: float = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"{}"


class Sink:
    """``replies`` are used up one by one; after them every request gets ``otherwise``."""

    def __init__(self, *replies: Reply, otherwise: Reply | None = None) -> None:
        self._replies = list(replies)
        self._otherwise = otherwise or Reply()
        self._lock = threading.Lock()
        self.received: list[Received] = []
        self.arrived = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def next_reply(self) -> Reply:
        with self._lock:
            return self._replies.pop(0) if self._replies else self._otherwise

    def take(self, received: Received) -> None:
        with self._lock:
            self.received.append(received)

    @property
    def accepted(self) -> list[Received]:
        """Those that were answered with 2xx: what the client of the sink must count as delivered."""
        with self._lock:
            return [each for each in self.received if 200 <= each.status < 300]

    def counts(self, key: Callable[[Received], str] = lambda each: each.webhook_id) -> Counter[str]:
        return Counter(key(each) for each in self.accepted)


def _handler(sink: Sink) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            reply = sink.next_reply()
            sink.arrived.set()
            time.sleep(reply.delay_s)
            webhook_id = self.headers.get("webhook-id", "")
            sink.take(Received(self.path, webhook_id, json.loads(raw), dict(self.headers), reply.status))
            if reply.status == 0:
                self.close_connection = True
                return
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, format: str, *args: object) -> None:
            """The sink keeps silent; the tests look at what it received."""

    return Handler
