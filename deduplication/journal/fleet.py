"""What a process does behind its requests: follow the stream, publish the outbox, and restore the memory of Redis.

Each process publishes the entries that it has settled. One process of each machine, the leader, does the rest; if it
stops, another one takes over. Leadership only saves work: a batch is applied only if era and position are still those
under which it was read.
"""

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from typing import Any

from deduplication import again, erasing, locks
from deduplication.background import Threads
from deduplication.errors import NoAnswer, StoreUnavailable
from deduplication.journal.coordinator import BEHIND_MS, Coordinator
from deduplication.journal.entry import DeliveryStatus, Entry
from deduplication.journal.registry import NOTHING, Answer
from deduplication.journal.rules import merge, name_of, references
from deduplication.journal.sqlite import Step
from deduplication.members import beat, event_order, share_notes
from deduplication.names import Name
from deduplication.room import drop_dead, trim_stream

log = logging.getLogger(__name__)

TICK_S = 1.0
READ_AT_ONCE = 500
APPLIED_AT_ONCE = 40  # some 5 ms of the journal's lock
REST_S = 0.02
MOST_BLOCK_MS = 200
RESTORED_AT_ONCE = 200
HOUR_MS, DAY_MS = 3_600_000, 24 * 3_600_000
RESTORING_MS = SILENT_MS = REQUEST_MS = 60_000
EXTENDED_MS = 2_000
TRIM_EVERY_S = 60
LEADS_MS, NOTED_MS = 3_000, 1_000


