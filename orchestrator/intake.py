"""The way of an item: pick the route, claim, deliver, settle. docs/architecture-old.md, section 1, tells why so."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo
from enum import StrEnum
from functools import partial
from typing import cast

from deduplication.claims import Gate, Name
from deduplication.content import content_name
from deduplication.errors import DeduplicationError, NoRoom, StoreUnavailable
from deduplication.journal.base import (
    Claim,
    Claimed,
    Duplicate,
    Ending,
    InFlight,
    Journal,
    Settlement,
    Settling,
    Verdict,
    Wanted,
)
from deduplication.journal.entry import Delivery, DeliveryStatus, Entry, Fate, State, Stop, new_entry_id
from deduplication.media import MediaMode, delivery_links, media_name
from deduplication.realtime_guard import RealtimeGuard
from deduplication.subject_group import (
    GroupMode,
    SubjectPattern,
    generate_subject_group_id,
    group_name,
    month_of,
)
from orchestrator.config.settings import DELIVERY_BUDGET_S
from orchestrator.delivery.queue import ANNOUNCED_AGAIN_AFTER_MS, Queue, QueueUnavailable
from orchestrator.delivery.schedule import put_off
from orchestrator.delivery.sender import Budget, Hold, Sender
from orchestrator.delivery.webhook import Payload, pack, shown_timestamp, webhook_id
from orchestrator.item import Item
from orchestrator.leases import Held, LeaseKeeper
from orchestrator.metrics.meter import REALTIME, Meter
from orchestrator.metrics.tally import Tally
from orchestrator.privacy import Privacy
from orchestrator.routing import Route, Router

log = logging.getLogger(__name__)

MOST_MEDIA = 50  # one claim, one script: a newsletter of links must not make it a long one
RETRY_AFTER_FAILURE_S = 10
MAX_WAIT_FOR_ANOTHER_S = 10


class Status(StrEnum):
    PROCESSED = "processed"
    QUEUED = "queued"
    DEAD_LETTERED = "dead_lettered"
    ALREADY_PROCESSED = "already_processed"
    ALREADY_PROCESSING = "already_processing"
    SKIPPED_SUBJECT_GROUP = "skipped_subject_group"
    SKIPPED_MEDIA = "skipped_media"
    SKIPPED_CONTENT = "skipped_content"
    SKIPPED_OLD = "skipped_old"
    RETRY_LATER = "retry_later"
    IMPORTED = "imported"  # told to nobody: what was handled before (orchestrator/importing)


SKIPPED_AT = {
    Gate.IDENTITY: Status.ALREADY_PROCESSED,
    Gate.SUBJECT_GROUP: Status.SKIPPED_SUBJECT_GROUP,
    Gate.MEDIA: Status.SKIPPED_MEDIA,
    Gate.CONTENT: Status.SKIPPED_CONTENT,
}

ENDED_WELL = {DeliveryStatus.DELIVERED, DeliveryStatus.SKIPPED}


class ProofUsed(Exception):
    """What proves the item's origin was accepted with another item, and proves no second one."""


@dataclass(frozen=True)
class Outcome:
    """What became of one item, and of each of its deliveries. ``id``: of its entry in the journal, if it has one.

    ``error``: why it has to be sent again; ``warnings``: what of it could not be read.
    """

    status: Status
    item_id: str
    id: str = ""
    subject_group: str | None = None
    reason: Stop | None = None
    retry_after_s: int | None = None
    deliveries: tuple[Delivery, ...] = ()
    error: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Naming:
    """What the names of an item depend on besides the item."""

    tz: tzinfo
    patterns: Sequence[SubjectPattern]
    group_ttl_seconds: int
    media_hosts: Collection[str]
    identity_parameters: Mapping[str, Collection[str]]

    def shared_names(self, group: str | None, links: Sequence[str], now: datetime) -> tuple[Name, ...]:
        """Those it has in common with other items: its subject group and its media."""
        names = [group_name(group, month_of(self.tz, now), self.group_ttl_seconds)] if group else []
        return tuple(dict.fromkeys([*names, *(media_name(link, self.identity_parameters) for link in links)]))

    def media_links(self, item: Item, route: Route) -> tuple[str, ...]:
        if route.media is MediaMode.OFF:
            return ()
        found = delivery_links(item.links, route.media, self.media_hosts, self.identity_parameters)
        return (*item.media, *found)[:MOST_MEDIA]


