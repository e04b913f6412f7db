"""Stored deliveries through one worker process to a receiver on this machine, against what Dramatiq alone carries."""

from __future__ import annotations

import multiprocessing
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import dramatiq

from orchestrator.build import build
from orchestrator.config.settings import load_settings
from orchestrator.delivery.dramatiq_queue import make_broker
from orchestrator.item import email_item
from tests.bench.figures import Figure, Row, number
from tests.bench.machines import new_email
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN
from tests.support.worker import WorkerProcess

DELIVERIES = 1_500
MESSAGES = 3_000
THREADS = 8  # of a worker process, by default
_ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
_LENGTH = b"content-length:"
_CONTEXT = multiprocessing.get_context("spawn")


def worker_rows(redis: RedisServer, folder: Path) -> Iterator[Row]:
    redis.client.flushall()
    carried = _dramatiq_rate(redis)
    delivered = _delivery_rate(redis, folder / "worker")
    told = f"Dramatiq alone carries {number(carried)}/s"
    must, aim = min(400, 0.6 * carried), 600
    yield Row("worker: deliveries a second of one process", Figure.once(delivered), "/s", told, must, aim)


class Counter:
    """An HTTP receiver in a process of its own that takes everything and counts."""

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
    with selectors.DefaultSelector() as selector, socket.create_server(("127.0.0.1", 0), backlog=200) as server:
        selector.register(server, selectors.EVENT_READ)
        ready.send(server.getsockname()[1])
        read: dict[socket.socket, bytes] = {}
        while True:
            for key, _ in selector.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock is server:
                    client, _ = server.accept()
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    selector.register(client, selectors.EVENT_READ)
                    read[client] = b""
                    continue
                chunk = sock.recv(262144)
                if not chunk:
                    selector.unregister(sock)
                    del read[sock]
                    sock.close()
                    continue
                text = read[sock] + chunk
                end = text.find(b"\r\n\r\n")
                head = text[: max(end, 0)].lower()
                length = int(head[head.find(_LENGTH) + len(_LENGTH) :].split(b"\r\n", 1)[0]) if end >= 0 else 0
                if end < 0 or len(text) < end + 4 + length:
                    read[sock] = text
                    continue
                read[sock] = text[end + 4 + length :]
                count.value += 1
                sock.sendall(_ANSWER)


def _delivery_rate(redis: RedisServer, folder: Path) -> float:
    """Everything is stored and announced before the worker starts; the clock runs from its tenth delivery on."""
    with closing(Counter()) as counter:
        settings = {"redis_url": redis.url, "queue_url": redis.url, "webhook_url": counter.url}
        tokens = {"ingress_token": INGRESS_TOKEN, "admin_token": ADMIN_TOKEN}
        service = build(load_settings(data_dir=folder, **settings, **tokens))
        stored = 0
        while stored < DELIVERIES:  # a new era is closed for some seconds
            stored += service.pipeline.receive(email_item(new_email(), None)).status == "queued"
        service.close()
        with WorkerProcess(folder, **{name.upper(): value for name, value in settings.items()}):
            return _rate(lambda: counter.count, DELIVERIES)


def _dramatiq_rate(redis: RedisServer) -> float:
    """Messages to an actor that does nothing, with the broker and the threads of a worker."""
    url = f"{redis.address}/1"
    broker = make_broker(url, 5.0)
    for entry in range(MESSAGES):
        broker.declare_queue("bench")
        broker.enqueue(dramatiq.Message("bench", "nothing", (str(entry), "crm"), {}, {}))
    broker.close()
    count: Any = _CONTEXT.Value("q", 0)
    process = _CONTEXT.Process(target=_carry, args=(url, count), daemon=True)
    process.start()
    try:
        return _rate(lambda: int(count.value), MESSAGES)
    finally:
        process.terminate()
        process.join(10)


def _carry(url: str, count: Synchronized[int]) -> None:
    broker = make_broker(url, 5.0)

    def nothing(_entry: str, _destination: str) -> None:
        with count.get_lock():
            count.value += 1

    dramatiq.actor(actor_name="nothing", queue_name="bench", broker=broker)(nothing)
    worker = dramatiq.Worker(broker, worker_threads=THREADS, worker_timeout=200)
    worker.start()
    while True:
        time.sleep(60)


def _rate(count: Any, total: int) -> float:
    deadline = time.monotonic() + 120
    first, began = 0, 0.0
    while (done := count()) < total:
        if not began and done >= 10:
            first, began = done, time.perf_counter()
        assert time.monotonic() < deadline, f"{done} of {total} came"
        time.sleep(0.005)
    return (total - first) / (time.perf_counter() - began)