class Fleet:
    """``about`` describes this machine to the others; None for a process that is no member."""

    def __init__(self, coordinator: Coordinator, about: Callable[[], dict[str, Any]] | None = dict) -> None:
        if coordinator.registry is None:
            raise ValueError("a fleet needs a registry")
        self._coordinator = coordinator
        self._journal = coordinator.journal
        self._probe = coordinator.registry.probe
        self._registry = copy(coordinator.registry)
        self._registry.state = None  # it asks even while the coordinator's does not, and is not counted
        self._about = about
        self.members: dict[str, Any] = {}
        self._alone_since = float("inf")
        self._trimmed_at = 0.0
        self._id = secrets.token_hex(4)
        self._is_leader = False
        self._oldest_unpublished: list[tuple[Any, ...]] | None = None
        self._threads = Threads("fleet", self._check_on, self._publish_on, self._follow_on, self._restore_on)
        self._stop = self._threads.stop
        self.start = self._threads.start

    def close(self) -> None:
        self._stop.set()
        self._coordinator.redis.wake.set()
        self._threads.close()
        if self._is_leader:
            with suppress(StoreUnavailable), self._journal.step() as step:
                step.set_meta("leader", "")

    # Every second

    def _check_on(self) -> None:
        led = self._is_leader
        with self._journal.step() as step:
            self._is_leader = step.lead("leader", self._id, LEADS_MS)
        try:
            self.check()
            if self._is_leader or self._oldest_unpublished is None:
                self._publish_left_over(at_once=not led)
        finally:
            self._coordinator.redis.wake.wait(TICK_S)  # set when Redis is suspected
            self._coordinator.redis.wake.clear()

    def _publish_left_over(self, *, at_once: bool) -> None:
        """Publishes entries of a process that could not do so itself: they remain the oldest in the outbox. A process
        that starts, or takes over from another one, publishes them ``at_once``, as the other one may have died."""
        with self._journal.reading() as step:
            oldest = [row[:2] for row in step.outbox(1)]
        if oldest and (at_once or oldest == self._oldest_unpublished):
            while self._coordinator.publish_waiting():
                pass
        self._oldest_unpublished = oldest

    def check(self) -> None:
        """Asks Redis with the real script, and publishes (rules 8, 9, 12, 14, 15). Publishing does not wait until Redis
        is restored: another machine would send an email again whose outcome is published after its lease."""
        redis = self._coordinator.redis
        try:
            answer = self._probe()
        except NoAnswer:
            if redis.status == "up":
                redis.suspect()
                self.check()
                return
            redis.give_up()
            with self._journal.step() as step:
                step.set_meta("lost_ms", step.meta("lost_ms") or str(step.now_ms))
            self._coordinator.tend()
            return
        self._see(answer)
        redis.note_answer()
        self._coordinator.release_orphans()
        self._restore_first(answer)
        while self._coordinator.publish_settled():
            pass
        if sums := self._coordinator.tend():
            self._registry.announce(["N", self._journal.machine, sums])
        if self._about:
            self._beat(self._about())
        share_notes(self._registry, self._journal)
        if time.monotonic() - self._trimmed_at > TRIM_EVERY_S:
            self._trimmed_at = time.monotonic()
            now_ms, kept = self._journal.clock.now_ms(), self._journal.retention
            drop_dead(self._registry, now_ms - kept.dead_ms)
            trim_stream(self._registry, now_ms - kept.entry_ms, kept.stream_bytes)

    def _see(self, answer: Answer) -> None:
        """Puts locks back after an outage, and adopts a new era in one transaction: its stream is read from the
        beginning, and everything counts as unpublished (rule 14)."""
        with self._journal.reading() as step:
            is_known = step.meta("era") == answer.era and not step.meta("lost_ms")
            self._coordinator.is_behind = bool(step.meta("is_behind"))
        if is_known:
            return
        locks.put_back(self._registry, self._journal)
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

    def _beat(self, about: dict[str, Any]) -> None:
        with self._journal.reading() as step:
            state = {**about, "at_ms": step.now_ms, "position": step.meta("position")}
        self.members = beat(self._registry, self._journal.machine, state)
        live = [other for other in self.members.values() if state["at_ms"] - other["at_ms"] <= SILENT_MS]
        self._alone_since = float("inf") if len(live) > 1 else min(self._alone_since, time.monotonic())
        self._coordinator.redis.is_only_member = time.monotonic() - self._alone_since > SILENT_MS / 1000

    # A new era

    def _restore_first(self, answer: Answer) -> None:
        """Publishes resets and puts live claims back, while the era is still closed (rule 15)."""
        with self._journal.reading() as step:
            if step.meta("restore") != "first":
                return
            resets = step.query("SELECT reference, until_ms FROM names WHERE seq = -1 ORDER BY until_ms LIMIT 100000")
            claimed = step.read_rows("seq IN (SELECT seq FROM deliveries WHERE owner <> '')", ())
            steady_ms = step.steady_ms
        for label, number in resets:
            self._registry.reset({label: name_of(label)}, again=number)
        for _, entry in claimed:
            live = [delivery for delivery in entry.deliveries if delivery.is_live(steady_ms)]
            for owner, until_ms in {delivery.owner: delivery.lease_until_ms for delivery in live}.items():
                self._registry.put_back(entry, owner, until_ms - steady_ms)
        with self._journal.step() as step:
            if step.meta("era") == answer.era:
                step.set_meta("restore", str(step.last_seq() + 1))

    def restore(self, *, is_leader: bool = True) -> None:
        """Publishes what Redis has forgotten, of this machine and of others, newest first: the last hour at once, which
        extends the closing, then a batch in each call, and marks last."""
        is_recent = is_leader
        while is_recent and self._coordinator.redis.status == "up":
            with self._journal.reading() as step:
                era, place, began_ms = step.meta("era"), step.meta("restore"), int(step.meta("restore_ms") or 0)
                if not place.isdigit():
                    return
                rows = step.read_rows("seq < ? ORDER BY seq DESC LIMIT ?", (int(place), RESTORED_AT_ONCE))
                now_ms, newest_ms = step.now_ms, rows[0][1].created_ms if rows else 0
            is_recent = newest_ms > now_ms - HOUR_MS
            if is_recent:
                self._registry.probe(extend_ms=EXTENDED_MS)
            if newest_ms > now_ms - 3 * DAY_MS and now_ms - began_ms < RESTORING_MS:
                self._registry.ask(lambda client, prefix: client.set(f"{prefix}restoring", "1", px=5_000))
            self._publish_again([entry for _, entry in rows])
            with self._journal.step() as step:
                if step.meta("era") != era:
                    return
                step.set_meta("restore", str(rows[-1][0]) if rows else "marks")
            if not rows:
                self._restore_marks()

    def _restore_marks(self) -> None:
        after = ""
        while True:
            with self._journal.reading() as step:
                rows = step.query(
                    "SELECT reference, max(1, max(until_ms) - ?) FROM names WHERE reference > ? AND seq = 0"
                    " GROUP BY reference LIMIT ?",
                    (step.now_ms, after, RESTORED_AT_ONCE),
                )
            if not rows:
                break
            self._registry.announce(marks=[Name.from_label(label, left_ms) for label, left_ms in rows])
            after = rows[-1][0]
        with self._journal.step() as step:
            step.set_meta("restore", "")
            step.set_meta("is_behind", "")

    def _publish_again(self, entries: Sequence[Entry]) -> None:
        """Publishes entries as the journal has them, waiting ones with their payloads if these are here."""
        settled = [entry for entry in entries if entry.statuses - {DeliveryStatus.CLAIMED}]
        ended = self._registry.find_outdated([entry for entry in settled if not entry.is_open])
        self._registry.publish([(entry, NOTHING, None) for entry in ended])
        # Waiting ones are published even if Redis has them: a machine without the payload may have published them.
        for entry in [entry for entry in settled if entry.is_open]:
            with self._journal.reading() as step:
                payload = step.payload(entry.id)
            self._registry.publish([(entry, NOTHING, payload)])

    # Following

    def follow(self, *, waits: bool = False) -> int:
        """Reads and applies what other machines have published (rule 10). ``waits``: if there is no event, it waits a
        moment for one. Returns the number of events."""
        with self._journal.reading() as step:
            era, position = step.meta("era"), step.meta("position") or "0"
            is_noted = step.now_ms - int(step.meta("read_ms") or 0) < NOTED_MS
        oldest, events = self._registry.read_events(position, READ_AT_ONCE)
        is_trimmed = position != "0" and event_order(oldest) > event_order(position)
        if is_trimmed or not all(event for _, event in events):
            with self._journal.step() as step:
                if (step.meta("era"), step.meta("position") or "0") != (era, position):
                    return 0
                step.set_meta("gap_ms", str(step.now_ms))
            trimmed = "the stream was trimmed behind this machine"
            why = trimmed if is_trimmed else "the stream has events of another version"
            log.error("%s: this machine does not know everything that the fleet has done", why)
        for start in range(0, len(events), APPLIED_AT_ONCE):
            position = self._apply(era, position, events[start : start + APPLIED_AT_ONCE])
            if not position:
                return 0
        if len(events) < READ_AT_ONCE and not is_noted:
            with self._journal.step() as step:
                step.set_meta("read_ms", str(step.now_ms))
        if waits and not events:
            block_ms = min(MOST_BLOCK_MS, self._registry.options.hold_within_ms // 2)  # well below the client's timeout
            self._registry.ask(lambda c, prefix: c.xread({f"{prefix}events": position}, count=1, block=block_ms))
            return self.follow()
        return len(events)

    def _apply(self, era: str, position: str, events: Sequence[tuple[str, Sequence[Any] | None]]) -> str:
        """Applies a batch and moves the position in one transaction. Returns "" if another process was faster, or a new
        era has begun."""
        requests = []
        with self._journal.step() as step:
            if step.meta("era") != era or (step.meta("position") or "0") != position:
                return ""
            has_resets = bool(step.query("SELECT 1 FROM names WHERE seq = -1 LIMIT 1"))
            for event_id, event in events:
                if event is None:
                    continue  # a gap, recorded above
                kind, by, *values = event
                has_resets = has_resets or kind in ("R", "X")
                if kind == "E":
                    is_ours = by == self._journal.machine  # then it is here, unless the journal is a restored backup
                    if not (is_ours and step.query("SELECT 1 FROM entries WHERE id = ?", (values[0].id,))):
                        self._apply_entry(step, values[0], has_resets)
                elif kind == "R":
                    for label in values[1]:
                        step.reset(label, values[0])
                elif kind == "X":
                    erasing.apply(step, *values)
                elif kind == "M":
                    for label, until_ms in values[0]:
                        step.put_foreign_mark(label, until_ms)
                elif kind == "N" and by != self._journal.machine:
                    for entry, count, last_ms in values[0]:
                        step.add_repeats(entry, by, count, last_ms, is_sum=True)
                elif kind == "Q" and values[1] == self._journal.machine:
                    is_fresh = int(event_id.partition("-")[0]) > step.now_ms - REQUEST_MS
                    noted = "INSERT OR IGNORE INTO requests VALUES (?, ?) RETURNING 1"
                    if is_fresh and step.query(noted, (values[0], step.now_ms)):
                        requests.append(values[2])
            step.set_meta("position", events[-1][0])
        for action in requests:
            again.replay(self._coordinator, *action)
        return events[-1][0]

    def _apply_entry(self, step: Step, incoming: Entry, has_resets: bool) -> None:
        if has_resets:
            labels = [*references(incoming.own, incoming.fingerprint), erasing.tombstone(incoming.id)]
            if step.latest_reset(labels) > incoming.reset:
                return
        ours = step.read(incoming.id)
        after = merge(ours, incoming.without_claims(), step.steady_ms)
        if after != ours:
            step.put(after, ours, publishes=False)
            if ours and after.is_delivered_everywhere:
                step.end_payload(after.id)

    # The threads

    def _follow_on(self) -> None:
        if self._coordinator.redis.status != "up" or not self._is_leader:
            self._stop.wait(0.1)
            return
        try:
            self.follow(waits=True)
        except NoAnswer:
            self._coordinator.redis.suspect()
        self._stop.wait(REST_S)

    def _publish_on(self) -> None:
        """What this process settles, some 20 ms later."""
        self._stop.wait(REST_S)
        if self._coordinator.has_unpublished.wait(0.1) and self._coordinator.redis.status == "up":
            self._coordinator.has_unpublished.clear()
            while self._coordinator.publish_settled():
                pass

    def _restore_on(self) -> None:
        self.restore(is_leader=self._is_leader)
        self._stop.wait(TICK_S)
