"""Destinations as an operator knows them: how each is, and to pause and resume one, for the whole fleet at once."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from deduplication.journal.destination_state import DestinationState
from deduplication.journal.entry import Attempt, DeliveryStatus
from deduplication.journal.listing import Count
from orchestrator.audit import audit
from orchestrator.build import Parts
from orchestrator.delivery.destination_states import shown_pause
from orchestrator.delivery.signing import public_keys
from orchestrator.delivery.webhook import DeliveryFailed, EventType, Webhook, shown_timestamp

MOST_REASON_CHARACTERS = 200
TEST_WITHIN_S = 8.0


class InvalidPause(Exception):
    """It does not say what to pause or resume; ``field`` takes something else."""

    def __init__(self, field: str, takes: str) -> None:
        super().__init__(f"{field} takes {takes}")
        self.field = field


def pause(parts: Parts, name: str, reason: str, by: str) -> DestinationState:
    """Nothing is sent there until it is resumed; what comes for it waits. Every process knows within two seconds."""
    if len(reason) > MOST_REASON_CHARACTERS:
        raise InvalidPause("reason", f"up to {MOST_REASON_CHARACTERS} characters")
    return _decide(parts, name, is_paused=True, reason=reason, by=by)


def resume(parts: Parts, name: str, by: str) -> DestinationState | None:
    """What waits for it goes out. None: it was not paused."""
    _check_known(parts, name)
    state = parts.journal.states().get(name)
    return _decide(parts, name, is_paused=False, reason="", by=by) if state and state.is_paused else None


def destinations(parts: Parts) -> dict[str, dict[str, Any]]:
    """For each: whether it is enabled, its breaker, whether it is paused and why, how many wait for it, and what its
    receiver verifies ed25519 signatures with."""
    states, counts = parts.journal.states(), parts.journal.count_deliveries()
    return {
        name: {
            "enabled": config.enabled,
            "breaker": parts.guard.state(name),
            "paused": shown_pause(states.get(name)),
            "waiting": counts.get(name, Count()).waiting,
            "public_keys": public_keys(config.secret),
        }
        for name, config in parts.config.destinations.items()
    }


def last_failure(parts: Parts, name: str) -> Attempt | None:
    """The last failed attempt at what died last there, or is due there next; None: nothing is dead or waits."""
    found = (
        next(parts.journal.list_deliveries(status, name), None)
        for status in (DeliveryStatus.DEAD, DeliveryStatus.WAITING)
    )
    failed = [attempt for each in found if each for attempt in each.delivery.attempts if attempt.error]
    return max(failed, key=lambda attempt: attempt.at_ms, default=None)


@dataclass(frozen=True)
class Tested:
    """What became of a test event. ``status_code`` None: there was no answer; ``error`` None: it was taken."""

    latency_ms: int
    status_code: int | None = None
    error: str | None = None


def send_test(parts: Parts, name: str, by: str) -> Tested:
    """One POST that is no email: nothing is recorded, repeated or counted, and a pause or breaker does not stop it."""
    _check_known(parts, name)
    note = "A test event, sent by an operator. There is no email behind it."
    told = {"type": EventType.TEST, "timestamp": shown_timestamp(parts.sources.now())}
    event = Webhook(f"msg_test_{parts.sources.new_token()}", {**told, "destination": name, "note": note})
    started = time.monotonic()
    status_code, error = None, None
    try:
        status_code = parts.sender.policies[name].destination.deliver(event, TEST_WITHIN_S).status_code
    except DeliveryFailed as failure:
        status_code, error = failure.status_code, str(failure)
    tested = Tested(round((time.monotonic() - started) * 1000), status_code, error)
    audit.warning("AUDIT test destination=%s by=%s answer=%s", name, by, status_code or error)
    return tested


def _decide(parts: Parts, name: str, *, is_paused: bool, reason: str, by: str) -> DestinationState:
    _check_known(parts, name)
    return parts.sender.states.decide(name, is_paused=is_paused, reason=reason, by=by)


def _check_known(parts: Parts, name: str) -> None:
    if name not in parts.config.destinations:
        raise InvalidPause("destination", f"one of {', '.join(sorted(parts.config.destinations))}")
