"""A load generator and a receiver, each in a process of its own.

They cost a fraction of what a server costs; each run says how busy the generator was, and the bare anchor, which does
nothing, shows what it can ask for.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from typing import Any

CONNECTIONS = 16
NUMBER = "000000000000"  # in a body: replaced by another number for each request
_CONTEXT = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Request:
    """``is_new`` False leaves NUMBER as it is."""

    port: int
    path: str
    body: Mapping[str, Any]
    is_new: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def parts(self) -> list[bytes]:
        """The request, cut at each NUMBER."""
        body = json.dumps(self.body)
        given = {"Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": len(body), **self.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        whole = f"POST {self.path} HTTP/1.1\r\n{head}\r\n{body}"
        return [part.encode() for part in (whole.split(NUMBER) if self.is_new else [whole])]


@dataclass(frozen=True)
class LoadReport:
    """``busy``: the share of the time that the generator itself was at work."""

    answered: int
    rate: float
    busy: float
    statuses: Mapping[int, int]


class Generator(ProcessPoolExecutor):
    """Keep-alive connections, each always with one request."""

    def __init__(self) -> None:
        super().__init__(1, _CONTEXT)

    def run(self, request: Request, seconds: float) -> LoadReport:
        return self.submit(_load, request, seconds).result()


def _load(request: Request, seconds: float) -> LoadReport:
    statuses: Counter[int] = Counter()
    began, busy_before = time.perf_counter(), time.process_time()

    async def ask(numbers: Iterator[int], parts: list[bytes]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", request.port)
        while time.perf_counter() < began + seconds:
            writer.write((b"%012d" % next(numbers)).join(parts))
            statuses[int((await _read_message(reader))[9:12])] += 1
        writer.close()

    async def ask_all() -> None:
        numbers = itertools.count(time.time_ns() // 1_000_000 % 10**8 * 10_000)
        await asyncio.gather(*(ask(numbers, request.parts) for _ in range(CONNECTIONS)))

    asyncio.run(ask_all())
    took_s = time.perf_counter() - began
    busy = (time.process_time() - busy_before) / took_s
    return LoadReport(statuses.total(), statuses.total() / took_s, busy, dict(statuses))


async def _read_message(reader: asyncio.StreamReader) -> bytes:
    """The head of a request or an answer; its body is read, too."""
    head = await reader.readuntil(b"\r\n\r\n")
    if length := re.search(rb"content-length: *(\d+)", head, re.IGNORECASE):
        await reader.readexactly(int(length[1]))
    return head


class CountingReceiver:
    """Accepts every webhook, and counts them."""

    def __init__(self) -> None:
        self._count: Any = _CONTEXT.Value("q", 0)
        ours, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_receive, args=(self._count, theirs), daemon=True)
        self._process.start()
        self.url = f"http://127.0.0.1:{ours.recv()}/"

    @property
    def count(self) -> int:
        return int(self._count.value)

    def close(self) -> None:
        self._process.terminate()
        self._process.join(10)


def _receive(count: Synchronized[int], ready: Any) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await _read_message(reader):
                count.value += 1
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(accept, "127.0.0.1", 0, backlog=200)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())
