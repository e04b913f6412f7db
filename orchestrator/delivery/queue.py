"""The queue between the request that receives an email and the worker that delivers it.

A message only says that something is due at a destination; the delivery itself is stored. So a message that arrives
twice, or never, does no harm: the store hands each delivery to one worker, and workers look every second as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol


class QueueUnavailable(Exception):
    """The queue cannot accept a message now."""


class QueueMisconfigured(QueueUnavailable):
    """The queue refuses us: waiting will not help."""


class Queue(Protocol):
    """``put``, ``check`` and ``depth`` raise QueueUnavailable or QueueMisconfigured."""

    def put(self, destination: str) -> None:
        """Wakes a worker."""

    def consume(self, destinations: Iterable[str], wake: Callable[[str], None]) -> None:
        """Calls ``wake``, which returns at once, for each message, in a thread of its own until it is closed."""

    def check(self) -> None:
        """Raises if it cannot accept a message now."""

    def depth(self, destination: str) -> int:
        """How many messages are not handled yet."""
        ...

    def close(self) -> None: ...
