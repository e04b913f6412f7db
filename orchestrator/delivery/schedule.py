"""When a delivery is tried again, and what becomes of its record: pure functions over Delivery."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from orchestrator.delivery.record import ATTEMPTS_KEPT, Attempt, Delivery, DeliveryStatus
from orchestrator.delivery.webhook import DeliveryFailed, Receipt

RETRY_DELAYS_S = (5, 30, 120, 600, 3600, 3 * 3600, 6 * 3600, 12 * 3600)
MOST_RETRY_AFTER_S = 3600
JITTER = 0.1  # of the delay, and only added: never earlier than the destination asked for

Jitter = Callable[[], float]


@dataclass(frozen=True)
class Round:
    """One turn at a destination: its POSTs, and how it ended. ``failure`` None: the destination has it."""

    attempts: tuple[Attempt, ...]
    receipt: Receipt | None = None
    failure: DeliveryFailed | None = None


def delay_ms(tries: int, retry_after_s: int | None, jitter: Jitter = random.random) -> int:
    """How long to wait after that many tries; at least what the destination asked for, up to an hour."""
    own_s = RETRY_DELAYS_S[min(tries, len(RETRY_DELAYS_S)) - 1]
    wanted_s = max(own_s, min(retry_after_s or 0, MOST_RETRY_AFTER_S))
    return int(wanted_s * 1000 * (1 + JITTER * jitter()))


def after(delivery: Delivery, turn: Round, max_attempts: int, now_ms: int, jitter: Jitter = random.random) -> Delivery:
    """The record after a turn: delivered, dead, or waiting for the next."""
    tried = replace(
        delivery,
        tries=delivery.tries + 1,
        attempts=(*delivery.attempts, *turn.attempts)[-ATTEMPTS_KEPT:],
        next_try_ms=None,
    )
    if turn.failure is None:
        receiver_id = turn.receipt.receiver_id if turn.receipt else None
        return delivered(replace(tried, receiver_id=receiver_id), now_ms)
    reason = str(turn.failure)
    if turn.failure.permanent:
        return replace(tried, status=DeliveryStatus.DEAD, reason=reason)
    if tried.tries >= max_attempts:
        return replace(tried, status=DeliveryStatus.DEAD, reason=f"{reason}; tried {tried.tries} times")
    next_try_ms = now_ms + delay_ms(tried.tries, turn.failure.retry_after_s, jitter)
    return replace(tried, status=DeliveryStatus.WAITING, reason=reason, next_try_ms=next_try_ms)


def delivered(delivery: Delivery, now_ms: int, reason: str | None = None) -> Delivery:
    return replace(delivery, status=DeliveryStatus.DELIVERED, delivered_ms=now_ms, next_try_ms=None, reason=reason)


def put_off(delivery: Delivery, reason: str, until_ms: int) -> Delivery:
    """It waits, and no try is used up."""
    return replace(delivery, status=DeliveryStatus.WAITING, reason=reason, next_try_ms=until_ms)


def asked_again(delivery: Delivery, now_ms: int, webhook_id: str | None = None) -> Delivery:
    """A replay: all tries anew, past the content gate, under the same webhook-id unless another is given."""
    return replace(
        delivery,
        status=DeliveryStatus.WAITING,
        webhook_id=webhook_id or delivery.webhook_id,
        scheduled_ms=now_ms,
        tries=0,
        next_try_ms=now_ms,
        delivered_ms=None,
        receiver_id=None,
        reason="replayed",
        content_hash="",
    )
