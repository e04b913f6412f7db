"""What users see, through real sockets, real gunicorn, real sqlite and real Redis."""

import json
import re
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support import programs_loaded
from tests.support.page import PageVisitor
from tests.support.programs_loaded import MAILONCE
from tests.support.prometheus_server import samples
from tests.support.redis_server import RedisServer, free_port
from tests.support.server import ADMIN, ADMIN_TOKEN, Server, WorkerProcess, email
from tests.support.sink import Reply, Sink
from tests.support.surroundings import clean_environment
from tests.support.waiting import wait_for

StartServer = Callable[..., Server]


@pytest.fixture
def start_on(tmp_path: Path) -> Iterator[StartServer]:
    """Starts a server on a Redis, or without one, and waits until it uses that; all are stopped in the end."""
    with ExitStack() as stack:

        def start(redis: RedisServer | None, sink: Sink, **settings: str) -> Server:
            store = {"REDIS_URL": redis.url} if redis else {}
            server = stack.enter_context(Server(tmp_path / "data", WEBHOOK_URL=sink.url, **store, **settings))
            if redis:
                wait_for(lambda: follows_redis(server))
            return server

        yield start


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


# Every source of figures agrees with the answers that clients got and the webhooks that arrived

EMAILS = 120
RETRIED = ("already_processing", "retry_later")  # answers that do not count as received
SETTLED_WITHIN_S = 120.0  # machines read the stream every few seconds
NAMES = ("statuses", "received", "duplicates", "suppressed", "delivered", "dead", "waiting")
TILE = r'<span class="label">([^<]+)</span><span class="value">(\d+)</span>'

Figures = dict[str, Any]  # the counts of one source, by NAMES
Answer = dict[str, Any]


def subjects() -> Iterator[str]:
    """Of ten emails six are new, two are exact repeats, one is of a group, and one is refused: it is tried once, and is
    a dead letter then."""
    for number in range(EMAILS):
        match number % 10:
            case 6 | 7:
                yield f"email {number - 6}"
            case 8:
                yield f"Lot {number // 50}"
            case 9:
                yield f"please refuse {number}"
            case _:
                yield f"email {number}"