@dataclass(frozen=True)
class Sources:
    """Where the time and the owner tokens come from."""

    now: Callable[[], datetime]
    new_token: Callable[[], str]
    monotonic: Callable[[], float] = time.monotonic


@dataclass(frozen=True)
class Case:
    """An item on its way: what it is, what it claims, and what will be sent. ``links``: those that are its media."""

    item: Item
    group: str | None
    links: tuple[str, ...]
    claim: Claim
    payload: Payload
    budget: Budget

    @property
    def names(self) -> frozenset[Name]:
        contents = (each.content for each in self.claim.destinations if each.content)
        return frozenset((*self.claim.own, *self.claim.shared, *contents))

    def outcome(self, status: Status, entry: Entry | None = None, **more: object) -> Outcome:
        known = {"id": entry.id, "deliveries": entry.deliveries, **more} if entry else more
        return Outcome(status, self.item.id, subject_group=self.group, **known)  # type: ignore[arg-type]

    def retry_later(self, error: str, wait_s: int = RETRY_AFTER_FAILURE_S) -> Outcome:
        return self.outcome(Status.RETRY_LATER, error=error, retry_after_s=wait_s)


@dataclass(frozen=True)
class Intake:
    """``queue`` None: the request itself delivers. ``keeps_delivered``: also what was delivered keeps its payload.
    ``keeps_suppressed``: so does what was stopped, and can be released.

    ``is_trial``: nothing is configured, webhooks are only printed.
    """

    journal: Journal
    leases: LeaseKeeper
    router: Router
    sender: Sender
    naming: Naming
    guard: RealtimeGuard
    sources: Sources
    privacy: Privacy
    resolve: Callable[[Sequence[str]], Sequence[str]] | None = None
    queue: Queue | None = None
    is_trial: bool = False
    keeps_delivered: bool = False
    keeps_suppressed: bool = True
    note_old: Callable[[Claim], None] = lambda _claim: None
    server: str = ""
    meter: Meter = field(default_factory=lambda: Meter(Tally()))

    def receive(self, item: Item) -> Outcome:
        """Ends with the item delivered, stored, dead, recognised as a settled one, skipped, or given back."""
        started = self.sources.monotonic()
        return self.tell(item, self._decide(item), self.sources.monotonic() - started)

    def tell(self, item: Item, outcome: Outcome, took_s: float) -> Outcome:
        """What its provider hears is logged and counted."""
        log_decision(item, outcome, took_s)
        gate = outcome.reason.gate if outcome.reason else None
        self.meter.count_email(
            item.provider, outcome.status, REALTIME if outcome.status is Status.SKIPPED_OLD else gate
        )
        if outcome.subject_group and gate is None and outcome.status in (Status.PROCESSED, Status.QUEUED):
            self.meter.count_group()
        for delivery in outcome.deliveries:
            if delivery.status is DeliveryStatus.SKIPPED:
                self.meter.count_attempt(delivery.destination, delivery.status)
        return replace(outcome, warnings=item.warnings) if item.warnings else outcome

    def _decide(self, item: Item) -> Outcome:
        started = self.sources.monotonic()
        case = self.prepare_or_skip(item)
        if isinstance(case, Outcome):
            return case
        try:
            verdict = self.journal.claim(case.claim)
            if isinstance(verdict, Claimed) and self.resolve:
                case, verdict = self._claim_final_links(case, verdict)
        except StoreUnavailable as error:
            return self.store_is_away(case, error)
        self.meter.time_decision(self.sources.monotonic() - started)
        return self._deliver(case, verdict) if isinstance(verdict, Claimed) else self.stop(case, verdict)

    def prepare_or_skip(self, item: Item) -> Case | Outcome:
        """What is too old for its route takes no names."""
        route = self.router.pick(item)
        case = self.prepare(item, route)
        try:
            if not route.realtime_only or not self._is_old(case):
                return case
        except StoreUnavailable as error:
            return self.store_is_away(case, error)
        self.note_old(case.claim)
        return Outcome(Status.SKIPPED_OLD, item.id)

    def store_is_away(self, case: Case, error: StoreUnavailable) -> Outcome:
        log.error("item %s: %s; asking for a retry", case.item.id, error)
        return case.retry_later("the store is away")  # the error may name an address inside

    def stop(self, case: Case, verdict: Duplicate | InFlight) -> Outcome:
        if isinstance(verdict, Duplicate):
            return self._skip(case, verdict.entry) if verdict.entry else self._repeat(case, verdict)
        wait_s = max(1, min(MAX_WAIT_FOR_ANOTHER_S, -(-verdict.retry_after_ms // 1000)))
        why = f"another request is at it, or at an email with the same {verdict.gate}"
        return case.outcome(Status.ALREADY_PROCESSING, error=why, retry_after_s=wait_s)

    def _is_old(self, case: Case) -> bool:
        """One that is under way never is: its retry after our restart is older than our start."""
        if self.guard.is_new_message(case.item.moment, case.item.source):
            return False
        known = [entry for found in self.journal.look(case.claim.own) for entry in found.entries]
        return all(entry.state is State.DONE for entry in known)

    def prepare(self, item: Item, route: Route) -> Case:
        """Its names, its destinations, and what they will be sent."""
        item, route = for_recipient(item, route)
        now = self.sources.now()
        owner = self.sources.new_token()
        group = generate_subject_group_id(item.subject, self.naming.patterns, route.group_mode)
        links = self.naming.media_links(item, route)
        key = item.key if item.is_recognisable else f"{item.key}|{owner}"  # as nobody knows, it is a new one
        claim = Claim(
            entry=new_entry_id(),
            owner=owner,
            own=self.privacy.names(item.own_names) if item.is_named_by_words else item.own_names,
            shared=self.naming.shared_names(group, links, now),
            destinations=tuple(
                Wanted(name, webhook_id(key, item.fingerprint, name), self.content_at(name, item, route))
                for name in route.destinations_for(item)
            ),
            fingerprint=item.fingerprint,
            lease_ms=self.leases.lease_ms,
            about=self.privacy.about(item.about(route.name, self.server)),
            is_trial=self.is_trial,
        )
        received_at = shown_timestamp(now)
        told = {"type": item.event, "timestamp": received_at}
        payload = {**told, **item.payload, "received_at": received_at, "subject_group": group}
        return Case(item, group, links, claim, payload, self.new_budget())

    def new_budget(self) -> Budget:
        return Budget(self.sources.monotonic() + DELIVERY_BUDGET_S, self.sources.monotonic)

    def content_at(self, destination: str, item: Item, route: Route) -> Name | None:
        window_ms = route.content_window_ms(self.sender.policies[destination].content_window_ms, item)
        return content_name(destination, item.text, window_ms) if window_ms else None

    def _claim_final_links(self, case: Case, claimed: Claimed) -> tuple[Case, Verdict]:
        """Where a link leads elsewhere in the end, the claim follows it there."""
        table, resolve = self.naming.identity_parameters, self.resolve or list
        followed = zip(case.links, resolve(case.links), strict=True)
        finals = {media_name(link, table): media_name(final, table) for link, final in followed}
        shared = tuple(dict.fromkeys(finals.get(name, name) for name in case.claim.shared))
        if shared == case.claim.shared:
            return case, claimed
        moved = replace(case, claim=replace(case.claim, shared=shared))
        verdict = self.journal.claim(moved.claim)
        if isinstance(verdict, InFlight):
            self.journal.settle(case.claim, claimed.entry, Settlement(Ending.FREE))
        else:
            log.info("item %s: its claim has moved to where its links lead", case.item.id)
        return moved, verdict

    def _repeat(self, case: Case, verdict: Duplicate) -> Outcome:
        """Of a settled one: what has become of that, or what was said of it."""
        stop = verdict.stop
        if stop.gate is Gate.PROOF:
            raise ProofUsed
        return case.outcome(repeat_status(verdict.answer, verdict.fate), id=stop.original or "", reason=stop)

    def _skip(self, case: Case, entry: Entry) -> Outcome:
        """Stopped by a name that it shares with another: settled together with its payload, so that it can go out."""
        stop = entry.stop or Stop(entry.own[0])
        status = SKIPPED_AT[stop.gate]
        is_kept = self.keeps_suppressed or stop.follows  # a follower may have to go out in place of the other
        settlement = Settlement(Ending.DONE, status, payload=pack(case.payload) if is_kept else None)
        try:
            is_settled = self.journal.settle(case.claim, entry, settlement)
        except NoRoom:
            return self.give_back(case, entry)
        except DeduplicationError as error:
            log.error("item %s: stopped at %s, but not recorded: %s", case.item.id, stop.gate, error)
            return case.retry_later("the store is away")
        if not is_settled:
            return case.retry_later("what it repeats could not be delivered")
        return case.outcome(status, entry, reason=stop)

    def _deliver(self, case: Case, claimed: Claimed) -> Outcome:
        entry = self.journal.before_sending(claimed)
        if entry is None:
            return self.lease_ran_out(case)
        if self.queue:
            try:
                stored, going = self.to_be_announced(entry)
                return self.announce(case, stored, going, self._settle(case, stored))
            except NoRoom:
                log.debug("item %s: no room to store it, delivering at once", case.item.id)
        return self.send_and_settle(case, entry)

    def lease_ran_out(self, case: Case) -> Outcome:
        log.warning("item %s: its lease ran out before it was sent", case.item.id)
        return case.retry_later("it took too long to get to it")

    def send_and_settle(self, case: Case, entry: Entry) -> Outcome:
        entry = self.send(case, entry)
        try:
            return self._settle(case, entry)
        except NoRoom:
            return self.give_back(case, entry)

    def send(self, case: Case, entry: Entry) -> Entry:
        """The entry with what became of its deliveries; it is still to be settled."""
        try:
            sent = self.sender.send(case.claim, entry, case.payload, case.budget)
        except BaseException:
            self.leases.settle(
                Held(entry.id, case.claim.owner),
                partial(self.journal.settle, case.claim, entry, Settlement(Ending.FREE)),
            )
            raise
        for delivery in sent:
            entry = entry.with_delivery(delivery)
        return entry

    def give_back(self, case: Case, entry: Entry) -> Outcome:
        """What is to be sent later cannot be stored: its provider keeps it. Who has got it has got it."""
        delivered = tuple(each for each in entry.deliveries if each.status is DeliveryStatus.DELIVERED)
        settlement = Settlement(Ending.FREE, deliveries=delivered)
        settle = partial(self.journal.settle, case.claim, entry, settlement)
        self.leases.settle(Held(entry.id, case.claim.owner), settle)
        return case.retry_later("not through, and there is no room to store it")

    def to_be_announced(self, entry: Entry) -> tuple[Entry, list[Delivery]]:
        """The entry as it is stored before anybody hears of it, and what of it workers will be told of."""
        again_ms = self.sender.clock.now_ms() + ANNOUNCED_AGAIN_AFTER_MS
        going = []
        for delivery in entry.deliveries:
            if delivery.status is not DeliveryStatus.DELIVERING:
                continue
            hold = self.sender.hold_at(delivery.destination)
            if hold is Hold.PAUSED:
                reason = f"{delivery.destination}: {hold}"
                entry = entry.with_delivery(put_off(delivery, reason, self.sender.clock.now_ms()))
            else:
                going.append(delivery)
                entry = entry.with_delivery(replace(delivery, status=DeliveryStatus.WAITING, next_try_ms=again_ms))
        return entry, going

    def announce(self, case: Case, entry: Entry, going: Sequence[Delivery], outcome: Outcome) -> Outcome:
        """What was stored is announced. What cannot be is delivered here and now."""
        if outcome.status is not Status.QUEUED:
            return outcome
        for delivery in going:
            try:
                cast(Queue, self.queue).put(entry.id, delivery.destination)
            except QueueUnavailable as error:
                log.error("item %s: not announced, delivering at once: %s", case.item.id, error)
                sent = self.sender.deliver_or_leave(entry.id, delivery.destination)
                entry = entry.with_delivery(sent) if sent else entry
        return case.outcome(status_of(entry), entry)

    def _settle(self, case: Case, entry: Entry) -> Outcome:
        """Names, decision and deliveries in one step. Raises NoRoom where what is to be sent later cannot be stored."""
        settling = self.settling_of(case, entry)
        try:
            answer: bool | DeduplicationError = self.journal.settle(case.claim, entry, settling.settlement)
        except DeduplicationError as error:
            answer = error
        return self.conclude(case, settling, answer)

    def settling_of(self, case: Case, entry: Entry) -> Settling:
        statuses = {each.status for each in entry.deliveries}
        needs_no_payload = _is_over(entry) or (not self.keeps_suppressed and statuses <= ENDED_WELL)
        payload = None if needs_no_payload and not self.keeps_delivered else pack(case.payload)
        return Settling(case.claim, entry, Settlement(Ending.DONE, status_of(entry), entry.deliveries, payload=payload))

    def conclude(self, case: Case, settling: Settling, answer: bool | DeduplicationError) -> Outcome:
        """Only what is recorded, or delivered for sure, is told 2xx. Raises NoRoom: nothing is settled then."""
        entry, status = settling.entry, Status(settling.settlement.answer)
        if _is_over(entry):
            if isinstance(answer, DeduplicationError):
                settle = partial(self.journal.settle, case.claim, entry, settling.settlement)
                self.leases.owe(Held(entry.id, case.claim.owner), settle, answer)
            return case.outcome(status, entry)
        if isinstance(answer, NoRoom):
            raise answer
        if isinstance(answer, DeduplicationError):
            log.error("item %s: not delivered, and cannot be stored: %s", case.item.id, answer)
            return case.retry_later("not through, and the store is away")
        return case.outcome(status, entry) if answer else case.retry_later("another request has taken it over")


def _is_over(entry: Entry) -> bool:
    return all(each.status is DeliveryStatus.DELIVERED for each in entry.deliveries)


def log_decision(item: Item, outcome: Outcome, took_s: float) -> None:
    """One line for each item, whatever became of it."""
    line = "item %(item)s: %(status)s, entry %(entry)s, by %(provider)s in %(ms)d ms"
    said: dict[str, object] = {
        "item": outcome.item_id,
        "status": outcome.status.value,
        "entry": outcome.id or None,
        "provider": item.provider,
        "ms": int(took_s * 1000),
    }
    if outcome.reason:
        line += ", at %(gate)s, repeats %(original)s"
        said |= {"gate": outcome.reason.gate.value, "original": outcome.reason.original}
    if outcome.error:
        line += ", %(error)s"
        said["error"] = outcome.error
    log.info(line, said)


def for_recipient(item: Item, route: Route) -> tuple[Item, Route]:
    """Where each recipient counts on its own, an email to another of them is stopped by nothing they share."""
    if not route.identity_by_recipient:
        return item, route
    return item.for_recipient(), replace(route, group_mode=GroupMode.OFF, media=MediaMode.OFF, content=False)


def repeat_status(answer: str, fate: Fate) -> Status:
    """What is told of the repeat of a settled one; ``answer`` is what was told of that."""
    if fate is Fate.OVER:
        return Status(answer) if answer in SKIPPED_AT.values() else Status.ALREADY_PROCESSED
    return Status.QUEUED if fate is Fate.OPEN else Status.DEAD_LETTERED


def status_of(entry: Entry) -> Status:
    """Of one that is to be sent, by what became of its deliveries so far."""
    statuses = {delivery.status for delivery in entry.deliveries}
    if any(status.is_open for status in statuses):
        return Status.QUEUED
    return Status.DEAD_LETTERED if DeliveryStatus.DEAD in statuses else Status.PROCESSED
