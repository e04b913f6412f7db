"""make bench: what a claim, an email and a request cost, each against an anchor measured in the same run.

``make bench ARGS=sizes`` is about single requests of any size instead (bench_sizes.py).

Absolute numbers say as much about the machine as about the code; the ratios can be compared. Nothing is asserted.
Still, run it several times: on two shared cores the Redis anchor itself moved threefold from one run to the next, and
the ratio of claim + commit with it, between 2.1 and 4.0.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import requests

from deduplication.claims import Claim
from deduplication.email import Email
from deduplication.identity import compute_fingerprint, own_names
from deduplication.redis_client import connect
from deduplication.stores.base import Store
from deduplication.stores.failover import FailoverStore
from deduplication.stores.redis import RedisStore
from deduplication.stores.sqlite import SqliteStore
from deduplication.subject_group import GroupMode, generate_subject_group_id, group_name
from tests.bench_sizes import print_sizes
from tests.support.redis_server import RedisServer, free_port
from tests.support.server import INGRESS_TOKEN, Server, email
from tests.support.sink import Reply, Sink

ROUNDS = 7
STEPS_A_ROUND = 200
HTTP_ROUNDS = 5
REQUESTS_A_ROUND = 120
CLIENTS = 8
EMAILS_IN_REDIS = 10_000
EMAILS_IN_SQLITE = 1_000
COLUMNS = ("measured", "cost", "anchor", "cost of the anchor", "ratio")

Step = Callable[[], object]
_numbers = itertools.count()


@dataclass(frozen=True)
class Row:
    measured: str
    cost: str
    anchor: str = ""
    anchor_cost: str = ""
    ratio: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        return self.measured, self.cost, self.anchor, self.anchor_cost, self.ratio


@dataclass(frozen=True)
class Comparison:
    """Medians over rounds in which both were measured one after the other. Seconds a step."""

    measured_s: float
    anchor_s: float
    ratio: float


def compare(measured: Step, anchor: Step) -> Comparison:
    measured(), anchor()  # connections are made and scripts loaded before the clock runs
    pairs = [(seconds_a_step(measured), seconds_a_step(anchor)) for _ in range(ROUNDS)]
    return _medians(pairs)


def seconds_a_step(step: Step) -> float:
    began = time.perf_counter()
    for _ in range(STEPS_A_ROUND):
        step()
    return (time.perf_counter() - began) / STEPS_A_ROUND


def _medians(pairs: Sequence[tuple[float, float]]) -> Comparison:
    measured, anchor = zip(*pairs, strict=True)
    ratios = [each / of_anchor for each, of_anchor in pairs]
    return Comparison(statistics.median(measured), statistics.median(anchor), statistics.median(ratios))


def in_microseconds(measured: str, anchor: str, found: Comparison) -> Row:
    return Row(
        measured,
        f"{found.measured_s * 1e6:,.0f} us",
        anchor,
        f"{found.anchor_s * 1e6:,.0f} us",
        f"{found.ratio:.2f}",
    )


def new_claim() -> Claim:
    """A claim as the intake makes it for an email never seen: id, canonical id, post key and subject group."""
    number = next(_numbers)
    day, second = number % 28 + 1, number % 60
    mail = Email(
        subject=f"Report {number} of the week",
        sender=f"Sender {number} <sender{number}@example.org>",
        date=f"2026-11-{day:02}T09:00:{second:02}.000Z",
        html=f"<p>The text of email {number}.</p>",
        message_id=f"<{number}.bench@mail.example.org>",
    )
    names = own_names(mail, ids_kept_ms=None)
    group = generate_subject_group_id(mail.subject, mode=GroupMode.ALL) or ""
    names.append(group_name(group, "2026-11", ttl_seconds=0))
    return Claim(names[0].value, tuple(names), str(compute_fingerprint(mail)), secrets.token_urlsafe(16), 60_000)


def settle(store: Store, claim: Claim) -> None:
    store.claim(claim)
    store.commit(claim)


def made_before(make: Callable[[], Claim]) -> Iterator[Claim]:
    """Claims enough for a comparison, made before the clock runs: only the store is measured."""
    return iter([make() for _ in range(ROUNDS * STEPS_A_ROUND + 1)])


def redis_rows(server: RedisServer) -> Iterator[Row]:
    client = connect(server.url, timeout_s=5)
    store = RedisStore(client)
    keys = map("anchor:{}".format, itertools.count())

    def set_nx() -> None:
        client.set(next(keys), "1", nx=True)

    def two_set_nx() -> None:
        set_nx()
        set_nx()

    settled = new_claim()
    settle(store, settled)
    claims = made_before(new_claim)
    duplicates = made_before(lambda: replace(settled, owner=secrets.token_urlsafe(16)))
    new = compare(lambda: settle(store, next(claims)), two_set_nx)
    yield in_microseconds("redis: claim + commit", "2 SET NX", new)
    duplicate = compare(lambda: store.claim(next(duplicates)), set_nx)
    yield in_microseconds("redis: claim of a duplicate", "1 SET NX", duplicate)
    yield redis_memory_row(server, store)
    client.close()


def redis_memory_row(server: RedisServer, store: Store) -> Row:
    server.client.flushall()
    before_bytes = int(server.client.info("memory")["used_memory"])
    for _ in range(EMAILS_IN_REDIS):
        settle(store, new_claim())
    used_bytes = int(server.client.info("memory")["used_memory"]) - before_bytes
    return Row(f"redis: memory of {EMAILS_IN_REDIS:,} emails", f"{used_bytes / EMAILS_IN_REDIS:,.0f} bytes each")


def sqlite_rows(folder: Path) -> Iterator[Row]:
    store = SqliteStore(folder / "names.db")
    claims = made_before(new_claim)
    with contextlib.closing(bare_database(folder / "anchor.db")) as anchor:

        def two_inserts() -> None:
            for _ in range(2):
                anchor.execute("BEGIN IMMEDIATE")
                anchor.execute("INSERT INTO bare VALUES (?)", (secrets.token_hex(16),))
                anchor.execute("COMMIT")

        found = compare(lambda: settle(store, next(claims)), two_inserts)
    store.close()
    yield in_microseconds("sqlite: claim + commit", "2 transactions with an INSERT", found)
    yield sqlite_size_row(folder / "sized.db")


def failover_rows(server: RedisServer, folder: Path) -> Iterator[Row]:
    """What following Redis locally costs, and how fast the local store is once Redis is gone."""
    healthy = FailoverStore(RedisStore(connect(server.url, timeout_s=5)), SqliteStore(folder / "healthy.db"))
    alone = FailoverStore(RedisStore(connect(f"redis://127.0.0.1:{free_port()}")), SqliteStore(folder / "alone.db"))
    bare = RedisStore(connect(server.url, timeout_s=5))
    claims = iter([new_claim() for _ in range(4 * ROUNDS * STEPS_A_ROUND + 4)])

    def settle_on(store: Store) -> Step:
        return lambda: settle(store, next(claims))

    following = compare(settle_on(healthy), settle_on(bare))
    yield in_microseconds("redis and local mirror: claim + commit", "redis alone", following)
    standing_in = compare(settle_on(alone), settle_on(healthy))
    yield in_microseconds("redis away, local decides: claim + commit", "redis and local mirror", standing_in)
    for store in (healthy, alone, bare):
        store.close()


def bare_database(path: Path) -> sqlite3.Connection:
    """With the pragmas of SqliteStore."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE bare (value TEXT PRIMARY KEY) WITHOUT ROWID")
    return database


