"""The journal in Redis, shared by all machines. Each step is one script and one round trip; the rules are in lua/."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import islice
from typing import Any, cast

import msgpack
import redis

from deduplication.claims import Gate, Kind, Name, Pattern
from deduplication.errors import ConnectionDropped, StoreMisconfigured, StoreUnavailable
from deduplication.journal.base import (
    DEFAULT_RETENTION,
    MOST_BEGINS,
    Begun,
    Claim,
    Claimed,
    Duplicate,
    Forgotten,
    Found,
    InFlight,
    Released,
    Replayed,
    Retention,
    Settlement,
    UnderWay,
    Verdict,
)
from deduplication.journal.clock import Clock
from deduplication.journal.codec import flat_about, flat_delivery, flat_entry, flat_name, flat_names, read_entry
from deduplication.journal.entry import Delivery, Entry, Fate, Stop
from deduplication.journal.redis_keys import Shown, escape_glob, shown_names
from deduplication.journal.verdict import Standing, found, held_parts, standing

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
_STEPS = (
    "claim",
    "settle",
    "renew",
    "due",
    "begin",
    "finish",
    "replay",
    "release",
    "reopen",
    "look",
    "forget",
    "merge",
    "mark",
    "old_names",
)
_TELL_ITEMS_APART = ("claim", "release")
_HOUR_MS = 3_600_000
_HOURS_AT_ONCE = 200
_PAGE = 500
PIECE_BYTES = 256 << 10
_MOST_UNDER_WAY = 10_000  # of the emails that came last: more are never at work at a time


@dataclass(frozen=True)
class RedisFacts:
    """Any policy but noeviction silently forgets names. None where the server does not say."""

    maxmemory_policy: str | None
    evicted_keys: int | None


class RedisLostMemory(StoreUnavailable):
    """Redis is up, but knows less than this machine was told by it: emptied, or gone back to an older state."""


class RedisBeingTold(StoreUnavailable):
    """Redis is up and lost its memory; it decides nothing until the machines had time to tell it what they know."""


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
        self._settings = (group_ttl, retention.entry_ms, retention.dead_ms, retention.delivered_payload_ms)
        self.last_number = 0
        self.seen: Callable[[], int] = lambda: 0  # what the machine has noted, for steps that are not told it
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
                position, original, created_ms, told, fate = answer
                stop = Stop(claim.own[position - 1], original.decode(), created_ms)
                return Duplicate(stop, told.decode(), Fate(fate.decode()))
            case b"refused":
                position, *original = answer
                stop = Stop(claim.own[position - 1], *(original and (original[0].decode(), original[1])))
                return Duplicate(stop)
            case b"in_flight":
                return InFlight(Gate(answer[0].decode()), answer[1].decode(), answer[2])
            case b"closed":
                raise RedisBeingTold(f"redis: it lost its memory and is being told, for {answer[0]} ms more")
        raise RedisLostMemory("redis: it has lost its memory")

    def before_sending(self, claimed: Claimed) -> Entry | None:
        return claimed.entry if claimed.entry.lease_until_ms > self.now_ms() else None

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

    def begin(self, entry: str, destination: str, owner: str, lease_ms: int, server: str = "") -> Begun | None:
        answer = self._step("begin", [entry, destination, owner, lease_ms, MOST_BEGINS, server])
        if not answer:
            return None
        begun = _entry(answer[0])
        return Begun(begun, cast(Delivery, begun.delivery_to(destination)), answer[1] or None)

    def finish(self, entry: str, owner: str, delivery: Delivery) -> Entry | None:
        answer = self._step("finish", [entry, owner, flat_delivery(delivery)])
        return _entry(answer[0]) if answer else None

    def replay(
        self,
        entry: str,
        destination: str,
        *,
        force: bool = False,
        webhook_id: str | None = None,
        payload: bytes | None = None,
    ) -> Replayed:
        """``payload``: what this machine has of it, for a Redis that has none."""
        answer = self._step("replay", [entry, destination, force, webhook_id or False], payload or b"")
        return Replayed(_unless_closed(answer[0]).decode())

    def release(self, entry: str, *, force: bool = False, payload: bytes | None = None) -> Released:
        answer = self._step("release", [entry, force], payload or b"")
        return Released(_unless_closed(answer[0]).decode())

    def reopen(self, entry: str, destination: str) -> bool:
        return bool(_unless_closed(self._step("reopen", [entry, destination])[0]))

    def destinations(self) -> list[str]:
        with translated_errors():
            found = cast(set[bytes], self._client.smembers(f"{self._prefix}destinations"))
        return sorted(destination.decode() for destination in found)

    def under_way(self) -> list[UnderWay]:
        """Locks have an index. What a request is at came lately, or it is a late retry and missing here; what a worker
        has begun is due once its lease is over."""
        now_ms = self.now_ms()
        with translated_errors():
            destinations = cast(set[bytes], self._client.smembers(f"{self._prefix}destinations"))
            with self._client.pipeline(transaction=False) as pipeline:
                pipeline.zrangebyscore(f"{self._prefix}locks", now_ms, "+inf")
                for hour in (now_ms // _HOUR_MS, now_ms // _HOUR_MS - 1):
                    pipeline.lrange(f"{self._prefix}entries:{hour}", -_MOST_UNDER_WAY, -1)
                for destination in destinations:
                    due = f"{self._prefix}due:{destination.decode()}"
                    pipeline.zrangebyscore(due, now_ms, now_ms + _HOUR_MS)
                ids = dict.fromkeys(id_ for listed in pipeline.execute() for id_ in listed)
        return [
            UnderWay(entry, delivery, until_ms)
            for entry in self._entries(list(ids))
            for delivery, until_ms in held_parts(entry, now_ms)
        ]

    def drop_lapsed_locks(self) -> int:
        return 0

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
        with translated_errors(), self._client.pipeline(transaction=False) as pipeline:
            for destination in self.destinations():
                for index in ("due", "dead"):
                    pipeline.zrange(f"{self._prefix}{index}:{destination}", 0, -1)
            ids = dict.fromkeys(id_ for listed in pipeline.execute() for id_ in listed)
        return sorted(self._entries(list(ids)), key=lambda entry: (entry.created_ms, entry.id), reverse=True)

    def _entries(self, ids: Sequence[bytes]) -> Iterator[Entry]:
        for page in range(0, len(ids), _PAGE):
            keys = [f"{self._prefix}entry:{id_.decode()}" for id_ in ids[page : page + _PAGE]]
            with translated_errors():
                stored = cast(list[bytes | None], self._client.mget(keys))
            yield from (_entry(each) for each in stored if each)

    def look(self, names: Sequence[Name]) -> list[Found]:
        answer = self._step("look", flat_names(tuple(names)))
        if len(answer) < len(names):
            raise RedisBeingTold("redis: it lost its memory and is being told")
        return [
            found(name, bool(is_marked), map(_entry, entries))
            for name, (is_marked, *entries) in zip(names, answer, strict=True)
        ]

    def names(self, pattern: Pattern) -> Iterator[Name]:
        """From what stands visibly in Redis, and from the entries: what waits or was given back shows nothing of some
        names. Locks always show themselves."""
        if pattern.name:
            yield from (each.name for each in self.look([pattern.name]) if each.is_marked or each.entries)
            return
        if pattern.kind is not Kind.LOCK:
            for entry in self.find():
                names = (name for name in entry.names if standing(entry, name) is not Standing.GIVEN_BACK)
                yield from filter(pattern.matches, names)
        with translated_errors():
            for shown in shown_names(pattern):
                yield from filter(pattern.matches, self._shown(shown, pattern))

    def _shown(self, shown: Shown, pattern: Pattern) -> Iterator[Name]:
        glob = escape_glob(self._prefix + shown.start) + shown.glob
        keys = self._client.scan_iter(match=glob, count=_PAGE, _type=shown.type)
        while page := list(islice(keys, _PAGE)):
            found: Iterable[tuple[bytes, bytes]]
            if shown.type == "string":
                values = cast(list[bytes | None], self._client.mget(page))
                pairs = zip(page, values, strict=True)
                found = ((key, b"") for key, value in pairs if value and shown.is_shown_by(value.decode("latin-1")))
            elif shown.kind is Kind.EMAIL_ID and pattern.value is not None:
                member = pattern.value.encode()
                found = ((key, member) for key in page if self._client.sismember(key, pattern.value))
            else:
                found = ((key, member) for key in page for member in self._client.sscan_iter(key, count=_PAGE))
            for key, member in found:
                with suppress(ValueError):  # other programs' keys may look like ours and be none
                    yield shown.read(key.decode().removeprefix(self._prefix), member.decode())

    def forget(self, names: Sequence[Name]) -> Forgotten:
        forgotten, *kept = self._step("forget", flat_names(tuple(dict.fromkeys(names))))
        return Forgotten(forgotten, tuple(id_.decode() for id_ in kept))

    def merge(
        self,
        told: Sequence[tuple[Entry, bytes | None]],
        clock: Clock,
        seen: int,
        hold_ms: int = 0,
        *,
        names_say_what_is_left: bool = False,
    ) -> None:
        """Tells it entries, with their payloads, of a machine with this clock that has seen this number.

        A hold: Redis lost its memory, and stays closed for that long. ``names_say_what_is_left``: how long their marks
        last is counted from now, not from when they were made.
        """
        now_ms, steady_ms = clock.now_ms(), clock.steady_ms()
        entries = [
            [
                _from_now(flat_entry(entry), now_ms, steady_ms),
                self._as_told(entry.id, payload),
                0 if names_say_what_is_left else _marked_for_ms(entry, now_ms),
            ]
            for entry, payload in told
        ]
        self._step("merge", [hold_ms, *entries], seen=seen)

    def mark(self, names: Sequence[Name]) -> None:
        """Tells it marks without entries; each name is kept for what is left of its time."""
        self._step("mark", flat_names(tuple(names)))

    def _as_told(self, entry: str, payload: bytes | None) -> bytes | bool:
        if payload is None or len(payload) <= PIECE_BYTES:
            return payload or False
        self._send_ahead(entry, payload)
        return True

    def old_names(self, names: Sequence[Name], prefix: str) -> list[tuple[bool, dict[bytes, bytes]]]:
        """As the version before the journal kept them: whether its mark says done, and a record a fingerprint."""
        context = msgpack.packb([self._machine, 0, *self._settings])
        request = msgpack.packb(flat_names(tuple(names)), use_bin_type=False)
        with translated_errors():
            found = self._scripts["old_names"](keys=[f"{prefix}fence"], args=[prefix, context, request])
        return [(bool(is_marked), dict(zip(each[::2], each[1::2], strict=True))) for is_marked, each in found]

    def number(self) -> int:
        """The last number that this Redis knows to have given to this machine."""
        with translated_errors():
            return int(cast(bytes | None, self._client.get(f"{self._prefix}machine:{self._machine}")) or 0)

    def now_ms(self) -> int:
        with translated_errors():
            seconds, microseconds = self._client.time()
        return int(seconds * 1000 + microseconds // 1000)

    def lease_time_ms(self) -> int:
        return self.now_ms()

    def check(self) -> None:
        with translated_errors():
            self._client.ping()

    def facts(self) -> RedisFacts:
        with translated_errors():
            memory, stats = self._client.info("memory"), self._client.info("stats")
        return RedisFacts(memory.get("maxmemory_policy"), stats.get("evicted_keys"))

    def close(self) -> None:
        self._client.close()

    def _step(self, step: str, request: list[Any], payload: bytes = b"", seen: int = 0) -> list[Any]:
        number, *answer = cast(list[Any], self._run(step, request, payload, seen))
        self.last_number = max(self.last_number, number)
        return answer

    def _run(self, step: str, request: list[Any], payload: bytes = b"", seen: int = 0) -> Any:
        context = msgpack.packb([self._machine, seen or self.seen(), *self._settings])
        packed = msgpack.packb(request, use_bin_type=False)  # scripts know one kind of string
        arguments: list[Any] = [self._prefix, context, packed, payload]
        if len(payload) > PIECE_BYTES:
            self._send_ahead(request[0], payload)
            arguments[3:] = [b"", b"1"]
        with translated_errors():
            # One declared key tells a Cluster where to go; the prefix's hash tag keeps all others there.
            return self._scripts[step](keys=[f"{self._prefix}fence"], args=arguments)

    def _send_ahead(self, entry: str, payload: bytes) -> None:
        """A large payload on a slow line would take longer than anybody waits for an answer; a piece of it does not."""
        key = f"{self._prefix}upload:{entry}"
        with translated_errors():
            self._client.set(key, payload[:PIECE_BYTES], px=_HOUR_MS)
            for start in range(PIECE_BYTES, len(payload), PIECE_BYTES):
                self._client.append(key, payload[start : start + PIECE_BYTES])


def _from_now(flat: list[Any], now_ms: int, steady_ms: int) -> list[Any]:
    """An entry of this machine with what is measured by its clocks counted from now (positions: codec.py)."""
    flat[4] = max(0, flat[4] - steady_ms)
    for delivery in flat[9]:
        delivery[6] = delivery[6] and max(1, delivery[6] - now_ms)
        delivery[9] = delivery[9] and max(1, delivery[9] - steady_ms)
    return flat


def _marked_for_ms(entry: Entry, now_ms: int) -> int:
    """How long ago its names were marked: what is told late lasts no longer for it."""
    moments = [entry.settled_ms or entry.created_ms]
    for delivery in entry.deliveries:
        moments += [delivery.delivered_ms or 0, *(attempt.at_ms for attempt in delivery.attempts)]
    return max(0, now_ms - max(moments))


@cache
def source(step: str) -> str:
    folder = resources.files("deduplication.journal") / "lua"
    files = ("entry", "fingerprint", step) if step in _TELL_ITEMS_APART else ("entry", step)
    return "\n".join((folder / f"{file}.lua").read_text() for file in files)


def _unless_closed(answer: Any) -> Any:
    if answer == b"closed":
        raise RedisBeingTold("redis: it lost its memory and is being told")
    return answer


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
