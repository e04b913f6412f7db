"""With DELIVER_BY=workers: a request stores, and a worker delivers. Real Redis, real processes, real sockets."""

import base64
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.build import build
from tests.routes.conftest import App, StartApp
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer
from tests.support.server import OurProgram, Server, email
from tests.support.sink import Reply, Sink
from tests.support.waiting import wait_for

Work = Callable[..., None]


@pytest.fixture
def start_queued(start_with: StartApp, redis_server: RedisServer) -> StartApp:
    return partial(start_with, {"redis_url": redis_server.url, "deliver_by": "workers"})


@pytest.fixture
def work() -> Iterator[Work]:
    """Starts a worker of the service in this process, with other settings if there are any."""
    with ExitStack() as workers:

        def start(app: App, **changes: Any) -> None:
            settings = app.service.settings.model_copy(update={"worker_threads": 4, **changes})
            workers.enter_context(closing(build(settings, is_worker=True)))

        yield start


PATIENT_WORKER = """
from orchestrator.config.model import load_config
from orchestrator.config.settings import load_settings
from orchestrator.delivery import retrier
from orchestrator.worker import run_process

retrier.TICK_S = 3600
settings = load_settings()
run_process(settings, load_config(settings))
"""


def test_a_worker_delivers_as_soon_as_an_email_is_stored(tmp_path: Path, redis_url: str, sink: Sink) -> None:
    """On the machine of the web server, and with Redis on another one. Its complete look comes after an hour."""
    settings = {"DELIVER_BY": "workers", "WEBHOOK_URL": sink.url} | ({"REDIS_URL": redis_url} if redis_url else {})
    folder = tmp_path / ("another" if redis_url else "web")
    worker = OurProgram([sys.executable, "-c", PATIENT_WORKER], folder, "worker.log", settings)
    with Server(tmp_path / "web", **settings) as server, ExitStack() as stack:
        worker.launch()
        stack.callback(worker.stop)
        for number in range(3):
            sent = email(subject=f"Mail {number}", body=f"text {number}")
            wait_for(lambda sent=sent: server.post(sent).json()["status"] == "queued")  # type: ignore[misc]
            wait_for(lambda number=number: len(sink.accepted) > number)  # type: ignore[misc]


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


def test_a_large_email_over_a_slow_line_reaches_the_worker_on_another_machine(
    start_app: StartApp, redis_server: RedisServer, work: Work, sink: Sink, tmp_path: Path
) -> None:
    """All of it takes several times as long as anybody waits for an answer of Redis."""
    body = base64.b64encode(os.urandom(3 << 20)).decode()
    with Proxy(redis_server.port) as line:
        line.bytes_per_s = 2 << 20
        app = start_app(webhook_url=sink.url, redis_url=line.url, deliver_by="workers", redis_timeout_ms=1_000)
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
