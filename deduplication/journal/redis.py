"""The journal in Redis, shared by all machines. Each step is one script and one round trip; the rules are in lua/."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, cast

import msgpack
import redis

from deduplication.claims import Gate, Kind, Name, Pattern
from deduplication.errors import (
    ConnectionDropped,
    DeduplicationError,
    NoRoom,
    StoreMisconfigured,
    StoreUnavailable,
)
from deduplication.journal.base import (
    DEFAULT_RETENTION,
    MOST_BEGINS,
    MOST_LOOKED_AT,
    Begun,
    Claim,
    Claimed,
    Duplicate,
    Forgotten,
    Found,
    InFlight,
    Recovered,
    Released,
    Replayed,
    Retention,
    Settlement,
    Settling,
    UnderWay,
    Verdict,
    answer_or_raise,
)
from deduplication.journal.clock import Clock
from deduplication.journal.codec import (
    flat_delivery,
    flat_entry,
    flat_name,
    flat_names,
    flat_state,
    read_entry,
    read_state,
    short_about,
)
from deduplication.journal.destination_state import DestinationState
from deduplication.journal.entry import Delivery, DeliveryStatus, Entry, Fate, Stop
from deduplication.journal.following import Heard, News
from deduplication.journal.listing import ALL, Count, Listed, Page, PayloadPlace, Position, Window, go_through
from deduplication.journal.lua_source import source
from deduplication.journal.redis_keys import Shown, escape_glob, shown_names
from deduplication.journal.redis_scripts import Call, Scripts
from deduplication.journal.storage import LOOK_EVERY_S, Storage
from deduplication.journal.verdict import Standing, found, held_parts, settled, standing
from deduplication.silence import JOURNALS, note_silence, raise_if_silent

_REFUSED = (
    redis.exceptions.AuthenticationError,
    redis.exceptions.AuthorizationError,
    redis.exceptions.NoPermissionError,
)
_SILENT = (redis.exceptions.TimeoutError, redis.exceptions.BusyLoadingError)  # the next question would wait as long
_OF_THE_CLIENT = (redis.exceptions.RedisError, redis.exceptions.RedisClusterException)
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
    "recover",
    "expire",
    "states",
    "memo",
    "begin",
    "finish",
    "replay",
    "release",
    "reopen",
    "look",
    "list",
    "count",
    "forget",
    "merge",
    "mark",
    "old_names",
    "upload",
    "purge",
)
_HOUR_MS = 3_600_000
_HOURS_AT_ONCE = 200
_PAGE = 500
PIECE_BYTES = 256 << 10
DEFAULT_PAYLOAD_BYTES = 256 << 20
_PURGE_EVERY_S, _PURGED_AT_ONCE = 5.0, 200
_MEMORY_KNOWN_FOR_S = 5.0  # who follows Redis looks every second, so that no email has to
_NO_ROOM = 2
_MOST_UNDER_WAY = 10_000  # of the emails that came last: more are never at work at a time


@dataclass(frozen=True)
class RedisFacts:
    """Any policy but noeviction silently forgets names. None where the server does not say."""

    maxmemory_policy: str | None
    evicted_keys: int | None


@dataclass(frozen=True)
class Memory:
    """What Redis used at that moment, what it may use (0: anything), and how much of it were payloads."""

    used_bytes: int
    most_bytes: int
    payload_bytes: int
    looked_at: float

    @property
    def left_bytes(self) -> int | None:
        """For payloads: an eighth is for what all servers write until each has looked again. None: it says no limit."""
        return self.most_bytes - self.most_bytes // 8 - self.used_bytes if self.most_bytes else None


@dataclass(frozen=True)
class Announced:
    """The label of a name or the id of an entry, and when something happened to it."""

    what: bytes
    at_ms: float


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
        most_payload_bytes: int | None = None,
    ) -> None:
        """``most_payload_bytes`` None: a quarter of what Redis may use, if it says that."""
        self._client = client
        self._most_payload_bytes = most_payload_bytes
        self._memory: Memory | None = None
        self._purged_at = 0.0
        self._prefix = prefix
        self._prefix_bytes = prefix.encode()
        self.machine = machine
        self._settings = (group_ttl, retention.entry_ms, retention.dead_ms, retention.delivered_payload_ms)
        self._listed_hours = retention.entry_ms // _HOUR_MS + 3  # as long as lua/entry.lua, save, keeps their lists
        self.last_number = 0
        self.seen: Callable[[], int] = lambda: 0  # what the machine has noted, for steps that are not told it
        self._scripts = Scripts(client, f"{prefix}fence", {step: self._source(step) for step in _STEPS})

    def _source(self, step: str) -> str:
        return source(step)

    def claim(self, claim: Claim, seen: int = 0) -> Verdict:
        """``seen``: the last number this machine knows to have got; a Redis that gave less has lost its memory."""
        verdict = self.claim_many([claim], seen)[0]
        if isinstance(verdict, DeduplicationError):
            raise verdict
        return verdict

    def claim_many(self, claims: Sequence[Claim], seen: int = 0) -> list[Verdict | DeduplicationError]:
        context = self._context(seen or self.seen())
        answers = self._run_all([Call("claim", self._arguments(context, _claim_request(claim))) for claim in claims])
        return [
            answer if isinstance(answer, DeduplicationError) else _verdict(claim, *answer)
            for claim, answer in zip(claims, answers, strict=True)
        ]

    def before_sending(self, claimed: Claimed) -> Entry | None:
        return claimed.entry if claimed.entry.lease_until_ms > self.now_ms() else None

    def note_delivered(self, entry: Entry, delivery: Delivery) -> None:
        """Nothing stands between the POST and its settlement here."""

    def settle(self, claim: Claim, entry: Entry, settlement: Settlement) -> bool:
        is_settled = self.settle_if_room(claim, entry, settlement)
        if is_settled is not None:
            return is_settled
        if settled(entry, settlement, 0).is_to_be_sent:
            raise NoRoom("redis: no room for more payloads")
        return bool(self.settle_if_room(claim, entry, replace(settlement, payload=None)))

    def settle_many(self, settlings: Sequence[Settling]) -> list[bool | DeduplicationError]:
        answers: list[bool | DeduplicationError] = []
        for each, answer in zip(settlings, self.settle_many_if_room(settlings), strict=True):
            try:
                answers.append(self.settle(each.claim, each.entry, each.settlement) if answer is None else answer)
            except DeduplicationError as error:
                answers.append(error)
        return answers

    def settle_if_room(self, claim: Claim, entry: Entry, settlement: Settlement, bytes_here: int = 0) -> bool | None:
        """None: there is no room for its payload, and nothing is settled. ``bytes_here``: this machine keeps it."""
        return answer_or_raise(self.settle_many_if_room([Settling(claim, entry, settlement)], bytes_here)[0])

    def settle_many_if_room(
        self, settlings: Sequence[Settling], bytes_here: int = 0
    ) -> list[bool | None | DeduplicationError]:
        answers: list[bool | None | DeduplicationError] = [None] * len(settlings)
        fitting, calls, context = [], [], self._context(self.seen())
        for position, each in enumerate(settlings):
            payload = each.settlement.payload or b""
            if payload and not self.has_room_for(len(payload)):
                continue
            if len(payload) > PIECE_BYTES and not self._send_ahead(each.entry.id, payload):
                continue
            fitting.append(position)
            calls.append(Call("settle", self._arguments(context, _settle_request(each, bytes_here), payload)))
        for position, answer in zip(fitting, self._run_all(calls), strict=True):
            if isinstance(answer, DeduplicationError):
                answers[position] = answer
            else:
                number, is_settled = answer
                self.last_number = max(self.last_number, number)
                answers[position] = None if is_settled == _NO_ROOM else bool(is_settled)
        return answers

    def renew(self, entry: str, owner: str, lease_ms: int, destination: str | None = None) -> bool:
        return bool(self._step("renew", [entry, owner, lease_ms, destination or False])[0])

    def due(self, room: Mapping[str, int], hold_ms: int, *, only_here: bool = False) -> list[tuple[str, str]]:
        """``only_here``: what this machine alone has the payload of."""
        now = time.monotonic()
        if now >= self._purged_at + _PURGE_EVERY_S:
            self._purged_at = now
            self.purge()
        machines = [self.machine] if only_here else [self.machine, ""]
        asked = [[destination, limit, machine] for destination, limit in room.items() for machine in machines]
        found = [each.decode() for each in self._step("due", [hold_ms, *asked])]
        return list(zip(found[::2], found[1::2], strict=True))

    def recover(self, destination: str, well_since_ms: int, from_ms: int, limit: int, hold_ms: int) -> Recovered:
        request = [destination, well_since_ms, from_ms, limit, MOST_LOOKED_AT, hold_ms]
        go_on_ms, *entries = self._step("recover", request)
        return Recovered(tuple(entry.decode() for entry in entries), go_on_ms or None)

    def expire(self, destination: str, before_ms: int, limit: int, reason: str) -> list[str]:
        return [entry.decode() for entry in self._step("expire", [destination, before_ms, limit, reason])]

    def states(self) -> dict[str, DestinationState]:
        return _states(self._step("states", [False]))

    def put_states(self, states: Mapping[str, DestinationState]) -> dict[str, DestinationState]:
        told = [[destination, flat_state(state)] for destination, state in states.items()]
        return _states(self._step("states", [True, *told]))

    def memo(self, name: str) -> str | None:
        (memo,) = self._step("memo", [name])
        return None if memo is None else memo.decode()

    def change_memo(self, name: str, before: str | None, memo: str) -> bool:
        return bool(self._step("memo", [name, False if before is None else before, memo])[0])

    def purge(self) -> None:
        """What has ended by itself counts no longer; so much at a time that nobody waits for it."""
        self._step("purge", [_PURGED_AT_ONCE])

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
        """``payload``: what this machine has of it, for a Redis that has none; without room there it stays here."""
        request = [entry, destination, force, webhook_id or False, len(payload or b"")]
        answer = self._step("replay", request, self._what_fits(entry, payload))
        return Replayed(answer[0].decode())

    def release(self, entry: str, *, force: bool = False, payload: bytes | None = None) -> Released:
        answer = self._step("release", [entry, force, len(payload or b"")], self._what_fits(entry, payload))
        return Released(answer[0].decode())

    def reopen(self, entry: str, destination: str) -> bool:
        return bool(self._step("reopen", [entry, destination])[0])

    def destinations(self) -> list[str]:
        with translated_errors():
            found = cast(set[bytes], self._client.smembers(f"{self._prefix}destinations"))
        return sorted(destination.decode() for destination in found)

    def under_way(self) -> list[UnderWay]:
        """Locks have an index. What a request is at came lately, or it is a late retry and missing here; what a worker
        has begun is due once its lease is over."""
        now_ms = self.now_ms()
        with translated_errors():
            indexes = self._due_indexes()
            with self._client.pipeline(transaction=False) as pipeline:
                pipeline.zrangebyscore(f"{self._prefix}locks", now_ms, "+inf")
                for hour in (now_ms // _HOUR_MS, now_ms // _HOUR_MS - 1):
                    pipeline.lrange(f"{self._prefix}entries:{hour}", -_MOST_UNDER_WAY, -1)
                for index in indexes:
                    pipeline.zrangebyscore(index, now_ms, now_ms + _HOUR_MS)
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

    def read_all(self, entries: Sequence[str]) -> dict[str, Entry]:
        return {entry.id: entry for entry in self._entries([entry.encode() for entry in entries])}

    def read_latest(self, entries: Sequence[str], seen: int) -> list[Entry]:
        """Those it knows. Raises RedisLostMemory where it may not know the latest of them."""
        found = list(self._entries([entry.encode() for entry in entries]))
        if seen > self.number():
            raise RedisLostMemory("redis: it has lost its memory")
        return found

    def announced(self, since_ms: int) -> tuple[set[Announced], set[Announced]]:
        """The names that were reset since then, and the entries that were taken up again or given back."""
        with translated_errors(), self._client.pipeline(transaction=False) as pipeline:
            for key in ("forgotten", "generations"):
                pipeline.zrangebyscore(f"{self._prefix}{key}", since_ms, "+inf", withscores=True)
            resets, generations = pipeline.execute()
        return {Announced(*each) for each in resets}, {Announced(*each) for each in generations}

    def payload(self, entry: str) -> bytes | None:
        with translated_errors():
            return cast(bytes | None, self._client.get(f"{self._prefix}payload:{entry}"))

    def locate_payloads(self, entries: Sequence[str]) -> dict[str, PayloadPlace]:
        with translated_errors(), self._client.pipeline(transaction=False) as pipeline:
            for entry in entries:
                pipeline.exists(f"{self._prefix}payload:{entry}")
            is_here = pipeline.execute() if entries else []
        return {
            entry: PayloadPlace.REDIS if found else PayloadPlace.GONE
            for entry, found in zip(entries, is_here, strict=True)
        }

    def list_deliveries(
        self, status: DeliveryStatus, destination: str | None = None, after: Position | None = None
    ) -> Iterator[Listed]:
        index = "dead" if status is DeliveryStatus.DEAD else "due"
        return go_through(partial(self._page, index, destination), status, after)

    def _page(self, index: str, destination: str | None, after: Position | None, limit: int) -> Page:
        begin = [after.at_ms, after.entry, after.destination] if after else False
        answer = iter(self._step("list", [index, limit, destination or False, begin]))
        return [
            (Position(at_ms, id_.decode(), to.decode()), _entry(stored) if stored else None)
            for at_ms, id_, to, stored in zip(answer, answer, answer, answer, strict=True)
        ]

    def count_deliveries(self) -> dict[str, Count]:
        answer = iter(self._step("count", []))
        found = {to.decode(): Count(waiting, dead) for to, waiting, dead in zip(answer, answer, answer, strict=True)}
        return {name: count for name, count in found.items() if count != Count()}

    def find(self, window: Window = ALL) -> Iterator[Entry]:
        """Hour by hour, the newest first; then what is kept for longer than these lists."""
        first = self.now_ms() // _HOUR_MS
        last = first - self._listed_hours + 1
        is_all_listed = window.since_ms is not None and window.since_ms // _HOUR_MS >= last
        if window.until_ms is not None:
            first = min(first, window.until_ms // _HOUR_MS)
        if window.start:
            first = min(first, window.start.at_ms // _HOUR_MS)
        hours = range(first, max(last, (window.since_ms or 0) // _HOUR_MS) - 1, -1)
        for place in range(0, len(hours), _HOURS_AT_ONCE):
            with translated_errors(), self._client.pipeline(transaction=False) as pipeline:
                for hour in hours[place : place + _HOURS_AT_ONCE]:
                    pipeline.llen(f"{self._prefix}entries:{hour}")
                lengths = pipeline.execute()
            for hour, length in zip(hours[place : place + _HOURS_AT_ONCE], lengths, strict=True):
                is_in_it = window.start and window.start.at_ms // _HOUR_MS == hour
                yield from filter(window.has, self._of_hour(hour, length, window.start if is_in_it else None))
        if not is_all_listed:
            start = window.start
            yield from (
                entry
                for entry in filter(window.has, self._created_before(last * _HOUR_MS))
                if start is None or (entry.created_ms, entry.id) <= (start.at_ms, start.entry)
            )

    def _of_hour(self, hour: int, length: int, start: Position | None) -> Iterator[Entry]:
        """From its end. It only ever grows there, so places in it stay what they are."""
        for end in range(length, 0, -_PAGE):
            with translated_errors():
                listed = self._client.lrange(f"{self._prefix}entries:{hour}", max(0, end - _PAGE), end - 1)
            ids = cast(list[bytes], listed)[::-1]
            if start:
                if start.entry.encode() not in ids:
                    continue
                ids, start = ids[ids.index(start.entry.encode()) :], None
            yield from self._entries(ids)

    def _created_before(self, before_ms: int) -> list[Entry]:
        """What waits, is dead, or was settled long after it came."""
        with translated_errors(), self._client.pipeline(transaction=False) as pipeline:
            pipeline.zrange(f"{self._prefix}late", 0, -1)
            for index in (*self._due_indexes(), *(f"{self._prefix}dead:{each}" for each in self.destinations())):
                pipeline.zrange(index, 0, -1)
            late, *listed = pipeline.execute()
        settled_late = (id_ for id_, created_ms in map(bytes.split, late) if int(created_ms) < before_ms)
        ids = dict.fromkeys((*settled_late, *chain.from_iterable(listed)))
        found = (entry for entry in self._entries(list(ids)) if entry.created_ms < before_ms)
        return sorted(found, key=lambda entry: (entry.created_ms, entry.id), reverse=True)

    def _due_indexes(self) -> list[str]:
        """Of every destination: of what all may deliver, and of what lies on one machine."""
        with translated_errors():
            machines = cast(set[bytes], self._client.smembers(f"{self._prefix}payload_machines"))
        kinds = ["due", *(f"due_at:{machine.decode()}" for machine in machines)]
        return [f"{self._prefix}{kind}:{destination}" for destination in self.destinations() for kind in kinds]

    def news(self, places: str, limit: int) -> News:
        """The list of an hour only ever grows, at its end, also by what a machine tells late: a part of it was told."""
        now_ms = self.now_ms()
        heard = Heard.read(places, now_ms)
        hours = heard.hours_to_look_at(now_ms, self._listed_hours)
        with translated_errors(), self._client.pipeline(transaction=False) as pipeline:
            pipeline.get(f"{self._prefix}closed_until")
            pipeline.zrangebyscore(
                f"{self._prefix}generations", heard.taken_up_ms, "+inf", start=0, num=limit, withscores=True
            )
            for hour in hours:
                pipeline.llen(f"{self._prefix}entries:{hour}")
            closed_until, again, *lengths = pipeline.execute()
        heard.begin_anew_if((closed_until or b"").decode())
        parts = heard.take(dict(zip(hours, lengths, strict=True)), limit)
        with translated_errors(), self._client.pipeline(transaction=False) as pipeline:
            for hour, first, last in parts:
                pipeline.lrange(f"{self._prefix}entries:{hour}", first, last - 1)
            listed = pipeline.execute() if parts else []
        taken_up = [id_ for id_, _ in again] if heard.take_taken_up([int(at_ms) for _, at_ms in again]) else []
        ids = dict.fromkeys(id_ for page in (*listed, taken_up) for id_ in page)
        is_all = sum(last - first for _, first, last in parts) < limit and len(again) < limit
        return News(tuple(self._entries(list(ids))), heard.written, is_all)

    def shared_key(self, candidate: bytes) -> bytes:
        with translated_errors():
            self._client.setnx(f"{self._prefix}shared_key", candidate)
            return cast(bytes, self._client.get(f"{self._prefix}shared_key"))

    def _entries(self, ids: Sequence[bytes]) -> Iterator[Entry]:
        for page in range(0, len(ids), _PAGE):
            keys = [f"{self._prefix}entry:{id_.decode()}" for id_ in ids[page : page + _PAGE]]
            with translated_errors():
                stored = cast(list[bytes | None], self._client.mget(keys))
            yield from (_entry(each) for each in stored if each)

    def look(self, names: Sequence[Name]) -> list[Found]:
        answer = self._step("look", flat_names(tuple(names)))
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
        """Tells it entries, with their payloads, of a machine with this clock that has seen this number. A payload that
        the entry says to lie on this machine stays there where Redis has no room for it.

        A hold: Redis lost its memory, and stays closed for that long. ``names_say_what_is_left``: how long their marks
        last is counted from now, not from when they were made.
        """
        now_ms, steady_ms = clock.now_ms(), clock.steady_ms()
        entries = [
            [
                _from_now(flat_entry(entry), now_ms, steady_ms),
                self._as_told(entry, payload),
                0 if names_say_what_is_left else _marked_for_ms(entry, now_ms),
                entry.payload_bytes if payload is None else len(payload),
            ]
            for entry, payload in told
        ]
        self._step("merge", [hold_ms, *entries], seen=seen)

    def mark(self, names: Sequence[Name]) -> None:
        """Tells it marks without entries; each name is kept for what is left of its time."""
        self._step("mark", flat_names(tuple(names)))

    def _as_told(self, entry: Entry, payload: bytes | None) -> bytes | bool:
        kept = self._what_fits(entry.id, payload, is_forced=entry.payload_machine != self.machine)
        return len(kept) > PIECE_BYTES or kept or False

    def old_names(self, names: Sequence[Name], prefix: str) -> list[tuple[bool, dict[bytes, bytes]]]:
        """As the version before the journal kept them: whether its mark says done, and a record a fingerprint."""
        arguments = self._arguments(self._context(0), flat_names(tuple(names)))
        found = answer_or_raise(self._run_all([Call("old_names", (prefix.encode(), *arguments[1:]))])[0])
        return [(bool(is_marked), dict(zip(each[::2], each[1::2], strict=True))) for is_marked, each in found]

    def number(self) -> int:
        """The last number that this Redis knows to have given to this machine."""
        with translated_errors():
            return int(cast(bytes | None, self._client.get(f"{self._prefix}machine:{self.machine}")) or 0)

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

    def look_at_memory(self) -> Memory:
        """How much it uses; asked once a second by who follows it, so that nobody else has to."""
        with translated_errors():
            told = self._info_of_memory()
            used_bytes, most_bytes = int(told.get("used_memory", 0)), int(told.get("maxmemory", 0))
        self._memory = Memory(used_bytes, most_bytes, self._counted_bytes(), time.monotonic())
        return self._memory

    def _info_of_memory(self) -> dict[str, Any]:
        """Of the node that has the keys; nothing where we are not allowed to ask."""
        asked: dict[str, Any] = {}
        if isinstance(self._client, redis.RedisCluster):
            asked["target_nodes"] = self._client.get_node_from_key(f"{self._prefix}fence")
        try:
            return self._client.info("memory", **asked)
        except redis.exceptions.NoPermissionError:
            return {}

    def _counted_bytes(self) -> int:
        with translated_errors():
            return int(cast(bytes | None, self._client.get(f"{self._prefix}payload_bytes")) or 0)

    @property
    def most_payload_bytes(self) -> int:
        if self._most_payload_bytes is not None:
            return self._most_payload_bytes
        most_bytes = self._memory.most_bytes if self._memory else 0
        return most_bytes // 4 or DEFAULT_PAYLOAD_BYTES

    def has_room_for(self, payload_bytes: int) -> bool:
        """As far as known; whether all payloads stay within what they may use is decided with the step itself."""
        memory = self._known_memory(_MEMORY_KNOWN_FOR_S)
        if memory.payload_bytes + payload_bytes > self.most_payload_bytes:
            return False
        return memory.left_bytes is None or payload_bytes <= memory.left_bytes

    def storage(self) -> Storage:
        """What is counted is read each time: the processes of a machine must not see different stages."""
        memory = self._known_memory(LOOK_EVERY_S)
        return Storage(
            redis_bytes=self._counted_bytes(),
            redis_limit_bytes=self.most_payload_bytes,
            redis_left_bytes=memory.left_bytes,
        )

    def _known_memory(self, for_s: float) -> Memory:
        is_known = self._memory and time.monotonic() < self._memory.looked_at + for_s
        return self._memory if self._memory and is_known else self.look_at_memory()

    def close(self) -> None:
        self._client.close()

    def _step(self, step: str, request: list[Any], payload: bytes = b"", seen: int = 0) -> list[Any]:
        call = Call(step, self._arguments(self._context(seen or self.seen()), request, payload))
        number, *answer = cast(list[Any], answer_or_raise(self._run_all([call])[0]))
        self.last_number = max(self.last_number, number)
        return answer

    def _arguments(self, context: bytes, request: list[Any], payload: bytes = b"") -> tuple[bytes, ...]:
        packed = msgpack.packb(request, use_bin_type=False)  # scripts know one kind of string
        if len(payload) > PIECE_BYTES:  # it was sent ahead
            return self._prefix_bytes, context, packed, b"", b"1"
        return self._prefix_bytes, context, packed, payload

    def _run_all(self, calls: Sequence[Call]) -> list[Any]:
        """Each answer, or its own error in place of that."""
        raise_if_silent()
        try:
            answers = self._scripts.run(calls)
        except _OF_THE_CLIENT as error:
            raise _translated(error) from error
        for position, answer in enumerate(answers):
            if isinstance(answer, redis.exceptions.ResponseError):
                answers[position] = _translated(answer)
            elif answer and answer[0] == b"lost_memory":
                answers[position] = RedisLostMemory("redis: it has lost its memory")
            elif answer and answer[0] == b"closed":
                why = f"redis: it lost its memory and is being told, for {answer[1]} ms more"
                answers[position] = RedisBeingTold(why)
        return answers

    def _context(self, seen: int) -> bytes:
        return cast(bytes, msgpack.packb([self.machine, seen, *self._settings, self.most_payload_bytes]))

    def _what_fits(self, entry: str, payload: bytes | None, *, is_forced: bool = False) -> bytes:
        """The payload, if Redis has room for it; a large one is there then."""
        if payload is None or not (is_forced or self.has_room_for(len(payload))):
            return b""
        return payload if len(payload) <= PIECE_BYTES or self._send_ahead(entry, payload, is_forced) else b""

    def _send_ahead(self, entry: str, payload: bytes, is_forced: bool = False) -> bool:
        """A large payload on a slow line would take longer than anybody waits for an answer; a piece of it does not.

        False: there is no room for it.
        """
        if not self._step("upload", [entry, len(payload), is_forced], payload[:PIECE_BYTES])[0]:
            return False
        with translated_errors():
            for start in range(PIECE_BYTES, len(payload), PIECE_BYTES):
                self._client.append(f"{self._prefix}upload:{entry}", payload[start : start + PIECE_BYTES])
        return True


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


def _claim_request(claim: Claim) -> list[Any]:
    destinations = [
        [each.destination, each.webhook_id, flat_name(each.content) if each.content else False]
        for each in claim.destinations
    ]
    return [
        claim.entry,
        claim.owner,
        claim.lease_ms,
        claim.fingerprint,
        flat_names(claim.own),
        flat_names(claim.shared),
        destinations,
        short_about(claim),
        claim.is_trial,
    ]


def _verdict(claim: Claim, kind: bytes, *answer: Any) -> Verdict:
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
            position, *first = answer
            stop = Stop(claim.own[position - 1], *(first and (first[0].decode(), first[1])))
            return Duplicate(stop)
    return InFlight(Gate(answer[0].decode()), answer[1].decode(), answer[2])


def _settle_request(settling: Settling, bytes_here: int) -> list[Any]:
    claim, settlement = settling.claim, settling.settlement
    return [
        settling.entry.id,
        claim.owner,
        settlement.ending.value,
        settlement.answer,
        [flat_delivery(each) for each in settlement.deliveries],
        False if settlement.retries_left is None else settlement.retries_left,
        flat_names(claim.own),
        flat_names(claim.shared),
        claim.fingerprint,
        short_about(claim),
        claim.is_trial,
        bytes_here or len(settlement.payload or b""),
        bytes_here > 0,
    ]


def _entry(packed: bytes) -> Entry:
    return read_entry(msgpack.unpackb(packed))


def _states(answer: list[bytes]) -> dict[str, DestinationState]:
    pairs = zip(answer[::2], answer[1::2], strict=True)
    return {destination.decode(): read_state(msgpack.unpackb(state)) for destination, state in pairs}


@contextmanager
def translated_errors(server: str = JOURNALS) -> Iterator[None]:
    """``server``: whose silence it is, where nobody waits for it twice."""
    raise_if_silent(server)
    try:
        yield
    except _OF_THE_CLIENT as error:
        raise _translated(error, server) from error


def _translated(error: Exception, server: str = JOURNALS) -> DeduplicationError:
    ours: DeduplicationError
    match error:
        case _ if isinstance(error, _REFUSED):  # before ConnectionError, whose children two of them are
            ours = StoreMisconfigured(f"redis: {_in_plain_words(error)}")
        case redis.exceptions.BusyLoadingError():  # a ConnectionError too, but nothing was dropped
            ours = StoreUnavailable(f"redis: {error}")
        case redis.exceptions.ConnectionError():
            ours = ConnectionDropped(f"redis: {error}")
        case redis.exceptions.TimeoutError() | redis.exceptions.RedisClusterException():
            ours = StoreUnavailable(f"redis: {error}")
        case _ if _is_for_now(error):
            ours = StoreUnavailable(f"redis: {error}")
        case _:  # WRONGTYPE, NOPERM, a script error
            ours = StoreMisconfigured(f"redis: {_in_plain_words(error)}")
    ours.__cause__ = error
    if isinstance(error, _SILENT):
        note_silence(ours, server)
    return ours


def _in_plain_words(error: Exception) -> str:
    return next((words for said, words in _IN_PLAIN_WORDS.items() if said in str(error)), str(error))


def _is_for_now(error: Exception) -> bool:
    """redis-py has classes for some of these, and takes the word off their message."""
    passing = (
        redis.exceptions.OutOfMemoryError,
        redis.exceptions.ReadOnlyError,
        redis.exceptions.ClusterDownError,
        redis.exceptions.MasterDownError,
        redis.exceptions.TryAgainError,
    )
    return isinstance(error, passing) or _FOR_NOW_IN_SCRIPT.search(str(error)) is not None
