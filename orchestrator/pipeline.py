"""The way of an item, top to bottom: pick the route, claim, send, settle. docs/architecture.md has the rules."""

import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from msgspec import structs

from deduplication.content import content_name
from deduplication.email import Email
from deduplication.errors import NoRoom, StoreUnavailable, try_to
from deduplication.journal.coordinator import Claimed, Coordinator
from deduplication.journal.entry import OPEN, About, Delivery, DeliveryStatus, Entry, Stop, new_entry_id
from deduplication.journal.rules import Busy, Claim, Judgement, Repeat, Take, Wanted
from deduplication.media import IDENTITY_PARAMETERS, MediaMode, delivery_links, media_name
from deduplication.names import Gate, Kind, Name
from deduplication.realtime_guard import RealtimeGuard
from deduplication.subject_group import (
    CLAUSE_PATTERNS,
    GroupMode,
    GroupScope,
    group_name,
    group_of,
    is_reply,
    month_of,
    scope_of,
)
from deduplication.values import frozen
from orchestrator.config.model import Config
from orchestrator.config.settings import DELIVERY_BUDGET_S, Settings
from orchestrator.delivery.sender import Sender, put_off
from orchestrator.delivery.webhook import TIMESTAMP, EventType, Payload, pack, unpack, webhook_id
from orchestrator.files import Files
from orchestrator.item import MOST_SHOWN_CHARS, Item
from orchestrator.metrics.meter import DECISION_S, DELIVERIES, EMAILS, GROUPS, REALTIME, ROUTE, Meter
from orchestrator.privacy import Privacy
from orchestrator.routing import Route, Router

log = logging.getLogger(__name__)

MOST_MEDIA = 50  # a newsletter of links must not make one claim a long script
RETRY_AFTER_FAILURE_S = 10
MOST_WAIT_FOR_ANOTHER_S = 10
IGNORED_TAG = "it repeats an email whose subject differs only by a tag in front"
UNREADABLE_DATE = "date cannot be read and counts as absent; it must be a time such as 2026-11-16T09:00:00Z"


class Status(StrEnum):
    """What its sender is told of an item."""

    PROCESSED = "processed"
    QUEUED = "queued"
    DEAD_LETTERED = "dead_lettered"
    ALREADY_PROCESSED = "already_processed"
    ALREADY_PROCESSING = "already_processing"
    SKIPPED_SUBJECT_GROUP = "skipped_subject_group"
    SKIPPED_MEDIA = "skipped_media"
    SKIPPED_CONTENT = "skipped_content"
    SKIPPED_OLD = "skipped_old"
    SKIPPED_ROUTE = "skipped_route"
    RETRY_LATER = "retry_later"


SKIPPED_AT = {
    Gate.IDENTITY: Status.ALREADY_PROCESSED,
    Gate.SUBJECT_GROUP: Status.SKIPPED_SUBJECT_GROUP,
    Gate.MEDIA: Status.SKIPPED_MEDIA,
    Gate.CONTENT: Status.SKIPPED_CONTENT,
}


RULES = {Status.SKIPPED_OLD: REALTIME, Status.SKIPPED_ROUTE: ROUTE}  # of routes: stopped without a name that it met


class ProofUsed(Exception):
    """The proof of the item's origin was accepted with another item, and proves no second one."""


@frozen
class Outcome:
    """What happened to one item and to each of its deliveries. ``id``: its entry in the journal, if it has one.

    ``had_already``: destinations of its route that an earlier copy of it went to, or is stored for. ``error`` says why
    it must be sent again, ``warnings`` what of it could not be read.
    """

    status: Status
    item_id: str
    id: str = ""
    subject_group: str | None = None
    reason: Stop | None = None
    retry_after_s: int | None = None
    deliveries: tuple[Delivery, ...] = ()
    had_already: tuple[str, ...] = ()
    error: str = ""
    warnings: tuple[str, ...] = ()


