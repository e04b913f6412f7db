"""What the shared Redis spends on an email: it is the one part that cannot be multiplied."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deduplication.journal.base import Journal
from deduplication.journal.failover import FailoverJournal
from deduplication.journal.redis import RedisJournal
from deduplication.journal.side import Side, machine_name
from deduplication.journal.sqlite import SqliteJournal
from deduplication.redis_client import connect
from tests.bench import anchors
from tests.bench.emails import Traffic
from tests.bench.figures import Figure, Row, Step, against, alternate, number
from tests.support.redis_server import RedisServer

EMAILS = 1_000
EMAILS_KEPT = 4_000
ROUNDS = 5
OF_ENTRIES_MS = 8 * 24 * 3600 * 1000
_ROUND_TRIPS = ("evalsha", "eval")


def redis_journal(url: str, folder: Path) -> FailoverJournal:
    """As the service builds it, but for the thread that follows Redis: what an email costs is counted alone."""
    folder.mkdir(parents=True, exist_ok=True)
    client = connect(url, timeout_s=5, decode_responses=False)
    redis = RedisJournal(client, machine_name(folder))
    journal = FailoverJournal(redis, SqliteJournal(folder / "journal.db"), folder)
    assert journal.standing.side is Side.REDIS
    return journal


def commands_of(server: RedisServer, step: Step, count: int) -> tuple[float, float]:
    """Round trips and commands inside them, of one step."""
    step()
    before = _calls(server)
    for _ in range(count):
        step()
    spent = {name: calls - before.get(name, 0) for name, calls in _calls(server).items()}
    trips = sum(spent.get(name, 0) for name in _ROUND_TRIPS)
    inside = sum(calls for name, calls in spent.items() if name not in (*_ROUND_TRIPS, "info", "ping"))
    return trips / count, inside / count


def _calls(server: RedisServer) -> dict[str, int]:
    stats = server.client.info("commandstats")
    return {name.removeprefix("cmdstat_"): int(stat["calls"]) for name, stat in stats.items()}


def redis_rows(server: RedisServer, folder: Path) -> Iterator[Row]:
    journal = redis_journal(server.url, folder / "commands")
    traffic = Traffic(journal, EMAILS + 1)
    for what, step, trips_must, must, aim in (
        ("new email", traffic.new(), 2, 45, 30),
        ("duplicate", traffic.duplicates(), 1, 10, 6),
    ):
        trips, commands = commands_of(server, step, EMAILS)
        yield Row(f"redis: round trips, {what}", Figure.once(trips), "", "", trips_must, trips_must, True)
        yield Row(f"redis: commands, {what}", Figure.once(commands), "", "", must, aim, True)
    trips, commands = commands_of(server, traffic.new(is_rich=True), EMAILS)
    yield Row("redis: commands, new email with proof and group", Figure.once(commands), "")
    journal.close()
    yield from memory_rows(server, folder / "memory")
    yield from cpu_rows(server, folder / "cpu")


def memory_rows(server: RedisServer, folder: Path) -> Iterator[Row]:
    within, after, told = _bytes_of_an_email(server, folder / "without")
    with_two, _, _ = _bytes_of_an_email(server, folder / "two", destinations=("crm", "erp"))
    yield Row("redis: bytes of each further destination within 7 days", Figure.once(with_two - within), "")
    yield Row("redis: bytes of an email within 7 days", Figure.once(within), "", "", 1_500, 1_000, True)
    yield Row("redis: bytes of an email after 7 days", Figure.once(after), "", told, 120, 30, True)
    within, after, told = _bytes_of_an_email(server, folder / "with", is_rich=True)
    yield Row("redis: bytes with proof and group within 7 days", Figure.once(within), "")
    yield Row("redis: bytes with proof and group after 7 days", Figure.once(after), "", told)


def _bytes_of_an_email(server: RedisServer, folder: Path, **how: Any) -> tuple[float, float, str]:
    server.client.flushall()
    journal = redis_journal(server.url, folder)
    deliver = Traffic(journal, EMAILS_KEPT + 100).new(**how)
    for _ in range(100):  # scripts, lists and counters are there by then
        deliver()
    before = _used_bytes(server)
    for _ in range(EMAILS_KEPT):
        deliver()
    within = (_used_bytes(server) - before) / EMAILS_KEPT
    _pass_a_week(server)
    after = (_used_bytes(server) - before) / EMAILS_KEPT
    left = sum(1 for _ in server.client.scan_iter(count=1_000))
    journal.close()
    return within, after, f"{left:,} keys are left of {EMAILS_KEPT:,} emails"


def _used_bytes(server: RedisServer) -> int:
    """Once its tables have the size that they need: Redis moves them bit by bit."""
    seen, used = -1, -2
    while seen != used:
        time.sleep(0.3)
        seen, used = used, int(server.client.info("memory")["used_memory"])
    return used


def _pass_a_week(server: RedisServer) -> None:
    for key in list(server.client.scan_iter(count=1_000)):
        if 0 <= server.client.pttl(key) <= OF_ENTRIES_MS:
            server.client.delete(key)


def cpu_rows(server: RedisServer, folder: Path) -> Iterator[Row]:
    """The processor's time of the server, whatever the machine has to do beside."""
    server.client.flushall()
    journal = redis_journal(server.url, folder)
    client = connect(server.url, timeout_s=5)
    traffic = Traffic(journal, ROUNDS * EMAILS + 1)
    steps = {"new": traffic.new(), "duplicate": traffic.duplicates(), "naive": anchors.naive(client)}

    def spent_us(step: Step) -> float:
        before = _cpu_us(server)
        for _ in range(EMAILS):
            step()
        return (_cpu_us(server) - before) / EMAILS

    for step in steps.values():
        step()
    told = alternate({name: lambda step=step: spent_us(step) for name, step in steps.items()}, ROUNDS)  # type: ignore[misc]
    medians = {name: Figure.of(costs).median for name, costs in told.items()}
    texts = {name: f"{number(cost)} µs" for name, cost in medians.items()}
    for name in ("new", "duplicate"):
        yield Row(f"redis: CPU of a {name} email", Figure.of(told[name]), "µs")
    for name, must, aim in (("new", 1.5, 0.9), ("duplicate", None, None)):
        what = f"redis: CPU of a {name} email against naive"
        yield Row(
            what, against(told[name], told["naive"]), "x", f"{texts[name]} against {texts['naive']}", must, aim, True
        )
    client.close()
    journal.close()


def _cpu_us(server: RedisServer) -> float:
    used = server.client.info("cpu")
    return (float(used["used_cpu_user"]) + float(used["used_cpu_sys"])) * 1e6


def sqlite_journal(folder: Path) -> Journal:
    folder.mkdir(parents=True, exist_ok=True)
    return SqliteJournal(folder / "journal.db")
