"""A property that is worked out when it is first asked for, and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class kept_property(Generic[T]):  # noqa: N801  # a decorator, named as such
    """functools.cached_property without its lock, which in Python 3.11 all instances of a class share: whoever reads a
    long email would keep the others waiting. Two threads that ask at once both work it out, and get the same."""

    def __init__(self, work_out: Callable[[Any], T]) -> None:
        self._work_out = work_out
        self._name = work_out.__name__
        self.__doc__ = work_out.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> kept_property[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> kept_property[T] | T:
        if instance is None:
            return self
        value = self._work_out(instance)
        instance.__dict__[self._name] = value  # found there from now on, before anybody looks for a property
        return value