def sqlite_size_row(path: Path) -> Row:
    """Closing writes the log back into the file, so its size is all there is."""
    SqliteStore(path).close()
    empty_bytes = path.stat().st_size
    store = SqliteStore(path)
    for _ in range(EMAILS_IN_SQLITE):
        settle(store, new_claim())
    store.close()
    grown_bytes = path.stat().st_size - empty_bytes
    return Row(f"sqlite: file with {EMAILS_IN_SQLITE:,} emails", f"{grown_bytes / EMAILS_IN_SQLITE:,.0f} bytes each")


class Load:
    """Several clients at once, each with one connection that stays open."""

    def __init__(self, server: Server, clients: ThreadPoolExecutor) -> None:
        self._server = server
        self._clients = clients
        self._of_thread = threading.local()

    def get_livez(self) -> None:
        self._session.get(f"{self._server.url}/livez", timeout=30).raise_for_status()

    def post_new(self) -> None:
        self._post(f"Report {next(_numbers)}")

    def post_duplicate(self) -> None:
        self._post("The same report")

    def _post(self, subject: str) -> None:
        self._session.post(f"{self._server.url}/api/ingress/gmail", json=email(subject=subject)).raise_for_status()

    @property
    def _session(self) -> requests.Session:
        if not hasattr(self._of_thread, "session"):
            session = requests.Session()
            session.trust_env = False
            session.headers["Authorization"] = f"Bearer {INGRESS_TOKEN}"
            self._of_thread.session = session
        found: requests.Session = self._of_thread.session
        return found

    def beside_livez(self, request: Step) -> tuple[float, float]:
        return self.seconds_a_request(request), self.seconds_a_request(self.get_livez)

    def seconds_a_request(self, request: Step) -> float:
        began = time.perf_counter()
        for done in [self._clients.submit(request) for _ in range(REQUESTS_A_ROUND)]:
            done.result()
        return (time.perf_counter() - began) / REQUESTS_A_ROUND


