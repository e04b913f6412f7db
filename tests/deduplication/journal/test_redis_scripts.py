"""Scripts on Redis, over connections that are kept: what they answer, and what becomes of those connections."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from deduplication.journal import redis_scripts
from deduplication.journal.redis_scripts import Call, Scripts
from deduplication.redis_client import connect
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.real_redis

ECHO = "return ARGV[1]"
FAIL = "return redis.call('LPUSH', KEYS[1], ARGV[1])"
COUNT = "return redis.call('INCR', 'count')"


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with connect(redis_server.url, timeout_s=10, decode_responses=False) as client:
        yield client


@pytest.fixture
def scripts(client: redis.Redis) -> Scripts:
    client.set("key", "a string")
    return Scripts(client, "key", {"echo": ECHO, "fail": FAIL, "count": COUNT})


def echo(word: bytes) -> Call:
    return Call("echo", (word,))


def opened(server: RedisServer) -> int:
    """How many connections were ever opened to it."""
    return int(server.client.info("stats")["total_connections_received"])


def test_each_call_gets_its_answer_and_its_own_error(scripts: Scripts) -> None:
    first, refused, last = scripts.run([echo(b"a\r\n\x00"), Call("fail", (b"x",)), echo(b"")])
    assert (first, last) == (b"a\r\n\x00", b"")
    assert isinstance(refused, redis.exceptions.ResponseError) and "WRONGTYPE" in str(refused)
    assert scripts.run([echo(b"b")]) == [b"b"]
    assert scripts.run([]) == []


def test_many_calls_are_sent_at_once_over_the_connection_that_is_kept(
    scripts: Scripts, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts.run([echo(b"loaded")])
    before = opened(redis_server)
    real, sent = redis.Connection.send_packed_command, list[int]()

    def counting(self: redis.Connection, command: list[bytes]) -> None:
        sent.append(len(command))
        real(self, command)  # type: ignore[no-untyped-call]

    with monkeypatch.context() as counted:
        counted.setattr(redis.Connection, "send_packed_command", counting)
        assert scripts.run([echo(b"a")] * 100) == [b"a"] * 100
    assert (sent, opened(redis_server)) == ([1], before)


def test_a_large_request_is_sent_in_parts_and_answered_in_order(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_scripts, "MOST_BYTES_AT_ONCE", 10)
    words = [b"12345", b"12345", b"1", b"more than ten bytes", b"", b"2"]
    assert scripts.run(list(map(echo, words))) == words


def test_scripts_that_redis_forgot_are_told_again_and_nothing_runs_twice(
    scripts: Scripts, redis_server: RedisServer
) -> None:
    scripts.run([Call("count", ())])
    redis_server.client.script_flush()
    assert scripts.run([Call("count", ()), echo(b"a"), Call("count", ())]) == [2, b"a", 3]
    redis_server.client.script_flush()
    redis_server.client.script_load(ECHO)
    assert scripts.run([echo(b"b"), Call("count", ())]) == [b"b", 4]


def test_a_connection_that_the_server_has_closed_meanwhile_is_opened_anew(
    scripts: Scripts, redis_server: RedisServer
) -> None:
    scripts.run([echo(b"a")])
    redis_server.client.client_kill_filter(_type="normal", skipme=True)
    assert scripts.run([echo(b"b")]) == [b"b"]


def test_answers_that_nobody_read_are_not_taken_for_those_to_the_next_calls(
    scripts: Scripts, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    scripts.run([echo(b"loaded")])
    redis_server.client.client_pause(1000)  # these answers are still to come when the next call is made
    with monkeypatch.context() as patched:
        patched.setattr(redis_scripts, "_read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            scripts.run([echo(b"old"), echo(b"older")])
    assert scripts.run([echo(b"new")]) == [b"new"]


def test_what_keeps_redis_from_answering_is_raised_and_it_is_not_asked_twice() -> None:
    server = RedisServer().start()
    try:
        client = connect(server.url, timeout_s=10, decode_responses=False)
        scripts = Scripts(client, "key", {"echo": ECHO})
        scripts.run([echo(b"a")])
        server.kill()
        with pytest.raises(redis.exceptions.ConnectionError):
            scripts.run([echo(b"b"), echo(b"c")])
        server.start()
        assert scripts.run([echo(b"d")]) == [b"d"]
        client.close()
    finally:
        server.stop()


@pytest.mark.parametrize("error", [redis.exceptions.TimeoutError, redis.exceptions.ConnectionError])
def test_connections_that_cannot_be_opened_do_not_use_up_the_pool(
    scripts: Scripts, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(_: object) -> None:
        raise error("no way there")

    for _ in range(client.connection_pool.max_connections + 1):
        assert scripts.run([echo(b"a")]) == [b"a"]
        client.connection_pool.disconnect()
        with monkeypatch.context() as away:
            away.setattr(redis.Connection, "connect", fail)
            with pytest.raises(error):
                scripts.run([echo(b"b")])


def test_threads_have_connections_of_their_own(scripts: Scripts, redis_server: RedisServer) -> None:
    def ask(thread: int) -> bool:
        words = [b"%d-%d" % (thread, number) for number in range(300)]
        return all(scripts.run([echo(word), echo(word)]) == [word, word] for word in words)

    before = opened(redis_server)
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(8)))
    assert opened(redis_server) <= before + 8


class Contended(list[object]):
    """Another thread takes the last one between the look at it and the taking."""

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return 1


def test_a_connection_that_another_thread_has_just_taken_is_not_missed(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "_idle", Contended())
    assert scripts.run([echo(b"a")]) == [b"a"]


def test_a_forked_process_leaves_its_parents_connections_alone(scripts: Scripts, redis_server: RedisServer) -> None:
    scripts.run([echo(b"a")])
    before = opened(redis_server)
    child = os.fork()
    if child == 0:
        os._exit(scripts.run([echo(b"b")]) != [b"b"])
    assert os.waitpid(child, 0)[1] == 0
    assert opened(redis_server) == before + 1, "one of its own"
    assert scripts.run([echo(b"c")]) == [b"c"]
    assert opened(redis_server) == before + 1, "and the parent's is still good"
