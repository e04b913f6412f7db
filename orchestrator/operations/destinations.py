"""Destinations for an operator: the state of each, pausing and resuming one, and sending it a test event."""

import secrets
import time
from datetime import UTC, datetime

from deduplication.journal.entry import Attempt
from orchestrator.audit import audit
from orchestrator.build import Service
from orchestrator.delivery.webhook import TIMESTAMP, EventType, Webhook
from orchestrator.operations.fleet_state import DestinationView, Pause, fleet_state

MOST_REASON_CHARACTERS = 200
TEST_WITHIN_S = 8.0
FAILURES_LOOKED_AT = 20


class InvalidAction(Exception):
    """``field`` of the request must be something else."""

    def __init__(self, field: str, must_be: str) -> None:
        super().__init__(f"{field} must be {must_be}")
        self.field = field


def pause(service: Service, name: str, reason: str, by: str) -> Pause | None:
    """No machine sends anything there until it is resumed; new emails for it are queued."""
    _check_known(service, name)
    if len(reason) > MOST_REASON_CHARACTERS:
        raise InvalidAction("reason", f"at most {MOST_REASON_CHARACTERS} characters")
    service.guard.set_paused(name, True, reason=reason, by=by)
    return Pause.of(service.guard.pause_of(name))


def resume(service: Service, name: str, by: str) -> bool:
    """Waiting deliveries are sent. False if it was not paused."""
    _check_known(service, name)
    return service.guard.set_paused(name, False, reason="", by=by)


def destinations(service: Service) -> dict[str, DestinationView]:
    """The configured ones."""
    views = fleet_state(service).destinations
    return {name: views[name] for name in service.config.destinations}


def last_failure(service: Service, name: str) -> Attempt | None:
    """The last failed attempt among the latest dead letters and oldest waiting deliveries; None if there is none."""
    some = "seq IN (SELECT seq FROM deliveries WHERE status = '{}' AND destination = ? ORDER BY {} LIMIT ?)"
    either = f"{some.format('dead', 'ended_ms DESC')} OR {some.format('waiting', 'seq')}"
    with service.journal.reading() as step:
        rows = step.read_rows(either, (name, FAILURES_LOOKED_AT) * 2)
    found = [entry.delivery_to(name) for _, entry in rows]
    failed = [attempt for delivery in found if delivery for attempt in delivery.attempts if attempt.error]
    return max(failed, key=lambda attempt: attempt.at_ms, default=None)


def send_test(service: Service, name: str, by: str) -> Attempt:
    """One POST without an email: nothing is recorded, retried or counted, and neither pause nor breaker stops it. The
    ``error`` is None if the destination accepted the event."""
    _check_known(service, name)
    note = "A test event, sent by an operator. There is no email behind it."
    head = {"type": EventType.TEST, "timestamp": f"{datetime.now(UTC):{TIMESTAMP}}"}
    event = Webhook(f"msg_test_{secrets.token_urlsafe(12)}", {**head, "destination": name, "note": note})
    at_ms, started = service.journal.clock.now_ms(), time.monotonic()
    result = service.sender.destinations[name].deliver(event, TEST_WITHIN_S)
    audit.warning("AUDIT test destination=%s by=%s answer=%s", name, by, result.status_code or result.error)
    return Attempt(at_ms, round((time.monotonic() - started) * 1000), result.status_code, result.error)


def _check_known(service: Service, name: str) -> None:
    if name not in service.config.destinations:
        raise InvalidAction("destination", f"one of {', '.join(sorted(service.config.destinations))}")
