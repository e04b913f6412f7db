"""What the shared Redis spends on an email: it is the one part that cannot be multiplied."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from deduplication.redis_client import connect
from tests.bench.anchors import take_one_naively
from tests.bench.figures import ROUNDS, Figure, Row, Step, ratio_row, spent
from tests.bench.machines import new_claim, opened
from tests.support.redis_server import RedisServer

EMAILS = 500
EMAILS_KEPT = 3_000
OF_ENTRIES_MS = 8 * 24 * 3600 * 1000


def redis_rows(server: RedisServer, folder: Path) -> Iterator[Row]:
    yield from command_rows(server, folder / "commands")
    yield from memory_rows(server, folder / "memory")
    yield from cpu_rows(server, folder / "cpu")


def command_rows(server: RedisServer, folder: Path) -> Iterator[Row]:
    with opened(folder / "here", server.url) as here, opened(folder / "elsewhere", server.url) as elsewhere:
        trips, commands = commands_of(server, here.new(EMAILS + 1), EMAILS)
        yield Row("redis: round trips, new email", Figure.of(trips), "", "", 2, 2, True)
        yield Row("redis: commands, new email", Figure.of(commands), "", "", 18, 18, True)
        known = new_claim()
        here.deliver(known)
        trips, _ = commands_of(server, lambda: elsewhere.repeat(known), EMAILS)
        yield Row("redis: round trips, duplicate known elsewhere", Figure.of(trips), "", "", 1, 1, True)
        trips, _ = commands_of(server, lambda: here.repeat(known), EMAILS)
        yield Row("redis: round trips, duplicate known here", Figure.of(trips), "", "", 0, 0, True)


def commands_of(server: RedisServer, step: Step, count: int) -> tuple[float, float]:
    """Round trips and the commands inside them, of one step."""
    step()
    before = _calls(server)
    for _ in range(count):
        step()
    calls = {name: total - before.get(name, 0) for name, total in _calls(server).items()}
    trips = sum(calls.pop(name, 0) for name in ("evalsha", "eval"))
    return trips / count, sum(calls[name] for name in calls if name not in ("info|commandstats", "ping")) / count


def _calls(server: RedisServer) -> dict[str, int]:
    stats = server.client.info("commandstats")
    return {name.removeprefix("cmdstat_"): int(stat["calls"]) for name, stat in stats.items()}


def memory_rows(server: RedisServer, folder: Path) -> Iterator[Row]:
    within, after, event = _bytes_of_an_email(server, folder / "one", ("crm",))
    with_two, _, _ = _bytes_of_an_email(server, folder / "two", ("crm", "erp"))
    yield Row("redis: bytes of an email within 7 days", Figure.of(within), "", "without the stream", 1_000, 700, True)
    yield Row("redis: bytes of an email after 7 days", Figure.of(after), "", "", 175, 175, True)
    yield Row("redis: bytes of an event on the stream", Figure.of(event), "", "", 450, 300, True)
    yield Row("redis: bytes of each further destination within 7 days", Figure.of(with_two - within), "")


def _bytes_of_an_email(server: RedisServer, folder: Path, to: tuple[str, ...]) -> tuple[float, float, float]:
    server.client.flushall()
    with opened(folder, server.url) as machine:
        deliver = machine.new(EMAILS_KEPT + 100, to)
        for _ in range(100):  # scripts and tables are there by then
            deliver()
        before, events = _used_bytes(server), _stream_bytes(server)
        for _ in range(EMAILS_KEPT):
            deliver()
        events = _stream_bytes(server) - events
        within = (_used_bytes(server) - before - events) / EMAILS_KEPT
        for key in list(server.client.scan_iter(count=1_000)):
            if 0 <= server.client.pttl(key) <= OF_ENTRIES_MS:
                server.client.delete(key)
        after = (_used_bytes(server) - before - events) / EMAILS_KEPT
    return within, after, events / EMAILS_KEPT


def _stream_bytes(server: RedisServer) -> int:
    return int(server.client.memory_usage("events", samples=0) or 0)


def _used_bytes(server: RedisServer) -> int:
    """Once its tables have the size that they need: Redis moves them bit by bit."""
    seen, used = -1, -2
    while seen != used:
        time.sleep(0.3)
        seen, used = used, int(server.client.info("memory")["used_memory"])
    return used


def cpu_rows(server: RedisServer, folder: Path) -> Iterator[Row]:
    """Processor time of the server, whatever else the machine does."""
    server.client.flushall()
    client = connect(server.url, timeout_s=5)
    with opened(folder / "here", server.url) as here, opened(folder / "elsewhere", server.url) as elsewhere:
        known = new_claim()
        here.deliver(known)
        steps: dict[str, Step] = {
            "new": here.new(ROUNDS * EMAILS + 1),
            "duplicate": lambda: elsewhere.repeat(known),
            "naive": partial(take_one_naively, client),
        }
        costs = spent(steps, EMAILS, partial(_cpu_us, server))
    client.close()
    yield ratio_row("redis: CPU of a new email against naive", costs, ("new", "naive"), " µs", (0.8, 0.6))
    yield Row("redis: CPU of a new email", Figure.of(*costs["new"]), "µs")
    yield Row("redis: CPU of a duplicate email", Figure.of(*costs["duplicate"]), "µs", "known on another machine")


def _cpu_us(server: RedisServer) -> float:
    used = server.client.info("cpu")
    return (float(used["used_cpu_user"]) + float(used["used_cpu_sys"])) * 1e6
