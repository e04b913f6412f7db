"""What a process does behind its requests: follow the stream, publish what is unpublished, and restore Redis' memory.

Any process of a machine may do any of it; a batch counts only if era and position are still those it was read under.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from deduplication.claims import Name
from deduplication.errors import DeduplicationError, StoreUnavailable
from deduplication.journal3.coordinator import BEHIND_MS, Coordinator
from deduplication.journal3.entry import DeliveryStatus, Entry, changed, decode
from deduplication.journal3.registry import Answer, NoAnswer, Registry
from deduplication.journal3.rules import merged, reference
from deduplication.journal3.sqlite import Step

log = logging.getLogger(__name__)

TICK_S = 1.0
READ_AT_ONCE = 500
APPLIED_AT_ONCE = 40  # some 5 ms of the journal's lock
REST_S = 0.02
RESTORED_AT_ONCE = 200
HOUR_MS, DAY_MS = 3_600_000, 24 * 3_600_000
RESTORING_MS = 60_000
SILENT_MS = 60_000
REQUEST_MS = 60_000
TRIM_EVERY_S = 60


@dataclass(frozen=True)
class FleetOptions:
    """``events_ms`` and ``events_bytes`` bound the stream (DECISION_DAYS, STREAM_MB); ``about`` is for the members.

    ``block_ms`` must be well below the timeout of the reader's connection: waiting for an event is no missing answer.
    """

    events_ms: int = 7 * DAY_MS
    events_bytes: int = 256 << 20
    entry_ms: int = 7 * DAY_MS
    dead_ms: int = 30 * DAY_MS
    block_ms: int = 1_000
    about: Callable[[], dict[str, Any]] = dict


class Fleet:
    """``reader`` has a connection of its own, on which it waits for events. ``execute`` does what another machine asks
    of this one: it gets the action of a request on the stream."""

    def __init__(
        self,
        coordinator: Coordinator,
        reader: Registry,
        options: FleetOptions | None = None,
        execute: Callable[[Any], None] = lambda _: None,
    ) -> None:
        if coordinator.registry is None:
            raise ValueError("a fleet needs a registry")
        self._coordinator = coordinator
        self._journal = coordinator.journal
        self._registry = coordinator.registry
        self._reader = reader
        self._options = options or FleetOptions()
        self._execute = execute
        self._members: dict[str, Any] = {}
        self._alone_since: float | None = None
        self._trimmed_at = 0.0
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(step, pause), name=name, daemon=True)
            for name, step, pause in (("fleet", self.tick, self._wait), ("follow", self._follow_on, self._rest))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stop.set()
        self._coordinator.redis.wake.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    @property
    def members(self) -> dict[str, Any]:
        return self._members

    # Every second

    def tick(self) -> None:
        """Asks Redis with the real script, and does what is to be done (rules 8, 9, 12, 14, 15)."""
        redis = self._coordinator.redis
        try:
            answer = self._registry.probe()
        except NoAnswer:
            if redis.status == "up":
                redis.suspect()
                return self.tick()
            redis.give_up()
            return self._note_lost()
        redis.note_answer()
        self._see(answer)
        self._coordinator.release_orphans()
        self._restore_first(answer)
        while self._coordinator.publish_waiting():
            pass
        self._tell_repeats()
        self._beat()
        self._share_notes()
        self._restore_some()
        self._purge()
        if time.monotonic() - self._trimmed_at > TRIM_EVERY_S:
            self._trimmed_at = time.monotonic()
            self._registry.trim(self._journal.clock.now_ms() - self._options.events_ms, self._options.events_bytes)
        return None

    def _note_lost(self) -> None:
        with self._journal.step() as step:
            if not step.meta("lost_ms"):
                step.set_meta("lost_ms", str(step.now_ms))

    def _see(self, answer: Answer) -> None:
        """A new era is taken over in one transaction: its stream is read from the beginning, and everything counts as
        unpublished (rule 14)."""
        with self._journal.reading() as step:
            is_known = step.meta("era") == answer.era and not step.meta("lost_ms")
            self._coordinator.is_behind = bool(step.meta("is_behind"))
        if is_known:
            return
        with self._journal.step() as step:
            step.set_meta("lost_ms", "")
            if step.meta("era") != answer.era:
                self._coordinator.is_behind = step.now_ms - int(step.meta("read_ms") or 0) > BEHIND_MS
                step.set_meta("is_behind", "1" if self._coordinator.is_behind else "")
                step.set_meta("era", answer.era)
                step.set_meta("position", "0")
                step.set_meta("gap_ms", "")
                step.set_meta("restore", "first")
                step.set_meta("restore_ms", str(step.now_ms))
                log.warning("Redis began a new era: %s", answer.era)

    def _beat(self) -> None:
        with self._journal.reading() as step:
            position = step.meta("position")
        now_ms = self._journal.clock.now_ms()
        state = {**self._options.about(), "at_ms": now_ms, "position": position}
        self._members = self._registry.beat(state)
        silent = [name for name, each in self._members.items() if now_ms - each["at_ms"] > SILENT_MS]
        if self._members.keys() - set(silent) - {self._journal.machine}:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = time.monotonic()
        is_alone = self._alone_since is not None and time.monotonic() - self._alone_since > SILENT_MS / 1000
        self._coordinator.redis.is_only_member = is_alone
        self._registry.strike(name for name in silent if now_ms - self._members[name]["at_ms"] > HOUR_MS)

    def _share_notes(self) -> None:
        """Of two notes with one key the later one counts, here and in Redis: so all end with the same."""
        with self._journal.reading() as step:
            ours = step.notes()
        fleet = self._registry.notes()
        news = {key: note for key, note in fleet.items() if note > ours.get(key, (0, ""))}
        if news:
            with self._journal.step() as step:
                for key, (at_ms, value) in news.items():
                    step.put_note(key, value, at_ms)
        for key, note in ours.items():
            if note > fleet.get(key, (0, "")):
                self._registry.put_note(key, *note)

    def _tell_repeats(self) -> None:
        if sums := self._coordinator.flush_repeats():
            self._registry.announce(["N", self._journal.machine, sums])

    def _purge(self) -> None:
        with self._journal.step() as step:
            step.purge(self._options.entry_ms, self._options.dead_ms)

    # A new era

    def _restore_first(self, answer: Answer) -> None:
        """Resets, live claims, and the entries of the last hour, while the era is still closed (rule 15)."""
        with self._journal.reading() as step:
            if step.meta("restore") != "first":
                return
            resets = step.resets_since(0, 100_000)
            claimed = step.read_rows("seq IN (SELECT seq FROM deliveries WHERE status = 'claimed')", ())
            recent = step.read_rows(
                "created_ms > ? AND machine = ? ORDER BY seq", (step.now_ms - HOUR_MS, self._journal.machine)
            )
            steady_ms = step.steady_ms
        for label, number in resets:
            self._registry.reset({label: Name.from_label(label.partition("#")[0])}, again=number)
        for _, entry in claimed:
            for owner in {each.owner for each in entry.deliveries if each.status is DeliveryStatus.CLAIMED}:
                left_ms = max(each.lease_until_ms for each in entry.deliveries if each.owner == owner) - steady_ms
                if left_ms > 0:
                    self._registry.put_back(entry, owner, left_ms)
        if recent:  # others wait a little longer for what this machine did last
            self._registry.probe(extend_ms=2_000)
        self._publish_again([entry for _, entry in recent])
        with self._journal.step() as step:
            if step.meta("era") == answer.era:
                step.set_meta("restore", str(step.last_seq() + 1))

    def _restore_some(self) -> None:
        """Behind the requests, newest first: what Redis does not have, of this machine and of others; marks last."""
        with self._journal.reading() as step:
            place, began_ms = step.meta("restore"), int(step.meta("restore_ms") or 0)
            if not place.isdigit():
                return
            rows = step.read_rows("seq < ? ORDER BY seq DESC LIMIT ?", (int(place), RESTORED_AT_ONCE))
            now_ms = step.now_ms
        if rows and rows[0][1].created_ms > now_ms - 3 * DAY_MS and now_ms - began_ms < RESTORING_MS:
            self._registry.set_restoring()
        # What waits is published even if Redis knows of it: perhaps by a machine that does not have its payload.
        waiting = [entry for _, entry in rows if entry.is_open]
        self._publish_again(waiting + self._registry.outdated([entry for _, entry in rows if not entry.is_open]))
        with self._journal.step() as step:
            if rows:
                step.set_meta("restore", str(rows[-1][0]))
                return
            step.set_meta("restore", "marks:")
        self._restore_marks()

    def _restore_marks(self) -> None:
        after = ""
        while True:
            with self._journal.reading() as step:
                rows = step.marks_after(after, RESTORED_AT_ONCE)
            if not rows:
                break
            self._registry.put_marks(
                [_mark_name(label, until_ms, self._journal.clock.now_ms()) for label, until_ms in rows]
            )
            after = rows[-1][0]
        with self._journal.step() as step:
            step.set_meta("restore", "")
            step.set_meta("is_behind", "")

    def _publish_again(self, entries: Sequence[Entry]) -> None:
        """As the journal has them; a payload goes along with what waits and lies here."""
        for entry in entries:
            if not any(each.status is not DeliveryStatus.CLAIMED for each in entry.deliveries):
                continue
            with self._journal.reading() as step:
                payload = step.payload(entry.id) if entry.is_open else None
            self._registry.publish(entry, payload=payload)

    # Following

    def follow(self, block_ms: int = 0) -> int:
        """Reads what other machines have published, and applies it (rule 10); how many events there were."""
        with self._journal.reading() as step:
            era, position = step.meta("era"), step.meta("position") or "0"
        first = self._reader.first_event()
        if position != "0" and first and _order(first) > _order(position):
            with self._journal.step() as step:
                step.set_meta("gap_ms", str(step.now_ms))
                log.warning("the stream was trimmed behind this machine: it does not know all that the fleet has done")
        events = self._reader.read_events(position, READ_AT_ONCE, block_ms)
        for start in range(0, len(events), APPLIED_AT_ONCE):
            position = self._apply(era, position, events[start : start + APPLIED_AT_ONCE])
            if not position:
                return 0
        if len(events) < READ_AT_ONCE:
            with self._journal.step() as step:
                step.set_meta("read_ms", str(step.now_ms))
        return len(events)

    def _apply(self, era: str, position: str, events: Sequence[tuple[str, bytes]]) -> str:
        """Batch and position in one transaction. "" if another process was quicker, or a new era has begun."""
        requests = []
        with self._journal.step() as step:
            if step.meta("era") != era or (step.meta("position") or "0") != position:
                return ""
            for event_id, text in events:
                kind, by, *values = json.loads(text)
                if kind == "E":
                    self._apply_entry(step, values[0], by)
                elif kind == "R":
                    for label in values[1]:
                        step.reset(label, values[0])
                elif kind == "N" and by != self._journal.machine:
                    for entry, count, last_ms in values[0]:
                        step.add_repeats(entry, by, count, last_ms, is_sum=True)
                elif kind == "Q" and values[1] == self._journal.machine:
                    is_fresh = int(event_id.partition("-")[0]) > step.now_ms - REQUEST_MS
                    if is_fresh and step.note_request(values[0]):
                        requests.append(values[2])
            step.set_meta("position", events[-1][0])
        for action in requests:
            self._execute(action)
        return events[-1][0]

    def _apply_entry(self, step: Step, values: Any, by: str) -> None:
        news = decode(json.dumps(values))
        ours = step.read(news.id)
        if ours is not None and by == self._journal.machine:
            return  # this journal has it at first hand
        labels = [reference(name, news.fingerprint) for name in news.own]
        if step.latest_reset(labels) > news.reset:
            return
        after = merged(ours, _without_claims(news), step.steady_ms)
        if after != ours:
            step.put(after, ours, is_news=True)
            if after.is_delivered_everywhere:
                step.drop_payload(after.id)

    # The threads

    def _follow_on(self) -> None:
        if self._coordinator.redis.status != "up":
            self._stop.wait(0.1)
            return
        try:
            self.follow(self._options.block_ms)
        except NoAnswer:
            self._coordinator.redis.suspect()

    def _wait(self) -> None:
        """Until the next second, or until Redis is suspected, or something is to be published."""
        wake, news = self._coordinator.redis.wake, self._coordinator.has_news
        ends_at = time.monotonic() + TICK_S
        while not self._stop.is_set() and not wake.is_set() and time.monotonic() < ends_at:
            if news.wait(0.05) and self._coordinator.redis.status == "up":
                news.clear()
                self._stop.wait(REST_S)
                while self._coordinator.publish_waiting():
                    pass
        wake.clear()

    def _rest(self) -> None:
        self._stop.wait(REST_S)

    def _run(self, step: Callable[[], object], pause: Callable[[], None]) -> None:
        while not self._stop.is_set():
            try:
                step()
            except StoreUnavailable as error:
                log.warning("behind the requests: %s", error)
                self._stop.wait(0.1)
            except DeduplicationError as error:
                log.error("behind the requests: %s", error)
                self._stop.wait(TICK_S)
            except Exception:  # a thread that ends would leave this machine behind for good
                log.exception("behind the requests")
                self._stop.wait(TICK_S)
            pause()


def _without_claims(news: Entry) -> Entry:
    """A claim says something on its own machine only."""
    kept = tuple(each for each in news.deliveries if each.status is not DeliveryStatus.CLAIMED)
    return changed(news, deliveries=kept)


def _order(position: str) -> tuple[int, int]:
    head, _, tail = position.partition("-")
    return int(head), int(tail or 0)


def _mark_name(label: str, until_ms: int | None, now_ms: int) -> Name:
    name = Name.from_label(label)
    return Name(name.kind, name.scope, name.value, None if until_ms is None else max(1, until_ms - now_ms))
