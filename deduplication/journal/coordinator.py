"""One machine's part in the protocol: look, hold, claim, settle, publish. Numbers refer to docs/architecture.md.

The journal of this machine is asked first, then, with a REDIS_URL, the registry. While Redis is gone, the journal
decides by what the whole fleet had published.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from deduplication.errors import StoreUnavailable
from deduplication.journal import rules
from deduplication.journal.entry import BY_SCRIPT, SETTLED, Delivery, DeliveryStatus, Entry
from deduplication.journal.registry import NOTHING, Held, Published, Registry, View, labels_of
from deduplication.journal.rules import Busy, Claim, Judgement, ProofUsed, Repeat, Take
from deduplication.journal.sqlite import Journal, Step
from deduplication.names import WEEK_MS, Gate, Name
from deduplication.redis_state import RedisGone, RedisState
from deduplication.room import check_room

log = logging.getLogger(__name__)

MOST_BEGINS = 3
MOST_BEHIND = 100  # outcomes of this process that are not published yet; above that, requests publish too
PUBLISHED_BY_A_REQUEST = 20
PUT_OFF_MS = 5_000
BEHIND_MS = 60_000
MOST_KEPT = 2_000  # tasks that a process still has to do for emails that it has answered

Row = tuple[int, int, Entry]  # of the outbox: number, version, and entry


class Claimed(Struct, frozen=True):
    """The item belongs to its owner until the lease ends.

    ``plan`` says what to do with each claimed delivery: send it (CLAIMED), or settle it as it is (SKIPPED, WAITING).
    ``is_alone``: it was claimed while Redis is gone. ``view`` is what publishing expects to find in Redis.
    """

    entry: Entry
    owner: str
    lease_until_ms: int
    plan: tuple[Delivery, ...]
    is_alone: bool = False
    view: View = NOTHING

    @property
    def to_send(self) -> tuple[Delivery, ...]:
        return tuple(delivery for delivery in self.plan if delivery.status is DeliveryStatus.CLAIMED)


class Settled(Struct, frozen=True):
    """``is_safe``: the answer may be 2xx (rule 6). ``entry`` is None if another owner has taken it over."""

    entry: Entry | None
    is_safe: bool


class Coordinator:
    """``registry`` is None without a REDIS_URL: the journal alone decides, and keeps stored deliveries.

    ``is_open``: emails are accepted while Redis is gone (ON_STORE_FAILURE). Without ``follows``, no Fleet updates the
    journal: Redis is asked every time, and the journal contains only live claims (rule 31).
    """

    def __init__(
        self,
        journal: Journal,
        registry: Registry | None = None,
        *,
        is_open: bool = True,
        follows: bool = True,
    ) -> None:
        self.journal = journal
        self.registry = registry
        journal.publishes = registry is not None
        self.redis = RedisState()
        if registry and follows:
            registry.state = self.redis
        self._is_open = is_open
        self._follows = follows
        self._settled: deque[tuple[Row, View]] = deque(maxlen=MOST_KEPT)  # by this process, not published yet
        self._repeats: deque[str] = deque()  # ids of entries that were received again
        self._orphans: deque[tuple[dict[str, Name], str]] = deque(maxlen=MOST_KEPT)  # holds to release
        self._unnoted: deque[tuple[Claimed, Sequence[Delivery], str]] = deque(maxlen=MOST_KEPT)
        self.closing: list[Callable[[], None]] = []
        self.has_unpublished = threading.Event()  # set when this process has settled an entry
        self.is_behind = True  # until the fleet's thread has checked

    def new_owner(self) -> str:
        return f"{self.journal.machine}.{secrets.token_urlsafe(9)}"

    def close(self) -> None:
        """Writes the counts of repeats, then closes journal and registry. May be called twice."""
        while self.closing:
            self.closing.pop()()
        with suppress(StoreUnavailable):
            self.tend()
        self.journal.close()
        if self.registry:
            self.registry.close()

    # A request

    def look(self, claim: Claim) -> Judgement:
        """What this journal knows of the item by its own names. It does not ask Redis and writes nothing."""
        with self.journal.reading() as step:
            return rules.identify(claim, step.known(claim.identity, claim.fingerprint, claim.proof))

    def claim(self, claim: Claim) -> Claimed | Judgement:
        """All steps up to the POST. Raises StoreUnavailable if the provider must retry."""
        asked_ms = self.journal.clock.steady_ms()
        with self.journal.reading() as step:
            known = step.known(claim.identity, claim.fingerprint, claim.proof)
        found = rules.identify(claim, known)
        if not isinstance(found, Take):
            return self._after_judging(claim, found)
        if known.names:  # Redis may have forgotten these ids
            ids = {delivery.destination: delivery.webhook_id for delivery in found.deliveries}
            wanted = [replace(to, webhook_id=ids.get(to.destination, to.webhook_id)) for to in claim.destinations]
            entry_id = found.joined.id if found.joined else claim.entry
            claim = replace(claim, entry=entry_id, destinations=tuple(wanted))
        held = self._hold(claim, known)
        if held is not None and not isinstance(held, Held):
            return self._after_judging(claim, held)
        try:
            claimed = self._claim_here(claim, held, asked_ms)
        except StoreUnavailable:
            self._release_hold(held, claim.owner)
            raise
        if not isinstance(claimed, Claimed):
            self._release_hold(held, claim.owner)
            return self._after_judging(claim, claimed)
        return claimed

    def _after_judging(self, claim: Claim, found: Judgement) -> Judgement:
        if isinstance(found, Repeat):
            if claim.proof and not self.use_proof(claim):
                return ProofUsed()
            if found.of.deliveries:  # else it has ended
                self._repeats.append(found.of.id)
        return found

    def use_proof(self, claim: Claim) -> bool:
        """Records the proof of an email that is accepted without a claim: a repeat, or one that is too old. False if
        the proof was used with another email (rule 28)."""
        with self.journal.reading() as step:
            if step.proven(claim.proof) == claim.key:
                return True
        registry, is_free = self.registry, True
        if registry:
            with suppress(RedisGone):
                is_free = registry.use_proof(claim.proof, claim.key)
        with self.journal.step() as step:
            return is_free and step.put_proof(claim.proof, claim.key, step.now_ms + WEEK_MS)

    def _hold(self, claim: Claim, known: rules.Known) -> Held | Judgement | None:
        """None if there is no Redis, or if it is gone and this machine may continue without it (rule 7)."""
        registry = self.registry
        if registry is None:
            return None
        hold = partial(registry.hold, claim, known, is_behind=self.is_behind)
        try:
            found = hold()
            waits = isinstance(found, Held) and any(delivery.waits_for for delivery in found.take.deliveries)
            # The obstacle may be an email that this machine has just delivered and not published yet: another email
            # with the same name, or an earlier copy of this one for another recipient.
            if waits or (isinstance(found, Busy) and known.names):
                self.publish_waiting()
                found = hold()
            return found
        except StoreUnavailable as error:
            self._orphans.append((claim.references, claim.owner))
            if not isinstance(error, RedisGone) or not self.may_go_alone():
                raise
            return None

    def _claim_here(self, claim: Claim, held: Held | None, asked_ms: int) -> Claimed | Judgement:
        """This machine's yes, in one transaction (rule 3)."""
        self.journal.check_disk()
        until_ms = asked_ms + claim.lease_ms
        with self.journal.step() as step:
            if held and not self._follows:
                step.set_meta("era", held.era)
            if held and held.era != step.meta("era"):
                raise StoreUnavailable("Redis began a new era")
            known = step.known((*claim.identity, *claim.gates), claim.fingerprint, claim.proof)
            found = rules.judge(claim, known)
            if not isinstance(found, Take):
                return found
            take = found
            # A name that this machine marked without Redis, and has not published yet, stops the item too.
            is_stopped_here = held and found.stop and step.outbox(1, found.stop.original or "-")
            if held and not is_stopped_here:  # granted, less what this journal knows to be covered
                missing = {delivery.destination for delivery in found.deliveries}
                granted = tuple(delivery for delivery in held.take.deliveries if delivery.destination in missing)
                if len(granted) < len(held.take.deliveries) and held.entry.reset > known.reset:
                    raise StoreUnavailable("its names were reset, and this machine has not read that yet")
                stop = held.take.stop and (found.stop or held.take.stop)  # the journal remembers emails for longer
                take = Take(None, (), granted, held.take.shared, stop)
            if held is None and self.registry and any(delivery.waits_for for delivery in take.deliveries):
                return Busy(Gate.SUBJECT_GROUP, claim.own[0].label, 1_000)  # rule 27: without Redis, retry later
            if held and held.entry.id != claim.entry:
                claim = replace(claim, entry=held.entry.id)
            base = next((candidate for candidate in found.candidates if candidate.id == claim.entry), None)
            joined = base
            if held and held.take.joined:
                base = base or step.read(claim.entry)  # known here under other names
                joined = rules.merge(base, held.take.joined.without_claims(), step.steady_ms)
            reset = max(known.reset, held.entry.reset if held else 0)
            take = Take(joined, (), take.deliveries, take.shared, take.stop)
            entry = rules.claim_entry(claim, take, self.journal.machine, step.now_ms, reset, until_ms)
            is_alone = held is None and self.registry is not None
            if is_alone:
                entry = replace(entry, about=replace(entry.about, alone=True))
            step.put(entry, base, publishes=False)
            if claim.proof and known.proven != claim.key:
                step.put_proof(claim.proof, rules.HELD + claim.key, step.now_ms + claim.lease_ms)
        return Claimed(entry, claim.owner, until_ms, take.deliveries, is_alone, held.view if held else NOTHING)

    def settle(
        self,
        claimed: Claimed,
        outcomes: Sequence[Delivery],
        answer: str = "",
        payload: bytes | None = None,
        retries_left: int | None = None,
    ) -> Settled:
        """Notes the outcomes after the POST (rule 5) and publishes them. A fact is safe once noted; a stored delivery,
        once it is synced here and accepted by Redis (rule 6). Raises NoRoom if Redis has no room; nothing is noted."""
        waiting = [delivery.destination for delivery in outcomes if delivery.status is DeliveryStatus.WAITING]
        registry = self.registry
        is_home = registry is None
        if waiting and registry:
            check_room(registry, waiting, len(payload or b""))
        put_off_ms = self.journal.clock.now_ms() + PUT_OFF_MS
        marked = [
            replace(delivery, is_accepted=is_home, next_try_ms=delivery.next_try_ms or put_off_ms)
            if delivery.status is DeliveryStatus.WAITING
            else delivery
            for delivery in outcomes
        ]
        try:
            row = self._note(claimed, marked, answer, payload, retries_left)
        except StoreUnavailable:
            return self._publish_unnoted(claimed, marked, answer)
        if row is None:
            return Settled(None, is_safe=False)
        entry = row[2]
        if waiting:
            self.journal.sync()
            return Settled(entry, is_home or self.publish(entry.id, payload, claimed.view))
        self._publish_soon(row, claimed.view)
        return Settled(entry, is_safe=True)

    def _note(
        self,
        claimed: Claimed,
        outcomes: Sequence[Delivery],
        answer: str,
        payload: bytes | None,
        retries_left: int | None,
    ) -> Row | None:
        with self.journal.step() as step:
            before = step.read(claimed.entry.id)
            present = before or claimed.entry.without_claims()  # if it was reset or erased, only facts count
            settled = rules.settle(present, outcomes, claimed.owner, step.now_ms)
            if settled is None:
                return None
            is_settled = bool(settled.statuses & SETTLED)
            after = replace(
                settled,
                answer=answer or settled.answer,
                settled_ms=settled.settled_ms or (step.now_ms if is_settled else None),
                retries_left=rules.min_retries(present.retries_left, retries_left),
            )
            number, version = step.put(after, before)
            if payload is not None:
                step.put_payload(after, payload)
            elif present.settled_ms and after.is_delivered_everywhere:  # otherwise nothing was stored
                step.end_payload(after.id)
            return number, version, after

    def _publish_unnoted(self, claimed: Claimed, outcomes: Sequence[Delivery], answer: str) -> Settled:
        """When the disk refused the note: facts are published directly, and are safe if Redis accepts them (rule 5).
        They are noted once the disk can be written again, so that a retry is not sent."""
        facts = [delivery for delivery in outcomes if delivery.status is DeliveryStatus.DELIVERED]
        entry = rules.settle(claimed.entry, facts, claimed.owner, self.journal.clock.now_ms())
        if entry is None:
            return Settled(None, is_safe=False)
        self._unnoted.append((claimed, facts, answer))
        registry, is_safe = self.registry, False
        with suppress(StoreUnavailable):
            if registry:
                registry.publish([(entry, claimed.view, None)])
                is_safe = len(facts) == len(outcomes)
        return Settled(entry, is_safe)

    def record(self, entry: Entry, payload: bytes | None) -> None:
        """Writes an item that takes no names, such as one that is too old, once for its id. It can be released."""
        with self.journal.step() as step:
            if step.read(entry.id):
                return
            step.put(entry, None)
            if payload is not None:
                step.put_payload(entry, payload)
        self.has_unpublished.set()

    # Publishing

    def publish(self, entry_id: str, payload: bytes | None = None, view: View = NOTHING) -> bool:
        """Publishes the entry as the journal has it now. True if Redis has accepted all of it."""
        registry = self.registry
        if registry is None:
            return True
        with self.journal.reading() as step:
            rows = step.outbox(1, entry_id)
            payload = payload or step.payload(entry_id)
            entry = None if rows else step.read(entry_id)
        if not rows:  # another process was faster; Redis may have refused a stored delivery
            return entry is None or all(delivery.is_accepted for delivery in entry.deliveries)
        return self._publish_rows([(rows[0], view, payload)]) == 1

    def _note_published(self, step: Step, row: Row, published: Published) -> bool:
        """A row leaves the outbox only in the era that the journal knows, and unchanged (rule 9)."""
        seq, version, entry = row
        if published.is_reset:
            if not entry.is_open:
                step.forget(entry)
            return False
        if published.era != step.meta("era"):
            return False
        after = present = step.read(entry.id) if entry.is_open else None
        for stored in entry.deliveries_with(DeliveryStatus.WAITING):
            waiting = after.delivery_to(stored.destination) if after else None
            refused = published.refused.get(stored.destination)
            if after and waiting and waiting.status is DeliveryStatus.WAITING and refused != "held":
                accepted = replace(waiting, is_accepted=True)
                if refused:  # or it would be listed for ever
                    reason, ended = "already stored or sent under another entry", DeliveryStatus.SKIPPED
                    accepted = replace(accepted, status=ended, reason=reason, ended_ms=step.now_ms, next_try_ms=None)
                after = after.with_delivery(accepted)
        if after and after != present:
            step.put(after, present, publishes=False)
        if "held" in published.refused.values():  # by a request elsewhere, which may fail: try again in a second
            return False
        step.end_outbox([(seq, version)])
        if not self._follows and not entry.is_open:
            step.forget(entry)
        return not published.refused

    def _publish_soon(self, row: Row, view: View) -> None:
        """Behind the request, in a batch. If this process dies before that, another one finds the entry in the outbox.

        If the publishing thread cannot keep up, requests publish as well: an outcome that is published after its lease
        would be sent again by another process.
        """
        if self.registry:
            self._settled.append((row, view))
            self.has_unpublished.set()
            if len(self._settled) > MOST_BEHIND:
                self.publish_settled(PUBLISHED_BY_A_REQUEST)

    def publish_settled(self, limit: int = 100) -> int:
        """Publishes entries that this process has settled. Returns how many were accepted."""
        batch: dict[str, tuple[Row, View]] = {}
        with suppress(IndexError):
            while len(batch) < limit:
                row, view = self._settled.popleft()
                batch[row[2].id] = (row, view)  # several destinations settle one entry: its latest state counts
        return self._publish_all(list(batch.values()))

    def publish_waiting(self, limit: int = 100) -> int:
        """Publishes the outbox of all processes of this machine, oldest first. Returns how many were accepted."""
        if self.registry is None:
            return 0
        count = self.publish_settled(limit)
        with self.journal.reading() as step:
            rows = step.outbox(limit)
        return count + self._publish_all([(row, NOTHING) for row in rows])

    def _publish_all(self, rows: Sequence[tuple[Row, View]]) -> int:
        """Entries with stored deliveries one by one, as their payloads may be large; all others together."""
        waiting = sum(self.publish(row[2].id, view=view) for row, view in rows if row[2].is_open)
        return waiting + self._publish_rows([(row, view, None) for row, view in rows if not row[2].is_open])

    def _publish_rows(self, rows: Sequence[tuple[Row, View, bytes | None]]) -> int:
        """In one round trip. Returns how many were accepted."""
        registry = self.registry
        if registry is None or not rows:
            return 0
        try:
            answers = registry.publish([(row[2], view, payload) for row, view, payload in rows])
        except StoreUnavailable as error:
            log.info("%d entries are published later, such as %s: %s", len(rows), rows[0][0][2].id, error)
            return 0
        with self.journal.step() as step:
            return sum(self._note_published(step, row[0], answer) for row, answer in zip(rows, answers, strict=True))

    def tend(self) -> list[tuple[str, int, int]]:
        """Once a second, even without Redis: deletes expired data and counts repeats. Returns this machine's totals of
        the counts that have changed (rule 11)."""
        while self._unnoted:
            claimed, facts, answer = self._unnoted[0]
            self._note(claimed, facts, answer, None, None)
            self._unnoted.popleft()
        repeats = Counter(self._repeats.popleft() for _ in range(len(self._repeats)))
        with self.journal.step() as step:
            step.purge()
            add, now_ms = partial(step.add_repeats, machine=self.journal.machine, last_ms=step.now_ms), step.now_ms
            return [(entry, add(entry, count=count), now_ms) for entry, count in repeats.items()]

    def release_orphans(self) -> None:
        """Releases holds that are not used, or whose answer was lost, as soon as Redis answers (rule 2)."""
        for orphan in tuple(self._orphans):
            if self.registry:
                self.registry.release(*orphan)
            with suppress(ValueError):  # another thread released it as well
                self._orphans.remove(orphan)

    def _release_hold(self, held: Held | None, owner: str) -> None:
        if held:
            self._orphans.append((labels_of(held.entry), owner))
            with suppress(StoreUnavailable):
                self.release_orphans()

    def may_go_alone(self) -> bool:
        """Whether the journal was up to date when Redis was lost, and has no gap (rule 7)."""
        if not self._is_open:
            return False
        with self.journal.reading() as step:
            read_ms, lost_ms = int(step.meta("read_ms") or 0), int(step.meta("lost_ms") or step.now_ms)
            return lost_ms - read_ms < BEHIND_MS and not step.meta("gap_ms")

    # Stored deliveries

    def take(self, destination: str, limit: int, lease_ms: int) -> list[Lent]:
        """Due stored deliveries, each of them lent to one owner (rule 18)."""
        owner, asked_ms = self.new_owner(), self.journal.clock.steady_ms()
        until_ms = asked_ms + lease_ms
        registry = self.registry
        if registry is None:
            with self.journal.step() as step:
                taken = step.take_due(destination, limit, owner, lease_ms)
                found = [(entry, step.payload(entry.id), NOTHING) for entry in taken]
        else:
            with self.journal.reading() as step:
                era = step.meta("era")
            found = registry.take(destination, limit, era, owner, lease_ms)
        lent = [
            Lent(entry, entry.by_destination[destination], payload, owner, until_ms, view)
            for entry, payload, view in found
        ]
        if not lent:
            return []
        with self.journal.step() as step:
            begun = [self._begin(step, loan) for loan in lent]
        going = [loan for loan in begun if loan and self._may_send(loan)]
        return [replace(loan, delivery=replace(loan.delivery, waits_for=None)) for loan in going]

    def destinations_with_waiting(self) -> set[str]:
        """Destinations with stored deliveries, due or not: also those that no journal knows any more."""
        with self.journal.reading() as step:
            found = {name for (name,) in step.query("SELECT name FROM waiting_destinations")}
        if self.registry:
            members = self.registry.ask(lambda client, prefix: client.smembers(f"{prefix}due"))
            found |= {member.decode() for member in members}
        return found - {BY_SCRIPT}

    def hasten(self, destination: str, limit: int) -> int:
        """Makes stored deliveries due now, in the order of their next try, except those that are lent."""
        registry = self.registry
        if registry is None:
            with self.journal.step() as step:
                return step.hasten(destination, limit)
        with self.journal.reading() as step:
            era = step.meta("era")
        return registry.hasten(destination, limit, era)

    def _begin(self, step: Step, lent: Lent) -> Lent | None:
        """The taker's first step: it checks this journal. None if another process of this machine is sending it."""
        entry, delivery = lent.entry, lent.delivery
        same = rules.same_items(entry.own, entry.fingerprint, step.known(entry.own, entry.fingerprint))
        made = [made for candidate in same if (made := candidate.delivery_to(delivery.destination))]
        made = [other for other in made if other.generation >= delivery.generation]
        if any(other.is_live(step.steady_ms) for other in made):
            return None
        ours = next((candidate for candidate in same if candidate.id == entry.id), None) or step.read(entry.id)
        payload = lent.payload or step.payload(entry.id)  # Redis may have evicted it
        if any(other.status is DeliveryStatus.DELIVERED for other in made):
            if ours and self.registry:
                step.put(ours, ours)  # Redis has forgotten it: it is published again
            return replace(lent, delivery=replace(delivery, status=DeliveryStatus.DELIVERED))
        after = rules.merge(ours, entry.without_claims(), step.steady_ms)
        if taken := after.delivery_to(delivery.destination):
            after = after.with_delivery(replace(taken, owner=lent.owner, lease_until_ms=lent.until_ms))
        if after != ours:
            step.put(after, ours, publishes=False)
        return replace(lent, payload=payload)

    def _may_send(self, lent: Lent) -> bool:
        """False if the outcome is known without sending it; that outcome is recorded."""
        delivery = lent.delivery
        if delivery.status is DeliveryStatus.DELIVERED:
            self.finish(lent, replace(delivery, reason="this machine knows that it was delivered"))
            self.publish(lent.entry.id)
            return False
        if delivery.begins > MOST_BEGINS:
            reason = f"{MOST_BEGINS} attempts ended without an outcome: the process died each time"
            self.finish(lent, replace(delivery, status=DeliveryStatus.DEAD, reason=reason))
            return False
        return delivery.waits_for is None or self._may_pass(lent)

    def _may_pass(self, lent: Lent) -> bool:
        """Judges a delivery that waited for a name again: it is sent, skipped, or put off (rule 27)."""
        entry, delivery, registry = lent.entry, lent.delivery, self.registry
        if registry:
            met = registry.hold_gates(entry, delivery.destination)
        else:
            with self.journal.step() as step:
                names = rules.shared_names(entry, delivery.destination)
                met = rules.find_stop_again(entry, delivery.destination, step.known(names))
                before = step.read(entry.id)
                kept = before.delivery_to(delivery.destination) if before else None
                if met is None and before and kept:
                    step.put(before.with_delivery(replace(kept, waits_for=None)), before, publishes=False)
        if met is None:
            return True
        if met.is_held:
            self.finish(lent, replace(delivery, next_try_ms=self.journal.clock.now_ms() + PUT_OFF_MS))
        else:
            self.finish(lent, replace(delivery, status=DeliveryStatus.SKIPPED, reason=met.reason, waits_for=None))
        return False

    def finish(self, lent: Lent, outcome: Delivery) -> bool:
        """Records the outcome of a stored delivery. False if another process has taken it over."""
        outcome = replace(outcome, begins=0)
        entry, registry = lent.entry.with_delivery(outcome), self.registry
        is_fact = outcome.status is DeliveryStatus.DELIVERED
        if registry and not is_fact:
            owner = (lent.owner, outcome.destination)
            (published,) = registry.publish([(entry, lent.view, lent.payload)], owner)
            if outcome.destination in published.refused or published.is_reset:
                return False
        with self.journal.step() as step:
            before = step.read(entry.id)
            if registry and not is_fact:
                step.put(rules.merge(before, entry, step.steady_ms), before, publishes=False)
                return True
            after = rules.settle(before or entry, [outcome], lent.owner, step.now_ms)
            if after is None:
                return False
            row = (*step.put(after, before), after)
            if after.is_delivered_everywhere:
                step.end_payload(entry.id)
        self._publish_soon(row, lent.view)
        return True

    # Names, as scripts and imports use them

    def known(self, names: Sequence[Name]) -> rules.Known:
        """What Redis knows of names, or this journal if there is no Redis or it is gone."""
        registry = self.registry
        if registry:
            with suppress(RedisGone):
                return registry.known(names)
        with self.journal.reading() as step:
            return step.known(names)


class Lent(Struct, frozen=True):
    """A stored delivery that its owner may send until the lease ends. ``view`` is what Redis showed of it."""

    entry: Entry
    delivery: Delivery
    payload: bytes | None
    owner: str
    until_ms: int
    view: View = NOTHING
