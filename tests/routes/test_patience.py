"""A Redis that is stopped: whoever looks waits for it once, whatever they look at."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis.connection import AbstractConnection
from redis.exceptions import TimeoutError as NoAnswer

from deduplication.journal.failover import FailoverJournal
from deduplication.journal.side import Side
from orchestrator import build
from tests.routes.conftest import App, StartApp, bearer
from tests.routes.dashboard.conftest import signed_in
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, email
from tests.support.sink import Sink

pytestmark = pytest.mark.real_redis

Asked = list[Any]
PAGES = ("/", "/notices", "/decisions", "/decisions?q=report", "/deliveries", "/destinations", "/providers", "/system")
API = ("decisions", "deliveries", "stats", "destinations", "locks")


@pytest.fixture
def unanswered(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What this thread, which is the one of the requests, has waited for in vain."""
    asked: Asked = []
    read, ours = AbstractConnection.read_response, threading.get_ident()

    def read_and_note(connection: AbstractConnection, *args: Any, **kwargs: Any) -> Any:
        try:
            return read(connection, *args, **kwargs)
        except NoAnswer as error:
            if threading.get_ident() == ours:
                asked.append(error)
            raise

    monkeypatch.setattr(AbstractConnection, "read_response", read_and_note)
    return asked


@contextmanager
def stopped(redis: RedisServer) -> Iterator[None]:
    os.kill(redis.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(redis.pid, signal.SIGCONT)
        redis.wait_until_up()


@pytest.fixture
def app(
    start_app: StartApp, own_redis: RedisServer, sink: Sink, monkeypatch: pytest.MonkeyPatch, unanswered: Asked
) -> App:
    """One that does not leave its Redis, so that each request finds it silent."""
    monkeypatch.setattr(build, "follow_redis", lambda journal: None)
    # What Redis was asked while it was stopped it does afterwards: that claim is over after a lease.
    app = start_app(redis_url=own_redis.url, redis_timeout_ms=1000, lease_seconds=5, webhook_url=sink.url)
    assert isinstance(app.service.journal, FailoverJournal) and app.service.journal.standing.side is Side.REDIS
    assert app.status_of(email()) == "processed"
    return app


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    redis = RedisServer().start()
    yield redis
    redis.stop()


def test_each_page_puts_one_question_to_a_silent_redis_and_says_that_it_is_away(
    app: App, own_redis: RedisServer, unanswered: Asked
) -> None:
    visitor = signed_in(app)
    with stopped(own_redis):
        for path in PAGES:
            unanswered.clear()
            answer = visitor.get(path)
            assert answer.status_code in (200, 503), path
            assert len(unanswered) == 1, path
        assert "Redis does not answer" in visitor.text("/notices")
    assert visitor.get("/").status_code == 200, "the next request asks anew"


def test_so_does_the_api_of_operators_and_a_probe(app: App, own_redis: RedisServer, unanswered: Asked) -> None:
    with stopped(own_redis):
        for path in ("/health", *(f"/api/admin/{name}" for name in API)):
            unanswered.clear()
            assert app.http.get(path, headers=bearer(ADMIN_TOKEN)).status_code in (200, 503), path
            assert len(unanswered) == 1, path
        checks = app.http.get("/health").get_json()["checks"]
    states = {name: checks[name]["status"] for name in ("redis", "storage", "database")}
    assert states == {"redis": "down", "storage": "down", "database": "up"}
    assert "Timeout" in checks["redis"]["error"]


def test_an_email_waits_for_each_of_its_steps(
    app: App, own_redis: RedisServer, sink: Sink, unanswered: Asked, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    """Its claim is granted, then Redis stops: that it could not be told of the delivery is no reason not to try."""
    journal = app.service.journal
    assert isinstance(journal, FailoverJournal)
    with stopped(own_redis):
        assert app.status_of(email(subject="another")) == "retry_later"
        assert len(unanswered) == 1
        assert app.status_of(email(subject="another")) == "retry_later"
        assert len(unanswered) == 2
    eventually(lambda: app.status_of(email(subject="another")) == "processed")
