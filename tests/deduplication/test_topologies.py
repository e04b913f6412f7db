"""Every kind of REDIS_URL, against real servers: Sentinel with a failover, a Cluster of three, TLS, sockets, ACL."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis
import trustme

from deduplication.claims import WEEK_MS, Kind, Name, Pattern
from deduplication.errors import StoreMisconfigured
from deduplication.journal.base import (
    Claim,
    Claimed,
    Duplicate,
    Ending,
    Forgotten,
    InFlight,
    Released,
    Replayed,
    Settlement,
    Wanted,
)
from deduplication.journal.entry import DeliveryStatus, Entry
from deduplication.journal.failover import FailoverJournal
from deduplication.journal.redis import RedisJournal
from deduplication.journal.redis_figures import News, RedisFigures
from deduplication.journal.side import Side
from deduplication.journal.sqlite import SqliteJournal
from deduplication.redis_client import connect, parse_address
from tests.support.redis_server import RedisServer
from tests.support.tls import tls_in_front_of

pytestmark = pytest.mark.real_redis

Start = Callable[..., RedisServer]


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def start(*options: str) -> RedisServer:
            server = RedisServer(*options)
            stack.callback(server.stop)
            return server.start()

        yield start


_owners = count(1)


def claim(number: int, shared_with: int | None = None) -> Claim:
    """Each time of another owner. ``shared_with``: the one whose group and media it has."""
    other, owner = number if shared_with is None else shared_with, next(_owners)
    own = (Name(Kind.EMAIL_ID, "2026-11-16", f"e{number}"), Name(Kind.POST, "", f"m{number}", WEEK_MS))
    shared = (
        Name(Kind.SUBJECT_GROUP, "2026-11", f"g{other}", WEEK_MS),
        Name(Kind.MEDIA, "", f"https://a.example/{other}", WEEK_MS),
    )
    wanted = (Wanted("crm", f"msg_{number}", Name(Kind.CONTENT, "crm", f"w{number}", WEEK_MS)),)
    return Claim(f"entry{owner}", f"owner{owner}", own, shared, wanted, lease_ms=60_000)


def open_failover(url: str, folder: Path, prefix: str = "", timeout_s: float = 5) -> FailoverJournal:
    on_redis = RedisJournal(connect(url, timeout_s, decode_responses=False), "m1", prefix)
    folder.mkdir(exist_ok=True)
    local = SqliteJournal(folder / "journal.db")
    try:
        return FailoverJournal(on_redis, local, folder)
    except StoreMisconfigured:
        local.close()
        raise


def settle(journal: FailoverJournal, number: int, status: DeliveryStatus, shared_with: int | None = None) -> Entry:
    """It ends like this, or is skipped."""
    asked = claim(number, shared_with)
    verdict = journal.claim(asked)
    assert isinstance(verdict, Claimed | Duplicate) and verdict.entry, verdict
    ended = tuple(
        replace(each, status=status, next_try_ms=1 if status.is_open else None)
        for each in verdict.entry.deliveries
        if each.status is DeliveryStatus.DELIVERING
    )
    for each in ended:
        if status is DeliveryStatus.DELIVERED:
            journal.note_delivered(verdict.entry, each)
    assert journal.settle(asked, verdict.entry, Settlement(Ending.DONE, "told", ended, payload=b"payload"))
    return verdict.entry


def is_repeat(journal: FailoverJournal, number: int) -> bool:
    verdict = journal.claim(claim(number))
    return isinstance(verdict, Duplicate) and verdict.entry is None


def try_everything(url: str, folder: Path, prefix: str = "") -> None:
    """Every step of the journal, and that all of it went to this Redis."""
    try_figures(url, prefix)
    journal = open_failover(url, folder / "machine", prefix)
    assert journal.standing.side is Side.REDIS

    mine = claim(1)
    claimed = journal.claim(mine)
    assert isinstance(claimed, Claimed)
    assert isinstance(journal.claim(claim(1)), InFlight)
    assert [each.entry.id for each in journal.under_way()] == [claimed.entry.id]
    assert journal.renew(claimed.entry.id, mine.owner, 60_000)
    assert journal.settle(mine, claimed.entry, Settlement(Ending.FREE, retries_left=3))
    delivered = settle(journal, 1, DeliveryStatus.DELIVERED)
    assert delivered.id == claimed.entry.id
    assert is_repeat(journal, 1)

    skipped = settle(journal, 2, DeliveryStatus.DELIVERED, shared_with=1)
    assert journal.payload(skipped.id) == b"payload"
    assert journal.release(skipped.id) is Released.RELEASED
    waiting = settle(journal, 3, DeliveryStatus.WAITING)
    assert sorted(journal.due({"crm": 10}, hold_ms=0)) == sorted([(skipped.id, "crm"), (waiting.id, "crm")])
    assert journal.destinations() == ["crm"]
    for entry, status in ((skipped, DeliveryStatus.DELIVERED), (waiting, DeliveryStatus.DEAD)):
        begun = journal.begin(entry.id, "crm", "worker", 60_000)
        assert begun and begun.payload == b"payload"
        assert journal.finish(entry.id, "worker", replace(begun.delivery, status=status, next_try_ms=None))
    assert journal.replay(waiting.id, "crm") is Replayed.REPLAYED

    entries = list(journal.find())
    assert [entry.id for entry in entries] == [waiting.id, skipped.id, delivered.id]
    found = journal.look([*mine.own, *mine.shared])
    assert [each.is_marked for each in found] == [True] * 4
    assert {entry.id for each in found for entry in each.entries} == {delivered.id}
    every = {name for number in (1, 2, 3) for name in claim(number).own}
    assert {name for name in journal.names(Pattern()) if name.is_own} == every
    assert set(journal.names(Pattern(Kind.EMAIL_ID, value="e1"))) == {mine.own[0]}
    assert set(journal.names(Pattern(Kind.MEDIA))) == {mine.shared[1], claim(3).shared[1]}

    assert journal.forget(mine.own) == Forgotten(2)
    assert journal.forget(claim(3).own) == Forgotten(0, (waiting.id,))
    assert journal.reopen(skipped.id, "crm")
    journal.tick()
    assert isinstance(journal.claim(replace(claim(1), shared=(), destinations=(Wanted("crm", "msg"),))), Claimed)
    assert journal.redis_facts().maxmemory_policy == "noeviction"
    assert journal.standing.side is Side.REDIS
    journal.close()


def try_figures(url: str, prefix: str) -> None:
    one, two = (RedisFigures(connect(url, 5), name, prefix, {60: 3600}) for name in ("one", "two"))
    one.tell(News("", "mark", '{"n":1}', workers=1, workers_for_s=20, buckets={(60, 0): '{"n":2}'}))
    assert (two.totals(), two.workers(), two.buckets(60, [0])) == ({"one": '{"n":1}'}, 1, [(0, '{"n":2}')])
    one.drop_old()
    assert two.buckets(60, [0]) == []
    one.close()
    two.close()


def command(server: RedisServer, *words: str | int) -> Any:
    return server.client.execute_command(*words)  # type: ignore[no-untyped-call]


def wait_for(condition: Callable[[], bool], within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@pytest.fixture
def cluster(start: Start) -> list[RedisServer]:
    nodes = [start("--cluster-enabled", "yes", "--cluster-node-timeout", "2000") for _ in range(3)]
    for position, node in enumerate(nodes):
        slots = range(position * 5462, min(16384, (position + 1) * 5462))
        command(node, "CLUSTER", "ADDSLOTS", *slots)
        command(nodes[0], "CLUSTER", "MEET", "127.0.0.1", node.port)
    wait_for(lambda: all(command(n, "CLUSTER INFO")["cluster_state"] == "ok" for n in nodes))
    wait_for(lambda: all(len(command(n, "CLUSTER SLOTS")) == 3 for n in nodes))
    return nodes


@pytest.mark.parametrize("scheme", ["redis+cluster", "redis"])
def test_a_cluster_of_three(cluster: list[RedisServer], tmp_path: Path, scheme: str) -> None:
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in cluster)
    try_everything(f"{scheme}://{hosts}", tmp_path, prefix="{mailonce}:")


def test_after_a_sentinel_failover_what_was_decided_alone_is_merged_into_the_new_master(
    start: Start, tmp_path: Path
) -> None:
    master = start()
    replica = start("--replicaof", "127.0.0.1", str(master.port))
    wait_for(lambda: replica.client.info("replication")["master_link_status"] == "up")
    conf = tmp_path / "sentinel.conf"
    conf.write_text(
        f"sentinel monitor mail 127.0.0.1 {master.port} 1\n"
        "sentinel down-after-milliseconds mail 600000\nsentinel failover-timeout mail 2000\n"
    )
    sentinel = RedisServer()
    sentinel.options = [str(conf), "--port", str(sentinel.port), "--bind", "127.0.0.1", "--sentinel"]
    sentinel.start()
    try:
        wait_for(lambda: len(command(sentinel, "SENTINEL", "REPLICAS", "mail")) == 1)
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/mail"
        try_everything(url, tmp_path)
        journal = open_failover(url, tmp_path / "another machine")
        settle(journal, 10, DeliveryStatus.DELIVERED)
        wait_for(lambda: replica.client.get("post:m10") == "0")
        master.kill()

        def is_alone() -> bool:
            journal.tick()
            return journal.standing.side is Side.LOCAL

        wait_for(is_alone)
        settle(journal, 11, DeliveryStatus.DELIVERED)
        waiting = settle(journal, 12, DeliveryStatus.WAITING)
        assert is_repeat(journal, 10)
        command(sentinel, "SENTINEL", "SET", "mail", "down-after-milliseconds", 500)
        wait_for(lambda: replica.client.info("replication")["role"] == "master")

        def is_back() -> bool:
            journal.tick()
            return journal.standing.side is Side.REDIS

        wait_for(is_back)
        assert replica.client.get("post:m11") == "0", "merged into the new master"
        assert is_repeat(journal, 11)
        assert (waiting.id, "crm") in journal.due({"crm": 10}, hold_ms=0)
        journal.close()
    finally:
        sentinel.stop()


def test_tls_with_a_certificate_that_is_checked(start: Start, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    with tls_in_front_of(start().port, context) as port:
        url = f"rediss://localhost:{port}/0"
        try_everything(f"{url}?ssl_ca_certs={tmp_path / 'ca.pem'}", tmp_path)
        with pytest.raises(redis.exceptions.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            connect(url, timeout_s=5).ping()


def test_an_acl_user_with_its_own_prefix(start: Start, tmp_path: Path) -> None:
    server = start()
    server.client.acl_setuser(
        "app", enabled=True, passwords=["+p@ss"], keys=["m:*"], commands=["+@all", "-@dangerous", "+info", "+keys"]
    )
    try_everything(f"redis://app:p%40ss@127.0.0.1:{server.port}/0", tmp_path, prefix="m:")


def test_a_socket_in_the_file_system(start: Start, tmp_path: Path) -> None:
    start("--unixsocket", str(tmp_path / "redis.sock"))
    try_everything(f"unix://{tmp_path / 'redis.sock'}", tmp_path)


def test_a_wrong_password_is_loud(start: Start, tmp_path: Path) -> None:
    server = start("--requirepass", "right")
    with pytest.raises(StoreMisconfigured):
        open_failover(f"redis://:wrong@127.0.0.1:{server.port}", tmp_path / "machine")


@pytest.mark.parametrize("url", ["", "http://x", "redis+magic://x", "localhost:6379", "redis://x:port"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        parse_address(url)


def test_tls_tickets_that_come_before_the_first_command_are_no_broken_connection(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server sends them behind the handshake; the pool took a readable socket for one with a reply to nothing."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    connect_at_once: Any = redis.connection.SSLConnection.connect

    def connect_and_wait(connection: redis.connection.SSLConnection) -> None:
        connect_at_once(connection)
        time.sleep(0.3)  # longer than the tickets take: what the test is about, not a guess at when something is over

    monkeypatch.setattr(redis.connection.SSLConnection, "connect", connect_and_wait)
    with tls_in_front_of(start().port, context) as port:
        client = connect(f"rediss://localhost:{port}/0?ssl_ca_certs={tmp_path / 'ca.pem'}", 5)
        assert client.ping()
        client.close()
