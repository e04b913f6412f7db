"""The errors of the deduplication layer, and how background threads handle them."""

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class DeduplicationError(Exception):
    """Base class of all errors of this layer."""


class StoreUnavailable(DeduplicationError):
    """The journal or Redis cannot answer now; a retry may succeed."""


class NoAnswer(StoreUnavailable):
    """Redis did not answer in time, or refused the connection. The command may have been executed."""


class NoRoom(StoreUnavailable):
    """The journal or Redis has no room for another payload until stored ones have been sent."""


class StoreMisconfigured(DeduplicationError):
    """A bug or a wrong setting, which a retry does not fix."""


def try_to(work: Callable[[], object], what: str) -> float:
    """Runs background work and logs its errors, so that the thread continues. Returns how many seconds to pause."""
    try:
        work()
        return 0.0
    except StoreUnavailable as error:
        log.info("%s: will retry: %s", what, error)
        return 0.1
    except DeduplicationError as error:
        log.error("%s: %s", what, error)
    except Exception:  # if the thread ended, nobody would do its work until the next start
        log.exception("%s: will retry", what)
    return 1.0
