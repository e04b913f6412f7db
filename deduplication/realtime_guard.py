"""The realtime guard: lets only messages through that were written since the service started, and each once.

It knows what this process saw, no more; what must hold over processes and restarts is the journal's part.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import TypeGuard

log = logging.getLogger(__name__)

Timestamp = datetime | int | float
Log = logging.Logger | logging.LoggerAdapter[logging.Logger]
_Key = tuple[str, str]


class MissingDate(StrEnum):
    """What a message without a date is taken for."""

    NEW = "new"
    OLD = "old"


MISSING_DATE: Mapping[str, str] = MappingProxyType({"vk:": MissingDate.OLD})


@dataclass(frozen=True)
class GuardStats:
    """What the guard said since it was made."""

    skipped_old: int = 0
    skipped_duplicate: int = 0
    processed_count: int = 0


class RealtimeGuard:
    """Safe to use from several threads. A log line that fails never stops a message.

    Times are datetimes or seconds since 1970; a datetime without a time zone is taken as UTC. Message ids are compared
    as text: 42 and "42" of one source are one message.
    """

    def __init__(
        self,
        startup_time: Timestamp | None = None,
        max_size: int = 10_000,
        trim_size: int = 5_000,
        missing_date: Mapping[str, str] = MISSING_DATE,
        logger: Log = log,
    ) -> None:
        """``startup_time`` None is now. ``missing_date``: "new" or "old" by the start of the source; the longest start
        that fits decides, and where none does, new."""
        if max_size < 1:
            raise ValueError(f"max_size is {max_size}: it takes 1 or more")
        if not 1 <= trim_size <= max_size:
            raise ValueError(f"trim_size is {trim_size}: it takes 1 to max_size, which is {max_size}")
        self._startup_time = datetime.now(UTC) if startup_time is None else _in_utc(startup_time)
        self._max_size = max_size
        self._trim_size = trim_size
        self._missing_date = _checked(missing_date)
        self._logger = logger
        self._lock = threading.RLock()
        self._processed: OrderedDict[_Key, None] = OrderedDict()  # oldest first
        self._stats = GuardStats()
        self._say(logging.INFO, "realtime guard: messages are new from %s on", self._startup_time.isoformat())

    @property
    def startup_time(self) -> datetime:
        """In UTC."""
        return self._startup_time

    @property
    def stats(self) -> GuardStats:
        """As of now; it does not change afterwards."""
        with self._lock:
            return self._stats

    def __len__(self) -> int:
        """How many messages it remembers; never more than ``max_size``."""
        with self._lock:
            return len(self._known())

    def is_new_message(self, timestamp: Timestamp | None, source: str = "") -> bool:
        """True exactly if the message is not older than the start; without a date, what its source says."""
        is_new = self._is_since_start(timestamp) if _is_given(timestamp) else self._is_new_undated(source)
        if not is_new:
            with self._lock:
                self._stats = replace(self._stats, skipped_old=self._stats.skipped_old + 1)
        return is_new

    def is_duplicate(self, source: str, message_id: str | int) -> bool:
        """Was it marked as processed, and not pushed out by later ones since?"""
        with self._lock:
            is_known = (source, str(message_id)) in self._known()
            if is_known:
                self._stats = replace(self._stats, skipped_duplicate=self._stats.skipped_duplicate + 1)
            return is_known

    def mark_processed(self, source: str, message_id: str | int) -> bool:
        """True for the one caller that marks it first; marking it again changes nothing, not even its turn to go."""
        key = (source, str(message_id))
        with self._lock:
            known = self._known()
            if key in known:
                return False
            known[key] = None
            self._stats = replace(self._stats, processed_count=self._stats.processed_count + 1)
            if len(known) > self._max_size:
                self._trim(known)
            return True

    def _trim(self, known: OrderedDict[_Key, None]) -> None:
        while len(known) > self._trim_size:
            known.popitem(last=False)

    def _known(self) -> OrderedDict[_Key, None]:
        if not isinstance(self._processed, OrderedDict):
            damaged = type(self._processed).__name__
            self._processed = OrderedDict()
            self._say(logging.ERROR, "realtime guard: its set was damaged (%s) and starts anew, empty", damaged)
        return self._processed

    def _is_since_start(self, timestamp: Timestamp) -> bool:
        if isinstance(timestamp, datetime):
            return _aware(timestamp) >= self._startup_time
        return timestamp >= self._startup_time.timestamp()  # as numbers: any number is in range

    def _is_new_undated(self, source: str) -> bool:
        starts = [start for start in self._missing_date if source.startswith(start)]
        taken_for = self._missing_date[max(starts, key=len)] if starts else MissingDate.NEW
        level = logging.WARNING if taken_for is MissingDate.NEW else logging.INFO
        self._say(level, "realtime guard: a message of %r has no date; it is taken for %s", source, taken_for)
        return taken_for is MissingDate.NEW

    def _say(self, level: int, line: str, *values: object) -> None:
        with suppress(Exception):  # whatever a logger raises, the message matters more
            self._logger.log(level, line, *values)


def _checked(missing_date: Mapping[str, str]) -> dict[str, MissingDate]:
    for start, taken_for in missing_date.items():
        if taken_for not in list(MissingDate):
            raise ValueError(f'missing_date of {start!r} is {taken_for!r}: it takes "new" or "old"')
    return {start: MissingDate(taken_for) for start, taken_for in missing_date.items()}


def _is_given(timestamp: Timestamp | None) -> TypeGuard[Timestamp]:
    """NaN is no time either: it is neither before nor after anything."""
    if timestamp is None:
        return False
    if not isinstance(timestamp, Timestamp):
        raise TypeError(f"a timestamp is a datetime or seconds since 1970, not {type(timestamp).__name__}")
    return not (isinstance(timestamp, float) and math.isnan(timestamp))


def _aware(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.utcoffset() is None else moment


def _in_utc(timestamp: Timestamp) -> datetime:
    """Seconds are rounded down to microseconds: the moment itself must not be before its own rounding."""
    if isinstance(timestamp, datetime):
        return _aware(timestamp).astimezone(UTC)
    moment = datetime.fromtimestamp(timestamp, UTC)
    return moment if moment.timestamp() <= timestamp else moment - timedelta(microseconds=1)
