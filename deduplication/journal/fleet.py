"""What a process does behind its requests: follow the stream, publish what is unpublished, and restore Redis' memory.

Any process of a machine may do any of it; a batch counts only if era and position are still those it was read under.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deduplication import again
from deduplication.errors import DeduplicationError, NoAnswer, StoreUnavailable
from deduplication.journal.coordinator import BEHIND_MS, Coordinator
from deduplication.journal.entry import DeliveryStatus, Entry, changed, decode_values, to_json
from deduplication.journal.registry import NOTHING, Answer, Registry
from deduplication.journal.rules import merged, name_of, reference
from deduplication.journal.sqlite import Step
from deduplication.members import event_order
from deduplication.names import Name
from deduplication.room import drop_dead

log = logging.getLogger(__name__)

TICK_S = 1.0
READ_AT_ONCE = 500
APPLIED_AT_ONCE = 40  # some 5 ms of the journal's lock
REST_S = 0.02
RESTORED_AT_ONCE = 200
HOUR_MS, DAY_MS = 3_600_000, 24 * 3_600_000
RESTORING_MS = 60_000
EXTENDED_MS = 2_000
SILENT_MS = 60_000
REQUEST_MS = 60_000
TRIM_EVERY_S = 60


@dataclass(frozen=True)
class FleetOptions:
    """``events_ms`` and ``events_bytes`` bound the stream (DECISION_DAYS, STREAM_MB); ``about`` is for the members,
    None for a process that is none.

    ``block_ms`` must be well below the timeout of the reader's connection: waiting for an event is no missing answer.
    """

    events_ms: int = 7 * DAY_MS
    events_bytes: int = 256 << 20
    block_ms: int = 1_000
    about: Callable[[], dict[str, Any]] | None = dict


class Fleet:
    """``reader`` has a connection of its own, on which it waits for events."""

    def __init__(self, coordinator: Coordinator, reader: Registry, options: FleetOptions | None = None) -> None:
        if coordinator.registry is None:
            raise ValueError("a fleet needs a registry")
        self._coordinator = coordinator
        self._journal = coordinator.journal
        self._registry = coordinator.registry
        self._reader = reader
        self._options = options or FleetOptions()
        self.members: dict[str, Any] = {}
        self._alone_since: float | None = None
        self._trimmed_at = 0.0
        self._stop = threading.Event()
        works = (
            (self._check, self._wait),
            (self._follow_on, lambda: self._stop.wait(REST_S)),
            (self.restore, lambda: self._stop.wait(TICK_S)),
        )
        self._threads = [threading.Thread(target=self._run, args=work, name="fleet", daemon=True) for work in works]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stop.set()
        self._coordinator.redis.wake.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    # Every second

    def tick(self) -> None:
        """Everything once, but for following."""
        self._check()
        self.restore()

    def _check(self) -> None:
        """Asks Redis with the real script, and publishes (rules 8, 9, 12, 14, 15). It does not wait until Redis is
        restored: an outcome that is published after its lease is sent again by another machine."""
        redis = self._coordinator.redis
        try:
            answer = self._registry.probe()
        except NoAnswer:
            if redis.status == "up":
                redis.suspect()
                self._check()
                return
            redis.give_up()
            with self._journal.step() as step:
                step.set_meta("lost_ms", step.meta("lost_ms") or str(step.now_ms))
            self._coordinator.tend()
            return
        redis.note_answer()
        self._see(answer)
        self._coordinator.release_orphans()
        self._restore_first(answer)
        while self._coordinator.publish_waiting():
            pass
        if sums := self._coordinator.tend():
            self._registry.announce(["N", self._journal.machine, sums])
        if self._options.about:
            self._beat(self._options.about())
        self._share_notes()
        if time.monotonic() - self._trimmed_at > TRIM_EVERY_S:
            self._trimmed_at = time.monotonic()
            now_ms = self._journal.clock.now_ms()
            drop_dead(self._registry, now_ms - self._journal.retention.dead_ms)
            self._registry.trim(now_ms - self._options.events_ms, self._options.events_bytes)

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

    def _beat(self, about: dict[str, Any]) -> None:
        with self._journal.reading() as step:
            position = step.meta("position")
        now_ms = self._journal.clock.now_ms()
        state = to_json({**about, "at_ms": now_ms, "position": position})

        def ask(client: Any, prefix: str) -> dict[bytes, bytes]:
            client.hset(f"{prefix}members", self._journal.machine, state)
            return client.hgetall(f"{prefix}members")  # type: ignore[no-any-return]

        self.members = {name.decode(): json.loads(text) for name, text in self._registry.ask(ask).items()}
        silent = [name for name, each in self.members.items() if now_ms - each["at_ms"] > SILENT_MS]
        if self.members.keys() - set(silent) - {self._journal.machine}:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = time.monotonic()
        is_alone = self._alone_since is not None and time.monotonic() - self._alone_since > SILENT_MS / 1000
        self._coordinator.redis.is_only_member = is_alone
        gone = [name for name in silent if now_ms - self.members[name]["at_ms"] > HOUR_MS]
        if gone:
            self._registry.ask(lambda client, prefix: client.hdel(f"{prefix}members", *gone))

    def _share_notes(self) -> None:
        """Of two notes with one key the later one counts, here and in Redis: so all end with the same."""
        with self._journal.reading() as step:
            ours = step.notes()
        found = self._registry.ask(lambda client, prefix: client.hgetall(f"{prefix}notes"))
        parted = {key.decode(): text.decode().partition(" ") for key, text in found.items()}
        fleet = {key: (int(at_ms), value) for key, (at_ms, _, value) in parted.items()}
        news = {key: note for key, note in fleet.items() if note > ours.get(key, (0, ""))}
        if news:
            with self._journal.step() as step:
                for key, (at_ms, value) in news.items():
                    step.put_note(key, value, at_ms)
        later = {key: f"{note[0]} {note[1]}" for key, note in ours.items() if note > fleet.get(key, (0, ""))}
        if later:
            self._registry.ask(lambda client, prefix: client.hset(f"{prefix}notes", mapping=later))

    # A new era

    def _restore_first(self, answer: Answer) -> None:
        """Resets and live claims, while the era is still closed (rule 15)."""
        with self._journal.reading() as step:
            if step.meta("restore") != "first":
                return
            resets = step.query("SELECT reference, number FROM resets ORDER BY number LIMIT 100000")
            claimed = step.read_rows("seq IN (SELECT seq FROM deliveries WHERE owner <> '')", ())
            steady_ms = step.steady_ms
        for label, number in resets:
            self._registry.reset({label: name_of(label)}, again=number)
        for _, entry in claimed:
            for owner in {each.owner for each in entry.deliveries if each.status is DeliveryStatus.CLAIMED}:
                left_ms = max(each.lease_until_ms for each in entry.deliveries if each.owner == owner) - steady_ms
                if left_ms > 0:
                    self._registry.put_back(entry, owner, left_ms)
        with self._journal.step() as step:
            if step.meta("era") == answer.era:
                step.set_meta("restore", f"recent:{step.last_seq() + 1}")

    def restore(self) -> None:
        """What Redis has forgotten: all that this machine did in the last hour; then, each time, some of the rest."""
        if self._coordinator.redis.status != "up":
            return
        while True:
            with self._journal.reading() as step:
                era, (stage, _, place) = step.meta("era"), step.meta("restore").partition(":")
                if stage != "recent":
                    break
                values = (self._journal.machine, step.now_ms - HOUR_MS, int(place), RESTORED_AT_ONCE)
                rows = step.read_rows("machine = ? AND created_ms > ? AND seq < ? ORDER BY seq DESC LIMIT ?", values)
            if rows:  # others wait a little longer for what this machine did last
                self._registry.probe(extend_ms=EXTENDED_MS)
                self._publish_again([entry for _, entry in rows])
            with self._journal.step() as step:
                if step.meta("era") == era:
                    step.set_meta("restore", f"recent:{rows[-1][0]}" if rows else str(step.last_seq() + 1))
        self._restore_some()

    def _restore_some(self) -> None:
        """Behind the requests, newest first: what Redis does not have, of this machine and of others; marks last."""
        with self._journal.reading() as step:
            place, began_ms = step.meta("restore"), int(step.meta("restore_ms") or 0)
            if not place.isdigit():
                return
            rows = step.read_rows("seq < ? ORDER BY seq DESC LIMIT ?", (int(place), RESTORED_AT_ONCE))
            now_ms = step.now_ms
        if rows and rows[0][1].created_ms > now_ms - 3 * DAY_MS and now_ms - began_ms < RESTORING_MS:
            self._registry.ask(lambda client, prefix: client.set(f"{prefix}restoring", "1", px=5_000))
        self._publish_again([entry for _, entry in rows])
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
                query = "SELECT reference, until_ms FROM marks WHERE reference > ? ORDER BY reference LIMIT ?"
                rows, now_ms = step.query(query, (after, RESTORED_AT_ONCE)), step.now_ms
            if not rows:
                break
            left = ((label, None if until_ms is None else max(1, until_ms - now_ms)) for label, until_ms in rows)
            self._registry.put_marks([replace(Name.from_label(label), kept_ms=ms) for label, ms in left])
            after = rows[-1][0]
        with self._journal.step() as step:
            step.set_meta("restore", "")
            step.set_meta("is_behind", "")

    def _publish_again(self, entries: Sequence[Entry]) -> None:
        """As the journal has them; a payload goes along with what waits and lies here."""
        claimed = {DeliveryStatus.CLAIMED}
        settled = [entry for entry in entries if {each.status for each in entry.deliveries} - claimed]
        ended = self._registry.outdated([entry for entry in settled if not entry.is_open])
        answers = self._registry.publish_ended([(entry, NOTHING) for entry in ended]) if ended else []
        for entry in [entry for entry, answer in zip(ended, answers, strict=True) if answer is None]:
            self._registry.publish(entry)
        # What waits is published even if Redis knows of it: perhaps by a machine that does not have its payload.
        for entry in [entry for entry in settled if entry.is_open]:
            with self._journal.reading() as step:
                payload = step.payload(entry.id)
            self._registry.publish(entry, payload=payload)

    # Following

    def follow(self, block_ms: int = 0) -> int:
        """Reads what other machines have published, and applies it (rule 10); how many events there were."""
        with self._journal.reading() as step:
            era, position = step.meta("era"), step.meta("position") or "0"
        first = self._reader.ask(lambda client, prefix: client.xrange(f"{prefix}events", count=1))
        if position != "0" and first and event_order(first[0][0].decode()) > event_order(position):
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
                elif kind == "M":
                    for label, until_ms in values[0]:
                        step.put_mark(label, None, until_ms)
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
            again.execute(self._coordinator, action)
        return events[-1][0]

    def _apply_entry(self, step: Step, values: Any, by: str) -> None:
        news = decode_values(values)
        ours = step.read(news.id)
        if ours is not None and by == self._journal.machine:
            return  # this journal has it at first hand
        labels = [reference(name, news.fingerprint) for name in news.own]
        places = ",".join("?" * len(labels))
        latest = step.query(f"SELECT max(number) FROM resets WHERE reference IN ({places})", labels)  # noqa: S608
        if (latest[0][0] or 0) > news.reset:
            return
        known = tuple(each for each in news.deliveries if each.status is not DeliveryStatus.CLAIMED)
        after = merged(ours, changed(news, deliveries=known), step.steady_ms)  # a claim counts on its own machine only
        if after != ours:
            step.put(after, ours, is_news=True)
            if after.is_delivered_everywhere:
                step.end_payload(after.id)

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

    def _run(self, work: Callable[[], object], pause: Callable[[], object]) -> None:
        while not self._stop.is_set():
            try:
                work()
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
