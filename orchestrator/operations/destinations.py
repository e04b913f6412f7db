"""Destinations as an operator knows them: the state of each; to pause and resume one, and to send it a test event."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, Field

from deduplication.journal.entry import Attempt
from orchestrator.audit import audit
from orchestrator.delivery.destination_states import shown_pause
from orchestrator.delivery.signing import public_keys
from orchestrator.delivery.webhook import DeliveryFailed, EventType, Webhook, shown_timestamp

if TYPE_CHECKING:
    from orchestrator.build import Service

MOST_REASON_CHARACTERS = 200
TEST_WITHIN_S = 8.0
FAILURES_LOOKED_AT = 20


class Pause(BaseModel):
    since: str = Field(json_schema_extra={"format": "date-time"})
    reason: str
    by: str


class DestinationShown(BaseModel):
    enabled: bool | None
    breaker: Literal["closed", "open", "half-open"] | None
    paused: Pause | None
    waiting: int
    public_keys: list[str] = Field(description="What its receiver verifies ed25519 signatures (v1a) with.")


class InvalidPause(Exception):
    """``field`` of the request must be something else."""

    def __init__(self, field: str, must_be: str) -> None:
        super().__init__(f"{field} must be {must_be}")
        self.field = field


def pause(service: Service, name: str, reason: str, by: str) -> Pause:
    """Nothing is sent there until it is resumed, by any machine; new emails for it are queued."""
    _check_known(service, name)
    if len(reason) > MOST_REASON_CHARACTERS:
        raise InvalidPause("reason", f"at most {MOST_REASON_CHARACTERS} characters")
    return Pause.model_validate(shown_pause(service.states.decide(name, is_paused=True, reason=reason, by=by)))


def resume(service: Service, name: str, by: str) -> bool:
    """Sends what waits for it. False if it was not paused."""
    _check_known(service, name)
    service.states.refresh()
    if not service.states.of(name).is_paused:
        return False
    service.states.decide(name, is_paused=False, reason="", by=by)
    service.retrier.recover(name)
    return True


def destinations(service: Service) -> dict[str, DestinationShown]:
    """Those of the configuration."""
    views = service.observer.fleet_state().destinations
    return {
        name: DestinationShown.model_validate(
            {
                "enabled": views[name].is_enabled,
                "breaker": views[name].breaker,
                "paused": shown_pause(views[name].paused),
                "waiting": views[name].waiting,
                "public_keys": public_keys(config.secret),
            }
        )
        for name, config in service.config.destinations.items()
    }


def last_failure(service: Service, name: str) -> Attempt | None:
    """The last failed attempt among the latest dead letters and the next waiting deliveries; None if there is none."""
    with service.journal.reading() as step:
        seqs = [
            *step.query(
                "SELECT seq FROM deliveries WHERE status = 'dead' AND destination = ? ORDER BY ended_ms DESC LIMIT ?",
                (name, FAILURES_LOOKED_AT),
            ),
            *step.query(
                "SELECT seq FROM deliveries WHERE status = 'waiting' AND destination = ? ORDER BY next_try_ms LIMIT ?",
                (name, FAILURES_LOOKED_AT),
            ),
        ]
        places = ",".join("?" * len(seqs))
        entries = step.read_rows(f"seq IN ({places})", [seq for (seq,) in seqs]) if seqs else []
    found = [entry.delivery_to(name) for _, entry in entries]
    failed = [attempt for each in found if each for attempt in each.attempts if attempt.error]
    return max(failed, key=lambda attempt: attempt.at_ms, default=None)


@dataclass(frozen=True)
class Tested:
    """``status_code`` is None if there was no response, ``error`` if the destination accepted the event."""

    latency_ms: int
    status_code: int | None = None
    error: str | None = None


def send_test(service: Service, name: str, by: str) -> Tested:
    """One POST that is no email: nothing is recorded, retried or counted, and neither pause nor breaker stops it."""
    _check_known(service, name)
    note = "A test event, sent by an operator. There is no email behind it."
    head = {"type": EventType.TEST, "timestamp": shown_timestamp(datetime.now(UTC))}
    event = Webhook(f"msg_test_{secrets.token_urlsafe(12)}", {**head, "destination": name, "note": note})
    started = time.monotonic()
    status_code, error = None, None
    try:
        status_code = service.sender.policies[name].destination.deliver(event, TEST_WITHIN_S).status_code
    except DeliveryFailed as failure:
        status_code, error = failure.status_code, str(failure)
    audit.warning("AUDIT test destination=%s by=%s answer=%s", name, by, status_code or error)
    return Tested(round((time.monotonic() - started) * 1000), status_code, error)


def _check_known(service: Service, name: str) -> None:
    if name not in service.config.destinations:
        raise InvalidPause("destination", f"one of {', '.join(sorted(service.config.destinations))}")
