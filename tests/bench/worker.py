"""Stored deliveries through one worker process to a receiver on this machine, against what Dramatiq alone carries."""

from __future__ import annotations

import multiprocessing
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
from tests.bench.load import CountingReceiver
from tests.bench.machines import new_email
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, WorkerProcess

DELIVERIES = 1_500
MESSAGES = 3_000
THREADS = 8  # of a worker process, by default
_CONTEXT = multiprocessing.get_context("spawn")


def worker_rows(redis: RedisServer, folder: Path) -> Iterator[Row]:
    redis.client.flushall()
    carried = _dramatiq_rate(redis)
    delivered = _delivery_rate(redis, folder / "worker")
    told = f"Dramatiq alone carries {number(carried)}/s"
    must, aim = min(400, 0.6 * carried), 600
    yield Row("worker: deliveries a second of one process", Figure.of(delivered), "/s", told, must, aim)


def _delivery_rate(redis: RedisServer, folder: Path) -> float:
    """Everything is stored and announced before the worker starts; the clock runs from its tenth delivery on."""
    with closing(CountingReceiver()) as counter:
        settings = {"redis_url": redis.url, "queue_url": redis.url, "webhook_url": counter.url}
        tokens = {"ingress_token": INGRESS_TOKEN, "admin_token": ADMIN_TOKEN}
        service = build(load_settings(data_dir=folder, **settings, **tokens))
        stored = 0
        while stored < DELIVERIES:
            if service.pipeline.receive(email_item(new_email(), None)).status == "queued":
                stored += 1
            else:
                time.sleep(0.2)  # a new era is closed for some seconds
        service.close()
        with WorkerProcess(folder, **{name.upper(): value for name, value in settings.items()}):
            return _rate(lambda: counter.count, DELIVERIES)


def _dramatiq_rate(redis: RedisServer) -> float:
    """Messages to an actor that does nothing, with the broker and the threads of a worker."""
    url = f"{redis.address}/1"
    broker = make_broker(url, 5.0)
    broker.declare_queue("bench")
    for entry in range(MESSAGES):
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
