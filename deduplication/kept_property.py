"""A property that is computed when it is first read, and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class kept_property(Generic[Value]):  # noqa: N801  # a decorator, named as such
    """functools.cached_property without its lock, which in Python 3.11 all instances of a class share: a thread that
    reads a long email would block the others. Two threads that read it at once both compute the same."""

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Any, owner: type) -> Value:
        value = instance.__dict__[self._compute.__name__] = self._compute(instance)  # found before the descriptor
        return value
