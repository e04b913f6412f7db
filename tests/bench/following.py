"""How quickly a machine learns what the others did: beside traffic of its own, and from an empty disk."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from deduplication.journal.entry import Attempt, Delivery, DeliveryStatus, Entry, encode, new_entry_id, pack_event
from tests.bench.figures import Figure, Row
from tests.bench.machines import Machine, new_claim, opened
from tests.support.redis_server import RedisServer
from tests.support.server import Server, email

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
                tuple(replace(name, value=f"{number:08x}{name.value[8:]}") for name in claim.own),
                created_ms=attempt.at_ms,
                fingerprint=claim.fingerprint,
                about=claim.about,
                deliveries=(delivered,),
                answer="processed",
                settled_ms=attempt.at_ms,
            )
            pipeline.xadd("events", {"e": pack_event(f'["E","another",{encode(entry)}]')})
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
