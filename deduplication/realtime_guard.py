"""The realtime guard: only messages since the start of the program are new, and each of them only once.

It remembers only while the process runs; the journal recognises messages across processes and restarts.
"""

import logging
import threading
from collections import Counter
from datetime import UTC, datetime

log = logging.getLogger(__name__)

Timestamp = datetime | int | float
Log = logging.Logger | logging.LoggerAdapter[logging.Logger]
OLD_WITHOUT_DATE = ("vk:",)


class RealtimeGuard:
    """Safe for use in several threads.

    Times are datetimes or seconds since 1970; a datetime without a time zone is in UTC. Message ids are compared as
    text: 42 and "42" from one source are the same message. ``stats`` counts decisions: ``skipped_old``,
    ``skipped_duplicate`` and ``processed_count``.
    """

    def __init__(
        self,
        startup_time: Timestamp | None = None,
        max_size: int = 10_000,
        trim_size: int = 5_000,
        old_without_date: tuple[str, ...] = OLD_WITHOUT_DATE,
        logger: Log = log,
    ) -> None:
        """``startup_time`` is now by default. Above ``max_size`` messages, all but the newest ``trim_size`` are
        forgotten. A message without a date is new, unless its source begins with one of ``old_without_date``."""
        if not 1 <= trim_size <= max_size:
            raise ValueError(f"trim_size must be from 1 to max_size, which is {max_size}, got {trim_size}")
        self._start_s = _seconds(datetime.now(UTC) if startup_time is None else startup_time)
        self.startup_time = datetime.fromtimestamp(self._start_s, UTC)
        self.stats: Counter[str] = Counter()
        self._sizes = max_size, trim_size
        self._old_without_date = old_without_date
        self._logger = logger
        self._lock = threading.Lock()
        self._processed: dict[tuple[str, str], None] = {}  # oldest first
        logger.info("realtime guard: messages since %s are new", self.startup_time.isoformat())

    def __len__(self) -> int:
        """The number of remembered messages, at most ``max_size``."""
        return len(self._processed)

    def is_new_message(self, timestamp: Timestamp | None, source: str = "") -> bool:
        """Whether the message is from after the start; without a date, its source decides."""
        if timestamp is None:
            is_new = not source.startswith(self._old_without_date)
            level, age = (logging.WARNING, "new") if is_new else (logging.INFO, "old")
            self._logger.log(level, "realtime guard: a message from %r has no date and counts as %s", source, age)
        else:
            is_new = not _seconds(timestamp) < self._start_s  # NaN is new
        with self._lock:
            self.stats["skipped_old"] += not is_new
        return is_new

    def is_duplicate(self, source: str, message_id: str | int) -> bool:
        """Whether the message was marked as processed and is still remembered."""
        with self._lock:
            is_known = (source, str(message_id)) in self._processed
            self.stats["skipped_duplicate"] += is_known
            return is_known

    def mark_processed(self, source: str, message_id: str | int) -> bool:
        """True for the first caller only. Marking a message again has no effect, not even on its age."""
        key, (max_size, trim_size) = (source, str(message_id)), self._sizes
        with self._lock:
            if key in self._processed:
                return False
            self._processed[key] = None
            self.stats["processed_count"] += 1
            if len(self._processed) > max_size:
                self._processed = dict.fromkeys(list(self._processed)[-trim_size:])
            return True


def _seconds(timestamp: Timestamp) -> int | float:
    if not isinstance(timestamp, datetime):
        return timestamp
    return (timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)).timestamp()
