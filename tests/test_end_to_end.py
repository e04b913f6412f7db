"""What users see, through real sockets, real gunicorn, real sqlite and real Redis."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest
import requests

from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN, Server, email
from tests.support.sink import Reply, Sink
from tests.support.waiting import wait_for

StartServer = Callable[..., Server]


@pytest.fixture
def start_on(tmp_path: Path) -> Iterator[StartServer]:
    """Starts a server on a Redis, or without one, and waits until it uses that; all are stopped in the end."""
    started: list[Server] = []

    def start(redis: RedisServer | None, sink: Sink, **settings: str) -> Server:
        store = {"REDIS_URL": redis.url} if redis else {}
        server = Server(tmp_path / "data", WEBHOOK_URL=sink.url, **store, **settings)
        started.append(server)
        server.start()
        if redis:
            wait_for(lambda: follows_redis(server))
        return server

    yield start
    for server in started:
        server.stop()


def follows_redis(server: Server) -> bool:
    """Its journal knows the era, and has read the stream: from now on names are granted."""
    with closing(sqlite3.connect(server.data_dir / "journal.db", timeout=10)) as journal:
        known = {key for (key,) in journal.execute("SELECT key FROM meta WHERE value <> ''")}
    return {"era", "read_ms"} <= known and "restore" not in known


@pytest.fixture(params=["sqlite", "redis"])
def start_server(request: pytest.FixtureRequest, start_on: StartServer) -> StartServer:
    redis = request.getfixturevalue("redis_server") if request.param == "redis" else None
    return partial(start_on, redis)


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


def test_a_destination_that_fails_gets_every_email_once_it_works_and_none_is_a_dead_letter(
    start_server: StartServer, tmp_path: Path
) -> None:
    """As after a bad deploy: errors, then the path is gone, later it is back. Nobody replays anything."""
    subjects = [f"number {number}" for number in range(8)]
    with Sink(Reply(500), Reply(0), otherwise=Reply(404)) as sink:
        config = tmp_path / "mailonce.toml"
        config.write_text(f"[destinations.crm]\nurl = '{sink.url}'\nbreaker_pause_s = 1\n")
        server = start_server(sink, MAILONCE_CONFIG=str(config))

        def statuses(chosen: Iterable[str] = subjects) -> list[str]:
            return [server.post(email(subject=subject, body=subject)).json()["status"] for subject in chosen]

        def dead() -> list[object]:
            url = f"{server.url}/api/admin/deliveries?status=dead"
            return list(requests.get(url, headers=ADMIN, timeout=30).json()["deliveries"])

        assert statuses(subjects[:1] * 2) == ["queued"] * 2
        assert len(sink.received) == 2, "two quick tries, and none for the repeat"
        assert statuses() == ["queued"] * 8
        in_requests = len(sink.received)
        wait_for(lambda: len(sink.received) >= in_requests + 2)  # the service's own retries get a 404, too
        assert (statuses(), dead()) == (["queued"] * 8, [])
        sink.otherwise = Reply()
        wait_for(lambda: set(statuses()) == {"already_processed"})
        assert dead() == []
    assert sink.subjects == dict.fromkeys(subjects, 1)
    assert len({each.webhook_id for each in sink.received}) == 8, "a receiver must recognise the attempts"


@pytest.mark.parametrize(("machines", "emails"), [(0, 3), (0, 9), (2, 3), (2, 20)], ids=str)
def test_when_a_destination_works_again_all_that_waits_goes_out_although_nothing_new_comes(
    machines: int, emails: int, tmp_path: Path, redis_server: RedisServer
) -> None:
    """Too few failures for the breaker or enough, on one machine without Redis and on two that share one; the last two
    emails are of one subject group, and one of these waits for the other."""
    subjects = [f"number {number}" for number in range(emails - 2)] + ["Lot 456"] * 2
    config, down = tmp_path / "mailonce.toml", Reply(503, headers={"Retry-After": "3600"})
    with Sink(otherwise=down) as sink, ExitStack() as stack:
        config.write_text(f"[destinations.crm]\nurl = '{sink.url}'\nbreaker_pause_s = 2\n")
        store = {"REDIS_URL": redis_server.url} if machines else {}
        settings = {"MAILONCE_CONFIG": str(config), "WEB_CONCURRENCY": "2", **store}
        servers = [stack.enter_context(Server(tmp_path / str(each), **settings)) for each in range(machines or 1)]
        if machines:
            wait_for(lambda: all(map(follows_redis, servers)))
        for number, subject in enumerate(subjects):
            answer = servers[number % len(servers)].post(email(subject=subject, body=f"text {number}"))
            assert answer.json()["status"] == "queued"
        failed = len(sink.received)
        wait_for(lambda: len(sink.received) > failed, "a probe, while it is down")
        sink.otherwise = Reply()
        wait_for(lambda: set(sink.subjects) == set(subjects), "the next tries are in an hour")
        wait_for(lambda: {each.health()["checks"]["destinations"]["status"] for each in servers} == {"up"})
    assert set(sink.subjects.values()) == {1}


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


def test_a_new_email_costs_two_round_trips_to_redis_and_a_duplicate_none(
    start_on: StartServer, redis_server: RedisServer
) -> None:
    """The least of several: the background asks now and then as well, the first time with a script to load."""
    with Sink() as sink:
        server = start_on(redis_server, sink, WEB_CONCURRENCY="1")
        for number in range(40):  # every thread has its connection and the scripts are loaded
            server.post(email(subject=f"warm-up {number}"))

        def commands(payload: dict[str, object]) -> Counter[str]:
            redis_server.client.config_resetstat()
            assert server.post(payload).status_code == 200
            time.sleep(0.1)  # publishing follows behind the request
            stats = redis_server.client.info("commandstats").items()
            return Counter({name: each["calls"] for name, each in stats if "config" not in name})

        new = [commands(email(subject=f"new {number}")) for number in range(5)]
        scripts = [each["cmdstat_evalsha"] + each["cmdstat_eval"] for each in new]
        reads = [each["cmdstat_xrange"] for each in new]  # the machine follows the stream, a script each time
        assert min(all_ - read for all_, read in zip(scripts, reads, strict=True)) == 2
        assert any(not commands(email(subject="new 0")) for _ in range(20))


def test_an_operator_sees_the_names_in_redis(start_on: StartServer, redis_server: RedisServer) -> None:
    client = redis_server.client
    payload = email(subject="Lot 456 - Documents", date="2025-03-01T23:30:00-05:00", message_id="<m1@example.org>")
    go_on = threading.Event()
    with Sink(Reply(after=go_on)) as sink, ThreadPoolExecutor(1) as provider:
        sending = provider.submit(start_on(redis_server, sink).post, payload)
        assert sink.arrived.wait(60)
        assert client.get("post:m1@example.org") == "pending"
        go_on.set()
        email_id = sending.result().json()["email_id"]
    wait_for(lambda: client.get("post:m1@example.org") == "0")
    assert client.sismember("processed_ids:2025-03-02", email_id), "the email's own UTC day"
    (groups,) = map(str, client.scan_iter("subject_groups:*"))
    month = groups.removeprefix("subject_groups:")
    assert client.smembers(groups) == {f"{month}:lot_456@example.org"}
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
