"""Every kind of REDIS_URL, against real servers: Sentinel with a failover, a Cluster of three, TLS, sockets, ACL."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
import trustme
from msgspec.structs import replace

from deduplication import again, members
from deduplication.again import forget, mark
from deduplication.errors import StoreUnavailable
from deduplication.journal.entry import DeliveryStatus
from deduplication.journal.registry import Commit, RegistryOptions
from deduplication.journal.rules import Busy, Repeat
from deduplication.locks import PublicationLocks
from deduplication.redis_client import connect, parse_address
from orchestrator.delivery.counters import Counters, Rate
from tests.deduplication.journal.world import (
    Email,
    Machine,
    Time,
    ask,
    claimed,
    delivered,
    returned,
    send,
    skipped,
    stored,
    take,
)
from tests.support.programs import program
from tests.support.redis_server import RedisServer, free_port, redis_server_binary
from tests.support.waiting import wait_for

pytestmark = pytest.mark.real_redis

Start = Callable[..., RedisServer]
DEAD = DeliveryStatus.DEAD


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def start(*options: str) -> RedisServer:
            server = RedisServer(*options)
            stack.callback(server.stop)
            return server.start()

        yield start


def open_machine(url: str, prefix: str = "") -> Machine:
    clock = Time(now_ms=time.time_ns() // 1_000_000)
    return Machine(url, clock, options=RegistryOptions(prefix=prefix, hold_ms=0), timeout_s=5)


def try_everything(url: str, prefix: str = "") -> None:
    """Every script and every command, on two machines that share this Redis."""
    one, other = (open_machine(url, prefix) for _ in range(2))
    for machine in (one, other):
        machine.tick()
        assert machine.coordinator.redis.status == "up"
    email = Email(message_id="<1@x>", group="g", media=("https://a.example/1",), words=True, proof="p")
    returned(one, claimed(one, email))
    one.tick()
    first = claimed(one, email)
    assert isinstance(ask(other, email), Busy)
    delivered(one, first)
    one.tick()
    assert isinstance(ask(other, email), Repeat)
    skipped(other, claimed(other, Email("two", group="g")))
    stored(other, claimed(other, Email("three")), in_ms=3_600_000)
    assert other.coordinator.destinations_with_waiting() == {"crm"}
    assert one.coordinator.hasten("crm", 10) == 1
    (lent,) = take(one)
    assert lent.payload == b"payload" and one.coordinator.finish(lent, replace(lent.delivery, status=DEAD))
    other.follow()
    assert again.replay(other.coordinator, lent.entry.id, "crm") is None
    assert len(take(other)) == 1
    name = first.entry.own[0]
    assert forget(one.coordinator, {name.label: name}) == {}
    other.follow()
    assert claimed(other, Email()).to_send
    lock = PublicationLocks(one.coordinator, "server").acquire_lock("e1", "crm")
    assert lock and "e1" in {each.content_id for each in PublicationLocks(other.coordinator, "b").active_locks()}
    assert [Counters(each.coordinator).wait_s(Rate(1, 3600), "crm") > 0 for each in (one, other)] == [False, True]
    mark(one.coordinator, [name])
    assert other.coordinator.known([name]).of(name).is_marked
    with one.journal.step() as step:
        members.put_note(step, "paused:crm", "410")
    for machine in (one, other):
        machine.tick()
    with other.journal.reading() as step:
        assert members.notes(step)["paused:crm"][1] == "410"
    one.close()
    other.close()


def command(server: RedisServer, *words: str | int) -> Any:
    return server.client.execute_command(*words)  # type: ignore[no-untyped-call]


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


def test_a_cluster_of_three(cluster: list[RedisServer]) -> None:
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in cluster)
    for scheme in ("redis+cluster", "redis"):
        try_everything(f"{scheme}://{hosts}", prefix=f"{{{scheme}}}:")
    asked = [name for node in cluster for name in command(node, "INFO", "commandstats") if "getkeys" in name]
    assert not asked, "redis-py sends whole scripts to one node, only to learn their keys"


def test_a_cluster_that_is_entirely_down_does_not_answer(cluster: list[RedisServer]) -> None:
    machine = open_machine(f"redis+cluster://127.0.0.1:{cluster[0].port}", prefix="{m}:")
    machine.tick()
    for node in cluster:
        node.kill()
    registry = machine.coordinator.registry
    assert registry
    for _ in range(2):  # the second time, redis-py knows that no node answers
        with pytest.raises(StoreUnavailable):
            registry.probe()
        with pytest.raises(StoreUnavailable):
            registry.ask(lambda client, prefix: client.hgetall(f"{prefix}room"), always=True)
    machine.tick()
    assert machine.coordinator.redis.status == "gone"
    machine.close()


def test_a_machine_starts_while_its_cluster_is_down_and_joins_it_later(cluster: list[RedisServer]) -> None:
    for node in cluster:
        node.kill()
    with pytest.raises(StoreUnavailable):
        connect(f"redis+cluster://127.0.0.1:{cluster[0].port}")
    machine = open_machine(f"redis+cluster://127.0.0.1:{cluster[0].port}", prefix="{m}:")
    machine.tick()
    assert machine.coordinator.redis.status == "gone"
    for node in cluster:
        node.start()

    def is_up() -> bool:
        machine.tick()
        return machine.coordinator.redis.status == "up"

    wait_for(is_up)
    machine.close()


def test_a_cluster_that_runs_a_long_script_does_not_answer(cluster: list[RedisServer]) -> None:
    def is_busy(node: RedisServer) -> bool:
        with suppress(redis.ResponseError):
            command(node, "PING")
            return False
        return True

    with ThreadPoolExecutor() as pool:
        for node in cluster:
            command(node, "CONFIG", "SET", "lua-time-limit", 1)
            pool.submit(command, node, "EVAL", "while true do end", 0)
        wait_for(lambda: all(map(is_busy, cluster)))
        machine = open_machine(f"redis+cluster://127.0.0.1:{cluster[0].port}", prefix="{m}:")
        machine.tick()
        for node in cluster:
            command(node, "SCRIPT", "KILL")
    assert machine.coordinator.redis.status == "gone"
    machine.close()


def test_a_cluster_answers_even_if_a_client_for_large_payloads_cannot_connect(cluster: list[RedisServer]) -> None:
    for node in cluster:
        command(node, "CONFIG", "SET", "cluster-require-full-coverage", "no")
    seed = cluster[command(cluster[0], "CLUSTER", "KEYSLOT", "m") // 5462 - 1]  # another node has the keys
    machine = open_machine(f"redis+cluster://127.0.0.1:{seed.port}", prefix="{m}:")
    machine.tick()
    seed.kill()
    large = Commit()
    large.write("SET", "large", "x" * (1 << 20))
    with pytest.raises(StoreUnavailable):
        machine.registry.run(large)
    assert machine.coordinator.redis.status == "up"
    machine.close()


def test_after_a_sentinel_failover_the_new_master_learns_what_was_done_meanwhile(start: Start, tmp_path: Path) -> None:
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
        try_everything(url)
        machine = open_machine(url)
        machine.tick()
        machine.follow()
        send(machine, Email("before"))
        machine.tick()
        wait_for(lambda: bool(replica.client.sismember("processed_ids:2026-11-17", "id-before")))
        master.kill()

        def has_status(status: str) -> bool:
            machine.tick()
            return machine.coordinator.redis.status == status

        wait_for(lambda: has_status("gone"))
        send(machine, Email("alone"))
        assert isinstance(ask(machine, Email("before")), Repeat)
        command(sentinel, "SENTINEL", "SET", "mail", "down-after-milliseconds", 500)
        wait_for(lambda: replica.client.info("replication")["role"] == "master")
        wait_for(lambda: has_status("up"))
        machine.tick()
        assert replica.client.sismember("processed_ids:2026-11-17", "id-alone")
        machine.close()
    finally:
        sentinel.stop()


@pytest.fixture
def tls_url(start: Start, tmp_path: Path) -> str:
    if redis_server_binary() != program("redis-server", "redis-server"):
        pytest.skip("the Redis in the wheel was built without TLS")
    authority, port = trustme.CA(), free_port()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "own.pem"))
    files = {"cert": "own.pem", "key": "own.pem", "ca-cert": "ca.pem"}
    options = [word for name, file in files.items() for word in (f"--tls-{name}-file", str(tmp_path / file))]
    start("--tls-port", str(port), "--tls-auth-clients", "no", *options)
    return f"rediss://localhost:{port}/0?ssl_ca_certs={tmp_path / 'ca.pem'}"


def test_tls_with_a_certificate_that_is_checked(tls_url: str) -> None:
    try_everything(tls_url)
    with pytest.raises(redis.exceptions.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        connect(tls_url.partition("?")[0], timeout_s=5).ping()


def test_an_acl_user_with_its_own_prefix(start: Start) -> None:
    server = start()
    server.client.acl_setuser(
        "app", enabled=True, passwords=["+p@ss"], keys=["m:*"], commands=["+@all", "-@dangerous", "+info", "+keys"]
    )
    try_everything(f"redis://app:p%40ss@127.0.0.1:{server.port}/0", prefix="m:")


def test_a_socket_in_the_file_system(start: Start, tmp_path: Path) -> None:
    start("--unixsocket", str(tmp_path / "redis.sock"))
    try_everything(f"unix://{tmp_path / 'redis.sock'}")


@pytest.mark.parametrize(
    "url", ["", "http://x", "redis+magic://x", "localhost:6379", "redis://x:port", "redis+cluster://"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        parse_address(url)


def test_early_tls_tickets_do_not_break_the_connection(tls_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server sends them behind the handshake; the pool took a readable socket for one with a reply to nothing."""
    connect_at_once: Any = redis.connection.SSLConnection.connect

    def connect_and_wait(connection: redis.connection.SSLConnection) -> None:
        connect_at_once(connection)
        time.sleep(0.3)  # longer than the tickets take: what the test is about, not a guess at when something is over

    monkeypatch.setattr(redis.connection.SSLConnection, "connect", connect_and_wait)
    client = connect(tls_url, 5)
    assert client.ping()
    client.close()
