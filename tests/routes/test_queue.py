"""Through the queue: a request stores and announces, a worker delivers. Real Redis, real Dramatiq, real sockets."""

import base64
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.model import load_config
from orchestrator.delivery.dramatiq_queue import DramatiqQueue
from orchestrator.worker import start_worker
from tests.routes.conftest import App, StartApp
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer
from tests.support.server import email
from tests.support.sink import Reply, Sink
from tests.support.waiting import wait_for

Work = Callable[..., None]


@pytest.fixture
def start_queued(start_with: StartApp, redis_server: RedisServer) -> StartApp:
    return partial(start_with, {"redis_url": redis_server.url, "queue_url": redis_server.url})


@pytest.fixture
def work() -> Iterator[Work]:
    """Starts a worker of the service in this process, with other settings if there are any."""
    with ExitStack() as workers:

        def start(app: App, **changes: Any) -> None:
            settings = app.service.settings.model_copy(update={"worker_threads": 4, **changes})
            workers.enter_context(closing(start_worker(settings, load_config(settings))))

        yield start


def test_a_slow_destination_does_not_delay_another(start_queued: StartApp, work: Work) -> None:
    """More slow deliveries than there are threads, all before the quick ones."""
    go_on = threading.Event()
    with Sink() as quick, Sink(otherwise=Reply(after=go_on)) as slow:
        app = start_queued(slow=slow, quick=quick)
        work(app)
        for number in range(20):
            app.post(email(subject=f"number {number}"))
        wait_for(lambda: len(quick.accepted) == 20)
        assert slow.accepted == []
        go_on.set()


@pytest.mark.parametrize("messages", [0, 11])
def test_lost_and_repeated_messages_cause_one_delivery(
    start_queued: StartApp, work: Work, sink: Sink, redis_server: RedisServer, messages: int
) -> None:
    app = start_queued(crm=sink)
    app.post(email())
    redis_server.client.delete(*redis_server.client.keys("mailonce:*"))
    with closing(DramatiqQueue(redis_server.url, 1.0)) as again:
        for _ in range(messages):
            again.put("crm")
    work(app)
    wait_for(lambda: app.delivery_to("crm")["status"] == "delivered")
    wait_for(lambda: redis_server.client.llen("mailonce:mailonce.crm") == 0)
    assert len(sink.received) == 1


def test_a_large_email_over_a_slow_line_reaches_the_worker_on_another_machine(
    start_app: StartApp, redis_server: RedisServer, work: Work, sink: Sink, tmp_path: Path
) -> None:
    """All of it takes several times as long as anybody waits for an answer of Redis."""
    body = base64.b64encode(os.urandom(3 << 20)).decode()
    with Proxy(redis_server.port) as line:
        line.bytes_per_s = 2 << 20
        app = start_app(webhook_url=sink.url, redis_url=line.url, queue_url=redis_server.url, redis_timeout_ms=1_000)
        assert app.status_of(email(body=body)) == "queued"
        work(app, data_dir=tmp_path / "elsewhere", redis_url=redis_server.url)
        wait_for(lambda: len(sink.accepted) == 1)
    assert sink.accepted[0].payload["body"] == body


@pytest.mark.parametrize("has_copy", [True, False])
def test_a_payload_that_redis_has_lost_is_read_from_the_journal_or_ends_as_a_dead_letter(
    start_queued: StartApp, work: Work, sink: Sink, redis_server: RedisServer, has_copy: bool
) -> None:
    app = start_queued(crm=sink)
    id_ = app.post(email()).get_json()["id"]
    redis_server.client.delete(f"payload:{app.delivery_to('crm')['webhook_id']}")
    if not has_copy:
        with app.service.journal.step() as step:
            step.end_payload(id_)
    work(app)
    wait_for(lambda: app.delivery_to("crm")["status"] == ("delivered" if has_copy else "dead"))
    assert (app.delivery_to("crm")["reason"] is None, len(sink.received)) == (has_copy, has_copy)
