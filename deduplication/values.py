"""Values: dataclasses that are made and changed quickly, as an email is a hundred of them on its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, dataclass_transform

Kind = TypeVar("Kind")
Value = TypeVar("Value")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(kind: type[Kind]) -> type[Kind]:
    """dataclass(frozen=True) for mypy alone, which refuses to change a value. At run time nothing does: it would make
    every value three times as slow, as each field is then set by a call."""
    return dataclass(unsafe_hash=True)(kind)


class kept_property(Generic[Value]):  # noqa: N801  # a decorator, named as such
    """functools.cached_property without its lock, which in Python 3.11 all instances of a class share: a thread that
    reads a long email would block the others. Two threads that read it at once both compute the same."""

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Any, owner: type) -> Value:
        value = instance.__dict__[self._compute.__name__] = self._compute(instance)  # found before the descriptor
        return value