def http_rows(store: str, folder: Path, **settings: str) -> Iterator[Row]:
    # An empty answer goes out in one packet: the sink's own speed should not be what is measured.
    with (
        Sink(otherwise=Reply(204, body=b"")) as sink,
        Server(folder, WEBHOOK_URL=sink.url, **settings) as server,
        ThreadPoolExecutor(CLIENTS) as clients,
    ):
        load = Load(server, clients)
        load.post_duplicate()
        load.seconds_a_request(load.post_new)
        for what, request in (("new emails", load.post_new), ("duplicates", load.post_duplicate)):
            found = _medians([load.beside_livez(request) for _ in range(HTTP_ROUNDS)])
            yield in_requests_a_second(f"http on {store}: {what}", found)


def queue_row(folder: Path, redis_url: str) -> Row:
    """Storing and announcing a delivery against making it at once, to a destination that costs nothing."""
    with (
        Server(folder / "queued", REDIS_URL=redis_url, QUEUE_URL=redis_url) as queued,
        Server(folder / "inline", REDIS_URL=redis_url) as inline,
        ThreadPoolExecutor(CLIENTS) as clients,
    ):
        loads = [Load(server, clients) for server in (queued, inline)]
        for load in loads:
            load.seconds_a_request(load.post_new)
        rounds = [[load.seconds_a_request(load.post_new) for load in loads] for _ in range(HTTP_ROUNDS)]
    found = _medians([(measured, anchor) for measured, anchor in rounds])
    return in_requests_a_second("http on redis: new emails, queued", found, "inline to the log destination")


def in_requests_a_second(measured: str, found: Comparison, anchor: str = "GET /livez") -> Row:
    """The ratio is that of the rates, so that more is better in all three columns."""
    rates = (f"{1 / found.measured_s:,.0f} /s", f"{1 / found.anchor_s:,.0f} /s")
    return Row(measured, rates[0], anchor, rates[1], f"{1 / found.ratio:.2f}")


def all_rows(folder: Path) -> Iterator[Row]:
    server = RedisServer().start()
    try:
        yield from redis_rows(server)
        yield from sqlite_rows(folder)
        yield from failover_rows(server, folder)
        yield from http_rows("sqlite", folder / "on_sqlite")
        server.client.flushall()
        yield from http_rows("redis", folder / "on_redis", REDIS_URL=server.url)
        server.client.flushall()
        yield queue_row(folder, server.url)
    finally:
        server.stop()


def table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([lines[0], "-+-".join("-" * width for width in widths), *lines[1:]])


def main() -> None:
    if sys.argv[1:2] == ["sizes"]:
        print_sizes(*sys.argv[2:])
        return
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mailonce-bench-") as folder:
        rows = [row.cells for row in all_rows(Path(folder))]
    print(table([COLUMNS, *rows]))
    print(f"\nmedians of {ROUNDS} rounds (http: {HTTP_ROUNDS}), {time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
