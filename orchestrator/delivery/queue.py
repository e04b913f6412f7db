"""The queue between the request that takes an email and the worker that delivers it.

A message only says that something is due at a destination; the delivery itself is stored. So a message that comes
twice, or never, does no harm: the store hands each delivery to one worker, and workers look every second as well.
"""

from __future__ import annotations

from typing import Protocol


class QueueUnavailable(Exception):
    """The queue cannot accept a message now."""


class QueueMisconfigured(Exception):
    """The queue refuses us: waiting will not help."""


class Queue(Protocol):
    def put(self, destination: str) -> None:
        """Wakes a worker. Raises QueueUnavailable."""
        ...

    def check(self) -> None:
        """Raises QueueUnavailable or QueueMisconfigured if it could not accept a message now."""
        ...

    def depth(self, destination: str) -> int:
        """How many messages are still to be handled. Raises QueueUnavailable."""
        ...

    def close(self) -> None: ...
