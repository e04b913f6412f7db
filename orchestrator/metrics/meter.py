"""What is counted: events in the memory of each process, sums in the journal, shared with the fleet through Redis."""

from __future__ import annotations

import threading
import zlib
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

from deduplication.journal.entry import DeliveryStatus
from deduplication.journal.registry import Registry
from deduplication.journal.sqlite import Journal, Step
from deduplication.names import Gate
from deduplication.redis_state import REDIS_ERRORS, REDIS_STEPS

EMAILS = "emails"  # provider, status, and the gate that stopped it or ""
REFUSED = "refused"  # provider, reason: not counted, but the last one is kept
GROUPS = "groups"  # an email was the first of its subject group
DELIVERIES = "deliveries"  # destination, status after the attempt; skipped: nothing was sent
FILES = "files"  # whether a file was stored, or why not
REDIS_S = "redis_s"  # status: how long processes have seen Redis in it
DECISION_S, REQUEST_S = "decision_s", "request_s"
DELIVERY_S = "delivery_s"  # destination
HISTOGRAMS = (DECISION_S, REQUEST_S, DELIVERY_S)
OVER_TIME = frozenset((EMAILS, DELIVERIES, DELIVERY_S, REDIS_STEPS, REDIS_ERRORS, REDIS_S))  # by minute and hour too

REALTIME, ROUTE = "realtime", "route"  # gates without names: what is older than the service, and what a route drops
NO_EMAIL = ("invalid", "unauthorized", "no_email")  # statuses of requests that contain no email
NOT_RECEIVED = ("already_processing", "retry_later", *NO_EMAIL)  # the email was not accepted, or there is none
FAILED = "failed"
OUTCOMES = {DeliveryStatus.WAITING: FAILED, DeliveryStatus.RETURNED: FAILED}  # all others keep their name
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BUCKETS = (*map(str, BUCKETS_S), "+Inf")  # each without the one before

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
SINCE_START = 0
KEPT_S = {MINUTE_S: 26 * HOUR_S, HOUR_S: 32 * DAY_S}  # how long counts of each step are kept
MOST_REASON_CHARACTERS = 200
PROVIDER_NOTE = "provider:"

Event = tuple[float, *tuple[str, ...]]
"""An amount, a metric and its labels. For a histogram, the amount is the observed value."""


