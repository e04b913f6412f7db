"""Runs the scripts of lua/ on Redis: in one round trip, whether it is one call or many."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import hiredis
import redis

_pack = cast(Callable[[tuple[bytes, ...]], bytes], hiredis.pack_command)  # its type says: a tuple of one
_NoScript = redis.exceptions.NoScriptError
MOST_BYTES_AT_ONCE = 256 << 10  # more on a slow line would take longer than anybody waits for an answer


@dataclass(frozen=True)
class Call:
    """One script and what it is given behind its key."""

    step: str
    arguments: tuple[bytes, ...]


class _Connection(Protocol):
    """What is asked of the client's connections; it has no types for them."""

    pid: int

    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def can_read(self) -> bool: ...
    def send_packed_command(self, command: Sequence[bytes]) -> None: ...
    def read_response(self) -> Any: ...


class Scripts:
    """Scripts speak over connections that are taken from the client's pool once and kept here: what the client does
    around each command (telemetry, retries, packing) took as long as a script. Behind Sentinels and on a Cluster, where
    a connection may come to mean another server, each call goes through the client.
    """

    def __init__(self, client: redis.Redis, key: str, sources: Mapping[str, str]) -> None:
        """``key``: the one that is declared; it tells a Cluster where to go."""
        self._client = client
        self._key = key
        self._sources = sources
        self._scripts = {step: client.register_script(text) for step, text in sources.items()}
        self._heads = {
            step: (b"EVALSHA", script.sha.encode(), b"1", key.encode()) for step, script in self._scripts.items()
        }
        is_one_server = type(client) is redis.Redis and type(client.connection_pool) is redis.ConnectionPool
        self._pool = client.connection_pool if is_one_server else None
        self._idle: list[_Connection] = []

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """The answer to each, or in its place the error by which Redis refused it alone.

        What keeps Redis from answering is raised; which of the calls it has taken then is not known.
        """
        if self._pool is None:
            return [self._run_by_client(call) for call in calls]
        connection = self._take_connection(self._pool)
        try:
            answers = []
            for part in _in_parts(calls):
                answers += self._exchange(connection, part)
            unknown = [place for place, answer in enumerate(answers) if isinstance(answer, _NoScript)]
            if unknown:
                self._load(connection, {calls[place].step for place in unknown})
                again = self._exchange(connection, [calls[place] for place in unknown])
                for place, answer in zip(unknown, again, strict=True):
                    answers[place] = answer
        except BaseException:
            connection.disconnect()  # answers that nobody has read must not be taken for those to the next calls
            raise
        finally:
            self._idle.append(connection)
        return answers

    def _run_by_client(self, call: Call) -> Any:
        try:
            return self._scripts[call.step](keys=[self._key], args=call.arguments)
        except redis.exceptions.ResponseError as error:
            return error

    def _take_connection(self, pool: redis.ConnectionPool) -> _Connection:
        """One that is open, and has nothing left to read. A process that was forked leaves its parent's alone."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return cast(_Connection, pool.get_connection())
            if connection.pid != os.getpid():
                continue
            try:
                connection.connect()  # unless it is
                if _is_spent(connection):
                    connection.disconnect()
                    connection.connect()
            except BaseException:
                self._idle.append(connection)  # or the pool would run out of them
                raise
            return connection

    def _exchange(self, connection: _Connection, calls: Sequence[Call]) -> list[Any]:
        packed = [_pack((*self._heads[call.step], *call.arguments)) for call in calls]
        connection.send_packed_command([b"".join(packed)])
        return [_read(connection) for _ in calls]

    def _load(self, connection: _Connection, steps: set[str]) -> None:
        """Redis forgets scripts over a restart and by SCRIPT FLUSH."""
        for step in steps:
            connection.send_packed_command([_pack((b"SCRIPT", b"LOAD", self._sources[step].encode()))])
            connection.read_response()


def _in_parts(calls: Sequence[Call]) -> Iterator[list[Call]]:
    if len(calls) == 1:
        yield [*calls]
        return
    part: list[Call] = []
    size_bytes = 0
    for call in calls:
        call_bytes = sum(map(len, call.arguments))
        if part and size_bytes + call_bytes > MOST_BYTES_AT_ONCE:
            yield part
            part, size_bytes = [], 0
        part.append(call)
        size_bytes += call_bytes
    if part:
        yield part


def _is_spent(connection: _Connection) -> bool:
    """The server has closed it, or an answer is still to be read."""
    try:
        return connection.can_read()
    except redis.exceptions.ConnectionError:
        return True


def _read(connection: _Connection) -> Any:
    try:
        return connection.read_response()
    except redis.exceptions.ResponseError as error:
        return error
