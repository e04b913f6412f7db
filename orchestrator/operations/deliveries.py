"""Deliveries as an operator knows them: which there are, and sending one again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from typing import Any

from deduplication.journal.base import Journal, Replayed
from deduplication.journal.entry import Delivery, DeliveryStatus, Entry, State
from deduplication.journal.listing import Count, Listed, PayloadPlace, Position, Window
from deduplication.journal.verdict import replay_refusal
from orchestrator.audit import audit
from orchestrator.build import Parts
from orchestrator.delivery.destination_states import shown_pause
from orchestrator.delivery.sender import Hold
from orchestrator.delivery.webhook import Payload, unpack
from orchestrator.operations.cursors import read_cursor, read_number, write_cursor

WOULD_REPLAY = "would_replay"
INDEXED = (DeliveryStatus.WAITING, DeliveryStatus.DEAD)
RESTS_FOR = 20  # times as long as counting took: it never takes more than a twentieth of anybody's time

GIVEN_BACK = "given back to its provider, to be sent again"
UNDER_WAY = "under way"
AWAITS_WORDS = "its words are on their way there"
ANNOUNCED = "announced to the workers"


@dataclass(frozen=True)
class Wanted:
    """Which deliveries; None matches anything. ``since_ms`` and ``until_ms`` are of the email's coming."""

    status: DeliveryStatus | None = None
    destination: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None


def delivery_id(entry: str, destination: str) -> str:
    return f"{entry}:{destination}"


def find_deliveries(journal: Journal, wanted: Wanted, after: Position | None = None) -> Iterator[Listed]:
    """What waits by its next try, what is dead by its death, the newest first: from their indexes, so that nothing else
    is read. All others by their emails, the newest first, and none outside of the time that is asked for."""
    window = Window(wanted.since_ms, wanted.until_ms, start=after)
    if wanted.status in INDEXED:
        found = journal.list_deliveries(wanted.status, wanted.destination, after)
        yield from (each for each in found if window.has(each.entry))
        return
    for entry in journal.find(window):
        deliveries = entry.deliveries
        if after and after.entry == entry.id:
            passed = next((n for n, each in enumerate(deliveries, 1) if each.destination == after.destination), 0)
            deliveries = deliveries[passed:]
        for delivery in deliveries:
            if wanted.status in (None, delivery.status) and wanted.destination in (None, delivery.destination):
                yield Listed(Position(entry.created_ms, entry.id, delivery.destination), entry, delivery)


def cursor_after(wanted: Wanted, last: Listed) -> str:
    """Where the next page begins, for whoever asks the same again."""
    position = last.position
    return write_cursor(wanted.status or "", position.at_ms, position.entry, position.destination)


def position_of(wanted: Wanted, cursor: str) -> Position:
    """Raises ValueError if it is none, or one of another list."""
    status, at_ms, entry, destination = read_cursor(cursor, 4)
    if status != (wanted.status or ""):
        raise ValueError("of another list")
    return Position(read_number(at_ms), entry, destination)


@dataclass(frozen=True)
class Seen:
    """A delivery with what an operator asks of it. ``reason``: why it waits now, else why it ended as it did."""

    entry: Entry
    delivery: Delivery
    reason: str | None
    age_s: int
    max_attempts: int | None
    storage: PayloadPlace


def look_at(parts: Parts, found: Sequence[tuple[Entry, Delivery]]) -> list[Seen]:
    held_back = cache(lambda destination: why_held_back(parts, destination))
    storages = parts.journal.locate_payloads(list(dict.fromkeys(entry.id for entry, _ in found)))
    now_ms = parts.journal.now_ms()
    seen = []
    for entry, delivery in found:
        policy = parts.sender.policies.get(delivery.destination)
        seen.append(
            Seen(
                entry,
                delivery,
                _reason(entry, delivery, held_back, has_queue=bool(parts.settings.queue_url)),
                age_s=max(0, now_ms - entry.created_ms) // 1000,
                max_attempts=policy.max_attempts if policy else None,
                storage=storages[entry.id],
            )
        )
    return seen


