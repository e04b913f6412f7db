"""Through the queue: a request stores and announces, a worker delivers. Real Redis, real Dramatiq, real sockets."""

from __future__ import annotations

import base64
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deduplication.journal.entry import Delivery, Entry
from orchestrator.config.model import load_config
from orchestrator.config.settings import SettingsError, load_settings
from orchestrator.delivery.dramatiq_queue import DramatiqQueue
from orchestrator.delivery.queue import QueueUnavailable
from orchestrator.worker import Worker, start_worker
from tests.routes.conftest import App, StartApp
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer, free_port
from tests.support.server import email
from tests.support.sink import Reply, Sink

Eventually = Callable[[Callable[[], bool]], None]


class Queued:
    """A web process and a worker of one service, both in this process."""

    def __init__(self, start_app: StartApp, redis: RedisServer, config: Path) -> None:
        self._settings = {"redis_url": redis.url, "queue_url": redis.url, "mailonce_config": config}
        self.app: App = start_app(**self._settings)
        self.worker: Worker | None = None

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
def queued(start_app: StartApp, redis_server: RedisServer, tmp_path: Path) -> Iterator[Callable[..., Queued]]:
    made: list[Queued] = []

    def make(**destinations: str) -> Queued:
        path = tmp_path / "mailonce.toml"
        sections = [f"[destinations.{name}]\n{lines}\n" for name, lines in destinations.items()]
        route = f"[[routes]]\nname = 'all'\ndestinations = {list(destinations)}\nsubject_groups = 'off'\n"
        path.write_text("".join([*sections, route]))
        made.append(Queued(start_app, redis_server, path))
        return made[-1]

    yield make
    for each in made:
        if each.worker:
            each.worker.stop()


def test_a_request_is_answered_queued_and_the_worker_delivers(
    queued: Callable[..., Queued], sink: Sink, eventually: Eventually
) -> None:
    service = queued(crm=f"url = '{sink.url}'")
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


@pytest.mark.parametrize(
    ("reply", "status", "wait_s"),
    [
        (Reply(429, headers={"Retry-After": "60"}), "waiting", 60),
        (Reply(delay_s=30), "waiting", 5),
        (Reply(0), "waiting", 5),
        (Reply(200, body=b"x" * 1000, reset_after_bytes=10), "delivered", None),
        (Reply(422), "dead", None),
    ],
)
def test_the_outcome_of_an_attempt_and_its_next_try(
    queued: Callable[..., Queued], eventually: Eventually, reply: Reply, status: str, wait_s: int | None
) -> None:
    with Sink(otherwise=reply) as sink:
        service = queued(crm=f"url = '{sink.url}'\nread_timeout_s = {0.3 if reply.delay_s else 10}")
        service.app.post(email())
        service.start_worker()
        eventually(lambda: service.delivery("crm").tries == 1)
        record = service.delivery("crm")
    assert (record.status, len(record.attempts)) == (status, 1)
    assert (service.payload is None) == (status == "delivered")
    if wait_s is None:
        assert record.next_try_ms is None
    else:
        assert record.next_try_ms is not None
        waits_ms = record.next_try_ms - record.attempts[0].at_ms
        assert wait_s * 1000 <= waits_ms <= wait_s * 1100 + 5000, "jitter only adds"


def test_each_destination_has_its_own_outcome(queued: Callable[..., Queued], eventually: Eventually) -> None:
    with Sink() as crm, Sink(otherwise=Reply(422)) as archive:
        service = queued(crm=f"url = '{crm.url}'", archive=f"url = '{archive.url}'")
        service.app.post(email())
        service.start_worker()
        eventually(lambda: {service.delivery(name).status for name in ("crm", "archive")} == {"delivered", "dead"})
    assert (service.delivery("crm").status, len(crm.received), len(archive.received)) == ("delivered", 1, 1)


def test_a_slow_destination_does_not_delay_another(queued: Callable[..., Queued], eventually: Eventually) -> None:
    """More slow deliveries than there are threads, all before the quick ones."""
    go_on = threading.Event()
    with Sink() as quick, Sink(otherwise=Reply(after=go_on)) as slow:
        service = queued(slow=f"url = '{slow.url}'", quick=f"url = '{quick.url}'")
        service.start_worker()
        for number in range(20):
            service.app.post(email(subject=f"number {number}"))
        eventually(lambda: len(quick.accepted) == 20)
        assert slow.accepted == []
        go_on.set()


