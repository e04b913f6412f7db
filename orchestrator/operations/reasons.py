"""What became of an email and why, in one sentence that a person understands at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo

from deduplication.claims import Gate, Kind, Name
from deduplication.journal.entry import DeliveryStatus, Entry, State, Stop
from orchestrator.intake import Status
from orchestrator.operations.deliveries import Seen

IN_WORDS = {
    Gate.IDENTITY: "email id",
    Gate.SUBJECT_GROUP: "subject group",
    Gate.MEDIA: "file",
    Gate.CONTENT: "words",
}


@dataclass(frozen=True)
class Case:
    """What a sentence is made of. ``original``: the email that it repeats, as far as that is still kept; ``when`` shows
    a moment as a person would say it."""

    entry: Entry
    status: Status
    original: Entry | None
    deliveries: Sequence[Seen]
    when: Callable[[int], str]


def sentence(case: Case) -> str:
    entry = case.entry
    said = _beginning(case)
    if entry.repeats:
        times = "once" if entry.repeats == 1 else f"{entry.repeats} times"
        last = f", last at {case.when(entry.repeated_ms)}" if entry.repeated_ms else ""
        said += f". It came again {times}{last}, and was not sent again"
    return said


def _beginning(case: Case) -> str:
    entry = case.entry
    if entry.state is State.PENDING:
        return _in_flight(case)
    if entry.state is State.FREE:
        return _given_back(case)
    if case.status is Status.SKIPPED_OLD:
        return "Not sent: it is older than the service, and its route takes new ones only"
    if case.status is Status.IMPORTED:
        return f"Imported at {case.when(entry.created_ms)}, from the mail before: known, and not sent from here"
    if entry.stop and entry.released_ms is None:
        return f"Not sent: {_stopped_by(case, entry.stop)}"
    if entry.is_trial:
        return "Only printed: no destination is configured yet. It goes out if it comes again once there is one"
    if not entry.deliveries:
        return "Published by a script"
    outcome = "; ".join(_outcomes(case))
    if entry.released_ms is None or entry.stop is None:
        return outcome[0].upper() + outcome[1:]
    at = case.when(entry.released_ms)
    if entry.stop.follows:  # nobody asked for it: the one that it followed is dead
        return f"Sent at {at} in place of {_who(case, entry.stop)}, which could not be delivered: {outcome}"
    return f"Released at {at}, after it was stopped ({_met(entry.stop)} as {_other(case, entry.stop)}): {outcome}"


def _in_flight(case: Case) -> str:
    since = case.when(case.entry.created_ms)
    if case.status is Status.ALREADY_PROCESSING:
        to = _list([each.delivery.destination for each in case.deliveries if each.delivery.status.is_open])
        return f"Being delivered{f' to {to}' if to else ''} now, since {since}"
    return f"Not decided: its request of {since} ended without an answer. It goes on when its provider sends it again"


def _given_back(case: Case) -> str:
    entry = case.entry
    had = [each.delivery.destination for each in case.deliveries if each.delivery.status is DeliveryStatus.DELIVERED]
    but = f" (delivered to {_list(had)} already)" if had else ""
    if entry.generation and entry.is_undelivered:
        return f"Forgotten by a reset{but}: if it comes again, it is delivered"
    tried = [each.delivery for each in case.deliveries if each.delivery.attempts]
    why = f": {tried[0].attempts[-1].error}" if tried and tried[0].attempts[-1].error else ""
    return f"Given back to its provider, which sends it again{but}{why}"


def _stopped_by(case: Case, stop: Stop) -> str:
    if stop.original is None:
        what = IN_WORDS.get(stop.gate, stop.gate)
        return f"another program has marked its {what} {_value(stop.name)} as done"
    said = f"{_met(stop)} as {_other(case, stop)}"
    if stop.follows:
        return f"{said}. If that one fails for good, this one goes out in its place"
    return said


def _met(stop: Stop) -> str:
    if stop.gate is Gate.CONTENT:
        return "same first words"
    return f"same {IN_WORDS.get(stop.gate, stop.gate)} {_value(stop.name)}"


def _value(name: Name) -> str:
    return name.value if name.kind is not Kind.CONTENT else name.value[:12]


def _other(case: Case, stop: Stop) -> str:
    """The email that it repeats: when that came, from whom, and what became of it."""
    return f"{_who(case, stop)}{_fate(case.original) if case.original else ', which is no longer kept'}"


def _who(case: Case, stop: Stop) -> str:
    seen_ms = case.original.created_ms if case.original else stop.first_seen_ms
    at = f"of {case.when(seen_ms)}" if seen_ms is not None else str(stop.original)
    sender = f" from {case.original.about.sender}" if case.original and case.original.about.sender else ""
    return f"the email {at}{sender}"


def _fate(original: Entry) -> str:
    by_status = {
        status: [each.destination for each in original.deliveries if each.status is status] for status in DeliveryStatus
    }
    if original.answer == Status.IMPORTED:
        return ", which was imported"
    if had := by_status[DeliveryStatus.DELIVERED]:
        return f", delivered to {_list(had)}"
    if original.has_open_deliveries:
        return f", which waits for {_list([each.destination for each in original.deliveries if each.status.is_open])}"
    if dead := by_status[DeliveryStatus.DEAD]:
        return f", which could not be delivered to {_list(dead)}"
    return ""


def _outcomes(case: Case) -> list[str]:
    """One part for each thing that became of its deliveries."""
    by_status = {
        status: [each for each in case.deliveries if each.delivery.status is status] for status in DeliveryStatus
    }
    said = []
    if had := by_status[DeliveryStatus.DELIVERED]:
        last_ms = max(each.delivery.delivered_ms or 0 for each in had)
        at = f" at {case.when(last_ms)}" if last_ms else ""
        said.append(f"delivered to {_names(had)}{at}")
    said += [f"being delivered to {each.delivery.destination} now" for each in by_status[DeliveryStatus.DELIVERING]]
    said += [_waiting(case, each) for each in by_status[DeliveryStatus.WAITING]]
    said += [_dead(each) for each in by_status[DeliveryStatus.DEAD]]
    if left_out := by_status[DeliveryStatus.SKIPPED]:
        said.append(f"not sent to {_names(left_out)}, which had the same words before")
    return said


def _waiting(case: Case, seen: Seen) -> str:
    delivery = seen.delivery
    because = f" ({_why(seen)})" if seen.reason else ""
    next_try = f"; next try at {case.when(delivery.next_try_ms)}" if delivery.next_try_ms is not None else ""
    tries = f", after {_times(delivery.tries)}" if delivery.tries else ""
    return f"waiting for {delivery.destination}{because}{tries}{next_try}"


def _dead(seen: Seen) -> str:
    because = f": {_why(seen)}" if seen.reason else ""
    tries = f" after {_times(seen.delivery.tries)}" if seen.delivery.tries else ""
    return f"not delivered to {seen.delivery.destination}, given up{tries}{because}"


def _why(seen: Seen) -> str:
    """Reasons of deliveries begin with the destination, which the sentence has named already."""
    return (seen.reason or "").removeprefix(f"{seen.delivery.destination}: ")


def _times(count: int) -> str:
    return "1 try" if count == 1 else f"{count} tries"


def _names(seen: Sequence[Seen]) -> str:
    return _list([each.delivery.destination for each in seen])


def _list(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def said_at(moment_ms: int, now_ms: int, tz: tzinfo) -> str:
    """Of today the time alone."""
    moment, now = (datetime.fromtimestamp(each / 1000, tz) for each in (moment_ms, now_ms))
    return moment.strftime("%H:%M" if moment.date() == now.date() else "%Y-%m-%d %H:%M")