@frozen
class Case:
    """An item on its way: what it claims, and what will be sent. ``links``: parts of that which have links to files."""

    item: Item
    route: Route
    group: str | None
    claim: Claim
    received: datetime
    links: Mapping[str, Any] = field(default_factory=dict)

    def payload(self) -> Payload:
        received_at = f"{self.received.astimezone(UTC):{TIMESTAMP}}"
        return {
            "type": EventType.MESSAGE_RECEIVED if self.item.is_message else EventType.EMAIL_RECEIVED,
            "timestamp": received_at,
            **self.item.payload(self.item.recipients),
            **self.links,
            "received_at": received_at,
            "subject_group": self.group,
        }

    def retry_later(
        self, error: str, status: Status = Status.RETRY_LATER, after_s: int = RETRY_AFTER_FAILURE_S
    ) -> Outcome:
        return Outcome(status, self.item.id, subject_group=self.group, retry_after_s=after_s, error=error)


@frozen
class Pipeline:
    """``files`` is None if nothing is linked."""

    coordinator: Coordinator
    router: Router
    sender: Sender
    guard: RealtimeGuard
    privacy: Privacy
    meter: Meter
    settings: Settings
    config: Config
    files: Files | None = None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def receive(self, item: Item) -> Outcome:
        """Ends with the item delivered, stored, dead, recognised, skipped, or returned to its sender for a retry."""
        started = time.monotonic()
        case = self.prepare(item, self.router.pick(item))
        try:
            if (case.route.dropped_by or case.route.realtime_only) and (rule := self._rule_against(case)):
                outcome = self._skip(case, *rule)
            else:
                found = self.coordinator.claim(case.claim)
                self.meter.count((time.monotonic() - started, DECISION_S))
                outcome = self._deliver(case, found) if isinstance(found, Claimed) else self._not_sent(case, found)
        except StoreUnavailable as error:
            log.error("item %s: its sender is asked to retry: %s", item.id, error)
            outcome = case.retry_later("the store is away")  # the error may name an internal address
        status, reason, count = outcome.status, outcome.reason, self.meter.count
        gate = reason.gate if reason else RULES.get(status, "")
        # One line of the log for each item
        line = "item %(item)s: %(status)s, entry %(entry)s, by %(provider)s in %(ms)d ms"
        values: dict[str, object] = {"item": outcome.item_id, "status": status, "entry": outcome.id or None}
        values |= {"provider": item.provider, "ms": int((time.monotonic() - started) * 1000)}
        if reason:
            line += ", at %(gate)s, repeats %(original)s"
            values |= {"gate": gate, "original": reason.original}
        if outcome.error:
            line += ", %(error)s"
            values["error"] = outcome.error
        log.info(line, values)
        count((1, EMAILS, item.provider, status, gate))
        is_new = not gate and status in (Status.PROCESSED, Status.QUEUED)
        if is_new and any(name.kind is Kind.SUBJECT_GROUP for name in case.claim.shared):
            count((1, GROUPS))
        for delivery in outcome.deliveries:
            if delivery.status is DeliveryStatus.SKIPPED:
                count((1, DELIVERIES, delivery.destination, delivery.status))
        if item.received.date and not item.moment:
            outcome = replace(outcome, warnings=(UNREADABLE_DATE,))
        return outcome

    # Before the claim

    def prepare(self, item: Item, route: Route) -> Case:
        """Its names, its destinations, and what they will be sent."""
        # A proof is never scoped to a recipient: it proves one email with all the addresses that it came with (28).
        proof = item.proof
        proof_key = f"{item.key}|{item.fingerprint}|{item.payload(()).get('recipients')}" if proof else ""
        if route.identity_by_recipient:
            item, route = for_recipient(item, route)
        # One that cannot be recognised counts as a new one each time.
        key = item.key if item.is_recognisable else f"{item.key}|{secrets.token_hex(8)}"
        wanted = []
        for name in route.destinations:
            window_ms = route.content_window_ms(self.sender.destinations[name].config, item)
            words = content_name(name, item.received.text, window_ms) if window_ms else None
            wanted.append(Wanted(name, webhook_id(name, key), words))
        subject, sender = (next(iter(item.values(name)), "") for name in ("subject", "sender"))
        # The end of an address is the sender's domain, which must not be taken for another one.
        shown = subject[:MOST_SHOWN_CHARS], sender[-MOST_SHOWN_CHARS:]
        to = item.recipients or item.values("to")
        recipient = f"{to[0][-MOST_SHOWN_CHARS:]}{f' +{len(to) - 1}' if len(to) > 1 else ''}" if to else ""
        about = About(
            item.id, item.provider, route.name, *shown, self.sender.server, recipient=recipient, thread=item.thread
        )
        own = item.own_names
        if self.privacy.is_strict:
            about = self.privacy.about(about)
            own = self.privacy.names(own) if item.is_named_by_words else own
        now = self.now()
        group, shared = shared_names(self.settings, self.config, item, route, now)
        entry = new_entry_id()
        claim = Claim(
            entry=entry,
            owner=f"{self.coordinator.journal.machine}.{entry}",
            own=own,
            shared=shared,
            destinations=tuple(wanted),
            fingerprint=item.fingerprint,
            lease_ms=self.settings.lease_ms,
            about=about,
            proof=_digest(proof) if proof else "",
            key=_digest(proof_key) if proof else "",
        )
        return Case(item, route, group, claim, now)

    def _rule_against(self, case: Case) -> tuple[Status, str] | None:
        """The rule of its route that stops it, and why. None for an item that is known: it may be being delivered, and
        its retry after our restart is older than our start (29)."""
        if case.route.dropped_by:
            rule = Status.SKIPPED_ROUTE, f"dropped by route {case.route.dropped_by}"
        elif self.guard.is_new_message(case.item.moment, next(iter(case.item.values("source")), "")):
            return None
        else:
            rule = Status.SKIPPED_OLD, "older than the service"
        found = self.coordinator.look(case.claim)
        return rule if isinstance(found, Take) and not any(entry.is_open for entry in found.candidates) else None

    def _skip(self, case: Case, status: Status, reason: str) -> Outcome:
        """It takes no names; an entry of its own, the same for every repeat, says so and can be released."""
        claim = case.claim
        if claim.proof and not self.coordinator.use_proof(claim):
            raise ProofUsed
        skipped = tuple(
            Delivery(wanted.destination, wanted.webhook_id, DeliveryStatus.SKIPPED, reason=reason)
            for wanted in claim.destinations
        )
        entry = Entry(
            id="rule" + _digest("|".join([status, case.item.key, claim.fingerprint, *case.route.destinations]))[:12],
            machine=self.coordinator.journal.machine,
            own=(),
            fingerprint=claim.fingerprint,
            created_ms=self.coordinator.journal.clock.now_ms(),
            about=claim.about,
            deliveries=skipped,
            answer=status,
        )
        case = self._with_links(case, entry.id) if case.item.has_files and self.settings.keep_suppressed else case
        self.coordinator.record(entry, pack(case.payload()) if self.settings.keep_suppressed else None)
        return Outcome(status, case.item.id, entry.id)

    # After it

    def _not_sent(self, case: Case, found: Judgement) -> Outcome:
        if isinstance(found, Busy):
            wait_s = max(1, min(MOST_WAIT_FOR_ANOTHER_S, -(-found.retry_after_ms // 1000)))
            error = f"another request is processing it, or an email with the same {found.gate}"
            return case.retry_later(error, Status.ALREADY_PROCESSING, wait_s)
        if not isinstance(found, Repeat):
            raise ProofUsed
        original = found.of
        stop = Stop(found.name, original.id or None, original.created_ms or None)
        wanted = tuple(destination.destination for destination in case.claim.destinations)
        status, had_already = repeat_status(original, wanted), wanted if original.id else ()
        return Outcome(status, case.item.id, original.id, case.group, stop, had_already=had_already)

    def _deliver(self, case: Case, claimed: Claimed) -> Outcome:
        decided = [delivery for delivery in claimed.plan if delivery.status is not DeliveryStatus.CLAIMED]
        clock, budget_s = self.coordinator.journal.clock, min(DELIVERY_BUDGET_S, 0.4 * self.settings.lease_seconds)
        sent: Sequence[Delivery] = ()
        try:
            is_sent = any(delivery.status is not DeliveryStatus.SKIPPED for delivery in claimed.plan)
            if case.item.has_files and (is_sent or self.settings.keep_suppressed):
                case = self._with_links(case, claimed.entry.id)
            if self.settings.deliver_by == "workers" and not claimed.is_alone:  # alone, nothing can be stored (7)
                sent = [put_off(delivery, "queued", clock.now_ms()) for delivery in claimed.to_send]
            elif len(decided) < len(claimed.plan):
                if claimed.lease_until_ms - clock.steady_ms() <= budget_s * 1000:  # rule 4
                    return self._return(case, claimed, "it took too long to get to it")
                sent = self.sender.send(claimed, case.payload(), time.monotonic() + budget_s, case.item.traceparent)
        except BaseException:
            self._return(case, claimed, "an unexpected error")
            raise
        return self._settle(case, claimed, [*decided, *sent])

    def _with_links(self, case: Case, entry_id: str) -> Case:
        """With links to its files, once these are stored: a repeat stores nothing, and no webhook is ahead of them."""
        email = case.item.received
        if self.files is None or not isinstance(email, Email):
            return case
        domain = scope_of(email.sender_email, GroupScope.DOMAIN, hides_domain=self.privacy.is_strict)
        return replace(case, links=self.files.link(email, entry_id, domain))

    def _settle(self, case: Case, claimed: Claimed, outcomes: Sequence[Delivery]) -> Outcome:
        """Only what is delivered for sure, or stored where it is safe, is answered with 2xx (rule 6)."""
        if claimed.is_alone and any(delivery.status is DeliveryStatus.WAITING for delivery in outcomes):
            return self._return(case, claimed, "not delivered, and Redis is away", outcomes)
        by_destination = {delivery.destination: delivery.status for delivery in (*claimed.entry.deliveries, *outcomes)}
        wanted = [destination.destination for destination in case.claim.destinations]
        # Its answer is about its own destinations, without those of earlier copies and those that another entry covers.
        statuses = {by_destination[name] for name in wanted if name in by_destination}
        stop = claimed.entry.stop if statuses == {DeliveryStatus.SKIPPED} else None
        status = SKIPPED_AT[stop.gate] if stop else status_of(statuses)
        others = {*by_destination.values()} - {DeliveryStatus.DELIVERED}
        is_needed = self.settings.keep_suppressed if others == {DeliveryStatus.SKIPPED} else bool(others)
        payload = self._pack(case, claimed) if is_needed or self.settings.delivered_payload_days else None
        try:
            settled = self.coordinator.settle(claimed, outcomes, status, payload)
        except NoRoom as error:
            log.warning("item %s: %s", case.item.id, error)
            return self._return(case, claimed, "not delivered, and there is no room to store it", outcomes)
        if not settled.is_safe:
            return case.retry_later("it could not be recorded")
        entry, planned = settled.entry or claimed.entry, {delivery.destination for delivery in claimed.plan}
        return Outcome(
            status,
            case.item.id,
            entry.id,
            case.group,
            stop,
            deliveries=entry.deliveries,
            had_already=tuple(name for name in wanted if name not in planned),
            warnings=(IGNORED_TAG,) if stop and stop.gate is Gate.IDENTITY and stop.original else (),
        )

    def _pack(self, case: Case, claimed: Claimed) -> bytes:
        """To be stored for all its destinations. What an earlier copy has stored stays as it is, since it may be sent
        again under the same webhook-id, but for its recipients, and for parts that only this copy has."""
        ours = case.payload()
        payload = dict(ours)
        if len(claimed.entry.deliveries) > len(claimed.plan):
            with self.coordinator.journal.reading() as step:
                stored = step.payload(claimed.entry.id)
            earlier = unpack(stored) if stored else {}
            payload |= {name: value for name, value in earlier.items() if value}
            for name in payload.keys() & {"delivered_to", "recipients"}:
                payload[name] = list(dict.fromkeys((*payload[name], *ours[name])))
        return pack(payload, case.item.traceparent)

    def _return(self, case: Case, claimed: Claimed, error: str, outcomes: Sequence[Delivery] = ()) -> Outcome:
        """Its sender keeps it and tries again. Destinations that already received it keep that status. If it cannot be
        noted, its claim ends with its lease."""
        delivered = [delivery for delivery in outcomes if delivery.status is DeliveryStatus.DELIVERED]
        known = {delivery.destination for delivery in delivered}
        returned = [
            structs.replace(delivery, status=DeliveryStatus.RETURNED, waits_for=None)
            for delivery in claimed.plan
            if delivery.destination not in known
        ]
        try_to(lambda: self.coordinator.settle(claimed, [*delivered, *returned]), f"item {case.item.id}")
        return case.retry_later(error)


def shared_names(
    settings: Settings, config: Config, item: Item, route: Route, now: datetime
) -> tuple[str | None, tuple[Name, ...]]:
    """The subject group of an item, and names that other items may have too: that group, and its media. Those of an
    email count in GROUP_SCOPE.

    A reply to an email of a group says something new: only ``all`` counts it as one of the group, and the rules of the
    older engine (``everyone``) do.
    """
    sender, is_older = next(iter(item.values("sender")), ""), settings.group_scope is GroupScope.EVERYONE
    patterns = CLAUSE_PATTERNS if config.subject_patterns is None and not is_older else config.patterns
    group = group_of(item.folded_subject, patterns, route.subject_groups)
    mode = route.media or (MediaMode.LISTED if item.is_message else MediaMode.OFF)
    links, identity = tuple[str, ...](), {**IDENTITY_PARAMETERS, **config.media.identity}
    if mode is not MediaMode.OFF:
        links = (*item.media, *delivery_links(item.received.links, mode, config.media.hosts, identity))[:MOST_MEDIA]
    if not (group or links) or not (sender or is_older or item.is_message):  # without a sender, the scope is unknown
        return group, ()
    scope = "" if item.is_message else scope_of(sender, settings.group_scope, hides_domain=settings.privacy == "strict")
    names = [media_name(link, identity, scope) for link in links]
    if group and (is_older or route.subject_groups is GroupMode.ALL or not is_reply(item.folded_subject)):
        month, ttl_s = month_of(settings.timezone, now), settings.subject_group_ttl_seconds
        names.insert(0, group_name(f"{group}{scope}", month, ttl_s))
    return group, tuple(dict.fromkeys(names))


def for_recipient(item: Item, route: Route) -> tuple[Item, Route]:
    """Where each recipient counts separately: it is known as the one to its recipient, and no shared name stops it."""
    if item.recipients:
        recipient = _digest(item.recipients[0])[:12]  # ids go to the log, addresses do not
        names = tuple(name.with_value(f"{name.value}@{recipient}") for name in item.own_names)
        item = replace(item, id=names[0].value, key=f"{item.key}@{recipient}", own_names=names)
    return item, replace(route, subject_groups=GroupMode.OFF, media=MediaMode.OFF, content=False)


def repeat_status(original: Entry, wanted: Collection[str]) -> Status:
    """What is answered to a repeat: what has happened to the original at the destinations that the repeat is for."""
    statuses = {delivery.status for delivery in original.deliveries if delivery.destination in wanted}
    if statuses == {DeliveryStatus.SKIPPED} and original.answer in SKIPPED_AT.values():
        return Status(original.answer)
    status = status_of(statuses)
    return Status.ALREADY_PROCESSED if status is Status.PROCESSED else status


def status_of(statuses: set[DeliveryStatus]) -> Status:
    """What is answered for an item whose deliveries have these statuses."""
    if statuses & OPEN:
        return Status.QUEUED
    return Status.DEAD_LETTERED if DeliveryStatus.DEAD in statuses else Status.PROCESSED


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]
