"""What a process knows of Redis: whether it answers (rule 8 of docs/architecture.md)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from deduplication.errors import NoAnswer, NotNow, StoreMisconfigured, StoreUnavailable

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


class RedisGone(StoreUnavailable):
    """Redis is not there; the journal of this machine decides, if it may."""


class RedisState:
    """What this process knows of Redis (rule 8): up, suspected after a first missing answer, or gone after a second.

    Nobody but the next probe waits for a Redis that is suspected. A machine that is alone goes on without it at once.
    """

    def __init__(self) -> None:
        self.status = "suspected"  # until the first probe has answered: a start never depends on Redis
        self.is_only_member = False
        self.wake = threading.Event()
        self.count_step: Callable[[str | None], object] = lambda _: None  # for the figures: the class of the error

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """Raises RedisGone, or NotNow where the answer is "retry later"."""
        if self.status == "gone":
            raise RedisGone("Redis is gone")
        if self.status == "suspected":
            raise NotNow("Redis did not answer a moment ago")
        try:
            answer = question()
        except NoAnswer as error:
            self.count_step(type(error.__cause__ or error).__name__)
            self.suspect()
            if self.status == "gone":
                raise RedisGone(str(error)) from error
            raise NotNow(str(error)) from error
        self.count_step(None)
        return answer

    def suspect(self) -> None:
        """A first answer is missing. Those that were asked for at the same time say nothing more."""
        if self.status == "up":
            self.status = "suspected"
            if self.is_only_member:
                self.give_up()
        self.wake.set()

    def give_up(self) -> None:
        """The probe, asked after that, has no answer either."""
        if self.status != "gone":
            log.warning("Redis is gone: the journal of this machine decides")
        self.status = "gone"

    def note_answer(self) -> None:
        if self.status == "gone":
            log.warning("Redis is back")
        self.status = "up"


class AlwaysAsked(RedisState):
    """For scripts without a journal that is kept: no answer is no answer, each time."""

    def __init__(self) -> None:
        super().__init__()
        self.status = "up"

    def suspect(self) -> None:
        """The next question is asked all the same."""


def check_start(registry: Any) -> None:
    """Raises StoreMisconfigured if Redis refuses the credentials or has data of an older version; StoreUnavailable,
    which does not stop a start, if it is away (rule 8)."""
    if registry.ask(lambda client, prefix: client.exists(f"{prefix}shared_key", f"{prefix}upgraded")):
        raise StoreMisconfigured("it has data of version 0.2; set KEY_PREFIX or use an empty database")
    registry.probe()
