"""What the fleet shares in Redis: names, stored deliveries, and the stream of events.

Every step is one call of a script that compares and writes (commit.lua). A step is composed from a View of what is in
Redis, which is empty at first. If Redis has something else, it returns that, and the step is composed again. rules.py
decides what an item means. Numbers refer to the rules of docs/architecture.md.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib import resources
from typing import Any, TypeVar

import msgpack
import redis
from msgspec import MsgspecError, Struct, json
from msgspec.structs import replace

from deduplication.clock import Clock
from deduplication.errors import DeduplicationError, NoAnswer, StoreUnavailable
from deduplication.journal import rules
from deduplication.journal.entry import (
    SETTLED,
    SOME_NAME,
    Delivery,
    DeliveryStatus,
    Entry,
    Stop,
    decode,
    encode,
    pack_event,
    read_event,
    without_local_fields,
)
from deduplication.journal.rules import Claim, Judgement, Known, NameState, Take, identity, references
from deduplication.marks import HAS_PENDING, mark_of
from deduplication.names import WEEK_MS, Kind, Name
from deduplication.redis_client import REDIS_ERRORS, exchange, translated
from deduplication.redis_state import RedisState

log = logging.getLogger(__name__)

MOST_ROUNDS = 6  # of compare-and-write for one step; in each but the last, another process was faster
_LETTERS = dict(zip(DeliveryStatus, "crwxds", strict=True))
_OF_LETTER = {letter: status for status, letter in _LETTERS.items()}
_NEW_LEASE = "\x01"
SCRIPT = resources.files(__package__).joinpath("commit.lua").read_text()
# The oldest event, and those after a position: read at one moment, so that a machine notices events that it missed.
_READ = """return {redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1),
    redis.call('XREAD', 'COUNT', ARGV[2], 'STREAMS', KEYS[1], ARGV[1])}"""

Result = TypeVar("Result")


# How names and references are written


@lru_cache(maxsize=512)
def pointer_key(label: str) -> str:
    return f"n:{hashlib.blake2b(label.encode(), digest_size=10).hexdigest()}"


class Pointer(Struct, frozen=True):
    """The value of a name: the number of its latest reset, and the ids of its entries, oldest first."""

    reset: int = 0
    ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.reset or ''}|{','.join(self.ids)}" if self.reset or self.ids else ""


NO_POINTER = Pointer()


def write_reference(entry: Entry, lease_ms: int = 0) -> str:
    """What Redis keeps of an entry. Redis gives claims without a lease one of ``lease_ms`` (commit.lua)."""
    deliveries = []
    for delivery in entry.deliveries:
        is_claimed = delivery.status is DeliveryStatus.CLAIMED
        owner, until_ms = (delivery.owner, delivery.lease_until_ms or _NEW_LEASE) if is_claimed else ("", 0)
        waits = int(delivery.waits_for is not None)
        values = [delivery.destination, _LETTERS[delivery.status], owner, until_ms, delivery.generation, waits]
        while not values[-1]:  # thousands are kept, most of them delivered: empty values at the end are left out
            values.pop()
        deliveries.append(values)
    head = [entry.machine, entry.created_ms, entry.fingerprint, entry.reset, entry.answer, deliveries]
    retries = [] if entry.retries_left is None else [entry.retries_left]
    return json.encode([*head, *retries]).decode().replace('"\\u0001"', f"{_NEW_LEASE}{lease_ms}")


@lru_cache(maxsize=128)
def read_reference(entry_id: str, text: str) -> Entry:
    machine, created_ms, fingerprint, reset, answer, rows, *retries = json.decode(text)
    deliveries = tuple(_read_delivery(*row) for row in rows)
    known = {"deliveries": deliveries, "answer": answer, "retries_left": next(iter(retries), None)}
    return replace(Entry(entry_id, machine, (), created_ms, fingerprint, reset), **known)


def _read_delivery(
    destination: str, letter: str, owner: str = "", until_ms: int = 0, generation: int = 0, waits: int = 0
) -> Delivery:
    held = {"owner": owner, "lease_until_ms": until_ms, "waits_for": SOME_NAME if waits else None}
    return replace(Delivery(destination, "", _OF_LETTER[letter], generation), **held)


def labels_of(entry: Entry) -> dict[str, Name]:
    """The references of the entry's names."""
    names = (*identity(entry.own, entry.fingerprint), *entry.names[len(entry.own) :])
    return references(names, entry.fingerprint)


