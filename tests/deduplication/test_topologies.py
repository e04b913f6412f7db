"""Every kind of REDIS_URL, against real servers: Sentinel with a failover, a Cluster of three, TLS, ACL users."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
import trustme

from deduplication.claims import WEEK_MS, Claim, Claimed, Duplicate, Kind, Name
from deduplication.errors import StoreMisconfigured
from deduplication.redis_client import connect, parse_address
from deduplication.stores.base import Pattern
from deduplication.stores.failover import FailoverStore, Mode
from deduplication.stores.redis import RedisStore
from deduplication.stores.spelling import Speller
from deduplication.stores.sqlite import SqliteStore
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


def claim(number: int, owner: str) -> Claim:
    names = (
        Name(Kind.EMAIL_ID, "2026-11-16", f"e{number}"),
        Name(Kind.POST, "", f"m{number}", WEEK_MS),
        Name(Kind.SUBJECT_GROUP, "2026-11", f"g{number}", WEEK_MS),
        Name(Kind.MEDIA, "", f"https://a.example/{number}", WEEK_MS),
    )
    return Claim(f"e{number}", names, "f", owner, 60_000)


def try_everything(url: str, folder: Path, prefix: str = "") -> None:
    store = FailoverStore(RedisStore(connect(url, timeout_s=2), Speller(prefix)), SqliteStore(folder / "local.db"))
    assert store.situation().mode is Mode.REDIS
    mine = claim(1, "a")
    assert isinstance(store.claim(mine), Claimed)
    assert store.renew(mine)
    assert store.commit(mine)
    assert isinstance(store.claim(claim(1, "b")), Duplicate)
    store.claim(claim(2, "a"))
    assert store.release(claim(2, "a"), retries_left=3)
    assert {record.item for record in store.find(Pattern(Kind.EMAIL_ID))} == {"e1", "e2"}
    assert store.forget(mine.names) == 4
    store.tick()
    assert isinstance(store.claim(claim(1, "c")), Claimed)
    assert store.facts().maxmemory_policy == "noeviction"
    assert store.situation().mode is Mode.REDIS
    store.close()


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
        "sentinel down-after-milliseconds mail 500\nsentinel failover-timeout mail 2000\n"
    )
    sentinel = RedisServer()
    sentinel.options = [str(conf), "--port", str(sentinel.port), "--bind", "127.0.0.1", "--sentinel"]
    sentinel.start()
    try:
        wait_for(lambda: len(command(sentinel, "SENTINEL", "REPLICAS", "mail")) == 1)
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/mail"
        try_everything(url, tmp_path)
        store = FailoverStore(RedisStore(connect(url, timeout_s=5)), SqliteStore(tmp_path / "local.db"))
        before = claim(10, "a")
        store.claim(before)
        store.commit(before)
        master.kill()
        during = claim(11, "a")
        assert isinstance(store.claim(during), Claimed), "decided alone"
        store.commit(during)
        assert isinstance(store.claim(claim(10, "b")), Duplicate)
        wait_for(lambda: replica.client.info("replication")["role"] == "master")

        def is_back() -> bool:
            store.probe()
            return store.situation().mode is Mode.REDIS

        wait_for(is_back)
        assert replica.client.get("post:m11") == "0", "merged into the new master"
        assert isinstance(store.claim(claim(11, "c")), Duplicate)
        store.close()
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


def test_a_wrong_password_is_loud(start: Start, tmp_path: Path) -> None:
    server = start("--requirepass", "right")
    with pytest.raises(StoreMisconfigured):
        FailoverStore(
            RedisStore(connect(f"redis://:wrong@127.0.0.1:{server.port}", timeout_s=5)),
            SqliteStore(tmp_path / "local.db"),
        )


@pytest.mark.parametrize("url", ["", "http://x", "redis+magic://x", "localhost:6379", "redis://x:port"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        parse_address(url)
