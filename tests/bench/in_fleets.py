"""What the shared Redis spends on an email: it is the one part that cannot be multiplied.

And how quickly a machine learns what the others did: beside traffic of its own, and from an empty disk.
"""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from deduplication.journal.entry import Attempt, Delivery, DeliveryStatus, Entry, new_entry_id, pack_event
from deduplication.redis_client import connect
from tests.bench.anchors import take_one_naively
from tests.bench.figures import Figure, Row, Step, ratio_row, spent
from tests.bench.machines import Machine, new_claim, opened
from tests.support.redis_server import RedisServer
from tests.support.server import Server, email

EMAILS = 500
EMAILS_KEPT = 3_000
ROUNDS = 5
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
        costs = spent(steps, EMAILS, partial(_cpu_us, server), ROUNDS)
    client.close()
    yield ratio_row("redis: CPU of a new email against naive", costs, ("new", "naive"), " µs", (0.8, 0.6))
    yield Row("redis: CPU of a new email", Figure.of(*costs["new"]), "µs")
    yield Row("redis: CPU of a duplicate email", Figure.of(*costs["duplicate"]), "µs", "known on another machine")


def _cpu_us(server: RedisServer) -> float:
    used = server.client.info("cpu")
    return (float(used["used_cpu_user"]) + float(used["used_cpu_sys"])) * 1e6


# Following

EVENTS = 500_000
BESIDE = 30_000
DIFFERENT = 2_000


def follow_rows(redis: RedisServer, folder: Path, events: int = EVENTS) -> Iterator[Row]:
    redis.client.flushall()
    with opened(folder / "beside", redis.url) as machine:
        publish(redis, BESIDE)
        yield Row(
            "following: entries of others written a second, beside traffic",
            Figure.of(_follow_beside_traffic(machine)),
            "/s",
            "",
            5_000,
            10_000,
        )
    publish(redis, events - BESIDE)
    took_s, served = _start_empty(redis, folder / "empty", events)
    text = f"{events:,} events; {served} emails were accepted meanwhile"
    scaled = took_s * EVENTS / events
    yield Row("following: start of a new machine, 500,000 events", Figure.of(scaled), "s", text, 90, 45, True)


def publish(redis: RedisServer, count: int) -> None:
    """Events of another machine, as it writes them."""
    attempt = Attempt(time.time_ns() // 1_000_000, 12, 200)
    claims = [new_claim() for _ in range(min(count, DIFFERENT))]
    with redis.client.pipeline(transaction=False) as pipeline:
        for number in range(count):
            claim = claims[number % len(claims)]
            (wanted,) = claim.destinations
            delivered = Delivery(
                wanted.destination,
                f"{wanted.webhook_id[:-8]}{number:08x}",
                DeliveryStatus.DELIVERED,
                tries=1,
                attempts=(attempt,),
                ended_ms=attempt.at_ms,
            )
            entry = Entry(
                new_entry_id(),
                "another",
                tuple(name.with_value(f"{number:08x}{name.value[8:]}") for name in claim.own),
                created_ms=attempt.at_ms,
                fingerprint=claim.fingerprint,
                about=claim.about,
                deliveries=(delivered,),
                answer="processed",
                settled_ms=attempt.at_ms,
            )
            pipeline.xadd("events", {"e": pack_event("E", "another", entry)})
            if number % 2_000 == 1_999:
                pipeline.execute()
        pipeline.execute()


def _follow_beside_traffic(machine: Machine) -> float:
    assert machine.fleet is not None
    is_ended = threading.Event()

    def work() -> None:
        while not is_ended.wait(0.02):  # some 40 emails a second
            machine.deliver(new_claim(), publishes=False)

    traffic = threading.Thread(target=work)
    traffic.start()
    began, count = time.perf_counter(), 0
    while (read := machine.fleet.follow()) > 0:
        count += read
    took_s = time.perf_counter() - began
    is_ended.set()
    traffic.join()
    return count / took_s


def _start_empty(redis: RedisServer, folder: Path, events: int) -> tuple[float, int]:
    """As users start it; how long until it has read all, and how many emails it accepted meanwhile."""
    settings = {"REDIS_URL": redis.url, "WEBHOOK_URL": "http://127.0.0.1:9/", "WEB_CONCURRENCY": "1"}
    with Server(folder, **settings) as server:
        began, served = time.monotonic(), 0
        with closing(sqlite3.connect(f"file:{folder / 'journal.db'}?mode=ro", uri=True, timeout=30)) as journal:
            while journal.execute("SELECT count(*) FROM entries WHERE machine = 'another'").fetchone()[0] < events:
                assert time.monotonic() - began < 900, "it never reads all"
                served += server.post(email(subject=f"meanwhile {served}")).status_code == 200
                time.sleep(0.5)
        return time.monotonic() - began, served
