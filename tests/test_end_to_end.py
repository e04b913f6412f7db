"""What users see, through real sockets, real gunicorn, real sqlite and real Redis."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.redis_server import RedisServer
from tests.support.server import Server, email
from tests.support.sink import Reply, Sink

Eventually = Callable[[Callable[[], bool]], None]
StartServer = Callable[..., Server]


@pytest.fixture(params=["sqlite", "redis"])
def start_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StartServer]:
    """Starts servers on the same store, sqlite or Redis; all are stopped in the end."""
    started: list[Server] = []
    store = {}
    if request.param == "redis":
        redis_server: RedisServer = request.getfixturevalue("redis_server")
        store = {"REDIS_URL": redis_server.url}

    def start(sink: Sink, **settings: str) -> Server:
        server = Server(tmp_path / "data", WEBHOOK_URL=sink.url, **store, **settings)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.stop()


def test_one_email_posted_50_times_at_once_is_delivered_once(start_server: StartServer) -> None:
    with Sink(otherwise=Reply(delay_s=0.3)) as sink:
        server = start_server(sink, WEB_CONCURRENCY="2", WEB_THREADS="8")
        with ThreadPoolExecutor(50) as clients:
            answers = list(clients.map(server.post, [email()] * 50))
        assert len(sink.received) == 1
        for answer in answers:
            assert answer.status_code == 200 or (answer.status_code == 503 and answer.headers["Retry-After"])
        assert [a.json()["status"] for a in answers].count("processed") == 1
        for answer in [server.post(email()) for _ in range(5)]:
            assert (answer.status_code, answer.json()["status"]) == (200, "already_processed")
        assert len(sink.received) == 1


def test_a_destination_that_fails_gets_the_email_once_it_works(
    start_server: StartServer, eventually: Eventually
) -> None:
    with Sink(Reply(500), Reply(0)) as sink:
        server = start_server(sink)
        answers = [server.post(email()) for _ in range(2)]
        assert [(a.status_code, a.json()["status"]) for a in answers] == [(200, "queued"), (200, "queued")]
        assert len(sink.received) == 2, "two quick tries, and none for the repeat"
        eventually(lambda: server.post(email()).json()["status"] == "already_processed")
        assert (len(sink.received), len(sink.accepted)) == (3, 1)
        assert len({each.webhook_id for each in sink.received}) == 1, "a receiver must recognise the attempts"


def test_an_email_whose_worker_was_killed_is_deliverable_when_the_lease_ends(
    start_server: StartServer, eventually: Eventually
) -> None:
    never = threading.Event()
    with Sink(Reply(after=never)) as sink:
        server = start_server(sink, LEASE_SECONDS="2", WEB_CONCURRENCY="1")
        with ThreadPoolExecutor(1) as client:
            hanging = client.submit(server.post, email())
            assert sink.arrived.wait(60)
            assert server.post(email()).json()["status"] == "already_processing"
            for pid in server.worker_pids():
                os.kill(pid, signal.SIGKILL)
            assert hanging.exception() is not None
        statuses: list[str] = []

        def is_settled() -> bool:
            answer = server.post(email())
            statuses.append(answer.json()["status"])
            return answer.status_code == 200

        eventually(is_settled)
        assert statuses[-1] == "processed"
        assert set(statuses[:-1]) <= {"already_processing"}
        never.set()


def test_a_duplicate_is_still_one_after_everything_was_killed_and_restarted(start_server: StartServer) -> None:
    with Sink() as sink:
        server = start_server(sink)
        assert server.post(email()).json()["status"] == "processed"
        server.kill()
        server.start()
        answer = server.post(email()).json()
        assert answer["status"] == "already_processed"
        assert answer["reason"]["original"] == answer["id"]
        assert len(sink.received) == 1


def test_a_slow_delivery_keeps_its_lease(start_server: StartServer, eventually: Eventually) -> None:
    go_on = threading.Event()
    with Sink(Reply(after=go_on)) as sink:
        server = start_server(sink, LEASE_SECONDS="3")
        with ThreadPoolExecutor(1) as client:
            slow = client.submit(server.post, email())
            assert sink.arrived.wait(60)
            (at_first,) = server.locks()
            eventually(lambda: [lock["expires"] > at_first["expires"] for lock in server.locks()] == [True])
            assert server.post(email()).json()["status"] == "already_processing"
            go_on.set()
            assert slow.result().json()["status"] == "processed"
        assert len(sink.received) == 1


def test_after_a_reset_the_same_email_is_delivered_again(start_server: StartServer) -> None:
    with Sink() as sink:
        server = start_server(sink)
        email_id = server.post(email(subject="Lot 456")).json()["email_id"]
        dry = server.reset(scope="email_id", value=email_id, dry_run=True).json()
        assert dry["names"] == 4, "email id, canonical id, post key and subject group"
        assert server.post(email(subject="Lot 456")).json()["status"] == "already_processed"
        assert server.reset(scope="email_id", value=email_id).json()["names"] == dry["names"]
        assert server.post(email(subject="Lot 456")).json()["status"] == "processed"
        assert len(sink.received) == 2
        assert "AUDIT reset scope=email_id" in server.log.read_text()


def test_a_duplicate_costs_one_round_trip_to_redis_and_a_new_email_two(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """The least of several: now and then the background asks what is due, the first time with a script to load."""
    with Sink() as sink, Server(tmp_path, WEBHOOK_URL=sink.url, REDIS_URL=redis_server.url) as server:
        for number in range(40):  # every thread has its connection and the scripts are loaded
            server.post(email(subject=f"warm-up {number}"))

        def round_trips(payload: dict[str, object]) -> int:
            redis_server.client.config_resetstat()
            assert server.post(payload).status_code == 200
            stats = redis_server.client.info("commandstats")
            trips = ("evalsha", "eval", "ping", "script|load", "multi")
            return sum(stats.get(f"cmdstat_{each}", {"calls": 0})["calls"] for each in trips)

        assert min(round_trips(email(subject=f"new {number}")) for number in range(5)) == 2
        assert min(round_trips(email(subject="new 0")) for _ in range(5)) == 1


def test_an_operator_sees_the_names_in_redis(redis_server: RedisServer, tmp_path: Path) -> None:
    with Sink() as sink, Server(tmp_path, WEBHOOK_URL=sink.url, REDIS_URL=redis_server.url) as server:
        payload = email(subject="Lot 456 - Documents", date="2025-03-01T23:30:00-05:00", message_id="<m1@example.org>")
        email_id = server.post(payload).json()["email_id"]
    client = redis_server.client
    assert client.sismember("processed_ids:2025-03-02", email_id), "the email's own UTC day"
    (groups,) = map(str, client.scan_iter("subject_groups:*"))
    month = groups.removeprefix("subject_groups:")
    assert client.smembers(groups) == {f"{month}:lot_456"}
    assert client.get("post:m1@example.org") == "0"
    assert 0 < client.ttl("post:m1@example.org") <= 604_800
    assert client.ttl("processed_ids:2025-03-02") == -1


def test_logs_carry_ids_and_not_contents(tmp_path: Path) -> None:
    secret = {"subject": "Kündigung Müller", "sender": "carla@private.example", "body": "confidential text"}
    with Sink(Reply(500), Reply(500)) as sink, Server(tmp_path, WEBHOOK_URL=sink.url) as server:
        for _ in range(3):
            answer = server.post(email(**secret))
        log = server.log.read_text()
    assert answer.json()["email_id"] in log
    for words in (*secret.values(), "Kündigung", "private.example"):
        assert words not in log
