"""Fast dataclasses and properties: processing one email creates a hundred values."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, dataclass_transform

Value = TypeVar("Value")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(kind: type[Value]) -> type[Value]:
    """Like dataclass(frozen=True), but only mypy refuses assignments. At run time, nothing does: a frozen dataclass
    takes three times as long to create, because it sets each field by a call."""
    return dataclass(unsafe_hash=True)(kind)


class kept_property(Generic[Value]):  # noqa: N801  # decorators are in lower case
    """functools.cached_property without its lock. In Python 3.11, all instances of a class share that lock, so a thread
    that parses a long email would block the others. Here, two threads may both compute the same value."""

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Any, owner: type) -> Value:
        value = instance.__dict__[self._compute.__name__] = self._compute(instance)  # hides this property from now on
        return value
