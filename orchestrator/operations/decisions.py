"""Decisions as an operator knows them: what became of each email, why, and letting go after all what was stopped."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from deduplication.claims import Gate, Kind, Name
from deduplication.errors import StoreUnavailable
from deduplication.identity import bounded_key
from deduplication.journal.base import Released
from deduplication.journal.entry import DeliveryStatus, Entry, State
from deduplication.journal.listing import PayloadPlace, Window
from deduplication.journal.verdict import known_of, release_refusal
from orchestrator.audit import audit
from orchestrator.build import Parts
from orchestrator.delivery.webhook import unpack
from orchestrator.intake import Status
from orchestrator.item import MOST_SHOWN_CHARS
from orchestrator.operations import deliveries
from orchestrator.operations.cursors import read_cursor, read_number, write_cursor
from orchestrator.operations.decision_index import GATES, Filter, Sought, decided_status, searched_text
from orchestrator.operations.deliveries import Seen, look_at, shown_time
from orchestrator.operations.reasons import Case, said_at, sentence
from orchestrator.privacy import Privacy

log = logging.getLogger(__name__)

WOULD_RELEASE = "would_release"
MOST_READS = 20  # for one page: rows that are found and do not match are few, unless Redis is away
MOST_OF_ONE_ID = 10
STORE_OF_ALL = "redis"
READ_AT_ONCE = 200
LONGEST_TEXT = 2 * MOST_SHOWN_CHARS + 1
BRIEF = ("id", "destination", "status", "reason", "tries", "max_attempts", "next_try", "delivered", "receiver_id")


@dataclass(frozen=True)
class Decision:
    """``status``: what its provider was told, brought up to date with what became of it since. ``reason``: why, in one
    sentence. ``original``: the email that it repeats, where that is still kept. ``releasable_until_ms``: None where
    nothing was stopped, or its payload is not kept."""

    entry: Entry
    status: Status
    reason: str
    original: Entry | None
    deliveries: tuple[Seen, ...]
    releasable_until_ms: int | None

    @property
    def gate(self) -> Gate | None:
        return self.entry.stop.gate if self.entry.stop else None

    @property
    def took_ms(self) -> int | None:
        """From when it first came until its provider was told 2xx; unknown of one that was taken up again."""
        is_first_end = self.entry.settled_ms is not None and self.entry.generation == 0
        return (self.entry.settled_ms or 0) - self.entry.created_ms if is_first_end else None


@dataclass(frozen=True)
class DecisionPage:
    """``next``: the cursor of the following page; None: this is the last."""

    decisions: tuple[Decision, ...]
    next: str | None


# Reading


def list_decisions(parts: Parts, wanted: Filter, limit: int, cursor: str | None = None) -> DecisionPage:
    """The newest first. Raises ValueError where ``cursor`` is not one that was given here."""
    before = read_number(read_cursor(cursor, 1)[0]) if cursor else None  # the number of the last row that was shown
    bring_up_to_date(parts)
    found, before = _read_page(parts, wanted, limit, before)
    return DecisionPage(tuple(explain(parts, found)), None if before is None else write_cursor(before))


def bring_up_to_date(parts: Parts) -> None:
    """As far as one step goes, so that what has just come is found. Where another process is at it, that will do."""
    for _ in range(2):  # the first one may find the file damaged, and remove it
        try:
            parts.decisions.follow()
            return
        except StoreUnavailable as error:
            log.debug("decisions: shown as they were known: %s", error)


def find_entries(parts: Parts, wanted: Filter) -> Iterator[Entry]:
    """All of them, the newest first, a page at a time."""
    bring_up_to_date(parts)
    before = None
    while True:
        found, before = _read_page(parts, wanted, READ_AT_ONCE, before)
        yield from found
        if before is None:
            return


def _read_page(parts: Parts, wanted: Filter, limit: int, before: int | None) -> tuple[list[Entry], int | None]:
    """Up to so many, and the number before which to go on; None: these were the last.

    What the index says is asked of the journal: an entry may have changed, or be known to Redis alone, which is away.
    """
    journal, index = parts.journal, parts.decisions
    sought, lease_time_ms = _sought(parts, wanted.q) if wanted.q else None, journal.lease_time_ms()
    found: list[Entry] = []
    for _ in range(MOST_READS):
        rows = index.find(wanted, sought, before, limit + 1)
        ids = [row.id for row in rows]
        known = journal.read_all(ids) | index.read_old(ids)
        changed = []
        for row in rows:
            entry = known.get(row.id)
            if entry and matches(entry, wanted, lease_time_ms, parts.privacy):
                if len(found) == limit:
                    return found, before
                found.append(entry)
            elif entry:
                changed.append(entry)
            before = row.number
        if changed:
            with suppress(StoreUnavailable):
                index.put(changed)
        if len(rows) <= limit:
            return found, None
    return found, before


def _sought(parts: Parts, q: str) -> Sought:
    (named,) = parts.journal.look([Name(Kind.POST, "", _message_key(q))])
    text = parts.privacy.text(q)
    return Sought(text if len(text) <= LONGEST_TEXT else "", (q, *(entry.id for entry in named.entries)))


def matches(entry: Entry, wanted: Filter, lease_time_ms: int, privacy: Privacy) -> bool:
    return (
        Window(wanted.since_ms, wanted.until_ms).has(entry)
        and wanted.status in (None, decided_status(entry, lease_time_ms))
        and wanted.gate in (None, entry.stop.gate if entry.stop else None)
        and wanted.provider in (None, entry.about.provider)
        and (wanted.destination is None or entry.delivery_to(wanted.destination) is not None)
        and (wanted.q is None or _is_found_by(entry, wanted.q, privacy))
    )


def _is_found_by(entry: Entry, q: str, privacy: Privacy) -> bool:
    if q in (entry.id, entry.about.item) or any(name.value == _message_key(q) for name in entry.own):
        return True
    return privacy.text(q).lower() in searched_text(entry, privacy)


def _message_key(text: str) -> str:
    """The name that a Message-ID, or an event id of a provider, makes; with or without its brackets."""
    return bounded_key(text.strip().strip("<>").strip())


def read_decision(parts: Parts, text: str) -> Decision | None:
    """By its id, its email id or its Message-ID; where several have that, the newest."""
    entry = parts.journal.read(text)
    if entry is None or entry.is_lock:
        bring_up_to_date(parts)
        ids = replace(_sought(parts, text), text="")
        rows = parts.decisions.find(Filter(q=text), ids, None, MOST_OF_ONE_ID)
        ids_found = [row.id for row in rows]
        known = parts.journal.read_all(ids_found) | parts.decisions.read_old(ids_found)
        entry = next((known[row.id] for row in rows if row.id in known), None)
    return explain(parts, [entry])[0] if entry else None


def explain(parts: Parts, entries: Sequence[Entry]) -> list[Decision]:
    """With no more of subject and sender than may be shown."""
    journal = parts.journal
    entries = [parts.privacy.shown(entry) for entry in entries]
    seen = look_at(parts, [(entry, delivery) for entry in entries for delivery in entry.deliveries])
    known = {entry.id: entry for entry in entries}
    originals = {entry.stop.original for entry in entries if entry.stop and entry.stop.original}
    for original in journal.read_all(sorted(originals - known.keys())).values():
        known[original.id] = parts.privacy.shown(original)
    now_ms, lease_time_ms = journal.now_ms(), journal.lease_time_ms()
    when = partial(said_at, now_ms=now_ms, tz=parts.settings.tz)
    decisions = []
    for entry in entries:
        its = tuple(each for each in seen if each.entry.id == entry.id)
        original_entry = known.get(entry.stop.original or "") if entry.stop else None
        status = decided_status(entry, lease_time_ms)
        reason = sentence(Case(entry, status, original_entry, its, when))
        decisions.append(Decision(entry, status, reason, original_entry, its, _releasable_until_ms(parts, entry, its)))
    return decisions


def _releasable_until_ms(parts: Parts, entry: Entry, seen: Sequence[Seen]) -> int | None:
    """As long as the entry is kept; one that follows another goes out by itself, or stays for as long."""
    is_stopped = any(each.delivery.status is DeliveryStatus.SKIPPED for each in seen) and entry.state is State.DONE
    is_kept = entry.payload_machine or any(each.storage is not PayloadPlace.GONE for each in seen)
    if not is_stopped or not is_kept:
        return None
    is_dead = any(each.delivery.status is DeliveryStatus.DEAD for each in seen)
    kept_ms = parts.settings.dead_letter_ms if is_dead else parts.settings.decision_ms
    return (entry.settled_ms or entry.created_ms) + kept_ms


# Showing


def shown(decision: Decision) -> dict[str, Any]:
    entry, stop = decision.entry, decision.entry.stop
    return {
        "id": entry.id,
        "email_id": entry.about.item,
        "status": decision.status,
        "gate": decision.gate,
        "reason": decision.reason,
        "name": stop.name.label if stop else None,
        "original": stop.original if stop else None,
        "first_seen": shown_time(stop.first_seen_ms) if stop else None,
        "follows": bool(stop and stop.follows and entry.released_ms is None),
        "repeats": entry.repeats,
        "last_repeat": shown_time(entry.repeated_ms),
        "provider": entry.about.provider,
        "route": entry.about.route,
        "sender": entry.about.sender,
        "subject": entry.about.subject,
        "received_at": shown_time(entry.created_ms),
        "settled_at": shown_time(entry.settled_ms),
        "took_ms": decision.took_ms,
        "store": entry.about.store or STORE_OF_ALL,
        "released_at": shown_time(entry.released_ms),
        "releasable_until": shown_time(decision.releasable_until_ms),
        "deliveries": [{key: shown_in_full[key] for key in BRIEF} for shown_in_full in _shown_deliveries(decision)],
    }


def _shown_deliveries(decision: Decision) -> list[dict[str, Any]]:
    return [deliveries.shown(each) for each in decision.deliveries]


def shown_in_full(parts: Parts, decision: Decision) -> dict[str, Any]:
    """With its names, every attempt, what each gate said, the email that it repeats, and the payload that is kept."""
    entry, original = decision.entry, decision.original
    payload = parts.journal.payload(entry.id)
    return {
        **shown(decision),
        "server": entry.about.server,
        "is_trial": entry.is_trial,
        "names": [_shown_name(name) for name in entry.names],
        "gates": [{"gate": report.gate, "said": report.said} for report in gate_reports(entry)],
        "original_email": shown(explain(parts, [original])[0]) if original else None,
        "deliveries": _shown_deliveries(decision),
        "payload_bytes": entry.payload_bytes,
        "payload_machine": entry.payload_machine or None,
        "payload": unpack(payload) if payload else None,
    }


def _shown_name(name: Name) -> dict[str, Any]:
    return {"gate": name.gate, "name": name.label, "is_own": name.is_own}


@dataclass(frozen=True)
class GateReport:
    gate: Gate
    said: str


def gate_reports(entry: Entry) -> list[GateReport]:
    """What each gate said, in the order in which they are asked; of a gate behind the one that stopped it: nothing."""
    reports = []
    for gate in GATES:
        labels = [name.label for name in entry.names if name.gate is gate]
        if entry.stop and entry.stop.gate is gate:
            reports.append(GateReport(gate, f"stopped: {entry.stop.name.label} is taken"))
            break
        passed = "not asked, it was imported" if entry.answer == Status.IMPORTED else "passed"
        asked = f"{passed}: {', '.join(labels)}" if labels else passed
        reports.append(GateReport(gate, asked if labels or entry.stop else "nothing to ask"))
    return reports


# Releasing


@dataclass(frozen=True)
class ReleaseHow:
    """``force``: also where another entry of the same email was delivered. ``at_once``: deliver before answering."""

    force: bool = False
    dry_run: bool = False
    at_once: bool = False


def release(parts: Parts, id_: str, how: ReleaseHow, by: str) -> str:
    """Lets a stopped email go out, once. What came of it: a Released, or WOULD_RELEASE."""
    journal = parts.journal
    if how.dry_run:
        return _would_release(parts, id_, how.force)
    answer = journal.release(id_, force=how.force)
    if answer is Released.RELEASED:
        audit.warning("AUDIT release entry=%s force=%s by=%s", id_, how.force, by)
        entry = journal.read(id_) if how.at_once else None
        for delivery in entry.deliveries if entry else ():
            if delivery.status is DeliveryStatus.WAITING:
                parts.sender.deliver_stored(id_, delivery.destination)
    return answer


def _would_release(parts: Parts, id_: str, force: bool) -> str:
    journal = parts.journal
    entry = journal.read(id_)
    if entry is None:
        return Released.UNKNOWN
    known = known_of(journal.look(entry.own), journal.lease_time_ms(), journal.now_ms())
    refusal = release_refusal(entry, known, force)
    if refusal is None and not entry.payload_machine and journal.payload(id_) is None:
        refusal = Released.NO_PAYLOAD
    return refusal or WOULD_RELEASE


def release_matching(parts: Parts, wanted: Filter, how: ReleaseHow, by: str) -> Iterator[tuple[str, str]]:
    """Of all that match, those that were stopped: each with what came of it."""
    for entry in find_entries(parts, wanted):
        if any(each.status is DeliveryStatus.SKIPPED for each in entry.deliveries):
            yield entry.id, release(parts, entry.id, how, by)
