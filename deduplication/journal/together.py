"""Steps that wait for one file at the same moment go through in one transaction: whoever has its turn takes the others
along. With one for each, threads stood in line for what is the same in all: beginning, committing, the lock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from deduplication.errors import StoreUnavailable

T = TypeVar("T")

MOST_AT_ONCE = 16


class Transaction(Protocol):
    def __call__(self, *, durable: bool) -> AbstractContextManager[None]: ...


class _Waiting:
    def __init__(self, step: Callable[[], Any], durable: bool) -> None:
        self.step, self.durable = step, durable
        self.answer: Any = None
        self.error: BaseException | None = None
        self.is_done = False


class Together:
    """``lock`` is held by whoever is in a transaction of this process."""

    def __init__(self, lock: threading.RLock, transaction: Transaction, patience_s: float) -> None:
        self._lock, self._transaction, self._patience_s = lock, transaction, patience_s
        self._waiting: deque[_Waiting] = deque()

    def run(self, step: Callable[[], T], *, durable: bool = False) -> T:
        """Its answer, once the transaction that it was in has ended; what it raises is its own."""
        mine = _Waiting(step, durable)
        self._waiting.append(mine)
        if not self._lock.acquire(timeout=self._patience_s):
            try:
                self._waiting.remove(mine)
            except ValueError:  # somebody is at it: it is not known yet what becomes of it
                self._lock.acquire()
            else:
                raise StoreUnavailable("sqlite: database is locked")
        try:
            while not mine.is_done:
                self._run_waiting()
        finally:
            self._lock.release()
        if mine.error:
            raise mine.error
        answer: T = mine.answer
        return answer

    def _run_waiting(self) -> None:
        taken = [self._waiting.popleft() for _ in range(min(MOST_AT_ONCE, len(self._waiting)))]
        try:
            self._run(taken)
        except BaseException as error:
            if len(taken) == 1:
                taken[0].error = error
            else:  # by one of them, which must not undo the others; or they would all fail alone, too
                for each in taken:
                    try:
                        self._run([each])
                    except BaseException as its_own:
                        each.error = its_own
        finally:
            for each in taken:
                each.is_done = True

    def _run(self, steps: list[_Waiting]) -> None:
        with self._transaction(durable=any(each.durable for each in steps)):
            for each in steps:
                each.answer = each.step()
