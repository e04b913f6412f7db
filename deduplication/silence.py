"""Who puts many questions for one answer waits for a Redis that keeps silent once, not once for each of them.

An email's way is not in such a scope: there each step is waited for, as slow is not gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from deduplication.errors import StoreUnavailable

JOURNALS = "the journal's"  # another server, such as a queue's, may answer all the while

_silent: ContextVar[dict[str, str] | None] = ContextVar("servers that kept silent, and in which words", default=None)


@contextmanager
def waiting_once() -> Iterator[None]:
    """Within it a server that left one question without an answer is not asked any more. Inside another it is that."""
    if _silent.get() is not None:
        yield
        return
    token = _silent.set({})
    try:
        yield
    finally:
        _silent.reset(token)


def is_silent(server: str = JOURNALS) -> bool:
    return server in (_silent.get() or ())


def raise_if_silent(server: str = JOURNALS) -> None:
    known = _silent.get()
    if known and server in known:
        raise StoreUnavailable(known[server])


def note_silence(error: Exception, server: str = JOURNALS) -> None:
    known = _silent.get()
    if known is not None:
        known[server] = str(error)
