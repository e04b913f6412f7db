"""The journal in Redis, shared by all machines. Each step is one script and one round trip; the rules are in lua/."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import Any, cast

import msgpack
import redis

from deduplication.claims import Gate, Name
from deduplication.errors import ConnectionDropped, StoreMisconfigured, StoreUnavailable
from deduplication.journal.base import (
    DEFAULT_RETENTION,
    MOST_BEGINS,
    Begun,
    Claim,
    Claimed,
    Duplicate,
    Forgotten,
    InFlight,
    Retention,
    Settlement,
    Verdict,
)
from deduplication.journal.clock import Clock
from deduplication.journal.codec import flat_about, flat_delivery, flat_entry, flat_name, flat_names, read_entry
from deduplication.journal.entry import Delivery, Entry, Stop

_REFUSED = (
    redis.exceptions.AuthenticationError,
    redis.exceptions.AuthorizationError,
    redis.exceptions.NoPermissionError,
)
# What Redis refuses for now: full, read-only, still loading, its disk full, its replicas away, a script hanging...
_FOR_NOW = ("OOM", "READONLY", "LOADING", "MISCONF", "NOREPLICAS", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN")
# Redis 6 wraps the error of a script's command in one of the script.
_FOR_NOW_IN_SCRIPT = re.compile(rf"(?:^|-)(?:{'|'.join(_FOR_NOW)})\b")
# redis-py takes NOAUTH off the first two; the first one is the answer to its HELLO, which nobody has written.
_IN_PLAIN_WORDS = {
    "HELLO must be called with the client already authenticated": "it asks for a password",
    "Authentication required": "it asks for a password",
    "DB index is out of range": "it has no database of that number",
}
_STEPS = ("claim", "settle", "renew", "due", "begin", "finish", "forget", "merge")
_HOUR_MS = 3_600_000
_HOURS_AT_ONCE = 200
_PAGE = 500


class RedisLostMemory(StoreUnavailable):
    """Redis is up, but knows less than this machine was told by it: emptied, or gone back to an older state."""


class RedisJournal:
    """``client`` hands out bytes. ``machine``: the processes that share a DATA_DIR go by one name."""

    def __init__(
        self,
        client: redis.Redis,
        machine: str,
        prefix: str = "",
        *,
        group_ttl: bool = False,
        retention: Retention = DEFAULT_RETENTION,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._machine = machine
        self._settings = (group_ttl, retention.entry_ms, retention.dead_ms)
        self.last_number = 0
        self._scripts = {step: client.register_script(source(step)) for step in _STEPS}

    def claim(self, claim: Claim, seen: int = 0) -> Verdict:
        """``seen``: the last number this machine knows to have got; a Redis that gave less has lost its memory."""
        destinations = [
            [each.destination, each.webhook_id, flat_name(each.content) if each.content else False]
            for each in claim.destinations
        ]
        request: list[Any] = [claim.entry, claim.owner, claim.lease_ms, claim.fingerprint, flat_names(claim.own)]
        request += [flat_names(claim.shared), destinations, flat_about(claim.about), claim.is_trial]
        kind, *answer = self._run("claim", request, seen=seen)
        match kind:
            case b"claimed":
                left_out = tuple(label.decode() for label in answer[2:])
                return Claimed(_entry(answer[0]), left_out, bool(answer[1]))
            case b"stopped":
                entry = _entry(answer[0])
                return Duplicate(cast(Stop, entry.stop), entry=entry)
            case b"repeat":
                position, original, created_ms, told = answer
                return Duplicate(Stop(claim.own[position - 1], original.decode(), created_ms), told.decode())
            case b"in_flight":
                return InFlight(Gate(answer[0].decode()), answer[1].decode(), answer[2])
            case b"closed":
                raise StoreUnavailable(f"redis: it lost its memory and is being told, for {answer[0]} ms more")
        raise RedisLostMemory("redis: it has lost its memory")

    def before_sending(self, claimed: Claimed) -> Entry | None:
        return claimed.entry  # leases are measured where the time is known: failover.py

    def note_delivered(self, entry: Entry, delivery: Delivery) -> None:
        """Nothing stands between the POST and its settlement here."""

    def settle(self, claim: Claim, entry: Entry, settlement: Settlement) -> bool:
        retries_left = False if settlement.retries_left is None else settlement.retries_left
        deliveries = [flat_delivery(each) for each in settlement.deliveries]
        request: list[Any] = [entry.id, claim.owner, settlement.ending.value, settlement.answer, deliveries]
        request += [retries_left, flat_names(claim.own), flat_names(claim.shared), claim.fingerprint]
        request += [flat_about(claim.about), claim.is_trial]
        return bool(self._step("settle", request, settlement.payload or b"")[0])

    def renew(self, entry: str, owner: str, lease_ms: int, destination: str | None = None) -> bool:
        return bool(self._step("renew", [entry, owner, lease_ms, destination or False])[0])

    def due(self, room: Mapping[str, int], hold_ms: int) -> list[tuple[str, str]]:
        found = [each.decode() for each in self._step("due", [hold_ms, *map(list, room.items())])]
        return list(zip(found[::2], found[1::2], strict=True))

    def begin(self, entry: str, destination: str, owner: str, lease_ms: int) -> Begun | None:
        answer = self._step("begin", [entry, destination, owner, lease_ms, MOST_BEGINS])
        if not answer:
            return None
        begun = _entry(answer[0])
        return Begun(begun, cast(Delivery, begun.delivery_to(destination)), answer[1] or None)

    def finish(self, entry: str, owner: str, delivery: Delivery) -> Entry | None:
        answer = self._step("finish", [entry, owner, flat_delivery(delivery)])
        return _entry(answer[0]) if answer else None

    def read(self, entry: str) -> Entry | None:
        with translated_errors():
            stored = self._client.get(f"{self._prefix}entry:{entry}")
        return _entry(cast(bytes, stored)) if stored else None

    def payload(self, entry: str) -> bytes | None:
        with translated_errors():
            return cast(bytes | None, self._client.get(f"{self._prefix}payload:{entry}"))

    def find(self) -> Iterator[Entry]:
        """Hour by hour, the newest first; then what waits or is dead for longer than these lists are kept."""
        now_hour, kept_ms = self.now_ms() // _HOUR_MS, self._settings[1]
        hours = range(now_hour, now_hour - kept_ms // _HOUR_MS - 2, -1)
        for start in range(0, len(hours), _HOURS_AT_ONCE):
            with translated_errors(), self._client.pipeline(transaction=False) as pipeline:
                for hour in hours[start : start + _HOURS_AT_ONCE]:
                    pipeline.lrange(f"{self._prefix}entries:{hour}", 0, -1)
                ids = [id_ for listed in pipeline.execute() for id_ in reversed(listed)]
            yield from self._entries(ids)
        yield from (entry for entry in self._waiting_or_dead() if entry.created_ms // _HOUR_MS < hours[-1])

    def _waiting_or_dead(self) -> list[Entry]:
        with translated_errors():
            destinations = cast(set[bytes], self._client.smembers(f"{self._prefix}destinations"))
            with self._client.pipeline(transaction=False) as pipeline:
                for destination in destinations:
                    for index in ("due", "dead"):
                        pipeline.zrange(f"{self._prefix}{index}:{destination.decode()}", 0, -1)
                ids = dict.fromkeys(id_ for listed in pipeline.execute() for id_ in listed)
        return sorted(self._entries(list(ids)), key=lambda entry: (entry.created_ms, entry.id), reverse=True)

    def _entries(self, ids: Sequence[bytes]) -> Iterator[Entry]:
        for page in range(0, len(ids), _PAGE):
            keys = [f"{self._prefix}entry:{id_.decode()}" for id_ in ids[page : page + _PAGE]]
            with translated_errors():
                stored = cast(list[bytes | None], self._client.mget(keys))
            yield from (_entry(each) for each in stored if each)

    def forget(self, names: Sequence[Name]) -> Forgotten:
        forgotten, *kept = self._step("forget", flat_names(tuple(dict.fromkeys(names))))
        return Forgotten(forgotten, tuple(id_.decode() for id_ in kept))

    def merge(self, told: Sequence[tuple[Entry, bytes | None]], clock: Clock, seen: int, hold_ms: int = 0) -> None:
        """Tells it entries, with their payloads, of a machine with this clock that has seen this number.

        A hold: Redis lost its memory, and stays closed for that long.
        """
        now_ms, steady_ms = clock.now_ms(), clock.steady_ms()
        entries = [[_from_now(flat_entry(entry), now_ms, steady_ms), payload or False] for entry, payload in told]
        self._step("merge", [hold_ms, *entries], seen=seen)

    def number(self) -> int:
        """The last number that this Redis knows to have given to this machine."""
        with translated_errors():
            return int(cast(bytes | None, self._client.hget(f"{self._prefix}machines", self._machine)) or 0)

    def now_ms(self) -> int:
        with translated_errors():
            seconds, microseconds = self._client.time()
        return int(seconds * 1000 + microseconds // 1000)

    def check(self) -> None:
        with translated_errors():
            self._client.ping()

    def close(self) -> None:
        self._client.close()

    def _step(self, step: str, request: list[Any], payload: bytes = b"", seen: int = 0) -> list[Any]:
        number, *answer = cast(list[Any], self._run(step, request, payload, seen))
        self.last_number = max(self.last_number, number)
        return answer

    def _run(self, step: str, request: list[Any], payload: bytes = b"", seen: int = 0) -> Any:
        context = msgpack.packb([self._machine, seen, *self._settings])
        packed = msgpack.packb(request, use_bin_type=False)  # scripts know one kind of string
        with translated_errors():
            # One declared key tells a Cluster where to go; the prefix's hash tag keeps all others there.
            keys = [f"{self._prefix}fence"]
            return self._scripts[step](keys=keys, args=[self._prefix, context, packed, payload])


def _from_now(flat: list[Any], now_ms: int, steady_ms: int) -> list[Any]:
    """An entry of this machine with what is measured by its clocks counted from now (positions: codec.py)."""
    flat[4] = max(0, flat[4] - steady_ms)
    for delivery in flat[9]:
        delivery[6] = delivery[6] and max(1, delivery[6] - now_ms)
        delivery[9] = delivery[9] and max(1, delivery[9] - steady_ms)
    return flat


@cache
def source(step: str) -> str:
    folder = resources.files("deduplication.journal") / "lua"
    return (folder / "entry.lua").read_text() + "\n" + (folder / f"{step}.lua").read_text()


def _entry(packed: bytes) -> Entry:
    return read_entry(msgpack.unpackb(packed))


@contextmanager
def translated_errors() -> Iterator[None]:
    try:
        yield
    except _REFUSED as error:  # before ConnectionError, whose children two of them are
        raise StoreMisconfigured(f"redis: {_in_plain_words(error)}") from error
    except redis.exceptions.BusyLoadingError as error:  # a ConnectionError too, but nothing was dropped
        raise StoreUnavailable(f"redis: {error}") from error
    except redis.exceptions.ConnectionError as error:
        raise ConnectionDropped(f"redis: {error}") from error
    except (redis.exceptions.TimeoutError, redis.exceptions.RedisClusterException) as error:
        raise StoreUnavailable(f"redis: {error}") from error
    except redis.exceptions.RedisError as error:
        if _is_for_now(error):
            raise StoreUnavailable(f"redis: {error}") from error
        raise StoreMisconfigured(f"redis: {_in_plain_words(error)}") from error  # WRONGTYPE, NOPERM, a script error


def _in_plain_words(error: redis.exceptions.RedisError) -> str:
    return next((words for said, words in _IN_PLAIN_WORDS.items() if said in str(error)), str(error))


def _is_for_now(error: redis.exceptions.RedisError) -> bool:
    """redis-py has classes for some of these, and takes the word off their message."""
    passing = (
        redis.exceptions.OutOfMemoryError,
        redis.exceptions.ReadOnlyError,
        redis.exceptions.ClusterDownError,
        redis.exceptions.MasterDownError,
        redis.exceptions.TryAgainError,
    )
    return isinstance(error, passing) or _FOR_NOW_IN_SCRIPT.search(str(error)) is not None
