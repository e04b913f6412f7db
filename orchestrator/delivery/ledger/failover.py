"""Redis over the local file: Redis holds the records while it is there, the file when it is not.

1. What is open or dead is written to both, so that it is not lost with Redis. The copy goes once it is settled there.
2. What could be written here alone is moved to Redis as soon as it is back, before anybody asks it what is due.
3. Of two states of one record the one with more progress holds (Delivery.progress), whichever was written later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from heapq import merge
from typing import TypeVar

from deduplication.errors import ConnectionDropped, DeduplicationError, StoreMisconfigured, StoreUnavailable
from orchestrator.delivery.ledger.base import Counts, Wanted
from orchestrator.delivery.ledger.copies import Copies, Copy
from orchestrator.delivery.ledger.redis import TAKEN, Known, RedisLedger, Rule
from orchestrator.delivery.ledger.sqlite import SqliteLedger
from orchestrator.delivery.record import Delivery, DeliveryStatus

log = logging.getLogger(__name__)

T = TypeVar("T")

COMPARED_AT_ONCE = 100
MOST_BATCHES = 5
MOST_FAILURES = 5
# Still to be delivered, or to be seen to by a person: of these there is a copy in the file.
KEPT = {DeliveryStatus.WAITING, DeliveryStatus.DELIVERING, DeliveryStatus.DEAD}


class FailoverLedger:
    """The Ledger of a server with Redis. ``is_redis_up`` says whether to ask it at all."""

    def __init__(self, redis: RedisLedger, local: SqliteLedger, is_redis_up: Callable[[], bool]) -> None:
        self._redis = redis
        self._local = local
        self._copies = Copies(local)
        self._is_redis_up = is_redis_up

    # The contract: writing

    def add(self, deliveries: Sequence[Delivery]) -> None:
        try:
            answers = self._at_redis(lambda: self._redis.put(deliveries, Rule.ADD))
        except StoreUnavailable as error:
            self._write_alone(lambda: self._local.add(deliveries), error)
            return
        answered = list(zip(deliveries, answers, strict=True))
        new = [each for each, answer in answered if answer == TAKEN and each.status in KEPT]
        known = [each for each, answer in answered if answer in KEPT]
        self._locally(lambda: self._copies.add(new, known))

    def save(self, delivery: Delivery) -> None:
        try:
            (answer,) = self._at_redis(lambda: self._redis.put([delivery], Rule.SAVE))
        except StoreUnavailable as error:
            self._write_alone(lambda: self._local.save(delivery), error)
            return
        except StoreMisconfigured:  # loud, but what became of a delivery must not be forgotten over it
            self._locally(lambda: self._local.save(delivery))
            raise
        if answer != TAKEN:
            self._locally(lambda: self._compare_one(delivery.id))
        elif delivery.status in KEPT:
            self._locally(lambda: self._copies.keep(delivery))
        else:
            self._locally(lambda: self._copies.settle(delivery))

    def begin(self, delivery_id: str, hold_ms: int) -> Delivery | None:
        try:
            self._at_redis(lambda: self._locally(lambda: self._compare_one(delivery_id)))
            begun = self._at_redis(lambda: self._redis.begin(delivery_id, hold_ms))
        except StoreUnavailable:
            return self._local.begin(delivery_id, hold_ms)
        if begun:
            self._locally(lambda: self._copies.note([begun]))
            return begun
        copy = self._locally(lambda: self._copies.get(delivery_id))
        return self._local.begin(delivery_id, hold_ms) if copy and not copy.is_at_redis else None

    def due(self, limit: int, hold_ms: int) -> list[Delivery]:
        try:
            self._at_redis(lambda: self._locally(lambda: self._compare(self._copies.unsent_and_due(limit))))
            due = self._at_redis(lambda: self._redis.due(limit, hold_ms))
        except StoreUnavailable:
            return self._copies.due(limit, hold_ms)
        self._locally(lambda: self._copies.note(due))
        return due + (self._locally(lambda: self._copies.due_alone(limit - len(due), hold_ms)) or [])

    def hold(self, deliveries: Sequence[Delivery], hold_ms: int) -> None:
        self._locally(lambda: self._local.hold(deliveries, hold_ms))
        with suppress(StoreUnavailable):  # then the file alone says when they are due
            self._at_redis(lambda: self._redis.hold(deliveries, hold_ms))

    def forget(self, delivery_ids: Iterable[str]) -> int:
        """Must reach every server, so it needs Redis."""
        wanted = list(delivery_ids)
        forgotten = self._at_redis(lambda: self._redis.forget_known(wanted))
        return len(forgotten | (self._locally(lambda: self._local.forget_known(wanted)) or set()))

    # The contract: reading

    def get(self, delivery_id: str) -> Delivery | None:
        try:
            (known,) = self._asked(lambda: self._redis.read([delivery_id], with_payloads=True))
        except StoreUnavailable:
            return self._local.get(delivery_id)
        copy = self._locally(lambda: self._copies.get(delivery_id))
        if copy and _is_ahead(copy, known):
            return self._locally(lambda: self._local.get(delivery_id)) or known.delivery
        return known.delivery

    def find(self, wanted: Wanted) -> Iterator[Delivery]:
        """Should Redis go away half-way, the file goes on from there."""
        last = (-1, "")
        try:
            for delivery in self._find_over_both(wanted):
                yield delivery
                last = _place(delivery)
        except StoreUnavailable as error:
            log.warning("deliveries are listed from the local file: %s", error)
            yield from (delivery for delivery in self._local.find(wanted) if _place(delivery) > last)

    def counts(self) -> Counts:
        try:
            counts = self._asked(self._redis.counts)
            written_alone = self._written_alone()
        except StoreUnavailable:
            return self._local.counts()
        for ours, theirs in written_alone.values():
            _count(counts, ours, 1)
            if theirs:
                _count(counts, theirs, -1)
        return {place: count for place, count in counts.items() if count > 0}

    # The contract: looking after it

    def follow(self) -> None:
        """Holds copies against Redis, a few hundred at a time and each every five seconds at most."""
        self._locally(self._local.follow)
        try:
            self._at_redis(self._redis.follow)
            for _ in range(MOST_BATCHES):
                if not self._compare(self._copies.to_compare(COMPARED_AT_ONCE)):
                    return
        except StoreUnavailable as error:
            log.info("deliveries are not compared with Redis for now: %s", error)

    def close(self) -> None:
        self._redis.close()
        self._local.close()

    def _compare(self, copies: Sequence[Copy]) -> int:
        """How many had to be moved to Redis: what was written here alone, and what Redis has forgotten."""
        moved, failures = 0, 0
        for copy, known in zip(copies, self._redis.read([copy.delivery.id for copy in copies]), strict=True):
            try:
                moved += self._settle_difference(copy, known)
            except StoreUnavailable as error:  # too big for its timeout, say: the others must not wait behind it
                failures += 1
                log.warning("delivery %s is not moved to Redis for now: %s", copy.delivery.id, error)
                if failures >= MOST_FAILURES:
                    raise
        return moved

    def _settle_difference(self, copy: Copy, known: Known) -> int:
        if _is_ahead(copy, known):
            self._move(copy)
            return 1
        self._follow_redis(copy, known)
        return 0

    def _compare_one(self, delivery_id: str) -> None:
        copy = self._copies.get(delivery_id)
        if copy:
            self._compare([copy])

    def _move(self, copy: Copy) -> None:
        delivery = self._local.get(copy.delivery.id)
        if delivery is None or self._redis.put([delivery], Rule.MERGE) != [TAKEN]:
            return  # it was dropped here or changed there in this moment; the next comparison sees to it
        log.info("delivery %s (%s) was moved to Redis", delivery.id, delivery.status)
        if delivery.status in KEPT:
            self._copies.agree(copy, delivery)
        else:
            self._copies.drop(copy)

    def _follow_redis(self, copy: Copy, known: Known) -> None:
        if known.delivery is None or known.delivery.status not in KEPT:
            self._copies.drop(copy)
        elif known.progress == copy.progress:
            self._copies.agree(copy, known.delivery)
        else:
            at_redis = self._redis.get(copy.delivery.id)
            if at_redis:
                self._copies.take_over(copy, at_redis)

    def _find_over_both(self, wanted: Wanted) -> Iterator[Delivery]:
        written_alone = self._written_alone()
        ours = sorted((each for each, _ in written_alone.values() if wanted.matches(each)), key=_place)
        theirs = (each for each in self._redis.find(wanted) if each.id not in written_alone)
        return merge(ours, theirs, key=_place)

    def _written_alone(self) -> dict[str, tuple[Delivery, Delivery | None]]:
        """By id, what was written here alone and is ahead of Redis, and what Redis has of it."""
        copies = self._locally(self._copies.unsent) or []
        known = self._asked(lambda: self._redis.read([copy.delivery.id for copy in copies]))
        pairs = zip(copies, known, strict=True)
        return {copy.delivery.id: (copy.delivery, each.delivery) for copy, each in pairs if _is_ahead(copy, each)}

    # Who takes it

    def _at_redis(self, step: Callable[[], T]) -> T:
        if not self._is_redis_up():
            raise StoreUnavailable("redis: it is away")
        return step()

    def _asked(self, question: Callable[[], T]) -> T:
        """A question does no harm if it is asked twice."""
        try:
            return self._at_redis(question)
        except ConnectionDropped:
            return self._at_redis(question)

    def _locally(self, step: Callable[[], T]) -> T | None:
        """A file that cannot be used must not stop what Redis has taken."""
        try:
            return step()
        except DeduplicationError as error:
            log.error("the local copy of deliveries is not up to date: %s", error)
            return None

    def _write_alone(self, write: Callable[[], None], why: StoreUnavailable) -> None:
        try:
            write()
        except DeduplicationError as error:
            raise StoreUnavailable(f"neither Redis ({why}) nor the local file ({error}) takes it") from error
        log.info("a delivery is kept in the local file until Redis is back: %s", why)


def _is_ahead(copy: Copy, known: Known) -> bool:
    """Whether Redis lacks it. What was created before its id was forgotten on purpose does not come back."""
    if known.forgotten_ms is not None and copy.delivery.created_ms <= known.forgotten_ms:
        return False
    return known.delivery is None or copy.progress > known.progress


def _place(delivery: Delivery) -> tuple[int, str]:
    return delivery.created_ms, delivery.id


def _count(counts: Counts, delivery: Delivery, change: int) -> None:
    place = (delivery.destination, delivery.status)
    counts[place] = counts.get(place, 0) + change
