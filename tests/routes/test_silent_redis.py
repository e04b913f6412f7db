"""A Redis that hangs: a request waits for it once at most, and known emails need no Redis."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis.connection import AbstractConnection
from redis.exceptions import TimeoutError as NoAnswer

from tests.routes.conftest import App, StartApp, bearer
from tests.routes.dashboard.conftest import signed_in
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, email
from tests.support.sink import Sink
from tests.support.waiting import wait_for

PAGES = (
    "/",
    "/notices",
    "/decisions",
    "/decisions?q=report",
    "/decisions?outcome=waiting",
    "/destinations",
    "/providers",
    "/servers",
)
API = ("decisions", "deliveries", "stats", "destinations", "locks")


@pytest.fixture
def unanswered(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Timeouts of this thread, which is the one of the requests."""
    timeouts: list[Exception] = []
    read, ours = AbstractConnection.read_response, threading.get_ident()

    def read_and_note(connection: AbstractConnection, *args: Any, **kwargs: Any) -> Any:
        try:
            return read(connection, *args, **kwargs)
        except NoAnswer as error:
            if threading.get_ident() == ours:
                timeouts.append(error)
            raise

    monkeypatch.setattr(AbstractConnection, "read_response", read_and_note)
    return timeouts


@contextmanager
def stopped(redis: RedisServer) -> Iterator[None]:
    os.kill(redis.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(redis.pid, signal.SIGCONT)
        redis.wait_until_up()


@pytest.fixture
def app(start_app: StartApp, own_redis: RedisServer, sink: Sink, unanswered: list[Exception]) -> App:
    app = start_app(redis_url=own_redis.url, redis_timeout_ms=1000, webhook_url=sink.url)
    assert app.status_of(email()) == "processed"
    return app


def test_pages_and_admin_api_wait_at_most_once(app: App, own_redis: RedisServer, unanswered: list[Exception]) -> None:
    visitor = signed_in(app)
    with stopped(own_redis):
        for path in PAGES:
            unanswered.clear()
            assert visitor.get(path).status_code in (200, 503), path
            assert len(unanswered) <= 1, path
        for path in ("/health", "/metrics", *(f"/api/admin/{name}" for name in API)):
            unanswered.clear()
            assert app.http.get(path, headers=bearer(ADMIN_TOKEN)).status_code in (200, 503), path
            assert len(unanswered) <= 1, path
        assert app.http.get("/health").get_json()["checks"]["redis"]["status"] == "down"
        assert "Redis" in visitor.text("/notices")


def test_an_email_waits_once_and_then_the_journal_decides(
    app: App, own_redis: RedisServer, sink: Sink, unanswered: list[Exception]
) -> None:
    with stopped(own_redis):
        assert app.status_of(email()) == "already_processed"
        assert unanswered == [], "a duplicate that this machine knows needs no Redis"
        wait_for(lambda: app.status_of(email(subject="another")) == "processed", within_s=10)
        assert len(unanswered) <= 1
        assert app.status_of(email(subject="a third")) == "processed"
        assert len(unanswered) <= 1
    wait_for(lambda: app.service.coordinator.redis.status == "up")
    assert [app.status_of(email(subject=each)) for each in ("another", "a third")] == ["already_processed"] * 2
    assert len(sink.accepted) == 3