def why_held_back(parts: Parts, destination: str) -> str | None:
    """Why nothing that is stored goes to it now, and what a person gave as a reason; None if it is well."""
    hold, reason = parts.sender.why_held_back(destination), parts.sender.states.of(destination).reason
    return f"{hold} ({reason})" if hold is Hold.PAUSED and reason else hold


def _reason(entry: Entry, delivery: Delivery, held_back: Callable[[str], str | None], *, has_queue: bool) -> str | None:
    if not delivery.status.is_open:
        return delivery.reason
    if delivery.status is DeliveryStatus.DELIVERING:
        return UNDER_WAY
    if entry.state is not State.DONE:
        return GIVEN_BACK
    if reason := held_back(delivery.destination):
        return f"{delivery.destination}: {reason}"
    if delivery.awaits_content:
        return AWAITS_WORDS
    return ANNOUNCED if delivery.reason is None and has_queue else delivery.reason


def find_page(parts: Parts, wanted: Wanted, limit: int, after: Position | None = None) -> tuple[list[Seen], str | None]:
    """A page, and the cursor of the following one; None: that was all."""
    found = list(islice(find_deliveries(parts.journal, wanted, after), limit + 1))
    seen = look_at(parts, [(each.entry, each.delivery) for each in found[:limit]])
    return seen, cursor_after(wanted, found[limit - 1]) if len(found) > limit else None


def read_page(parts: Parts, wanted: Wanted, limit: int, after: Position | None = None) -> dict[str, Any]:
    seen, following = find_page(parts, wanted, limit, after)
    return {"deliveries": [shown(each) for each in seen], "more": following is not None, "next": following}


def shown(seen: Seen) -> dict[str, Any]:
    """Everything but the payload and what says who wrote what, with readable times."""
    entry, delivery = seen.entry, seen.delivery
    return {
        "id": delivery_id(entry.id, delivery.destination),
        "email_id": entry.about.item,
        "provider": entry.about.provider,
        "destination": delivery.destination,
        "status": delivery.status,
        "webhook_id": delivery.webhook_id,
        "created": shown_time(entry.created_ms),
        "age_s": seen.age_s,
        "delivered": shown_time(delivery.delivered_ms),
        "next_try": shown_time(delivery.next_try_ms),
        "tries": delivery.tries,
        "max_attempts": seen.max_attempts,
        "attempts": [
            {"at": shown_time(at.at_ms), "latency_ms": at.latency_ms, "status_code": at.status_code, "error": at.error}
            for at in delivery.attempts
        ],
        "receiver_id": delivery.receiver_id,
        "reason": seen.reason,
        "storage": seen.storage,
        "payload_bytes": entry.payload_bytes,
        "payload_machine": entry.payload_machine or None,
    }


def shown_time(moment_ms: int | None) -> str | None:
    """As it stands in answers."""
    return (
        None if moment_ms is None else datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="milliseconds")
    )


def read_payload(journal: Journal, entry_id: str) -> Payload | None:
    """What was or is to be sent, as far as it is kept."""
    kept = journal.payload(entry_id)
    return unpack(kept) if kept else None


def read_delivery(journal: Journal, id_: str) -> tuple[Entry, Delivery] | None:
    entry_id, _, destination = id_.partition(":")
    entry = journal.read(entry_id)
    delivery = entry.delivery_to(destination) if entry else None
    return (entry, delivery) if entry and delivery else None


@dataclass(frozen=True)
class How:
    """``force``: also what was delivered already. ``new_id``: under a webhook-id that the receiver has not seen."""

    force: bool = False
    new_id: bool = False
    dry_run: bool = False