def _first_puts(entry: Entry) -> tuple[Delivery, ...]:
    """Deliveries to be stored that Redis has not accepted yet."""
    return tuple(delivery for delivery in entry.deliveries_with(DeliveryStatus.WAITING) if not delivery.is_accepted)


# A step, and what Redis returned


class View(Struct, frozen=True):
    """What is in Redis: values by key, and answers to questions. Whatever was not asked for counts as absent.

    ``labels`` are the names that a hold has taken, by their references.
    """

    values: Mapping[str, str] = {}
    answers: Mapping[tuple[str, str, str], bool] = {}
    now_ms: int = 0
    labels: Mapping[str, Name] = {}

    def entry(self, entry_id: str) -> Entry | None:
        text = self.values.get(f"e:{entry_id}")
        return read_reference(entry_id, text) if text else None

    def under(self, pointer: Pointer) -> tuple[Entry, ...]:
        found = (self.entry(id_) for id_ in pointer.ids)
        return tuple(entry for entry in found if entry)


NOTHING, UNKNOWN = View(), Known()
Lender = tuple[str, str]
NOT_LENT: Lender = ("", "")


class Answer(Struct, frozen=True):
    """The answer of the script: its outcome, the era, for how long that is closed, and Redis' time."""

    outcome: str
    era: str
    closed_ms: int
    now_ms: int
    rest: Sequence[Any] = ()


@dataclass
class Commit:
    """One call of commit.lua: what must still be as in ``view``, what is written, and the event.

    ``is_needed`` is False if the view alone decides and nothing is written. ``only_open``: not while a new era is
    closed; ``before_ms``: nor later than that (0: at any time); ``era``: only in that one.
    """

    view: View = NOTHING
    is_needed: bool = True
    only_open: bool = False
    before_ms: int = 0
    era: str = ""
    event: str | bytes = ""
    _names: dict[str, str] = field(default_factory=dict)
    _questions: dict[tuple[str, str, str], bool] = field(default_factory=dict)
    _writes: list[tuple[Any, ...]] = field(default_factory=list)

    def value(self, key: str) -> str:
        return self._names.setdefault(key, self.view.values.get(key, ""))

    def pointer(self, label: str) -> Pointer:
        reset, _, ids = self.value(pointer_key(label)).partition("|")
        return Pointer(int(reset or 0), tuple(filter(None, ids.split(","))))

    def under(self, pointer: Pointer) -> tuple[Entry, ...]:
        """The entries that a name refers to. The step is composed again if one of them has changed, as two machines may
        join the same returned entry."""
        for id_ in pointer.ids:
            self.value(f"e:{id_}")
        return self.view.under(pointer)

    def ask(self, how: str, key: str, argument: str = "") -> bool:
        question = (how, key, argument)
        return self._questions.setdefault(question, self.view.answers.get(question, False))

    def write(self, command: str, key: str, *arguments: str | bytes | int) -> None:
        self._writes.append((command, key, *arguments))

    def arguments(self, prefix: str, head: Sequence[Any]) -> tuple[list[str], bytes]:
        """For commit.lua: the keys, and the rest packed. Redis reads one argument faster than sixty."""
        keys = [f"{prefix}era", f"{prefix}events", *(f"{prefix}{key}" for key in self._names)]
        places = {key: place for place, key in enumerate(keys, 1)}
        conditions = [
            (how, places.setdefault(f"{prefix}{key}", len(places) + 1), argument, expected)
            for (how, key, argument), expected in self._questions.items()
        ]
        writes = [
            (command, places.setdefault(f"{prefix}{key}", len(places) + 1), *arguments)
            for command, key, *arguments in self._writes
        ]
        when = (self.only_open, self.before_ms, self.era)
        step = (prefix, *head, *when, self.event, list(self._names.values()), conditions, writes)
        # Bytes are packed as text, because the library inside Redis has no type for bytes.
        return list(places), msgpack.packb(step, use_bin_type=False)

    def view_after(self, answer: Answer) -> View:
        """What Redis returned in place of what was expected."""
        shown, found, references = answer.rest
        values = {
            f"e:{id_.decode()}": text.decode() for id_, text in zip(references[::2], references[1::2], strict=True)
        }
        values |= {key: text.decode() for key, text in zip(self._names, shown, strict=True)}
        answers = {question: value == b"1" for question, value in zip(self._questions, found, strict=True)}
        return View(values, answers, answer.now_ms, self.view.labels)


