"""An entry as flat lists, the form in which journals write it down and scripts on Redis read it.

Positions, not keys: an entry is written twice for every email, and what it takes is what the shared Redis spends.
None is written as false: a list in Lua ends at the first nil. Enumerations are strings, and written as these.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from deduplication.claims import Kind, Name
from deduplication.journal.base import Claim
from deduplication.journal.destination_state import DestinationState
from deduplication.journal.entry import About, Attempt, Delivery, DeliveryStatus, Entry, State, Stop

# Made once: json.dumps makes an encoder for every call that asks for anything special.
in_json: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode

# Asked by their values for every name, entry and delivery that is read: a dict answers in a third of the time.
_KINDS = {kind.value: kind for kind in Kind}
_STATES = {state.value: state for state in State}
_STATUSES = {status.value: status for status in DeliveryStatus}


def flat_entry(entry: Entry) -> list[Any]:
    """The order is that of lua/entry.lua."""
    return [
        entry.id,
        entry.state,
        entry.owner,
        entry.fence,
        entry.lease_until_ms,
        entry.created_ms,
        entry.fingerprint,
        flat_names(entry.own),
        flat_names(entry.shared),
        [flat_delivery(each) for each in entry.deliveries],
        False if entry.retries_left is None else entry.retries_left,
        entry.answer,
        False if entry.settled_ms is None else entry.settled_ms,
        _flat_stop(entry.stop) if entry.stop else False,
        False if entry.released_ms is None else entry.released_ms,
        entry.repeats,
        False if entry.repeated_ms is None else entry.repeated_ms,
        entry.repeated_by,
        entry.is_trial,
        flat_about(entry.about),
        entry.generation,
        entry.payload_bytes,
        entry.payload_machine,
    ]


def read_entry(flat: list[Any]) -> Entry:
    """Redis may keep more behind it, for itself."""
    id_, state, owner, fence, lease, created, fingerprint, own, shared, deliveries, *rest = flat
    (
        retries,
        answer,
        settled,
        stop,
        released,
        repeats,
        repeated_ms,
        repeated_by,
        is_trial,
        about,
        generation,
        *payload,
    ) = rest
    return Entry(
        id=id_,
        own=tuple(map(read_name, own)),
        shared=tuple(map(read_name, shared)),
        fingerprint=fingerprint,
        state=_STATES[state],
        owner=owner,
        fence=fence,
        lease_until_ms=lease,
        created_ms=created,
        about=About(own[0][2] if about[0] is False else about[0], *about[1:]),
        deliveries=tuple(map(read_delivery, deliveries)),
        retries_left=_read(retries),
        answer=answer,
        settled_ms=_read(settled),
        stop=Stop(read_name(stop[0]), _read(stop[1]), _read(stop[2]), stop[3]) if stop else None,
        released_ms=_read(released),
        repeats=repeats,
        repeated_ms=_read(repeated_ms),
        repeated_by=repeated_by,
        is_trial=is_trial,
        generation=generation,
        payload_bytes=payload[0] if len(payload) > 1 else 0,
        payload_machine=payload[1] if len(payload) > 1 else "",
    )


def flat_name(name: Name) -> list[Any]:
    return [name.kind, name.scope, name.value, False if name.kept_ms is None else name.kept_ms]


def flat_names(names: tuple[Name, ...]) -> list[list[Any]]:
    return [[each.kind, each.scope, each.value, False if each.kept_ms is None else each.kept_ms] for each in names]


def read_name(flat: list[Any]) -> Name:
    kind, scope, value, kept_ms = flat
    return Name(_KINDS[kind], scope, value, _read(kept_ms))


def flat_delivery(delivery: Delivery) -> list[Any]:
    return [
        delivery.destination,
        delivery.webhook_id,
        delivery.status,
        delivery.generation,
        delivery.tries,
        delivery.begins,
        False if delivery.next_try_ms is None else delivery.next_try_ms,
        False if delivery.delivered_ms is None else delivery.delivered_ms,
        delivery.owner,
        delivery.lease_until_ms,
        delivery.fence,
        False if delivery.receiver_id is None else delivery.receiver_id,
        False if delivery.reason is None else delivery.reason,
        flat_name(delivery.content) if delivery.content else False,
        delivery.awaits_content,
        [[each.at_ms, each.latency_ms, _flat(each.status_code), _flat(each.error)] for each in delivery.attempts],
        False if delivery.missing_ms is None else delivery.missing_ms,
        delivery.server,
    ]


def read_delivery(flat: list[Any]) -> Delivery:
    destination, webhook_id, status, generation, tries, begins, next_try, delivered, *rest = flat
    owner, lease, fence, receiver_id, reason, content, awaits_content, attempts, missing, server = rest
    return Delivery(
        destination=destination,
        webhook_id=webhook_id,
        status=_STATUSES[status],
        generation=generation,
        tries=tries,
        begins=begins,
        next_try_ms=_read(next_try),
        delivered_ms=_read(delivered),
        owner=owner,
        lease_until_ms=lease,
        fence=fence,
        receiver_id=_read(receiver_id),
        reason=_read(reason),
        content=read_name(content) if content else None,
        awaits_content=awaits_content,
        attempts=tuple(Attempt(at, latency, _read(code), _read(error)) for at, latency, code, error in attempts),
        missing_ms=_read(missing),
        server=server,
    )


def flat_state(state: DestinationState) -> list[Any]:
    return [state.is_paused, state.since_ms, state.reason, state.by, state.well_since_ms]


def read_state(flat: list[Any]) -> DestinationState:
    return DestinationState(*flat)


def flat_about(about: About) -> list[str]:
    """On Redis, which is the rule, nothing is spent on saying so."""
    flat = [about.item, about.provider, about.route, about.subject, about.sender, about.server]
    return [*flat, about.store] if about.store else flat


def short_about(claim: Claim) -> list[Any]:
    """For Redis, where every byte of an entry counts: of an item that goes by its first own name false, not that."""
    item, *rest = flat_about(claim.about)
    return [False if claim.own and claim.own[0].value == item else item, *rest]


def _flat_stop(stop: Stop) -> list[Any]:
    return [flat_name(stop.name), _flat(stop.original), _flat(stop.first_seen_ms), stop.follows]


def _flat(value: Any) -> Any:
    return False if value is None else value


def _read(value: Any) -> Any:
    return None if value is False else value
