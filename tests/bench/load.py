"""A load generator in a process of its own: keep-alive connections on raw sockets, each always with one request.

It costs a fraction of what a server in Python costs; how busy it was is told with each run, and the bare anchor, which
does nothing, shows what it can ask for.
"""

from __future__ import annotations

import json
import multiprocessing
import selectors
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

CONNECTIONS = 16
_NUMBER = "000000000000"  # in the body, replaced by another number for each request
_LENGTH = b"content-length:"


@dataclass(frozen=True)
class Request:
    """``body`` may hold _NUMBER; ``is_new`` False leaves it as it is."""

    port: int
    path: str
    body: Mapping[str, Any] | list[Any]
    is_new: bool
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def parts(self) -> list[bytes]:
        """The request, cut where the number stands."""
        body = json.dumps(self.body).encode()
        headers = {
            "Host": "127.0.0.1",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **self.headers,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        whole = f"POST {self.path} HTTP/1.1\r\n{head}\r\n".encode() + body
        return whole.split(_NUMBER.encode()) if self.is_new else [whole]


@dataclass(frozen=True)
class Told:
    """``busy``: the share of the time that the generator itself was at work."""

    answered: int
    seconds: float
    busy: float
    statuses: Mapping[int, int]

    @property
    def rate(self) -> float:
        return self.answered / self.seconds


class Generator:
    """Runs what it is told in another process, for so many seconds at a time."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.send(None)
        self._process.join(10)

    def run(self, request: Request, seconds: float, connections: int = CONNECTIONS) -> Told:
        self._ours.send((request, seconds, connections))
        told = self._ours.recv()
        if isinstance(told, str):
            raise RuntimeError(told)
        assert isinstance(told, Told)
        return told


def _serve(orders: Connection[Any, Any]) -> None:
    first_number = time.time_ns() // 1_000_000 % 10**8 * 10_000
    sent = 0
    while (order := orders.recv()) is not None:
        request, seconds, connections = order
        try:
            told = _load(request, seconds, connections, first_number + sent)
        except (OSError, ValueError) as error:
            orders.send(f"{request.path}: {error!r}")
            continue
        sent += told.answered + connections
        orders.send(told)


def _load(request: Request, seconds: float, connections: int, number: int) -> Told:
    parts, port = request.parts, request.port
    statuses: dict[int, int] = {}
    answered = 0
    read: dict[socket.socket, bytes] = {}
    with selectors.DefaultSelector() as selector:
        for _ in range(connections):
            client = socket.create_connection(("127.0.0.1", port), timeout=30)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(client, selectors.EVENT_READ)
            read[client] = b""
        began, busy_before = time.perf_counter(), time.process_time()
        ends_at = began + seconds
        for client in read:
            number += 1
            client.sendall((b"%012d" % number).join(parts))
        waiting = len(read)
        while waiting:
            for key, _ in selector.select(30):
                assert isinstance(key.fileobj, socket.socket)
                client = key.fileobj
                chunk = client.recv(65536)
                if not chunk:
                    raise ValueError("the server hung up")
                text = read[client] + chunk
                status = _status_if_whole(text)
                if status is None:
                    read[client] = text
                    continue
                read[client] = b""
                answered += 1
                statuses[status] = statuses.get(status, 0) + 1
                if time.perf_counter() < ends_at:
                    number += 1
                    client.sendall((b"%012d" % number).join(parts))
                else:
                    waiting -= 1
        took_s = time.perf_counter() - began
        busy_s = time.process_time() - busy_before
    for client in read:
        client.close()
    return Told(answered, took_s, busy_s / took_s, statuses)


def _status_if_whole(text: bytes) -> int | None:
    end = text.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = text[:end].lower()
    at = head.find(_LENGTH)
    length = int(head[at + len(_LENGTH) :].split(b"\r\n", 1)[0]) if at >= 0 else 0
    return int(head[9:12]) if len(text) >= end + 4 + length else None
