"""The errors of the deduplication layer, and what background threads do about them."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class DeduplicationError(Exception):
    """Base of all errors of this layer."""


class StoreUnavailable(DeduplicationError):
    """The journal or Redis cannot answer now; a retry may work."""


class NoAnswer(StoreUnavailable):
    """Redis did not answer in time, or refused the connection. The command may have been executed."""


class NotNow(StoreUnavailable):
    """Redis accepts no claims now: a new era has begun, or the request came too late."""


class NoRoom(StoreUnavailable):
    """There is no room for another payload, here or in Redis, until stored ones have been sent."""


class StoreMisconfigured(DeduplicationError):
    """A bug or a wrong setting: a retry will not help."""


def try_to(work: Callable[[], object], what: str) -> float:
    """Runs background work, and logs an error: the thread goes on. Returns how many seconds to rest after it."""
    try:
        work()
    except StoreUnavailable as error:
        log.info("%s: will retry: %s", what, error)
        return 0.1
    except DeduplicationError as error:
        log.error("%s: %s", what, error)
        return 1.0
    except Exception:  # a thread that ended would leave its work undone until the process ends
        log.exception("%s: will retry", what)
        return 1.0
    return 0.0