def send(servers: list[Server], sink: Sink) -> list[Answer]:
    """Every answer, including those that asked for a retry."""
    answers: list[Answer] = []

    def post(numbered: tuple[int, str]) -> None:
        number, subject = numbered
        second = number if subject.startswith("Lot") else 0  # emails of a group differ in their date
        fields = {"date": f"2026-11-16T09:{second // 60 % 60:02}:{second % 60:02}Z", "body": f"This is {subject}"}
        while True:
            answers.append(answer := servers[number % len(servers)].post(email(subject=subject, **fields)).json())
            if answer["success"]:
                return
            time.sleep(0.1)

    emails = list(enumerate(subjects()))
    with ThreadPoolExecutor(4) as clients:
        for half in (emails[: EMAILS // 2], emails[EMAILS // 2 :]):
            list(clients.map(post, half))
            # A group suppresses other emails once its first one is delivered.
            groups = {subject for _, subject in half if subject.startswith("Lot")}
            while not groups <= sink.subjects.keys():
                time.sleep(0.05)
    return answers


def figures(statuses: Counter[str], gates: Counter[str], **counts: int) -> Figures:
    received = sum(count for status, count in statuses.items() if status not in RETRIED)
    stopped = {"duplicates": gates["identity"], "suppressed": gates.total() - gates["identity"]}
    return {"statuses": dict(statuses), "received": received, **stopped, **counts}


def of_clients_and_sink(answers: list[Answer], sink: Sink) -> Figures:
    """The true figures."""
    gates = Counter(each["reason"]["gate"] for each in answers if each["success"] and "reason" in each)
    refused = {each.webhook_id for each in sink.received if each.status == 422}
    statuses = Counter(each["status"] for each in answers)
    return figures(statuses, gates, delivered=len(sink.accepted), dead=len(refused), waiting=0)


def of_metrics(urls: list[str]) -> Figures:
    """As Prometheus sees it: counters summed over all machines, gauges equal on each."""
    scrapes = [samples(requests.get(f"{url}/metrics", headers=ADMIN, timeout=30).text) for url in urls]
    total: Counter[str] = sum(map(Counter, scrapes), Counter())

    def by_last_label(name: str) -> Counter[str]:
        """``name{provider=gmail,status=queued}``: by status."""
        found: Counter[str] = Counter()
        for sample, count in total.items():
            if sample.startswith(name):
                found[sample.rpartition("=")[2].rstrip("}")] += int(count)
        return found

    gauges = {"dead": "mailonce_dead_letters", "waiting": "mailonce_deliveries_waiting"}
    (equal,) = {tuple(int(each[f"{gauge}{{destination=crm}}"]) for gauge in gauges.values()) for each in scrapes}
    delivered = int(total["mailonce_deliveries_total{destination=crm,outcome=delivered}"])
    gates = by_last_label("mailonce_duplicates_total")
    return figures(
        by_last_label("mailonce_emails_total"), gates, delivered=delivered, **dict(zip(gauges, equal, strict=True))
    )


def of_page(server: Server) -> Figures:
    """Its tiles, which show what became of emails, not what was answered: one that waited for the name of its group and
    was suppressed then counts as suppressed there."""
    shown = {
        label.split()[0].lower(): int(value) for label, value in re.findall(TILE, PageVisitor(server.url).text("/"))
    }
    assert shown["received"] == sum(shown.values()) - shown["received"], "tiles add up"
    return {name: count for name, count in shown.items() if name != "suppressed"}


def test_all_sources_of_figures_agree_with_the_clients_and_the_sink(tmp_path: Path, redis_server: RedisServer) -> None:
    """Two servers, a worker on the machine of one of them, and a worker on a machine of its own."""
    with ExitStack() as stack:
        sink = stack.enter_context(Sink())
        sink.answers = {subject: Reply(422) for subject in subjects() if "refuse" in subject}
        config = tmp_path / "mailonce.toml"
        config.write_text(f"[destinations.crm]\nurl = '{sink.url}'\nmax_attempts = 1\n")
        settings = {"REDIS_URL": redis_server.url, "DELIVER_BY": "workers", "MAILONCE_CONFIG": str(config)}
        servers = [stack.enter_context(Server(tmp_path / name, **settings)) for name in ("one", "two")]
        port = str(free_port())
        own = {"WORKER_METRICS_PORT": port, "ADMIN_TOKEN": ADMIN_TOKEN}
        stack.enter_context(WorkerProcess(tmp_path / "one", **settings))
        stack.enter_context(WorkerProcess(tmp_path / "three", **settings, **own))
        answers = send(servers, sink)

        def by_api(server: Server) -> dict[str, Any]:
            answer = requests.get(f"{server.url}/api/admin/stats?span=hour", headers=ADMIN, timeout=30)
            return dict(answer.json())

        def by_command(data_dir: Path) -> dict[str, Any]:
            environment = clean_environment(DATA_DIR=str(data_dir), LOG_LEVEL="ERROR", **settings)
            shown = programs_loaded.run([MAILONCE, "stats", "--json", "--span", "hour"], data_dir, environment)
            return dict(json.loads(shown.stdout))

        urls = [*(server.url for server in servers), f"http://127.0.0.1:{port}"]

        def of_totals(stats: dict[str, Any]) -> Figures:
            return {name: stats["totals"][name] for name in NAMES}

        sources: list[Callable[[], Figures]] = [
            lambda: of_totals(by_api(servers[0])),
            lambda: of_totals(by_api(servers[1])),
            lambda: of_totals(by_command(tmp_path / "two")),
            lambda: of_totals(by_command(tmp_path / "three")),
            lambda: of_metrics(urls),
            lambda: of_clients_and_sink(answers, sink) | of_page(servers[1]),
        ]
        for source in sources:
            deadline = time.monotonic() + SETTLED_WITHIN_S
            while (found := source()) != (truth := of_clients_and_sink(answers, sink)):
                assert time.monotonic() < deadline, (found, truth)
                time.sleep(0.3)
        hours = [each["over_time"]["total"] for each in (*map(by_api, servers), by_command(tmp_path / "three"))]
    assert (truth["received"], truth["delivered"] > 60, truth["dead"]) == (EMAILS, True, 12)
    assert (truth["duplicates"], truth["suppressed"] > 0) == (24, True)
    stopped = truth["duplicates"] + truth["suppressed"]
    assert [(each["received"], each["stopped"], each["delivered"]) for each in hours] == [
        (EMAILS, stopped, truth["delivered"])
    ] * 3
