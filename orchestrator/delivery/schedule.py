"""When a delivery is tried again, and when it becomes a dead letter: pure functions of Delivery."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from deduplication.journal.entry import Attempt, Delivery, DeliveryStatus, changed
from orchestrator.delivery.webhook import GONE, DeliveryFailed, Receipt

# Of Standard Webhooks, with another 5 s in front: after a request, which makes two attempts, comes the second delay.
RETRY_DELAYS_S = (5, 5, 300, 1800, 7200, 5 * 3600, 10 * 3600, 14 * 3600, 20 * 3600, 24 * 3600)
MOST_RETRY_AFTER_S = 3600
MOST_AGE_MS = 76 * 3_600_000
TOO_OLD = "waited 76 h"
ATTEMPTS_KEPT = 20
JITTER = 0.1  # of the delay, and only added: never earlier than the destination asked for


@dataclass(frozen=True)
class Patience:
    """How often a delivery is tried, and since when it waits: after 76 hours, a failed attempt is its last.

    ``is_extra``: an attempt before its next try, or at a destination whose circuit breaker is open. If it fails, it
    counts as no try, so that an outage uses up none.
    """

    max_attempts: int
    waits_since_ms: int
    is_extra: bool = False


def delay_ms(tries: int, retry_after_s: int | None, jitter: Callable[[], float] = random.random) -> int:
    """How long to wait after that many attempts; at least as long as the destination asked for, up to an hour."""
    own_s = RETRY_DELAYS_S[min(tries, len(RETRY_DELAYS_S)) - 1]
    wanted_s = max(own_s, min(retry_after_s or 0, MOST_RETRY_AFTER_S))
    return int(wanted_s * 1000 * (1 + JITTER * jitter()))


def after(
    delivery: Delivery, attempts: list[Attempt], result: Receipt | DeliveryFailed, patience: Patience, now_ms: int
) -> Delivery:
    """The delivery after these POSTs, the last of which had this result: delivered, dead, or waiting for the next."""
    is_extra = patience.is_extra and isinstance(result, DeliveryFailed)
    tries = delivery.tries + (0 if is_extra else len(attempts))
    kept = (*delivery.attempts, *attempts)[-ATTEMPTS_KEPT:]
    tried = partial(replace, delivery, tries=tries, attempts=kept, next_try_ms=None, missing_ms=None)
    if isinstance(result, Receipt):
        return tried(status=DeliveryStatus.DELIVERED, ended_ms=now_ms, receiver_id=result.receiver_id, reason=None)
    is_too_old = now_ms - patience.waits_since_ms >= MOST_AGE_MS
    is_last = tries >= patience.max_attempts and not is_extra
    if (is_last or is_too_old) and result.status_code != GONE:  # 410 pauses the destination instead
        why = f"tried {tries} time{'s' * (tries > 1)}" if is_last else TOO_OLD
        return tried(status=DeliveryStatus.DEAD, ended_ms=now_ms, reason=f"{result}; {why}")
    next_try_ms = now_ms + delay_ms(max(tries, 1), result.retry_after_s)
    if is_extra and (delivery.next_try_ms or 0) > now_ms and not result.retry_after_s:
        next_try_ms = delivery.next_try_ms or 0
    return tried(status=DeliveryStatus.WAITING, reason=str(result), next_try_ms=next_try_ms)


def put_off(delivery: Delivery, reason: str, until_ms: int) -> Delivery:
    """It waits; this does not count as an attempt."""
    return changed(delivery, status=DeliveryStatus.WAITING, reason=reason, next_try_ms=until_ms)
