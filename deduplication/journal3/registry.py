"""What the fleet shares in Redis: names, stored deliveries, and the stream of events.

Every step is one script that compares and writes (commit.lua). This module composes both sides and reads the answers;
what an item means is decided by rules.py. Rules are those of docs/architecture.md.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from typing import Any

import redis

from deduplication.claims import WEEK_MS, Kind, Name
from deduplication.errors import DeduplicationError, NoRoom, StoreMisconfigured, StoreUnavailable
from deduplication.fingerprint import Fingerprint, conflicts
from deduplication.journal.clock import Clock
from deduplication.journal3.entry import (
    SETTLED,
    Delivery,
    DeliveryStatus,
    Entry,
    changed,
    decode,
    encode,
    to_json,
)
from deduplication.journal3.rules import (
    MOST_REFERENCES,
    Claim,
    Judgement,
    Known,
    NameState,
    Publishing,
    Take,
    gates_of,
    holds,
    judge,
    marked_names,
    published,
    reference,
    taken,
)

MOST_ROUNDS = 6  # of compare-and-write, for one step: each means that somebody else was quicker
PUT_OFF_MS = 5_000
_GONE = ("LOADING", "READONLY", "OOM", "CLUSTERDOWN", "MISCONF", "NOREPLICAS", "MASTERDOWN", "TRYAGAIN", "BUSY")
_LETTERS = {
    DeliveryStatus.CLAIMED: "c",
    DeliveryStatus.RETURNED: "r",
    DeliveryStatus.WAITING: "w",
    DeliveryStatus.DELIVERED: "d",
    DeliveryStatus.DEAD: "x",
    DeliveryStatus.SKIPPED: "s",
}
_NEW_LEASE = "\x01"
_OF_LETTER = {letter: status for status, letter in _LETTERS.items()}


class NoAnswer(StoreUnavailable):
    """Redis did not answer in time, or refused the connection. What was asked may have been done."""


class NotNow(StoreUnavailable):
    """Redis answered that it grants nothing now: a new era has begun, or the request came too late."""


# How names and references are written


@dataclass(frozen=True)
class Mark:
    """Where a name is visible in Redis: a member of a Set, or the value of a String."""

    key: str
    member: str | None = None
    done: str = "1"
    pending: str | None = None


def mark_of(name: Name, group_ttl: bool) -> Mark:
    """As an operator sees it and other programs read and write it (docs/architecture.md, names)."""
    match name.kind:
        case Kind.EMAIL_ID:
            return Mark(f"processed_ids:{name.scope}", name.value)
        case Kind.POST:
            return Mark(f"post:{name.value}", done="0", pending="pending")
        case Kind.SUBJECT_GROUP:
            member = f"{name.scope}:{name.value}"
            return Mark(f"ttl:subject_groups:{member}") if group_ttl else Mark(f"subject_groups:{name.scope}", member)
        case Kind.MEDIA:
            return Mark(f"media:{name.value}", pending="pending")
        case Kind.CONTENT:
            return Mark(f"dedup:{name.scope}:{name.value}")
        case _:
            return Mark(f"lock:{name.scope}:{name.value}", done="", pending="held")


def digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


@dataclass(frozen=True)
class Pointer:
    """The value of a name: the number of its latest reset, and the entries it refers to, oldest first."""

    reset: int = 0
    ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.reset or ''}|{','.join(self.ids)}" if self.reset or self.ids else ""

    @classmethod
    def parse(cls, text: str) -> Pointer:
        reset, _, ids = text.partition("|")
        return cls(int(reset or 0), tuple(filter(None, ids.split(","))))


def write_reference(entry: Entry, lease_ms: int = 0) -> str:
    """What Redis keeps of an entry. Claims that have no lease yet get one of ``lease_ms`` from Redis (commit.lua)."""
    deliveries = [
        [
            each.destination,
            _LETTERS[each.status],
            each.owner if each.status is DeliveryStatus.CLAIMED else "",
            0 if each.status is not DeliveryStatus.CLAIMED else each.lease_until_ms or _NEW_LEASE,
            each.generation,
            int(each.waits_for is not None),
        ]
        for each in entry.deliveries
    ]
    values = [entry.machine, entry.created_ms, entry.fingerprint, entry.reset, entry.answer, deliveries]
    retries = [] if entry.retries_left is None else [entry.retries_left]
    return to_json([*values, *retries]).replace('"\\u0001"', f"{_NEW_LEASE}{lease_ms}")


def read_reference(entry_id: str, text: str) -> Entry:
    machine, created, fingerprint, reset, answer, deliveries, *more = json.loads(text)
    some_name = Name(Kind.LOCK, "", "")
    return Entry(
        id=entry_id,
        machine=machine,
        own=(),
        fingerprint=fingerprint,
        created_ms=created,
        reset=reset,
        answer=answer,
        retries_left=more[0] if more else None,
        deliveries=tuple(
            Delivery(
                destination,
                status=_OF_LETTER[letter],
                generation=generation,
                waits_for=some_name if waits else None,
                owner=owner,
                lease_until_ms=until_ms,
            )
            for destination, letter, owner, until_ms, generation, waits in deliveries
        ),
    )


# What is asked of Redis, and what it showed


@dataclass(frozen=True)
class View:
    """What Redis showed of names, by their references; at first nothing is expected to be there."""

    pointers: Mapping[str, Pointer] = field(default_factory=dict)
    marked: Mapping[Name, bool] = field(default_factory=dict)
    entries: Mapping[str, Entry] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    stored: Mapping[str, bool] = field(default_factory=dict)
    proven: str = ""
    now_ms: int = 0

    def pointer(self, label: str) -> Pointer:
        return self.pointers.get(label, Pointer())

    def known(self, labels: Mapping[str, Name], kept: Callable[[Name], str | None]) -> Known:
        """``kept``: the fingerprint that a journal keeps beside a mark."""
        states = {}
        for label, name in labels.items():
            pointer = self.pointer(label)
            entries = tuple(self.entries[each] for each in pointer.ids if each in self.entries)
            is_marked = self.marked.get(name, False)
            fingerprint = kept(name) if is_marked and not entries and name.is_own else None
            states[name] = NameState(is_marked, entries, fingerprint, pointer.reset)
        return Known(states, self.now_ms, self.proven)


NOTHING = View()


@dataclass(frozen=True)
class Answer:
    """What every script says: its outcome, the era, for how long that is closed, and Redis' time."""

    outcome: str
    era: str
    closed_ms: int
    now_us: int
    rest: Sequence[Any] = ()

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000