def test_a_lost_message_does_not_lose_the_email(
    queued: Callable[..., Queued], sink: Sink, redis_server: RedisServer, eventually: Eventually
) -> None:
    service = queued(crm=f"url = '{sink.url}'")
    service.app.post(email())
    redis_server.client.delete(*redis_server.client.keys("mailonce:*"))
    service.start_worker()
    eventually(lambda: len(sink.accepted) == 1)


def test_repeated_messages_cause_one_delivery(
    queued: Callable[..., Queued], sink: Sink, redis_server: RedisServer, eventually: Eventually
) -> None:
    service = queued(crm=f"url = '{sink.url}'")
    service.app.post(email())
    again = DramatiqQueue(redis_server.url, 1.0)
    for _ in range(10):
        again.put("crm")
    again.close()
    service.start_worker()
    eventually(lambda: service.delivery("crm").status == "delivered")
    eventually(lambda: redis_server.client.llen("mailonce:mailonce.crm") == 0)
    assert len(sink.received) == 1


def test_a_reset_keeps_emails_that_wait_in_the_queue(
    queued: Callable[..., Queued], sink: Sink, eventually: Eventually
) -> None:
    """Its provider was told 200 and has forgotten it."""
    service = queued(crm=f"url = '{sink.url}'")
    told = service.app.post(email()).get_json()
    reset = service.app.reset({"scope": "email_id", "value": told["email_id"]}).get_json()
    assert (reset["names"], reset["kept"]) == (0, [told["id"]])
    service.start_worker()
    eventually(lambda: service.delivery("crm").status == "delivered")
    assert len(sink.accepted) == 1


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
            worker.stop()
    assert sink.accepted[0].payload["body"] == body


def test_while_the_queue_is_away_the_request_delivers(start_app: StartApp, sink: Sink) -> None:
    app = start_app(webhook_url=sink.url, queue_url=f"redis://127.0.0.1:{free_port()}/0")
    assert app.status_of(email()) == "processed"
    assert app.status_of(email()) == "already_processed"
    assert len(sink.accepted) == 1


def test_while_queue_and_destination_are_away_the_email_is_stored(start_app: StartApp) -> None:
    with Sink(otherwise=Reply(500)) as sink:
        app = start_app(webhook_url=sink.url, queue_url=f"redis://127.0.0.1:{free_port()}/0")
        answer = app.post(email())
        assert (answer.status_code, answer.get_json()["status"]) == (200, "queued")
        (entry,) = app.entries
        assert (entry.deliveries[0].status, entry.deliveries[0].tries) == ("waiting", 1)


@pytest.mark.parametrize("is_listening", [True, False])
def test_a_rabbitmq_that_is_away_or_silent_is_noticed(is_listening: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if is_listening else free_port()
        queue = DramatiqQueue(f"amqp://127.0.0.1:{port}", 0.25)
        with pytest.raises(QueueUnavailable):
            queue.put("crm")
        queue.close()


@pytest.mark.parametrize("has_copy", [True, False])
def test_a_payload_that_redis_has_lost_is_read_from_the_journal_or_ends_as_a_dead_letter(
    queued: Callable[..., Queued], sink: Sink, redis_server: RedisServer, eventually: Eventually, has_copy: bool
) -> None:
    service = queued(crm=f"url = '{sink.url}'")
    service.app.post(email())
    redis_server.client.delete(f"payload:{service.delivery('crm').webhook_id}")
    if not has_copy:
        with service.app.service.journal.step() as step:
            step.end_payload(service.entry.id)
    service.start_worker()
    eventually(lambda: service.delivery("crm").status == ("delivered" if has_copy else "dead"))
    assert (service.delivery("crm").reason is None, len(sink.received)) == (has_copy, has_copy)


def test_an_open_breaker_is_shared_and_uses_no_tries(queued: Callable[..., Queued], eventually: Eventually) -> None:
    with Sink(otherwise=Reply(503)) as sink:
        service = queued(crm=f"url = '{sink.url}'\nbreaker_failures = 2\nbreaker_pause_s = 60")
        service.start_worker()
        for number in range(24):  # more than are sent at once before the breaker has heard of the first
            service.app.post(email(subject=f"number {number}"))
        eventually(lambda: service.app.service.guard.state("crm") == "open")  # the web process knows it, too
        tried = [entry.deliveries[0].tries for entry in service.app.entries]
        assert 0 in tried and sum(tried) < 24


def test_without_a_queue_there_is_no_worker(tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path)
    with pytest.raises(SettingsError, match="QUEUE_URL must be"):
        start_worker(settings, load_config(settings))