class Meter:
    """``meter.count((1, EMAILS, "gmail", "processed", ""))`` in a request; ``flush`` every second, behind the requests.

    In the journal a key is the metric and its labels, separated by ``|``. Labels are names of the configuration, or
    words of ours: no sender can add another.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._events: deque[Event] = deque()
        # Appending to a deque is atomic and runs no Python code: counting costs a request next to nothing.
        self.count: Callable[[Event], None] = self._events.append
        self._flushing = threading.Lock()
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._notes: dict[str, str] = {}
        self._published = ("", 0)  # the era, and the second up to which counts were published in it
        self._copied: dict[str, bytes] = {}  # by machine: the time of its latest counts that were copied

    def flush(self) -> None:
        """Writes what this process has counted to the journal. If that fails, the next call does it."""
        with self._flushing:
            events = [self._events.popleft() for _ in range(len(self._events))]
            # Most events are equal to others. Each is added once, in the order of their last occurrence.
            for event, times in reversed(Counter(reversed(events)).items()):
                self._add(times, *event)
            if not self._sums and not self._notes:
                return
            with self._journal.step() as step:
                now_s = step.now_ms // 1000
                for key, value in self._sums.items():
                    is_over_time = key.partition("|")[0] in OVER_TIME
                    for step_s in (SINCE_START, *KEPT_S) if is_over_time else (SINCE_START,):
                        step.query(
                            "INSERT INTO counts VALUES (?, ?, ?, ?, ?)"
                            " ON CONFLICT DO UPDATE SET value = value + excluded.value",
                            (step_s, _start(now_s, step_s), step.machine, key, value),
                        )
                for key, text in self._notes.items():
                    step.set_meta(f"{PROVIDER_NOTE}{key}", f"{step.now_ms} {text}")
            self._sums.clear()
            self._notes.clear()

    def _add(self, times: int, amount: float, metric: str, *labels: str) -> None:
        if metric == REFUSED:
            provider, reason = labels
            self._notes[f"{provider}:refusal"] = reason[:MOST_REASON_CHARACTERS]
            return
        if metric == EMAILS:
            provider, status, _ = labels
            if status not in NO_EMAIL:
                self._notes[f"{provider}:email"] = status
        elif metric == DELIVERIES:
            destination, status = labels
            labels = (destination, OUTCOMES.get(DeliveryStatus(status), status))
        key = "|".join((metric, *labels))
        if metric in HISTOGRAMS:
            self._sums[f"{key}|sum"] += times * amount
            key, amount = f"{key}|{BUCKETS[bisect_left(BUCKETS_S, amount)]}", 1
        self._sums[key] += times * amount

    def purge(self) -> None:
        """Deletes the counts that are kept no longer; those in Redis expire."""
        with self._journal.step() as step:
            for step_s, kept_s in KEPT_S.items():
                before_s = step.now_ms // 1000 - kept_s
                step.query("DELETE FROM counts WHERE step_s = ? AND start_s < ?", (step_s, before_s))

    # Sharing: each machine writes absolute values under its own name, so doing it twice changes nothing

    def share(self, registry: Registry) -> None:
        """Publishes the counts of this machine and copies those of the others."""
        self._publish(registry)
        published = registry.ask(lambda client, prefix: client.hgetall(f"{prefix}counts"))
        for machine, at in published.items():
            name = machine.decode()
            if name != self._journal.machine and self._copied.get(name) != at:
                self._copy(registry, name)
                self._copied[name] = at

    def _publish(self, registry: Registry) -> None:
        """Everything since the last time; at first and in a new era, everything that is kept."""
        with self._journal.reading() as step:
            era, now_ms = step.meta("era"), step.now_ms
            since_s = self._published[1] if self._published[0] == era else 0
            query = (
                "SELECT step_s, start_s, json_group_object(key, value) FROM counts"
                " WHERE step_s = ? AND start_s >= ? AND machine = ? GROUP BY start_s"
            )
            steps = ((step_s, _start(since_s, step_s), step.machine) for step_s in (SINCE_START, *KEPT_S))
            counts = [row for values in steps for row in step.query(query, values)]

        def put(client: Any, prefix: str) -> None:
            pipe = client.pipeline(transaction=False)
            for step_s, start_s, values in counts:
                key = f"{prefix}counts:{self._journal.machine}:{step_s}:{start_s}"
                pipe.set(key, zlib.compress(values.encode()), ex=KEPT_S.get(step_s, KEPT_S[HOUR_S]))
            pipe.hset(f"{prefix}counts", self._journal.machine, now_ms)
            pipe.execute()

        registry.ask(put)
        self._published = (era, now_ms // 1000)

    def _copy(self, registry: Registry, machine: str) -> None:
        """Everything since the last that is known of that machine: it may have been without Redis for a while."""
        starts = [(SINCE_START, 0)]
        with self._journal.reading() as step:
            now_s = step.now_ms // 1000
            for step_s, kept_s in KEPT_S.items():
                query = "SELECT max(start_s) FROM counts WHERE step_s = ? AND machine = ?"
                known_s = step.query(query, (step_s, machine))[0][0] or 0
                first = max(known_s, _start(now_s - kept_s, step_s))
                starts += [(step_s, start_s) for start_s in range(first, now_s + step_s, step_s)]

        keys = [f"counts:{machine}:{step_s}:{start_s}" for step_s, start_s in starts]
        found = registry.ask(lambda client, prefix: client.mget([f"{prefix}{key}" for key in keys]))
        query = "INSERT OR REPLACE INTO counts SELECT ?, ?, ?, key, value FROM json_each(?)"
        for start, packed in zip(starts, found, strict=True):
            if packed:
                with self._journal.step() as step:  # one at a time: emails wait for the journal's lock meanwhile
                    step.query(query, (*start, machine, zlib.decompress(packed).decode()))


def _start(moment_s: int, step_s: int) -> int:
    return moment_s // step_s * step_s if step_s else 0


# Reading


class Sums:
    """``received``: accepted emails. Each is new, an exact repeat (``duplicates``), or stopped by another gate
    (``suppressed``); ``stopped`` are both. ``hit_rate``: their share of the received ones, None if there are none.
    ``delivered`` and ``failed`` (with those that made a dead letter) are attempts, ``success_rate`` is the share of the
    former; ``skipped``: nothing was sent."""

    def __init__(self, counts: Mapping[str, float]) -> None:
        self.counts = counts
        self.statuses = {status: int(count) for (status,), count in self.by(EMAILS, 1).items()}
        self.stopped_at = {gate: int(count) for (gate,), count in self.by(EMAILS, 2).items() if gate}
        self.received = sum(count for status, count in self.statuses.items() if status not in NOT_RECEIVED)
        self.stopped = sum(self.stopped_at.values())
        self.duplicates = self.stopped_at.get(Gate.IDENTITY, 0)
        self.suppressed = self.stopped - self.duplicates
        self.hit_rate = self.stopped / self.received if self.received else None
        attempts = {outcome: int(count) for (outcome,), count in self.by(DELIVERIES, 1).items()}
        self.delivered = attempts.get(DeliveryStatus.DELIVERED, 0)
        self.failed = attempts.get(FAILED, 0) + attempts.get(DeliveryStatus.DEAD, 0)
        self.success_rate = self.delivered / (self.delivered + self.failed) if self.delivered + self.failed else None
        self.skipped = attempts.get(DeliveryStatus.SKIPPED, 0)

    def by(self, metric: str, *places: int) -> dict[tuple[str, ...], float]:
        """Of one metric, by its labels at these places."""
        found: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for key, value in self.counts.items():
            name, *labels = key.split("|")
            if name == metric:
                found[tuple(labels[place] for place in places)] += value
        return dict(sorted(found.items()))

    def to(self, destination: str) -> Sums:
        """Its deliveries alone."""
        starts = (f"{DELIVERIES}|{destination}|", f"{DELIVERY_S}|{destination}|")
        return Sums({key: value for key, value in self.counts.items() if key.startswith(starts)})

    def histogram(self, *labels: str) -> tuple[list[int], float]:
        """How many observations are in each bucket, without those before it, and the sum of all."""
        start = "|".join(labels)
        in_buckets = [int(self.counts.get(f"{start}|{bucket}", 0)) for bucket in BUCKETS]
        return in_buckets, self.counts.get(f"{start}|sum", 0.0)

    def quantile_ms(self, share: float, *labels: str) -> float | None:
        """As Prometheus estimates it: evenly spread within a bucket. None if nothing was observed."""
        in_buckets, _ = self.histogram(*labels)
        rank, below, lower_s = share * sum(in_buckets), 0, 0.0
        if not rank:
            return None
        for count, upper_s in zip(in_buckets, BUCKETS_S, strict=False):
            if count and below + count >= rank:
                return round((lower_s + (upper_s - lower_s) * (rank - below) / count) * 1000, 1)
            below, lower_s = below + count, upper_s
        return lower_s * 1000


def read_sums(step: Step, machine: str = "") -> Sums:
    """Since counting began, of one machine or of the fleet."""
    query = "SELECT key, sum(value) FROM counts WHERE step_s = 0 AND ? IN ('', machine) GROUP BY key"
    return Sums(dict(step.query(query, (machine,))))


def read_points(step: Step, starts: range) -> list[Sums]:
    """Of the fleet, between each of these seconds and the next: from counts by hour where that is exact."""
    is_by_hour = starts[0] % HOUR_S == starts.step % HOUR_S == 0
    points: list[dict[str, float]] = [{} for _ in starts]
    rows = step.query(
        "SELECT (start_s - ?) / ?, key, sum(value) FROM counts WHERE step_s = ? AND start_s >= ? AND start_s < ?"
        " GROUP BY 1, 2",
        (starts[0], starts.step, HOUR_S if is_by_hour else MINUTE_S, starts[0], starts[0] + len(starts) * starts.step),
    )
    for place, key, value in rows:
        points[place][key] = value
    return [Sums(counts) for counts in points]


def read_recent(step: Step, step_s: int, length_s: int) -> Sums:
    """Of the fleet, over so many seconds; the last of its steps still grows."""
    first = step.now_ms // 1000 // step_s * step_s - length_s + step_s
    return read_points(step, range(first, first + length_s, length_s))[0]
