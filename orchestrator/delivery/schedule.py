"""When a delivery is tried again, and when it is given up: pure functions over Delivery."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from deduplication.journal.entry import Attempt, Delivery, DeliveryStatus, changed
from orchestrator.delivery.webhook import DeliveryFailed, Receipt

RETRY_DELAYS_S = (5, 300, 1800, 7200, 5 * 3600, 10 * 3600, 14 * 3600, 20 * 3600, 24 * 3600)  # Standard Webhooks
MOST_RETRY_AFTER_S = 3600
MOST_AGE_MS = 76 * 3_600_000
TOO_OLD = "waited 76 h"
ATTEMPTS_KEPT = 20
JITTER = 0.1  # of the delay, and only added: never earlier than the destination asked for

Jitter = Callable[[], float]


@dataclass(frozen=True)
class Round:
    """One attempt at a destination: its POSTs, and how it ended. ``failure`` None: the destination has it."""

    attempts: tuple[Attempt, ...]
    receipt: Receipt | None = None
    failure: DeliveryFailed | None = None


def delay_ms(tries: int, retry_after_s: int | None, jitter: Jitter = random.random) -> int:
    """How long to wait after that many tries; at least what the destination asked for, up to an hour."""
    own_s = RETRY_DELAYS_S[min(tries, len(RETRY_DELAYS_S)) - 1]
    wanted_s = max(own_s, min(retry_after_s or 0, MOST_RETRY_AFTER_S))
    return int(wanted_s * 1000 * (1 + JITTER * jitter()))


@dataclass(frozen=True)
class Patience:
    """How often it is tried, and since when it waits: past 76 hours, a try that fails is its last."""

    max_attempts: int
    waits_since_ms: int

    def why_over(self, tries: int, now_ms: int) -> str | None:
        if tries >= self.max_attempts:
            return f"tried {tries} times"
        return TOO_OLD if now_ms - self.waits_since_ms >= MOST_AGE_MS else None


def after(
    delivery: Delivery, posted: Round, patience: Patience, now_ms: int, jitter: Jitter = random.random
) -> Delivery:
    """The delivery after an attempt: delivered, dead, or waiting for the next."""
    tried = partial(
        changed,
        delivery,
        tries=delivery.tries + 1,
        attempts=(*delivery.attempts, *posted.attempts)[-ATTEMPTS_KEPT:],
        next_try_ms=None,
        missing_ms=None,
    )
    if posted.failure is None:
        receiver_id = posted.receipt.receiver_id if posted.receipt else None
        return tried(status=DeliveryStatus.DELIVERED, ended_ms=now_ms, receiver_id=receiver_id, reason=None)
    reason = str(posted.failure)
    if posted.failure.permanent:
        return tried(status=DeliveryStatus.DEAD, ended_ms=now_ms, reason=reason)
    why_over = patience.why_over(delivery.tries + 1, now_ms)
    if why_over and not posted.failure.is_gone:  # after 410 the destination is paused until a person resumes it
        return tried(status=DeliveryStatus.DEAD, ended_ms=now_ms, reason=f"{reason}; {why_over}")
    next_try_ms = now_ms + delay_ms(delivery.tries + 1, posted.failure.retry_after_s, jitter)
    return tried(status=DeliveryStatus.WAITING, reason=reason, next_try_ms=next_try_ms)


def put_off(delivery: Delivery, reason: str, until_ms: int) -> Delivery:
    """It waits; this does not count as an attempt."""
    return changed(delivery, status=DeliveryStatus.WAITING, reason=reason, next_try_ms=until_ms)