class Commit:
    """One call of commit.lua, as it is composed: what must be there, what is written, and the event."""

    def __init__(self, prefix: str, *, only_open: bool = False, before_ms: int | None = None) -> None:
        self._prefix = prefix
        self._only_open = only_open
        self._before_ms = before_ms
        self._names: list[tuple[str, str]] = []
        self._conditions: list[tuple[str, str, str, str]] = []
        self._writes: list[tuple[str, ...]] = []
        self.event = ""

    def expect(self, key: str, value: str) -> None:
        self._names.append((key, value))

    def require(self, how: str, key: str, argument: str, expected: bool) -> None:
        self._conditions.append((how, key, argument, "1" if expected else "0"))

    def write(self, command: str, key: str, *arguments: str | bytes | int) -> None:
        self._writes.append((command, key, *arguments))  # type: ignore[arg-type]

    def arguments(self, era: str, hold_ms: int) -> tuple[list[str], list[Any]]:
        keys = [f"{self._prefix}era", f"{self._prefix}events", *(f"{self._prefix}{key}" for key, _ in self._names)]
        places = {key: place for place, key in enumerate(keys, 1)}

        def place(key: str) -> int:
            full = f"{self._prefix}{key}"
            if full not in places:
                keys.append(full)
                places[full] = len(keys)
            return places[full]

        values: list[Any] = [expected for _, expected in self._names]
        for how, key, argument, wanted in self._conditions:
            values += (how, place(key), argument, wanted)
        for command, key, *arguments in self._writes:
            values += (command, place(key), len(arguments), *arguments)
        head = [self._prefix, era, hold_ms, int(self._only_open), self._before_ms or "", self.event]
        return keys, [*head, len(self._names), len(self._conditions), len(self._writes), *values]


@dataclass(frozen=True)
class Held:
    """Names that the fleet has granted: the entry as Redis keeps it now, and what publishing may expect there."""

    entry: Entry
    take: Take
    era: str
    view: View


@dataclass(frozen=True)
class Published:
    """``is_reset``: its names were reset since, and the entry is to be dropped. ``refused``: not stored (rule 17)."""

    era: str
    refused: frozenset[str] = frozenset()
    is_reset: bool = False


@dataclass(frozen=True)
class Taken:
    """A stored delivery, lent to its owner. ``begins``: how often, with this time, it was begun without an outcome."""

    entry: Entry
    destination: str
    payload: bytes | None
    begins: int


@dataclass(frozen=True)
class RegistryOptions:
    prefix: str = ""
    group_ttl: bool = False
    entry_ms: int = WEEK_MS
    dead_ms: int = 30 * 24 * 3_600_000
    hold_ms: int = 6_000
    payload_bytes: int = 1 << 30


