"""The queue between the request that takes an email and the worker that delivers it, as both see it.

A message names a delivery and holds nothing of it; the journal does. So one that comes twice, or never, does no harm:
the journal hands the delivery to one, and brings it back if nobody came.
"""

from __future__ import annotations

from typing import Protocol

# A message that is lost, with its sender or with the queue, is made good by the schedule. In a longer backlog that
# delivers too, and the message finds nothing to do.
ANNOUNCED_AGAIN_AFTER_MS = 60_000


class QueueUnavailable(Exception):
    """The queue cannot take a message for now."""


class QueueMisconfigured(Exception):
    """The queue does not let us in: waiting will not cure it."""


class Queue(Protocol):
    def put(self, entry: str, destination: str) -> None:
        """Once it returns, a worker will hear of it. Raises QueueUnavailable."""
        ...

    def check(self) -> None:
        """Raises QueueUnavailable or QueueMisconfigured if it could take no message now."""
        ...

    def depth(self, destination: str) -> int:
        """How many messages nobody has done with. Raises QueueUnavailable."""
        ...

    def close(self) -> None: ...