class Held(Struct, frozen=True):
    """Names that the fleet has granted: the entry as Redis has it now, and what publishing expects to find there."""

    entry: Entry
    take: Take
    era: str
    view: View


class Published(Struct, frozen=True):
    """``is_reset``: its names have been reset, so the entry must be dropped. ``refused``: why it was not stored, by
    destination (rule 17)."""

    era: str
    refused: Mapping[str, str] = {}
    is_reset: bool = False


class RegistryOptions(Struct, frozen=True):
    """``hold_within_ms``: how long a hold may take to reach Redis. ``hold_ms``: how long a new era is closed (HOLD).
    ``payload_bytes`` None: a quarter of Redis' maxmemory, or 1 GB (PAYLOAD_MB)."""

    prefix: str = ""
    group_ttl: bool = False
    entry_ms: int = WEEK_MS
    hold_within_ms: int = 2_000
    hold_ms: int = 6_000
    payload_bytes: int | None = None


class Registry:
    """``connect`` makes a client that never retries, does not decode, and waits that many seconds longer, for large
    payloads (rule 19). It is first called with the first question, as connecting to a Cluster fails if that is down.
    Raises StoreUnavailable or StoreMisconfigured.

    With a ``state``, which its coordinator sets, it asks only while Redis is up, and raises what that says in place of
    NoAnswer (rule 8). Only a probe always asks.
    """

    def __init__(
        self, connect: Callable[[int], redis.Redis], machine: str, clock: Clock, options: RegistryOptions
    ) -> None:
        self._connect = connect
        self._clients: dict[int, redis.Redis] = {}
        self._machine = machine
        self._clock = clock
        self.options = options
        self._prefix = options.prefix
        self._kept = ("PX", options.entry_ms)
        self._script = SCRIPT
        self._script_id = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()
        self._head = (secrets.token_hex(6), options.hold_ms)
        self.state: RedisState | None = None
        self._offset_ms: int | None = None  # Redis' time less the one here that cannot be set, as of the last answer

    def close(self) -> None:
        for client in tuple(self._clients.values()):
            client.close()

    def _client(self, more_s: int = 0) -> redis.Redis:
        if more_s not in self._clients:
            self._clients[more_s] = self._connect(more_s)
        return self._clients[more_s]

    # Names

    def hold(self, claim: Claim, here: Known, *, is_behind: bool = False) -> Held | Judgement:
        """Asks for the names of a claim (rule 2). ``here`` is what the journal knows. A machine that ``is_behind`` gets
        no hold while another one restores the memory of Redis (rule 15)."""
        now_ms = self._clock.now_ms()
        before_ms = 0
        if self._offset_ms is not None:
            before_ms = self._clock.steady_ms() + self._offset_ms + self.options.hold_within_ms
        values: dict[str, str] = {}  # what Redis has once the hold is granted

        def compose(commit: Commit) -> tuple[Entry, Take] | Judgement:
            values.clear()
            commit.only_open, commit.before_ms = True, before_ms
            if is_behind and commit.ask("exists", "restoring"):
                raise StoreUnavailable("Redis is being refilled by another machine")
            proven = commit.value(f"proof:{claim.proof}") if claim.proof else ""
            known = Known(self._states(commit, claim.references, here), commit.view.now_ms, proven)
            found = rules.judge(claim, known)
            if not isinstance(found, Take):
                commit.is_needed = False
                return found
            entry = rules.claim_entry(claim, found, self._machine, now_ms, known.reset)
            for label, name in claim.references.items():
                pointer = values[pointer_key(label)] = self._point(commit, label, name, entry, self._kept)
                if name.kind in HAS_PENDING and not known.of(name).is_marked and entry.id in pointer:
                    mark = mark_of(name, self.options.group_ttl)
                    commit.write("SET", mark.key, mark.pending or "", "PX", claim.lease_ms)
            text = values[f"e:{entry.id}"] = write_reference(entry, claim.lease_ms)
            commit.write("HOLD", f"e:{entry.id}", text, *self._kept)
            if claim.proof and proven != claim.key:
                commit.write("SET", f"proof:{claim.proof}", rules.HELD + claim.key, "PX", claim.lease_ms)
            return entry, found

        result, answer = self.agree(compose)
        if not isinstance(result, tuple) or answer is None:
            return result  # type: ignore[return-value]
        entry, take = result
        lease = str(answer.now_ms + claim.lease_ms)  # as commit.lua wrote it
        values[f"e:{entry.id}"] = values[f"e:{entry.id}"].replace(f"{_NEW_LEASE}{claim.lease_ms}", lease)
        return Held(entry, take, answer.era, View(values, {}, answer.now_ms, claim.references))

    def use_proof(self, proof: str, key: str) -> bool:
        """False if the proof was used, or is in use, with another email (rule 28)."""

        def compose(commit: Commit) -> bool:
            is_free = commit.value(f"proof:{proof}").removeprefix(rules.HELD) in ("", key)
            commit.is_needed = is_free
            commit.write("SET", f"proof:{proof}", key, "PX", WEEK_MS)
            return is_free

        return self.agree(compose)[0]

    def known(self, names: Iterable[Name]) -> Known:
        """What Redis knows of names whose references are their labels."""
        labels = {name.label: name for name in names}
        return self.agree(lambda commit: Known(self._states(commit, labels), commit.view.now_ms))[0]

    def _states(self, commit: Commit, labels: Mapping[str, Name], here: Known = UNKNOWN) -> dict[str, NameState]:
        """What the view shows of these names, as conditions of the step. The mark of an undated id does not count."""
        states = {}
        for label, name in labels.items():
            pointer, is_marked = commit.pointer(label), False
            if not name.needs_agreement:
                mark = mark_of(name, self.options.group_ttl)
                how, value = ("value", mark.done) if mark.member is None else ("member", mark.member)
                is_marked = commit.ask(how, mark.key, value)
            if is_marked or pointer != NO_POINTER:
                entries, mine = commit.under(pointer), here.of(name)
                # A known email with this name explains the mark, and was compared on its own (25).
                is_foreign = is_marked and (mine.is_foreign or not (entries or mine.entries or mine.ended))
                states[name.label] = NameState(is_marked, entries, (), is_foreign, pointer.reset)
        return states

    def _point(
        self,
        commit: Commit,
        label: str,
        name: Name,
        entry: Entry,
        kept: Sequence[str | int],
        is_rewritten: bool = False,
    ) -> str:
        """Makes a name refer to this entry, or stop doing so. Returns the new value of the name."""
        before = commit.pointer(label)
        ids = tuple(id_ for id_ in before.ids if id_ != entry.id)
        if name.is_own:
            ids = (*ids, entry.id)
            if len(ids) > rules.MOST_REFERENCES:
                others = [other for other in commit.view.under(before) if other.id != entry.id]
                ids = rules.ids_to_compare((*others, entry)) if others else ids  # the view of a hold has none
        elif name in entry.names and (name in rules.names_to_mark(entry) or rules.holds(entry, name)):
            ids = (entry.id,)
        after = Pointer(before.reset, ids)
        if after == NO_POINTER:
            commit.write("DEL", pointer_key(label))
        elif is_rewritten or after != before:
            commit.write("SET", pointer_key(label), str(after), *kept)
        return str(after)

    def release(self, labels: Mapping[str, Name], owner: str) -> None:
        """Ends a hold that is not used, or whose answer was lost: only this owner's claims under these references (rule
        2)."""

        def compose(commit: Commit) -> None:
            entries = {name: commit.under(commit.pointer(label)) for label, name in labels.items()}
            under = [(name, entry) for name, found in entries.items() for entry in found]
            held = {entry.id: entry for _, entry in under if owner in {other.owner for other in entry.deliveries}}
            commit.is_needed = bool(held) or commit.view is NOTHING
            for entry in held.values():
                commit.value(f"e:{entry.id}")
                left = tuple(delivery for delivery in entry.deliveries if delivery.owner != owner)
                if left:
                    commit.write("SET", f"e:{entry.id}", write_reference(replace(entry, deliveries=left)), "KEEPTTL")
                else:
                    commit.write("DEL", f"e:{entry.id}")  # pointers to missing entries are ignored
            for name, entry in under:
                if name.kind in HAS_PENDING and entry.id in held:
                    mark = mark_of(name, self.options.group_ttl)
                    commit.write("DELEQ", mark.key, mark.pending or "")

        self.agree(compose)

    def put_back(self, entry: Entry, owner: str, left_ms: int) -> None:
        """Makes a live claim of a journal a hold again in a new era, except where the delivery is settled (rule 15)."""

        def compose(commit: Commit) -> None:
            text = commit.value(f"e:{entry.id}")
            present = read_reference(entry.id, text) if text else entry.without_claims()
            deliveries = present.by_destination
            commit.is_needed = False
            for delivery in entry.deliveries_with(DeliveryStatus.CLAIMED):
                before = deliveries.get(delivery.destination)
                if delivery.owner == owner and not (before and before.status in SETTLED):
                    deliveries[delivery.destination] = replace(delivery, lease_until_ms=0)
                    commit.is_needed = True
            held = replace(entry, deliveries=tuple(deliveries.values()))
            for label, name in labels_of(entry).items():
                self._point(commit, label, name, held, self._kept)
            commit.write("HOLD", f"e:{entry.id}", write_reference(held, left_ms), *self._kept)

        self.agree(compose)

    # Outcomes

    def publish(self, outcomes: Sequence[tuple[Entry, View, bytes | None]], lent: Lender = NOT_LENT) -> list[Published]:
        """Publishes outcomes and stores waiting deliveries with their payloads, in one round trip (rules 9 and 17).
        Repeating it does no harm.

        Each view, from the hold, says what is expected in Redis. ``lent``: owner and destination of a stored delivery.
        """
        steps = [
            (partial(self._compose_outcome, entry=entry, payload=payload, lent=lent), Commit(view))
            for entry, view, payload in outcomes
        ]
        results = [compose(commit) for compose, commit in steps]
        answers = iter(self.run(*(commit for _, commit in steps if commit.is_needed)))
        published = []
        for (entry, _, _), (compose, commit), result in zip(outcomes, steps, results, strict=True):
            answer = next(answers) if commit.is_needed else None
            if answer and answer.outcome == "differs":  # one by one, as several entries may have the same names
                result, answer = self.agree(compose, commit.view_after(answer))
            if answer and answer.outcome == "closed":  # nothing is stored now, but facts are accepted (rule 13)
                put = _first_puts(entry)
                known = tuple(delivery for delivery in entry.deliveries if delivery not in put)
                if known:
                    self.publish([(replace(entry, deliveries=known), NOTHING, None)])
                result = Published("", dict.fromkeys((delivery.destination for delivery in put), "held"))
            published.append(replace(result, era=answer.era) if answer else result)
        return published

    def _compose_outcome(
        self, commit: Commit, entry: Entry, payload: bytes | None = None, lent: Lender = NOT_LENT
    ) -> Published:
        """Writes the reference, the pointers to it, the marks, stored deliveries, and the event."""
        commit.only_open = bool(_first_puts(entry))
        labels = {**commit.view.labels, **labels_of(entry)}
        text = commit.value(f"e:{entry.id}")
        pointers = {label: commit.pointer(label) for label in labels}
        for label, pointer in pointers.items():
            if pointer.reset > entry.reset and labels[label].is_own:
                commit.is_needed = False
                return Published("", is_reset=True)
            if pointer.reset > entry.reset and entry.id not in pointer.ids:  # otherwise it took the name after that
                entry = rules.without_name(entry, labels[label])
        states = {
            name.label: NameState(entries=commit.under(pointers[label]))
            for label, name in labels.items()
            if pointers[label].ids not in ((), (entry.id,))
        }
        same = rules.same_items(entry.own, entry.fingerprint, Known(states)) if states else ()
        others = [other for other in same if other.id != entry.id]
        present = commit.view.entry(entry.id)
        result, refused = rules.merge_in_redis(entry, present, others, self._machine, commit.view.now_ms)
        after = write_reference(result)
        waits = DeliveryStatus.WAITING in result.statuses
        waited = present is not None and DeliveryStatus.WAITING in present.statuses
        kept = () if waits else self._kept  # a waiting delivery is kept until it ends
        # Another request has claimed or stored the entry since: the names that it holds are not ours to free.
        newer = [delivery for delivery in result.deliveries if delivery not in entry.deliveries]
        is_held_again = any(delivery.is_busy(commit.view.now_ms) for delivery in newer)
        commit.write("SET", f"e:{entry.id}", after, *kept)
        for label, name in labels.items():
            if not name.is_own and is_held_again and name not in result.names:
                continue
            if waits != waited or not name.is_own or pointers[label].ids != (entry.id,):  # otherwise it has not changed
                self._point(commit, label, name, result, kept, waits != waited)
        self._write_marks(commit, rules.names_to_mark(result))
        if not is_held_again:
            self._end_pending(commit, result, labels, pointers)
        if entry.proof and entry.statuses & SETTLED:
            proof, _, key = entry.proof.partition("=")
            commit.write("SET", f"proof:{proof}", key, "PX", WEEK_MS)
        is_stored = self._write_stored(commit, entry, result, payload, lent)
        if is_stored is None:
            commit.is_needed = False
            return Published("", dict.fromkeys((delivery.destination for delivery in entry.deliveries), "lent"))
        # No event if nothing changes; refused deliveries are not published.
        if is_stored or after != text or entry.is_evicted:
            kept_here = tuple(delivery for delivery in entry.deliveries if delivery.destination not in refused)
            commit.event = pack_event("E", self._machine, replace(entry, deliveries=kept_here))
        return Published("", refused)

    def _end_pending(
        self, commit: Commit, entry: Entry, labels: Mapping[str, Name], pointers: Mapping[str, Pointer]
    ) -> None:
        """Removes the visible "pending" of names that this entry held and has not marked."""
        marked = rules.names_to_mark(entry)
        for label, name in labels.items():
            if name.kind not in HAS_PENDING or name in marked:
                continue
            mark = mark_of(name, self.options.group_ttl)
            if name.kind is Kind.POST and entry.retries_left:
                commit.write("SET", mark.key, entry.retries_left, "PX", name.kept_ms or WEEK_MS)
            elif entry.id in pointers[label].ids:
                commit.write("DELEQ", mark.key, mark.pending or "")

    def _write_marks(self, commit: Commit, names: Iterable[Name], *how: str) -> None:
        members: dict[tuple[str, int | None], list[str]] = {}
        for name in names:
            mark = mark_of(name, self.options.group_ttl)
            if mark.member is None:
                kept = () if name.kept_ms is None else ("PX", name.kept_ms)
                commit.write("SET", mark.key, mark.done, *kept, *how)
            else:
                members.setdefault((mark.key, name.kept_ms), []).append(mark.member)
            if name.kind is Kind.SUBJECT_GROUP and mark.member is None:  # with a TTL, the Set is only history
                history = mark_of(name, group_ttl=False)
                members.setdefault((history.key, None), []).append(history.member or "")
        for (key, kept_ms), values in members.items():
            commit.write("SADD", key, *values)
            if kept_ms is not None:
                commit.write("PEXPIRE", key, kept_ms)

    def announce(self, event: Sequence[Any] = (), marks: Iterable[Name] = ()) -> None:
        """Adds an event, and writes marks that belong to no entry. Existing marks are not changed."""
        commit = Commit()
        self._write_marks(commit, marks, "NX")
        commit.event = pack_event(*event) if event else ""
        self.run(commit)

    # Stored deliveries

    def _write_stored(
        self, commit: Commit, entry: Entry, result: Entry, payload: bytes | None, lent: Lender
    ) -> bool | None:
        """Stores waiting deliveries and removes ended ones. Returns whether there were any, or None if the owner of a
        lent delivery has lost it."""
        present, is_asked = commit.view.entry(entry.id), False
        taken_by, destination = lent
        for delivery in entry.deliveries:
            if taken_by and delivery.destination != destination:
                continue  # not taken by this owner
            before = present.delivery_to(delivery.destination) if present else None
            was_stored = before is not None and before.status is DeliveryStatus.WAITING
            waits = delivery.status is DeliveryStatus.WAITING
            if delivery not in result.deliveries or not (waits or was_stored) or not delivery.webhook_id:
                continue  # nothing to change in Redis
            key, due = f"delivery:{delivery.webhook_id}", f"due:{delivery.destination}"
            is_there, is_asked = commit.ask("exists", key), True
            is_decision = taken_by and delivery.status is not DeliveryStatus.DELIVERED
            if is_decision and not commit.ask("owner", key, taken_by) and is_there:
                return None
            if waits and not taken_by and (is_there or payload is None):
                continue  # put only if absent (rule 17), and only with the payload
            if waits:
                commit.write("HSET", key, "data", encode(without_local_fields(entry)), "owner", "", "begins", 0)
                commit.write("ZADD", due, delivery.next_try_ms or 0, delivery.webhook_id)
                if not is_there and payload is not None:
                    commit.write("SADD", "due", delivery.destination)
                    commit.write("DROP", "dead", delivery.webhook_id)
                    commit.write("SET", f"payload:{delivery.webhook_id}", payload)
                    commit.write("HINCRBY", "room", delivery.destination, len(payload))
                    commit.write("HSET", key, "size", len(payload))
            elif is_there:
                commit.write("END", key, delivery.destination)
                commit.write("ZREM", due, delivery.webhook_id)
                if delivery.status is DeliveryStatus.DEAD:
                    commit.write("BURY", "dead", delivery.webhook_id)
                else:
                    commit.write("DEL", f"payload:{delivery.webhook_id}")
        return is_asked

    def take(
        self, destination: str, limit: int, era: str, owner: str, lease_ms: int
    ) -> list[tuple[Entry, bytes | None, View]]:
        """Takes due deliveries, unless the era is closed or not the journal's (rule 18). Returns for each the entry,
        which counts the attempt that begins now, the payload, and what publishing expects."""
        commit, taken = Commit(only_open=True, era=era or "-"), []
        commit.write("TAKE", f"due:{destination}", destination, owner, lease_ms, limit)
        (answer,) = self.run(commit)
        rest = answer.rest[0] if answer.outcome == "ok" else []
        for webhook_id, data, begins in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
            try:
                entry = decode(data)
                entry = entry.with_delivery(replace(entry.by_destination[destination], begins=int(begins)))
            except (MsgspecError, LookupError) as error:
                log.error("the stored delivery %s cannot be read: %s", webhook_id.decode(), error)
                continue
            names = [f"e:{entry.id}", *map(pointer_key, labels_of(entry))]
            taken.append((entry, webhook_id.decode(), names))
        keys = [f"{self._prefix}{key}" for _, id_, names in taken for key in (f"payload:{id_}", *names)]
        values = iter(self.ask(lambda client, _: client.mget(keys), always=True) if keys else [])
        found = []
        for entry, id_, names in taken:
            payload = next(values)
            shown = {key: (next(values) or b"").decode() for key in names}
            answers = {("exists", f"delivery:{id_}", ""): True, ("owner", f"delivery:{id_}", owner): True}
            found.append((entry, payload, View(shown, answers)))
        return found

    def hasten(self, destination: str, limit: int, era: str) -> int:
        """Makes waiting deliveries due now, except lent ones, and returns how many. For twelve seconds they are handed
        out at a growing pace. Raises StoreUnavailable while the era is closed or not the journal's."""
        commit = Commit(only_open=True, era=era or "-")
        commit.write("HASTEN", f"due:{destination}", destination, limit)
        (answer,) = self.run(commit)
        if answer.outcome != "ok":
            raise StoreUnavailable("Redis began a new era")
        return int(answer.rest[0])

    def hold_gates(self, entry: Entry, destination: str) -> Stop | None:
        """Holds the shared names of a stored delivery that waited for one, or returns what stops it (rule 27)."""
        names = rules.shared_names(entry, destination)

        def compose(commit: Commit) -> Stop | None:
            known = Known(self._states(commit, {name.label: name for name in names}), commit.view.now_ms)
            commit.value(f"e:{entry.id}")
            present = commit.view.entry(entry.id)
            delivery = present.delivery_to(destination) if present else None
            if commit.view is NOTHING:
                return None
            met = rules.find_stop_again(entry, destination, known)
            if met or present is None or delivery is None:
                commit.is_needed = False
                return met or Stop(names[0], is_held=True)
            for name in names:
                pointer = Pointer(known.of(name).reset, (entry.id,))
                commit.write("SET", pointer_key(name.label), str(pointer))
            holding = present.with_delivery(replace(delivery, waits_for=None))
            commit.write("SET", f"e:{entry.id}", write_reference(holding), "KEEPTTL")
            return None

        return self.agree(compose)[0]

    # Resets

    def reset(self, labels: Mapping[str, Name], again: int = 0) -> tuple[int, frozenset[str]]:
        """Forgets names, given by their references: entries and marks. Returns the number of the reset, and the
        references that were kept because a delivery is still to be made (rule 21). ``again``: the number of a reset of
        an earlier era; names that were used since then are kept."""

        def compose(commit: Commit) -> tuple[int, frozenset[str]]:
            commit.only_open = not again
            commit.ask("exists", "era")  # always true, so that Redis first returns its time, which numbers the reset
            pointers, now_ms = {label: commit.pointer(label) for label in labels}, commit.view.now_ms
            number = again or max(now_ms * 1000, *(pointer.reset + 1 for pointer in pointers.values()))
            gone = {}
            for label, pointer in pointers.items():
                entries = commit.under(pointer)
                is_busy = any(entry.is_busy(now_ms) for entry in entries)
                is_newer = again and (pointer.reset >= again or any(entry.reset >= again for entry in entries))
                if not is_busy and not is_newer:
                    gone[label] = pointer
            for label, pointer in gone.items():
                if labels[label].is_own:  # resetting a group frees only the group
                    for id_ in pointer.ids:
                        commit.write("DEL", f"e:{id_}")
                commit.write("SET", pointer_key(label), str(Pointer(number)), *self._kept)
                mark = mark_of(labels[label], self.options.group_ttl)
                commit.write("DEL", mark.key) if mark.member is None else commit.write("SREM", mark.key, mark.member)
            commit.event = pack_event("R", self._machine, number, list(gone)) if gone else ""
            return number, frozenset(labels.keys() - gone.keys())

        return self.agree(compose)[0]

    # The stream and the members

    def probe(self, extend_ms: int = 0) -> Answer:
        """Runs the real script without a task: it tells the era, and whether Redis accepts writes (rule 8). Raises
        NoAnswer."""
        commit = Commit()
        if extend_ms:
            commit.write("EXTEND", "era", extend_ms)
        commit.write("SET", "probe", self._machine, "PX", 60_000)
        return self.run(commit, always=True)[0]

    def read_events(self, position: str, count: int) -> tuple[str, list[tuple[str, Sequence[Any] | None]]]:
        """The id of the oldest event, and the events after a position."""
        oldest, found = self.ask(lambda client, prefix: client.eval(_READ, 1, f"{prefix}events", position, count))
        events = [(id_.decode(), read_event(fields[1])) for _, rows in found or () for id_, fields in rows]
        return oldest[0][0].decode() if oldest else "0", events

    def find_outdated(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries that Redis does not have, or has in another state."""
        keys = [f"{self._prefix}e:{entry.id}" for entry in entries]
        known = self.ask(lambda client, _: client.mget(keys)) if keys else []
        given = zip(entries, known, strict=True)
        return [entry for entry, text in given if text is None or text.decode() != write_reference(entry)]

    # Asking

    def agree(self, compose: Callable[[Commit], Result], view: View = NOTHING) -> tuple[Result, Answer | None]:
        """Composes and runs a step until Redis is as the step expects. There is no answer if the step was not
        needed."""
        for _ in range(MOST_ROUNDS):
            commit = Commit(view)
            result = compose(commit)
            if not commit.is_needed:
                return result, None
            (answer,) = self.run(commit)
            if answer.outcome == "ok":
                return result, answer
            if answer.outcome != "differs":
                raise StoreUnavailable(f"Redis grants nothing now: {answer.outcome}")
            view = commit.view_after(answer)
        raise StoreUnavailable("other requests for the same names were faster")

    def run(self, *commits: Commit, always: bool = False) -> list[Answer]:
        """Runs steps in one round trip; ``always``: even while Redis is suspected or gone."""
        if not commits:
            return []
        if self.state and not always:
            self.state.check()
        calls = [commit.arguments(self._prefix, self._head) for commit in commits]
        size_mb = max(len(packed) for _, packed in calls) >> 20
        try:
            client = self._client(1 << size_mb.bit_length() if size_mb else 0)  # 1 MB/s or more
            found = exchange(client, [("EVALSHA", self._script_id, len(keys), *keys, packed) for keys, packed in calls])
            for place, (keys, packed) in enumerate(calls):
                if isinstance(found[place], redis.exceptions.NoScriptError):
                    (found[place],) = exchange(client, [("EVAL", self._script, len(keys), *keys, packed)])
                if isinstance(found[place], redis.exceptions.RedisError):
                    raise found[place]
        except REDIS_ERRORS as error:
            raise self._error_of(error, always) from error
        answers = [
            Answer(outcome.decode(), era.decode(), int(closed_ms), int(now_us) // 1000, rest)
            for outcome, era, closed_ms, now_us, *rest in found
        ]
        self._offset_ms = answers[-1].now_ms - self._clock.steady_ms()
        return answers

    def ask(self, question: Callable[[Any, str], Any], *, always: bool = False) -> Any:
        """Without a script: ``question`` gets the client and the prefix of all keys."""
        if self.state and not always:
            self.state.check()
        try:
            return question(self._client(), self._prefix)
        except REDIS_ERRORS as error:
            raise self._error_of(error, always) from error

    def _error_of(self, error: Exception, always: bool) -> DeduplicationError:
        found = translated(error)
        if self.state and not always and isinstance(found, NoAnswer):
            return self.state.without_answer(found, type(error).__name__)
        return found
