"""One machine's part in the protocol: look, hold, claim, settle, publish. docs/architecture.md has the rules by number.

The journal of this machine and, if there is a REDIS_URL, the registry are asked in that order. While Redis is gone, the
journal decides by what the whole fleet had published.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from deduplication.claims import WEEK_MS, Gate, Name
from deduplication.errors import StoreUnavailable
from deduplication.fingerprint import Fingerprint, conflicts
from deduplication.journal3 import rules
from deduplication.journal3.entry import SETTLED, Delivery, DeliveryStatus, Entry, changed
from deduplication.journal3.registry import (
    NOTHING,
    PUT_OFF_MS,
    Held,
    NoAnswer,
    NotNow,
    Published,
    Registry,
    Taken,
    View,
    labels_of,
)
from deduplication.journal3.rules import Busy, Claim, Judgement, Refusal, Repeat, Take
from deduplication.journal3.sqlite import Journal, Step

log = logging.getLogger(__name__)

MOST_BEGINS = 3
BEHIND_MS = 60_000
MOST_EXPECTED = 2_000  # views of holds that a process remembers until it has published
Answer = TypeVar("Answer")


class RedisGone(StoreUnavailable):
    """Redis is not there; the journal of this machine decides, if it may."""


class RedisState:
    """What this process knows of Redis (rule 8): up, suspected after a first missing answer, or gone after a second.

    Nobody but the next probe waits for a Redis that is suspected. A machine that is alone goes on without it at once.
    """

    def __init__(self) -> None:
        self.status = "suspected"  # until the first probe has answered: a start never depends on Redis
        self.is_only_member = False
        self.wake = threading.Event()

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """Raises RedisGone, or NotNow where the answer is "retry later"."""
        if self.status == "gone":
            raise RedisGone("Redis is gone")
        if self.status == "suspected":
            raise NotNow("Redis did not answer a moment ago")
        try:
            return question()
        except NoAnswer as error:
            self.suspect()
            if self.status == "gone":
                raise RedisGone(str(error)) from error
            raise NotNow(str(error)) from error

    def suspect(self) -> None:
        """A first answer is missing. Those that were asked for at the same time say nothing more."""
        if self.status == "up":
            self.status = "gone" if self.is_only_member else "suspected"
        self.wake.set()

    def give_up(self) -> None:
        """The probe, asked after that, has no answer either."""
        self.status = "gone"

    def note_answer(self) -> None:
        self.status = "up"


@dataclass(frozen=True)
class Claimed:
    """The item is its owner's until the lease ends.

    ``plan``: what is to become of the deliveries that were claimed: CLAIMED ones are to be sent, SKIPPED and WAITING
    ones are settled as they are.
    """

    entry: Entry
    owner: str
    lease_until_ms: int
    plan: tuple[Delivery, ...]
    held: Held | None = None

    @property
    def to_send(self) -> tuple[Delivery, ...]:
        return tuple(each for each in self.plan if each.status is DeliveryStatus.CLAIMED)

    @property
    def not_to_send(self) -> tuple[Delivery, ...]:
        return tuple(each for each in self.plan if each.status is not DeliveryStatus.CLAIMED)


@dataclass(frozen=True)
class Settled:
    """``is_safe``: the provider may be told 2xx (rule 6). ``entry`` is None where another owner has taken it over."""

    entry: Entry | None
    is_safe: bool


class Coordinator:
    """``registry`` is None without a REDIS_URL: then the journal alone decides, and stores what waits.

    ``is_open``: whether emails are accepted while Redis is gone (ON_STORE_FAILURE).
    """

    def __init__(
        self,
        journal: Journal,
        registry: Registry | None = None,
        *,
        is_open: bool = True,
        hold_within_ms: int = 2_000,
    ) -> None:
        self.journal = journal
        self.registry = registry
        self.redis = RedisState()
        self._is_open = is_open
        self._hold_within_ms = hold_within_ms
        self._expected: dict[str, View] = {}
        self._repeats: dict[str, int] = {}
        self._orphans: list[tuple[dict[str, Name], str]] = []  # holds whose answer was lost
        self._lock = threading.Lock()
        self.has_news = threading.Event()  # something in the outbox
        self.is_behind = True  # until the fleet's thread has looked

    def new_owner(self) -> str:
        return f"{self.journal.machine}.{secrets.token_urlsafe(9)}"

    # A request

    def claim(self, claim: Claim) -> Claimed | Judgement:
        """Everything up to the POST. Raises StoreUnavailable where its provider is to retry."""
        asked_ms = self.journal.clock.steady_ms()
        with self.journal.reading() as step:
            known = step.known(claim.identity, claim.fingerprint, claim.proof)
        found = rules.identify(claim, known)
        if not isinstance(found, Take):
            return self._known_already(found)
        if found.joined:
            claim = replace(claim, entry=found.joined.id)
        held = self._hold(claim, known)
        if held is not None and not isinstance(held, Held):
            return self._known_already(held)
        try:
            claimed = self._claim_here(claim, held, asked_ms)
        except StoreUnavailable:
            self._give_back(held, claim.owner)
            raise
        if not isinstance(claimed, Claimed):
            self._give_back(held, claim.owner)
            return self._known_already(claimed)
        return claimed

    def _known_already(self, found: Judgement) -> Judgement:
        if isinstance(found, Repeat) and found.of:
            with self._lock:
                self._repeats[found.of.id] = self._repeats.get(found.of.id, 0) + 1
        return found

    def _hold(self, claim: Claim, known: rules.Known) -> Held | Judgement | None:
        """None: there is no Redis, or it is gone and this machine may go on without it (rule 7)."""
        registry = self.registry
        if registry is None:
            return None

        def kept(name: Name) -> str | None:
            return known.of(name).kept_fingerprint

        try:
            return self.redis.ask(lambda: registry.hold(claim, kept, self._hold_within_ms, is_behind=self.is_behind))
        except RedisGone:
            self._note_orphan(claim)
            if not self._may_go_alone():
                raise
            return None
        except NotNow:
            self._note_orphan(claim)
            raise

    def _claim_here(self, claim: Claim, held: Held | None, asked_ms: int) -> Claimed | Judgement:
        """This machine's yes, in one transaction (rule 3)."""
        until_ms = asked_ms + claim.lease_ms
        with self.journal.step() as step:
            if held and held.era != step.meta("era"):
                raise NotNow("Redis began a new era")
            names = claim.identity if held else (*claim.own, *claim.gates)
            known = step.known(names, claim.fingerprint, claim.proof)
            found = rules.identify(claim, known)
            if held is None and isinstance(found, Take):
                found = rules.pass_gates(claim, known, found)
            if not isinstance(found, Take):
                return found
            take = self._agreed(held.take, found) if held else found
            if held is None and self.registry and any(each.waits_for for each in take.deliveries):
                return Busy(Gate.SUBJECT_GROUP, claim.own[0].label, 1_000)  # rule 27: without Redis, retry later
            base = step.read(held.entry.id if held else claim.entry) if held or take.joined else None
            joined = rules.merged(base, held.take.joined, step.steady_ms) if held and held.take.joined else base
            entry = rules.taken(
                replace(claim, entry=held.entry.id) if held else claim,
                rules.changed_take(take, joined=joined),
                self.journal.machine,
                step.now_ms,
                max(known.reset, held.entry.reset if held else 0),
            )
            leased = tuple(
                changed(each, lease_until_ms=until_ms) if each.owner == claim.owner else each
                for each in entry.deliveries
            )
            alone = held is None and self.registry is not None
            about = replace(entry.about, alone=True) if alone else entry.about
            fence = held.entry.fence if held else max(entry.fence + 1, step.now_ms * 1000)
            entry = changed(entry, deliveries=leased, about=about, fence=fence if claim.is_by_script else 0)
            step.put(entry, base, is_news=True)
            if claim.proof:
                step.put_proof(claim.proof, claim.key, step.now_ms + claim.lease_ms)
        if held:
            self._expect(entry.id, held.view)
        return Claimed(entry, claim.owner, until_ms, take.deliveries, held)

    @staticmethod
    def _agreed(granted: Take, found: Take) -> Take:
        """What the fleet granted, less what this journal knows to be covered."""
        missing = {each.destination for each in found.deliveries}
        return rules.changed_take(
            granted, deliveries=tuple(each for each in granted.deliveries if each.destination in missing)
        )

    def is_live(self, claimed: Claimed, needed_ms: int = 0) -> bool:
        """The check just before the POST: does the lease still run, with room for what is to be done (rule 4)?"""
        return claimed.lease_until_ms - self.journal.clock.steady_ms() > needed_ms

    def settle(
        self,
        claimed: Claimed,
        outcomes: Sequence[Delivery],
        answer: str = "",
        payload: bytes | None = None,
        retries_left: int | None = None,
    ) -> Settled:
        """The note after the POST (rule 5), and publishing. A fact is safe once noted; what is stored, once it is
        synced here and accepted by Redis (rule 6)."""
        stores = any(each.status is DeliveryStatus.WAITING for each in outcomes)
        is_home = self.registry is None
        marked = [
            changed(each, is_accepted=is_home) if each.status is DeliveryStatus.WAITING else each for each in outcomes
        ]
        try:
            entry = self._note(claimed, marked, answer, payload, retries_left)
        except StoreUnavailable:
            return self._publish_unnoted(claimed, marked)
        if entry is None:
            return Settled(None, is_safe=False)
        if entry.is_lock:
            self._give_back(claimed.held, claimed.owner)
            return Settled(entry, is_safe=True)
        if stores:
            self.journal.sync()
            return Settled(entry, is_home or self.publish(entry.id, payload))
        self.has_news.set()
        return Settled(entry, is_safe=True)

    def _note(
        self,
        claimed: Claimed,
        outcomes: Iterable[Delivery],
        answer: str,
        payload: bytes | None,
        retries_left: int | None,
    ) -> Entry | None:
        with self.journal.step() as step:
            before = step.read(claimed.entry.id)
            present = before or claimed.entry
            after = rules.settled(present, outcomes, claimed.owner, step.now_ms)
            if after is None:
                return None
            if after.is_lock:
                step.forget(after)
                return after
            left = [each for each in (present.retries_left, retries_left) if each is not None]
            is_settled = any(each.status in SETTLED for each in after.deliveries)
            after = changed(
                after,
                answer=answer or after.answer,
                settled_ms=after.settled_ms or (step.now_ms if is_settled else None),
                retries_left=min(left) if left else None,
            )
            if after.proof and is_settled:
                proof, _, key = after.proof.partition("=")
                step.put_proof(proof, key, step.now_ms + WEEK_MS)
            step.put(after, before, is_news=self.registry is None)
            if payload is not None:
                step.put_payload(after.id, payload)
            elif after.is_delivered_everywhere:
                step.drop_payload(after.id)
            return after

    def _publish_unnoted(self, claimed: Claimed, outcomes: Sequence[Delivery]) -> Settled:
        """The disk refused the note: a fact is published directly, and is safe if Redis accepted it (rule 5)."""
        facts = [each for each in outcomes if each.status is DeliveryStatus.DELIVERED]
        entry = rules.settled(claimed.entry, facts, claimed.owner, self.journal.clock.now_ms())
        registry = self.registry
        if entry is None or registry is None or len(facts) < len(outcomes):
            return Settled(None, is_safe=False)
        try:
            view = claimed.held.view if claimed.held else NOTHING
            self.redis.ask(lambda: registry.publish(entry, view))
        except StoreUnavailable:
            return Settled(entry, is_safe=False)
        return Settled(entry, is_safe=True)

    # Publishing

    def publish(self, entry_id: str, payload: bytes | None = None) -> bool:
        """Publishes one entry as the journal has it now. True if Redis has accepted all of it."""
        registry = self.registry
        if registry is None:
            return True
        with self.journal.reading() as step:
            rows = step.outbox(1, entry_id)
            payload = payload or step.payload(entry_id)
        return self._publish_one(registry, rows[0], payload) if rows else True

    def _publish_one(self, registry: Registry, row: tuple[int, int, Entry], payload: bytes | None) -> bool:
        entry = row[2]
        view = self._expected.pop(entry.id, NOTHING)
        try:
            published = self.redis.ask(lambda: registry.publish(entry, view, payload))
        except StoreUnavailable as error:
            log.info("entry %s is published later: %s", entry.id, error)
            return False
        with self.journal.step() as step:
            return self._note_published(step, row, published)

    def _note_published(self, step: Step, row: tuple[int, int, Entry], published: Published) -> bool:
        """A row leaves the outbox only in the era that the journal knows, and unchanged (rule 9)."""
        seq, version, entry = row
        if published.is_reset:
            if not entry.is_open:
                step.forget(entry)
            return False
        if published.era != step.meta("era"):
            return False
        waiting = [each for each in entry.deliveries if each.status is DeliveryStatus.WAITING]
        for each in waiting:
            if each.destination not in published.refused:
                step.set_accepted(entry.id, each.destination)
        step.end_outbox([(seq, version)])
        return not any(each.destination in published.refused for each in waiting)

    def publish_waiting(self, limit: int = 100) -> int:
        """Publishes what is in the outbox, oldest first; how many were accepted."""
        registry = self.registry
        if registry is None:
            return 0
        with self.journal.reading() as step:
            rows = step.outbox(limit)
        ended = [row for row in rows if not row[2].is_open]
        views = [(entry, self._expected.pop(entry.id, NOTHING)) for _, _, entry in ended]
        try:
            answers = self.redis.ask(lambda: registry.publish_ended(views)) if ended else []
        except StoreUnavailable as error:
            log.info("%d entries are published later: %s", len(ended), error)
            return 0
        count, alone = 0, [row for row in rows if row[2].is_open]
        if ended:
            with self.journal.step() as step:
                for row, published in zip(ended, answers, strict=True):
                    if published is None:
                        alone.append(row)
                    else:
                        count += self._note_published(step, row, published)
        return count + sum(self.publish(entry.id) for _, _, entry in alone)

    def flush_repeats(self) -> list[tuple[str, int, int]]:
        """Counts of repeats since the last time go to the journal; the sums of this machine (rule 11)."""
        with self._lock:
            repeats, self._repeats = self._repeats, {}
        if not repeats:
            return []
        with self.journal.step() as step:
            return [
                (entry, step.add_repeats(entry, self.journal.machine, count, step.now_ms), step.now_ms)
                for entry, count in repeats.items()
            ]

    def release_orphans(self) -> None:
        """Holds whose answer was lost are given back as soon as Redis answers (rule 2)."""
        registry = self.registry
        while registry and self._orphans:
            labels, owner = self._orphans[0]
            self.redis.ask(partial(registry.release, labels, owner))
            del self._orphans[0]

    def _note_orphan(self, claim: Claim) -> None:
        names = (*claim.identity, *claim.gates)
        self._orphans.append(({rules.reference(name, claim.fingerprint): name for name in names}, claim.owner))
        del self._orphans[:-MOST_EXPECTED]

    def _give_back(self, held: Held | None, owner: str) -> None:
        registry = self.registry
        if held is None or registry is None:
            return
        labels = labels_of(held.entry)
        try:
            self.redis.ask(partial(registry.release, labels, owner))
        except StoreUnavailable as error:
            log.info("entry %s: its hold is given back later: %s", held.entry.id, error)
            self._orphans.append((labels, owner))

    def _expect(self, entry_id: str, view: View) -> None:
        with self._lock:
            self._expected[entry_id] = view
            while len(self._expected) > MOST_EXPECTED:
                del self._expected[next(iter(self._expected))]

    def _may_go_alone(self) -> bool:
        """Only with a journal that was up to date when Redis was lost, and has no gap (rule 7)."""
        if not self._is_open:
            return False
        with self.journal.reading() as step:
            read_ms, lost_ms = int(step.meta("read_ms") or 0), int(step.meta("lost_ms") or step.now_ms)
            return lost_ms - read_ms < BEHIND_MS and not step.meta("gap_ms")

    # Stored deliveries

    def take(self, destination: str, limit: int, lease_ms: int) -> list[Lent]:
        """Stored deliveries whose time has come, each lent to one owner (rule 18)."""
        owner, asked_ms = self.new_owner(), self.journal.clock.steady_ms()
        until_ms = asked_ms + lease_ms
        registry = self.registry
        if registry is None:
            with self.journal.step() as step:
                rows = step.take_due(destination, limit, owner, lease_ms)
                found = [Taken(entry, destination, step.payload(entry.id), begins + 1) for entry, begins in rows]
        else:
            with self.journal.reading() as step:
                era = step.meta("era")
            found = self.redis.ask(lambda: registry.take(destination, limit, era, owner, lease_ms))
        lent = (self._begin(each, owner, until_ms) for each in found)
        return [each for each in lent if each]

    def _begin(self, taken: Taken, owner: str, until_ms: int) -> Lent | None:
        """The taker's first step: what this journal knows of it. None if it is not to be sent now."""
        delivery = taken.entry.delivery_to(taken.destination)
        if delivery is None:
            return None
        lent = Lent(taken.entry, delivery, taken.payload, owner, until_ms)
        with self.journal.step() as step:
            made = self._made_here(step, taken.entry, delivery)
            if any(each.status is DeliveryStatus.CLAIMED for each in made):
                return None
            is_delivered = any(each.status is DeliveryStatus.DELIVERED for each in made)
            ours = step.read(taken.entry.id)
            if is_delivered and ours and self.registry:
                step.put(ours, ours)  # Redis has forgotten it, and hears it again
            if not is_delivered:
                after = rules.merged(ours, taken.entry, step.steady_ms)
                if after != ours:
                    step.put(after, ours, is_news=True)
                step.set_claim(taken.entry.id, taken.destination, owner, until_ms)
        if is_delivered:
            reason = "this machine knows that it was delivered"
            self.finish(lent, changed(delivery, status=DeliveryStatus.DELIVERED, reason=reason))
            self.publish(taken.entry.id)
            return None
        if taken.begins > MOST_BEGINS:
            reason = f"{MOST_BEGINS} attempts ended without an outcome: the process died each time"
            self.finish(lent, changed(delivery, status=DeliveryStatus.DEAD, reason=reason))
            return None
        if delivery.waits_for and not self._may_pass(lent):
            return None
        return replace(lent, delivery=changed(delivery, waits_for=None))

    def _made_here(self, step: Step, entry: Entry, delivery: Delivery) -> list[Delivery]:
        """Deliveries of the same email to the same destination that were made, or are being made, on this machine."""
        ours = Fingerprint.parse(entry.fingerprint)
        known = step.known(entry.own, entry.fingerprint)
        same = {
            each.id: each
            for state in known.names.values()
            for each in state.entries
            if not conflicts(ours, Fingerprint.parse(each.fingerprint))
        }
        made = (each.delivery_to(delivery.destination) for each in same.values())
        return [
            each
            for each in made
            if each
            and each.generation >= delivery.generation
            and (
                each.status is DeliveryStatus.DELIVERED
                or (each.status is DeliveryStatus.CLAIMED and each.lease_until_ms > step.steady_ms)
            )
        ]

    def _may_pass(self, lent: Lent) -> bool:
        """One that waited for a name is judged again: sent, skipped, or put off (rule 27)."""
        entry, delivery = lent.entry, lent.delivery
        names = rules.gates_of(entry, delivery.destination)
        registry = self.registry
        if registry is None:
            with self.journal.step() as step:
                met = rules.meet_again(entry, delivery.destination, step.known(names))
                if met is None:
                    before = step.read(entry.id)
                    kept = before.delivery_to(delivery.destination) if before else None
                    if before and kept:
                        step.put(before.with_delivery(changed(kept, waits_for=None)), before, is_news=True)
                    return True
        else:
            view = self.redis.ask(lambda: registry.view_gates(entry, delivery.destination))
            known = view.known({name.label: name for name in names}, lambda _: None)
            met = rules.meet_again(entry, delivery.destination, known)
            if met is None and self.redis.ask(lambda: registry.hold_gates(entry, delivery.destination, view)):
                return True
        if met and not met.is_held:
            reason = f"repeats {met.name.label} of {met.by.id if met.by else 'another program'}"
            self.finish(lent, changed(delivery, status=DeliveryStatus.SKIPPED, reason=reason, waits_for=None))
        else:
            self.finish(lent, changed(delivery, next_try_ms=self.journal.clock.now_ms() + PUT_OFF_MS))
        return False

    def finish(self, lent: Lent, outcome: Delivery) -> bool:
        """Records what became of a stored delivery. False if another process has taken it over meanwhile."""
        entry = lent.entry.with_delivery(outcome)
        registry = self.registry
        is_fact = outcome.status is DeliveryStatus.DELIVERED
        if registry and not is_fact:
            published = self.redis.ask(lambda: registry.publish(entry, NOTHING, lent.payload, lent.owner))
            if outcome.destination in published.refused or published.is_reset:
                return False
        with self.journal.step() as step:
            before = step.read(entry.id)
            if registry and not is_fact:
                step.put(rules.merged(before, entry, step.steady_ms), before, is_news=True)
                return True
            after = rules.settled(before or entry, [outcome], lent.owner, step.now_ms)
            if after is None:
                return False
            step.put(after, before, is_news=registry is None)
            step.end_begins(entry.id, outcome.destination)
            if after.is_delivered_everywhere:
                step.drop_payload(entry.id)
        if registry:
            self.publish(entry.id)
        return True

    # What an operator asks for

    def replay(self, entry_id: str, destination: str, *, force: bool = False) -> Refusal | None:
        return self._send_again(
            entry_id, lambda entry, _, now_ms: rules.replay(entry, destination, force=force, now_ms=now_ms)
        )

    def release(self, entry_id: str, *, force: bool = False) -> Refusal | None:
        return self._send_again(
            entry_id, lambda entry, had, now_ms: rules.release(entry, had, force=force, now_ms=now_ms)
        )

    def _send_again(
        self, entry_id: str, decide: Callable[[Entry, frozenset[str], int], Entry | Refusal]
    ) -> Refusal | None:
        """None: it waits to be sent. Refused, too, where its payload is not on this machine."""
        with self.journal.step() as step:
            entry = step.read(entry_id)
            if entry is None:
                return Refusal.UNKNOWN
            others = [
                other
                for state in step.known(entry.own, entry.fingerprint).names.values()
                for other in state.entries
                if other.id != entry_id
            ]
            had = frozenset(
                each.destination
                for other in others
                for each in other.deliveries
                if each.status is DeliveryStatus.DELIVERED
            )
            after = decide(entry, had, step.now_ms)
            if isinstance(after, Refusal):
                return after
            payload = step.payload(entry_id)
            if payload is None:
                return Refusal.NO_PAYLOAD
            step.put(after, entry, is_news=self.registry is None)
        if self.registry:
            self.publish(entry_id, payload)
        return None

    def reset(self, names: Mapping[str, Name]) -> tuple[int, frozenset[str]]:
        """Forgets names, by their references, on the whole fleet (rule 21): its number, and what was kept as open."""
        registry = self.registry
        if registry:
            number, kept = self.redis.ask(lambda: registry.reset(names))
        else:
            number, kept = self.journal.clock.now_ms() * 1000, frozenset()
        with self.journal.step() as step:
            if registry is None:
                kept = frozenset(label for label in names if step.has_open(label))
            for label in names:
                if label not in kept:
                    step.reset(label, number)
        return number, kept


@dataclass(frozen=True)
class Lent:
    """A stored delivery that its owner may send until the lease ends."""

    entry: Entry
    delivery: Delivery
    payload: bytes | None
    owner: str
    until_ms: int
