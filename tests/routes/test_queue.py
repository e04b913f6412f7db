"""Through the queue: a request stores and announces, a worker delivers. Real Redis, real Dramatiq, real sockets."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deduplication.journal.entry import Delivery, Entry
from orchestrator.build import Service
from orchestrator.config.model import load_config
from orchestrator.delivery.dramatiq_queue import DramatiqQueue
from orchestrator.worker import start_worker
from tests.routes.conftest import App, Eventually, StartApp
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer
from tests.support.server import email
from tests.support.sink import Reply, Sink


class Queued:
    """A web process and a worker of one service, both in this process."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.worker: Service | None = None

    def start_worker(self) -> None:
        settings = self.app.service.settings.model_copy(update={"worker_threads": 4})
        self.worker = start_worker(settings, load_config(settings))

    @property
    def entry(self) -> Entry:
        """Of the one email there is."""
        (entry,) = self.app.entries
        return entry

    @property
    def payload(self) -> bytes | None:
        with self.app.service.journal.reading() as step:
            return step.payload(self.entry.id)

    def delivery(self, destination: str) -> Delivery:
        known = self.entry.delivery_to(destination)
        assert known is not None
        return known


@pytest.fixture
def queued(start_with: StartApp, redis_server: RedisServer) -> Iterator[Callable[..., Queued]]:
    made: list[Queued] = []

    def make(**destinations: Sink) -> Queued:
        made.append(Queued(start_with({"redis_url": redis_server.url, "queue_url": redis_server.url}, **destinations)))
        return made[-1]

    yield make
    for each in made:
        if each.worker:
            each.worker.close()


def test_a_request_is_answered_queued_and_the_worker_delivers(
    queued: Callable[..., Queued], sink: Sink, eventually: Eventually
) -> None:
    service = queued(crm=sink)
    answer = service.app.post(email())
    assert (answer.status_code, answer.get_json()["status"]) == (200, "queued")
    assert service.app.status_of(email()) == "queued"
    assert sink.received == []
    assert service.payload is not None
    service.start_worker()
    eventually(lambda: len(sink.accepted) == 1)
    eventually(lambda: service.delivery("crm").status == "delivered")
    assert service.payload is None
    assert service.app.status_of(email()) == "already_processed"
    assert sink.accepted[0].webhook_id == service.delivery("crm").webhook_id


def test_a_slow_destination_does_not_delay_another(queued: Callable[..., Queued], eventually: Eventually) -> None:
    """More slow deliveries than there are threads, all before the quick ones."""
    go_on = threading.Event()
    with Sink() as quick, Sink(otherwise=Reply(after=go_on)) as slow:
        service = queued(slow=slow, quick=quick)
        service.start_worker()
        for number in range(20):
            service.app.post(email(subject=f"number {number}"))
        eventually(lambda: len(quick.accepted) == 20)
        assert slow.accepted == []
        go_on.set()


def test_a_lost_message_does_not_lose_the_email(
    queued: Callable[..., Queued], sink: Sink, redis_server: RedisServer, eventually: Eventually
) -> None:
    service = queued(crm=sink)
    service.app.post(email())
    redis_server.client.delete(*redis_server.client.keys("mailonce:*"))
    service.start_worker()
    eventually(lambda: len(sink.accepted) == 1)


def test_repeated_messages_cause_one_delivery(
    queued: Callable[..., Queued], sink: Sink, redis_server: RedisServer, eventually: Eventually
) -> None:
    service = queued(crm=sink)
    service.app.post(email())
    again = DramatiqQueue(redis_server.url, 1.0)
    for _ in range(10):
        again.put("crm")
    again.close()
    service.start_worker()
    eventually(lambda: service.delivery("crm").status == "delivered")
    eventually(lambda: redis_server.client.llen("mailonce:mailonce.crm") == 0)
    assert len(sink.received) == 1


def test_a_large_email_over_a_slow_line_reaches_the_worker_on_another_machine(
    start_app: StartApp, redis_server: RedisServer, sink: Sink, tmp_path: Path, eventually: Eventually
) -> None:
    """All of it takes several times as long as anybody waits for an answer of Redis."""
    body = base64.b64encode(os.urandom(3 << 20)).decode()
    with Proxy(redis_server.port) as line:
        line.bytes_per_s = 2 << 20
        app = start_app(webhook_url=sink.url, redis_url=line.url, queue_url=redis_server.url, redis_timeout_ms=1_000)
        answer = app.post(email(body=body))
        assert (answer.status_code, answer.get_json()["status"]) == (200, "queued")
        elsewhere = {"data_dir": tmp_path / "elsewhere", "redis_url": redis_server.url}
        settings = app.service.settings.model_copy(update=elsewhere)
        worker = start_worker(settings, load_config(settings))
        try:
            eventually(lambda: len(sink.accepted) == 1)
        finally:
            worker.close()
    assert sink.accepted[0].payload["body"] == body


@pytest.mark.parametrize("has_copy", [True, False])
def test_a_payload_that_redis_has_lost_is_read_from_the_journal_or_ends_as_a_dead_letter(
    queued: Callable[..., Queued], sink: Sink, redis_server: RedisServer, eventually: Eventually, has_copy: bool
) -> None:
    service = queued(crm=sink)
    service.app.post(email())
    redis_server.client.delete(f"payload:{service.delivery('crm').webhook_id}")
    if not has_copy:
        with service.app.service.journal.step() as step:
            step.end_payload(service.entry.id)
    service.start_worker()
    eventually(lambda: service.delivery("crm").status == ("delivered" if has_copy else "dead"))
    assert (service.delivery("crm").reason is None, len(sink.received)) == (has_copy, has_copy)
