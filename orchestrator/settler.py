"""Settles what a request has sent while it sends more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Generic, TypeVar

Sent = TypeVar("Sent")
Result = TypeVar("Result")

GRACE_S = 0.005


class Settler(Generic[Sent, Result]):
    """What was sent is settled in one step with what is sent within a few milliseconds after it; the last ones when the
    block is left. Nothing waits for a slow POST after its own, if the process died during that, it would be sent again:
    a thread sees to it. Where all is sent quickly, it has nothing to do, and nobody waits for the interpreter.

    ``settle`` raises nothing. ``results``, by position, are whole once the block is left.
    """

    def __init__(self, settle: Callable[[Sequence[Sent]], Sequence[Result]]) -> None:
        self.results: dict[int, Result] = {}
        self._settle = settle
        self._sent: dict[int, Sent] = {}
        self._lock = threading.Lock()
        self._has_more, self._is_over = threading.Event(), threading.Event()
        run = partial(copy_context().run, self._run)  # its lines in the log are of this request too
        self._thread = threading.Thread(target=run, name="settler", daemon=True)

    def __enter__(self) -> Settler[Sent, Result]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._has_more.set()
        self._settle_what_was_sent()
        self._thread.join()

    def put(self, position: int, sent: Sent) -> None:
        with self._lock:
            self._sent[position] = sent
        if len(self._sent) == 1:
            self._has_more.set()

    def _run(self) -> None:
        while True:
            self._has_more.wait()
            self._has_more.clear()
            if self._is_over.wait(GRACE_S):
                return
            self._settle_what_was_sent()

    def _settle_what_was_sent(self) -> None:
        with self._lock:
            sent, self._sent = self._sent, {}
        if sent:
            self.results |= zip(sent, self._settle(list(sent.values())), strict=True)