class Registry:
    """``client`` never retries by itself and does not decode. Raises NoAnswer, NotNow, NoRoom or StoreMisconfigured."""

    def __init__(self, client: redis.Redis, machine: str, clock: Clock, options: RegistryOptions) -> None:
        self._client = client
        self._machine = machine
        self._clock = clock
        self._options = options
        self._commit_script = _Script("commit.lua")
        self._due_script = _Script("due.lua")
        self._offset_ms: int | None = None  # Redis' time less the one here that cannot be set, as of the last answer

    # Names

    def hold(
        self, claim: Claim, kept: Callable[[Name], str | None], within_ms: int, *, is_behind: bool = False
    ) -> Held | Judgement:
        """The fleet's yes (rule 2). ``within_ms``: later than that, Redis refuses. A machine that ``is_behind`` gets no
        hold while another one restores the memory of Redis (rule 15)."""
        now_ms = self._clock.now_ms()
        before_ms = None if self._offset_ms is None else self._clock.steady_ms() + self._offset_ms + within_ms
        labels = {reference(name, claim.fingerprint): name for name in (*claim.identity, *claim.gates)}
        marks = dict.fromkeys((*(name for name in claim.own if not name.needs_agreement), *claim.gates))
        view = NOTHING
        for _ in range(MOST_ROUNDS):
            known = view.known(labels | {each.label: each for each in marks if each.label not in labels}, kept)
            found = judge(claim, known)
            if not isinstance(found, Take):
                return found
            entry = taken(claim, found, self._machine, now_ms, known.reset)
            commit = Commit(self._options.prefix, only_open=True, before_ms=before_ms)
            self._compare(commit, labels, marks, view, claim.proof)
            if is_behind:
                commit.require("exists", "restoring", "", False)
            after = self._write_hold(commit, claim, entry, labels, view)
            answer = self._run(commit)
            if answer.outcome == "ok":
                return self._granted(answer, claim, entry, found, after)
            if is_behind and answer.rest[1][-1] == b"1":
                raise NotNow("Redis is being refilled by another machine")
            view = self._view(answer, labels, marks, claim.proof)
        raise NotNow("other requests for the same names were quicker")

    def _compare(
        self, commit: Commit, labels: Iterable[str], marks: Iterable[Name], view: View, proof: str = ""
    ) -> None:
        for label in labels:
            commit.expect(f"n:{digest(label)}", str(view.pointer(label)))
        if proof:
            commit.expect(f"proof:{proof}", view.proven)
        for name in marks:
            mark = mark_of(name, self._options.group_ttl)
            how, argument = ("value", mark.done) if mark.member is None else ("member", mark.member)
            commit.require(how, mark.key, argument, view.marked.get(name, False))

    def _write_hold(
        self, commit: Commit, claim: Claim, entry: Entry, labels: Mapping[str, Name], view: View
    ) -> dict[str, Pointer]:
        """Pointers to the entry, its reference with leases, and what an operator sees of it meanwhile."""
        kept_ms = self._options.entry_ms
        after = {}
        for label, name in labels.items():
            pointer = _pointing(view.pointer(label), name, entry, view.entries)
            after[label] = pointer
            if pointer != view.pointer(label):
                commit.write("SET", f"n:{digest(label)}", str(pointer), "PX", kept_ms)
            mark = mark_of(name, self._options.group_ttl)
            if mark.pending and not view.marked.get(name) and entry.id in pointer.ids:
                commit.write("SET", mark.key, mark.pending, "PX", claim.lease_ms)
        commit.write("HOLD", f"e:{entry.id}", write_reference(entry, claim.lease_ms), "PX", kept_ms)
        if claim.proof and not view.proven:
            commit.write("SET", f"proof:{claim.proof}", claim.key, "PX", claim.lease_ms)
        if claim.is_by_script:
            commit.write("FENCE", f"fence:{digest(claim.own[0].label)}", kept_ms)
        return after

    def _granted(self, answer: Answer, claim: Claim, entry: Entry, take: Take, pointers: Mapping[str, Pointer]) -> Held:
        until_ms = answer.now_ms + claim.lease_ms
        deliveries = tuple(
            changed(each, lease_until_ms=until_ms)
            if each.status is DeliveryStatus.CLAIMED and not each.lease_until_ms
            else each
            for each in entry.deliveries
        )
        fence = int(answer.rest[0]) if answer.rest else 0
        entry = changed(entry, deliveries=deliveries, fence=max(entry.fence, fence))
        texts = {entry.id: write_reference(entry)}
        view = View(pointers, {}, {entry.id: entry}, texts, proven=claim.key, now_ms=answer.now_ms)
        return Held(entry, take, answer.era, view)

    def release(self, labels: Mapping[str, Name], owner: str) -> None:
        """Ends a hold that is not used, or whose answer was lost: whatever its owner, and nobody else, claims under
        these references (rule 2)."""
        view = NOTHING
        for _ in range(MOST_ROUNDS):
            held = [each for each in view.entries.values() if any(one.owner == owner for one in each.deliveries)]
            if view is not NOTHING and not held:
                return
            commit = Commit(self._options.prefix)
            self._compare(commit, labels, (), view)
            for entry in held:
                commit.expect(f"e:{entry.id}", view.texts[entry.id])
                self._write_release(commit, entry, owner, labels, view)
            answer = self._run(commit)
            if answer.outcome == "ok":
                return
            view = self._view(answer, labels, (), "")

    def _write_release(self, commit: Commit, entry: Entry, owner: str, labels: Mapping[str, Name], view: View) -> None:
        left = tuple(each for each in entry.deliveries if each.owner != owner)
        if left:
            commit.write("SET", f"e:{entry.id}", write_reference(changed(entry, deliveries=left)), "KEEPTTL")
        else:
            commit.write("DEL", f"e:{entry.id}")  # pointers to nothing count as none
        for label, name in labels.items():
            mark = mark_of(name, self._options.group_ttl)
            if mark.pending and entry.id in view.pointer(label).ids:
                commit.write("DELEQ", mark.key, mark.pending)

    # Outcomes

    def publish(
        self, entry: Entry, view: View = NOTHING, payload: bytes | None = None, taken_by: str = ""
    ) -> Published:
        """Makes the outcome known to the fleet, and stores what waits (rules 9 and 17). Repeating it does no harm.

        ``view``: what is expected in Redis, from the hold. ``taken_by``: the owner to whom a stored delivery was lent.
        """
        labels = labels_of(entry)
        if _is_first_put(entry):
            self._check_room(len(payload or b""))
        for _ in range(MOST_ROUNDS):
            if max((view.pointer(label).reset for label in labels), default=0) > entry.reset:
                return Published("", is_reset=True)
            commit, refused, stored = self._outcome(entry, labels, view, payload, taken_by)
            answer = self._run(commit)
            if answer.outcome == "ok":
                return Published(answer.era, refused)
            view = self._view(answer, labels, (), "", entry.id, stored)
            if taken_by and not self._is_lent(taken_by, entry):
                return Published(answer.era, frozenset(each.destination for each in entry.deliveries))
        raise NotNow("other requests for the same names were quicker")

    def publish_ended(self, entries: Sequence[tuple[Entry, View]]) -> list[Published | None]:
        """As ``publish``, for entries of which nothing is to be stored, in one round trip. None: Redis has something
        else than its hold left there, so it is to be published by itself."""
        commits = [self._outcome(entry, labels_of(entry), view, None, "")[0] for entry, view in entries]

        def ask() -> list[Any]:
            pipe = self._client.pipeline(transaction=False)
            for commit in commits:
                keys, arguments = commit.arguments(secrets.token_hex(6), self._options.hold_ms)
                pipe.evalsha(self._commit_script.sha, len(keys), *keys, *arguments)
            return pipe.execute(raise_on_error=False)

        answers = self._ask(ask)
        for answer in answers:
            is_error = isinstance(answer, redis.exceptions.RedisError)
            if is_error and not isinstance(answer, redis.exceptions.NoScriptError):  # that one is loaded by ``publish``
                raise translated(answer) from answer
        return [
            Published(answer[1].decode()) if isinstance(answer, list) and answer[0] == b"ok" else None
            for answer in answers
        ]

    def _outcome(
        self, entry: Entry, labels: Mapping[str, Name], view: View, payload: bytes | None, taken_by: str
    ) -> tuple[Commit, frozenset[str], list[str]]:
        """What publishing it expects and writes; what is refused to be stored; the webhook-ids that were asked for."""
        present = view.entries.get(entry.id)
        others = [each for each in view.entries.values() if each.id != entry.id and _is_same(each, entry, view)]
        result = published(entry, present, others, self._machine, view.now_ms)
        commit = Commit(self._options.prefix, only_open=_is_first_put(entry))
        self._compare(commit, labels, (), view)
        commit.expect(f"e:{entry.id}", view.texts.get(entry.id, ""))
        self._write_outcome(commit, result.entry, present, labels, view)
        stored = self._write_stored(commit, entry, result, view, payload, taken_by)
        if stored or write_reference(result.entry) != view.texts.get(entry.id):  # what changes nothing is no event
            commit.event = f'["E","{self._machine}",{encode(entry)}]'
        return commit, result.refused, stored

    def _write_outcome(
        self, commit: Commit, entry: Entry, present: Entry | None, labels: Mapping[str, Name], view: View
    ) -> None:
        """The reference, the pointers to it, and the marks. What waits is kept until it ends, the rest for its time."""
        waits, waited = _waits(entry), present is not None and _waits(present)
        kept: tuple[str | int, ...] = () if waits else ("PX", self._options.entry_ms)
        commit.write("SET", f"e:{entry.id}", write_reference(entry), *kept)
        for label, name in labels.items():
            pointer = _pointing(view.pointer(label), name, entry, view.entries)
            if not str(pointer):
                commit.write("DEL", f"n:{digest(label)}")
            elif pointer != view.pointer(label) or waits != waited:
                commit.write("SET", f"n:{digest(label)}", str(pointer), *kept)
        marked = marked_names(entry)
        self._write_marks(commit, marked)
        for name in set(labels.values()) - set(marked):
            mark = mark_of(name, self._options.group_ttl)
            if name.kind is Kind.POST and entry.retries_left:
                commit.write("SET", mark.key, entry.retries_left, "PX", name.kept_ms or WEEK_MS)
            elif mark.pending:
                commit.write("DELEQ", mark.key, mark.pending)
        if entry.proof and any(each.status in SETTLED for each in entry.deliveries):
            proof, _, key = entry.proof.partition("=")
            commit.write("SET", f"proof:{proof}", key, "PX", WEEK_MS)

    def _write_marks(self, commit: Commit, names: Iterable[Name]) -> None:
        members: dict[str, tuple[list[str], int | None]] = {}
        for name in names:
            mark = mark_of(name, self._options.group_ttl)
            if mark.member is not None:
                members.setdefault(mark.key, ([], name.kept_ms))[0].append(mark.member)
            else:
                commit.write("SET", mark.key, mark.done, *(() if name.kept_ms is None else ("PX", name.kept_ms)))
        for key, (values, kept_ms) in members.items():
            commit.write("SADD", key, *values)
            if kept_ms is not None:
                commit.write("PEXPIRE", key, kept_ms)

    def _write_stored(
        self,
        commit: Commit,
        entry: Entry,
        result: Publishing,
        view: View,
        payload: bytes | None,
        taken_by: str,
    ) -> list[str]:
        """Puts what waits, and removes what has ended. The webhook-ids that were asked for, in their order."""
        asked = []
        present = view.entries.get(entry.id)
        for each in entry.deliveries:
            before = present.delivery_to(each.destination) if present else None
            was_stored = before is not None and before.status is DeliveryStatus.WAITING
            waits = each.status is DeliveryStatus.WAITING
            is_taken = each in result.entry.deliveries  # else Redis keeps what it has
            if not is_taken or not (waits or was_stored) or not each.webhook_id:
                continue
            key, due = f"delivery:{each.webhook_id}", f"due:{each.destination}"
            if taken_by and each.status is not DeliveryStatus.DELIVERED:
                commit.require("owner", key, taken_by, True)
            is_there = view.stored.get(each.webhook_id, was_stored)
            asked.append(each.webhook_id)
            commit.require("exists", key, "", is_there)
            if waits and not taken_by and (is_there or payload is None):
                continue  # put only if it is not there (rule 17), and by who has the payload
            if waits:
                data = f"[{to_json(each.destination)},{encode(entry)}]"
                commit.write("HSET", key, "data", data, "owner", "", "begins", 0)
                commit.write("ZADD", due, each.next_try_ms or 0, each.webhook_id)
                if not is_there and payload is not None:
                    commit.write("SADD", "due", each.destination)
                    commit.write("SET", f"payload:{each.webhook_id}", payload)
                    commit.write("HINCRBY", "room", each.destination, len(payload))
                    commit.write("HSET", key, "size", len(payload))
            elif is_there:
                commit.write("END", key, each.destination)
                commit.write("ZREM", due, each.webhook_id)
                if each.status is DeliveryStatus.DEAD:
                    commit.write("PEXPIRE", f"payload:{each.webhook_id}", self._options.dead_ms)
                else:
                    commit.write("DEL", f"payload:{each.webhook_id}")
        return asked

    def _is_lent(self, owner: str, entry: Entry) -> bool:
        """False once another has taken the stored delivery over: then its outcome is not this owner's to decide."""
        for each in entry.deliveries:
            if each.webhook_id and each.status in (DeliveryStatus.WAITING, DeliveryStatus.DEAD, DeliveryStatus.SKIPPED):
                key = f"{self._options.prefix}delivery:{each.webhook_id}"
                if self._ask(partial(self._client.hget, key, "owner")) not in (None, owner.encode()):
                    return False
        return True

    def _check_room(self, size: int) -> None:
        used = sum(map(int, self._ask(lambda: self._client.hvals(f"{self._options.prefix}room"))))
        if used + size > self._options.payload_bytes:
            raise NoRoom(f"payloads take {used} of {self._options.payload_bytes} bytes in Redis (PAYLOAD_MB)")

    def put_back(self, entry: Entry, owner: str, left_ms: int) -> Answer | None:
        """In a new era, a live claim of a journal becomes a hold again, never over one that is done (rule 15)."""
        labels = labels_of(entry)
        view = NOTHING
        for _ in range(MOST_ROUNDS):
            present = view.entries.get(entry.id)
            done = {each.destination for each in present.deliveries if each.status in SETTLED} if present else set()
            mine = [each for each in entry.deliveries if each.owner == owner and each.destination not in done]
            mine = [changed(each, lease_until_ms=0) for each in mine if each.status is DeliveryStatus.CLAIMED]
            if not mine:
                return None
            names = {each.destination for each in mine}
            kept = tuple(each for each in (present or entry).deliveries if each.destination not in names)
            commit = Commit(self._options.prefix)
            self._compare(commit, labels, (), view)
            commit.expect(f"e:{entry.id}", view.texts.get(entry.id, ""))
            held = changed(entry, deliveries=(*kept, *mine))
            for label, name in labels.items():
                pointer = _pointing(view.pointer(label), name, held, view.entries)
                if pointer != view.pointer(label):
                    commit.write("SET", f"n:{digest(label)}", str(pointer), "PX", self._options.entry_ms)
            commit.write("HOLD", f"e:{entry.id}", write_reference(held, left_ms), "PX", self._options.entry_ms)
            answer = self._run(commit)
            if answer.outcome == "ok":
                return answer
            view = self._view(answer, labels, (), "", entry.id)
        return None

    # Stored deliveries

    def take(self, destination: str, limit: int, era: str, owner: str, lease_ms: int) -> list[Taken]:
        """Hands out what is due there, never while the era is closed or not the journal's (rule 18)."""
        prefix = self._options.prefix
        keys = [f"{prefix}era", f"{prefix}due:{destination}"]
        _, _, *rest = self._eval(self._due_script, keys, [prefix, era, owner, lease_ms, limit])
        rows = list(zip(rest[::3], rest[1::3], rest[2::3], strict=True))
        if not rows:
            return []
        payloads = self._ask(lambda: self._client.mget([f"{prefix}payload:{row[0].decode()}" for row in rows]))
        found = []
        for (_, data, begins), payload in zip(rows, payloads, strict=True):
            to, values = json.loads(data)
            entry = decode(json.dumps(values))
            found.append(Taken(entry, to, payload, int(begins)))
        return found

    def view_gates(self, entry: Entry, destination: str) -> View:
        """What is known of the shared names of a stored delivery."""
        marks = gates_of(entry, destination)
        labels = [name.label for name in marks]
        commit = Commit(self._options.prefix)
        self._compare(commit, labels, marks, NOTHING)
        commit.expect(f"e:{entry.id}", "")  # it is there: so Redis shows it
        answer = self._run(commit)
        return NOTHING if answer.outcome == "ok" else self._view(answer, labels, marks, "", entry.id)

    def hold_gates(self, entry: Entry, destination: str, view: View) -> bool:
        """Holds the shared names of a stored delivery in one step, if nothing has changed since ``view`` (rule 27)."""
        marks, present = gates_of(entry, destination), view.entries.get(entry.id)
        labels = [name.label for name in marks]
        delivery = present.delivery_to(destination) if present else None
        if present is None or delivery is None:
            return False
        commit = Commit(self._options.prefix)
        self._compare(commit, labels, marks, view)
        commit.expect(f"e:{entry.id}", view.texts[entry.id])
        for label in labels:
            pointer = Pointer(view.pointer(label).reset, (entry.id,))
            commit.write("SET", f"n:{digest(label)}", str(pointer))
        holding = present.with_delivery(changed(delivery, waits_for=None))
        commit.write("SET", f"e:{entry.id}", write_reference(holding), "KEEPTTL")
        return self._run(commit).outcome == "ok"

    # Resets

    def reset(self, labels: Mapping[str, Name], again: int = 0) -> tuple[int, frozenset[str]]:
        """Forgets names, given by their references: what refers to them, and their marks. The number of the reset, and
        what was kept because something of it is open (rule 21). ``again``: the number of a reset that an earlier era
        knew; names that were used since are left alone."""
        view, number = NOTHING, again
        for _ in range(MOST_ROUNDS):
            kept = {label for label in labels if self._is_open_under(label, view)}
            kept |= {label for label in labels if again and self._is_newer_under(label, view, again)}
            commit = Commit(self._options.prefix, only_open=not again)
            self._compare(commit, labels, (), view)
            number = again or max(view.now_ms * 1000, *(view.pointer(label).reset + 1 for label in labels))
            gone = [label for label in labels if label not in kept]
            for label in gone:
                self._write_reset(commit, label, labels[label], number, view)
            commit.event = to_json(["R", self._machine, number, gone]) if gone else ""
            if view is NOTHING:  # the time of the reset is Redis' own: ask for it first
                commit.require("exists", "era", "", False)
            answer = self._run(commit)
            if answer.outcome == "ok":
                return number, frozenset(kept)
            view = self._view(answer, labels, (), "")
        raise NotNow("the names changed while they were reset")

    def _is_newer_under(self, label: str, view: View, number: int) -> bool:
        pointer = view.pointer(label)
        entries = (view.entries[each] for each in pointer.ids if each in view.entries)
        return pointer.reset >= number or any(entry.reset >= number for entry in entries)

    def _is_open_under(self, label: str, view: View) -> bool:
        entries = (view.entries[each] for each in view.pointer(label).ids if each in view.entries)
        return any(
            each.status is DeliveryStatus.WAITING
            or (each.status is DeliveryStatus.CLAIMED and each.lease_until_ms > view.now_ms)
            for entry in entries
            for each in entry.deliveries
        )

    def _write_reset(self, commit: Commit, label: str, name: Name, number: int, view: View) -> None:
        if name.is_own:  # of a group, the group alone is freed
            for each in view.pointer(label).ids:
                commit.write("DEL", f"e:{each}")
        commit.write("SET", f"n:{digest(label)}", str(Pointer(number)), "PX", self._options.entry_ms)
        mark = mark_of(name, self._options.group_ttl)
        if mark.member is None:
            commit.write("DEL", mark.key)
        else:
            commit.write("SREM", mark.key, mark.member)

    # The stream and the members

    def probe(self, extend_ms: int = 0) -> Answer:
        """The real script, with nothing to do: the era, and whether Redis takes writes (rule 8)."""
        commit = Commit(self._options.prefix)
        if extend_ms:
            commit.write("EXTEND", "era", extend_ms)
        commit.write("SET", "probe", self._machine, "PX", 60_000)
        return self._run(commit)

    def announce(self, event: Sequence[Any]) -> Answer:
        commit = Commit(self._options.prefix)
        commit.event = to_json(event)
        return self._run(commit)

    def read_events(self, position: str, count: int, block_ms: int) -> list[tuple[str, bytes]]:
        stream = f"{self._options.prefix}events"
        found = self._ask(lambda: self._client.xread({stream: position}, count=count, block=block_ms or None))
        return [(id_.decode(), fields[b"e"]) for _, rows in found for id_, fields in rows]

    def first_event(self) -> str:
        """The position of the oldest event that is left, "" if there is none."""
        found = self._ask(lambda: self._client.xrange(f"{self._options.prefix}events", count=1))
        return found[0][0].decode() if found else ""

    def trim(self, oldest_ms: int, most_bytes: int) -> None:
        """Ends events that are too old, and the oldest where the stream takes more than it may (rule 11)."""
        stream = f"{self._options.prefix}events"
        self._ask(lambda: self._client.xtrim(stream, minid=oldest_ms, approximate=True))
        used = self._ask(lambda: self._client.memory_usage(stream)) or 0
        if used > most_bytes:
            length = self._ask(lambda: self._client.xlen(stream))
            self._ask(lambda: self._client.xtrim(stream, maxlen=length * most_bytes // used, approximate=True))

    def beat(self, state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Says that this machine lives; all members, by their names (rule 12)."""
        key = f"{self._options.prefix}members"

        def ask() -> dict[bytes, bytes]:
            pipe = self._client.pipeline(transaction=False)
            pipe.hset(key, self._machine, to_json(state))
            pipe.hgetall(key)
            return pipe.execute()[1]  # type: ignore[no-any-return]

        return {name.decode(): json.loads(text) for name, text in self._ask(ask).items()}

    def notes(self) -> dict[str, tuple[int, str]]:
        """As Step.notes, of the whole fleet."""
        found = self._ask(lambda: self._client.hgetall(f"{self._options.prefix}notes"))
        parted = {key.decode(): text.decode().partition(" ") for key, text in found.items()}
        return {key: (int(at_ms), value) for key, (at_ms, _, value) in parted.items()}

    def put_note(self, key: str, at_ms: int, value: str) -> None:
        self._ask(lambda: self._client.hset(f"{self._options.prefix}notes", key, f"{at_ms} {value}"))

    def strike(self, machines: Iterable[str]) -> None:
        for machine in machines:
            self._ask(partial(self._client.hdel, f"{self._options.prefix}members", machine))

    def outdated(self, entries: Sequence[Entry]) -> list[Entry]:
        """Those of these entries that Redis does not know, or knows in another state."""
        if not entries:
            return []
        known = self._ask(lambda: self._client.mget([f"{self._options.prefix}e:{each.id}" for each in entries]))
        given = zip(entries, known, strict=True)
        return [each for each, text in given if text is None or text.decode() != write_reference(each)]

    def set_restoring(self) -> None:
        self._ask(lambda: self._client.set(f"{self._options.prefix}restoring", self._machine, px=5_000))

    def put_marks(self, names: Iterable[Name]) -> Answer:
        commit = Commit(self._options.prefix)
        self._write_marks(commit, names)
        return self._run(commit)

    # Asking

    def _view(
        self,
        answer: Answer,
        labels: Iterable[str],
        marks: Iterable[Name],
        proof: str,
        entry_id: str = "",
        stored: Sequence[str] = (),
    ) -> View:
        values, found, references = answer.rest
        shown = [value.decode() for value in values]
        names = list(labels)
        texts = {id_.decode(): text.decode() for id_, text in zip(references[::2], references[1::2], strict=True)}
        rest = shown[len(names) :]
        proven = rest.pop(0) if proof else ""
        if entry_id and rest and rest[0]:
            texts[entry_id] = rest[0]
        marked = list(marks)
        conditions = [each == b"1" for each in found]
        return View(
            pointers={name: Pointer.parse(text) for name, text in zip(names, shown, strict=False)},
            marked=dict(zip(marked, conditions, strict=False)),
            entries={id_: read_reference(id_, text) for id_, text in texts.items()},
            texts=texts,
            stored=dict(zip(stored, conditions[-len(stored) :], strict=True)) if stored else {},
            proven=proven,
            now_ms=answer.now_ms,
        )

    def _run(self, commit: Commit) -> Answer:
        keys, arguments = commit.arguments(secrets.token_hex(6), self._options.hold_ms)
        outcome, era, closed_ms, now_us, *rest = self._eval(self._commit_script, keys, arguments)
        answer = Answer(outcome.decode(), era.decode(), int(closed_ms), int(now_us), rest)
        self._offset_ms = answer.now_ms - self._clock.steady_ms()
        if answer.outcome in ("closed", "late"):
            raise NotNow(f"Redis grants nothing now: {answer.outcome}")
        return answer

    def _eval(self, script: _Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        def ask() -> Any:
            try:
                return self._client.evalsha(script.sha, len(keys), *keys, *arguments)
            except redis.exceptions.NoScriptError:
                return self._client.eval(script.text, len(keys), *keys, *arguments)

        return self._ask(ask)

    def _ask(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except redis.exceptions.RedisError as error:
            raise translated(error) from error


class _Script:
    def __init__(self, name: str) -> None:
        self.text = resources.files(__package__).joinpath(name).read_text()
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


def translated(error: redis.exceptions.RedisError) -> DeduplicationError:
    """What counts as "gone" (rule 8); everything else is a wrong setting or a bug, and loud."""
    if isinstance(error, redis.exceptions.AuthenticationError):
        return StoreMisconfigured(f"Redis refused the credentials: {error}")
    if isinstance(error, redis.exceptions.ConnectionError | redis.exceptions.TimeoutError):
        return NoAnswer(f"Redis does not answer: {type(error).__name__}")
    text = str(error)
    if text.startswith(_GONE) or any(f" -{word}" in text or f": {word} " in text for word in _GONE):
        return NoAnswer(f"Redis cannot be used now: {text.split()[0]}")
    return StoreMisconfigured(f"Redis refused a command: {text}")


def labels_of(entry: Entry) -> dict[str, Name]:
    """References of the entry's names; an undated id counts only beside a known text (rule 23)."""
    has_text = entry.fingerprint[:1] not in ("", "-")
    return {reference(name, entry.fingerprint): name for name in entry.names if has_text or not name.needs_agreement}


def _is_first_put(entry: Entry) -> bool:
    return any(each.status is DeliveryStatus.WAITING and not each.is_accepted for each in entry.deliveries)


def _waits(entry: Entry) -> bool:
    return any(each.status is DeliveryStatus.WAITING for each in entry.deliveries)


def _is_same(other: Entry, entry: Entry, view: View) -> bool:
    """Another entry of the same email: under one of its own names, with a fingerprint that does not conflict."""
    under = any(name.is_own and other.id in view.pointer(label).ids for label, name in labels_of(entry).items())
    return under and not conflicts(Fingerprint.parse(other.fingerprint), Fingerprint.parse(entry.fingerprint))


def _pointing(pointer: Pointer, name: Name, entry: Entry, entries: Mapping[str, Entry]) -> Pointer:
    """The name with a reference to this entry, if it is to have one."""
    others = tuple(each for each in pointer.ids if each != entry.id)
    if name.is_own or name.kind is Kind.LOCK:
        ids = (*others, entry.id)
        if len(ids) > MOST_REFERENCES:  # the oldest goes, those delivered last
            spare = next((each for each in ids if not _is_delivered(entries.get(each))), ids[0])
            ids = tuple(each for each in ids if each != spare)
        return Pointer(pointer.reset, ids)
    if name in entry.names and (name in marked_names(entry) or holds(entry, name)):
        return Pointer(pointer.reset, (entry.id,))
    return Pointer(pointer.reset, others)


def _is_delivered(entry: Entry | None) -> bool:
    return entry is not None and entry.is_delivered_somewhere