def replay(journal: Journal, id_: str, how: How, new_token: Callable[[], str]) -> str:
    """Makes it due; whoever looks after what is due sends it. Past identity and content, not past "it has it".

    What came of it: a Replayed, or WOULD_REPLAY.
    """
    entry, _, destination = id_.partition(":")
    if how.dry_run:
        return _would_replay(journal, entry, destination, how.force)
    webhook_id = f"msg_{new_token()}" if how.new_id else None
    answer = journal.replay(entry, destination, force=how.force, webhook_id=webhook_id)
    if answer is Replayed.REPLAYED:
        audit.warning("AUDIT replay delivery=%s force=%s new_id=%s", id_, how.force, how.new_id)
    return answer


def replay_at_once(parts: Parts, id_: str, how: How) -> str:
    """An operator sees at once what became of it; with a queue, a worker sends it."""
    answer = replay(parts.journal, id_, how, parts.sources.new_token)
    if answer == Replayed.REPLAYED and not parts.settings.queue_url:
        parts.sender.deliver_stored(*id_.split(":", 1))
    return answer


def replay_email(parts: Parts, entry_id: str, how: How) -> str:
    """Of an email's deliveries, all that are dead or wait. REPLAYED if there was one, else why there was none."""
    entry = parts.journal.read(entry_id)
    if entry is None:
        return Replayed.UNKNOWN
    left = [each for each in entry.deliveries if each.status in INDEXED or how.force]
    answers = [
        replay(parts.journal, delivery_id(entry_id, each.destination), how, parts.sources.new_token) for each in left
    ]
    return max(answers, key=lambda each: each == Replayed.REPLAYED, default=Replayed.ALREADY_DELIVERED)


def _would_replay(journal: Journal, entry: str, destination: str, force: bool) -> str:
    found = read_delivery(journal, delivery_id(entry, destination))
    if found is None:
        return Replayed.UNKNOWN
    refusal = replay_refusal(*found, force, journal.lease_time_ms())
    if refusal is None and not found[0].payload_machine and journal.payload(entry) is None:
        refusal = Replayed.NO_PAYLOAD
    return refusal or WOULD_REPLAY


class Counts:
    """How many deliveries there are of each status, by destination.

    What waits and what is dead is the size of an index. To count the others, every entry is read (to count them as they
    happen would cost each email a command more): on a small journal each time, on a large one now and then.
    """

    def __init__(self, journal: Journal, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._journal = journal
        self._monotonic = monotonic
        self._again_at = float("-inf")
        self._others: Counter[tuple[str, DeliveryStatus]] = Counter()

    def read(self) -> dict[str, dict[DeliveryStatus, int]]:
        started = self._monotonic()
        if started >= self._again_at:
            self._others = Counter(
                (each.delivery.destination, each.delivery.status)
                for each in find_deliveries(self._journal, Wanted())
                if not each.entry.has_open_delivery_to(each.delivery.destination)
            )
            ended = self._monotonic()
            self._again_at = ended + RESTS_FOR * (ended - started)
        stored, others = self._journal.count_deliveries(), self._others
        return {
            name: {status: others[name, status] for status in DeliveryStatus}
            | {DeliveryStatus.WAITING: count.waiting, DeliveryStatus.DEAD: count.dead}
            for name in {*stored, *(destination for destination, _ in others)}
            for count in [stored.get(name, Count())]
        }


def stats(parts: Parts, counts: Counts) -> dict[str, Any]:
    """For each destination: how its breaker is, whether it is enabled, and its deliveries by status."""
    deliveries, states = counts.read(), parts.journal.states()
    nothing = dict.fromkeys(DeliveryStatus, 0)
    destinations = {}
    for name in sorted({*parts.config.destinations, *deliveries}):
        config = parts.config.destinations.get(name)
        destinations[name] = {
            "enabled": config.enabled if config else None,
            "breaker": parts.guard.state(name) if config else None,
            "paused": shown_pause(states.get(name)),
            "deliveries": deliveries.get(name, nothing),
        }
    return {"destinations": destinations}
