"""Every verdict in one sentence."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC
from zoneinfo import ZoneInfo

import pytest

from deduplication.claims import Kind, Name
from deduplication.journal.entry import About, Attempt, Delivery, DeliveryStatus, Entry, State, Stop
from deduplication.journal.listing import PayloadPlace
from orchestrator.intake import Status
from orchestrator.operations.decision_index import decided_status
from orchestrator.operations.deliveries import Seen
from orchestrator.operations.reasons import Case, said_at, sentence

NOON_MS = 1_794_830_400_000  # 2026-11-16, 12:00 UTC
MINUTE_MS = 60_000
GROUP = Name(Kind.SUBJECT_GROUP, "2026-11", "lot_456")
WORDS = Name(Kind.CONTENT, "crm", "abcdef")
EMAIL_ID = Name(Kind.EMAIL_ID, "2026-11-16", "fe4f")


def entry(*deliveries: Delivery, state: State = State.DONE, **more: object) -> Entry:
    known = Entry("e2", (EMAIL_ID,), (), "", state, "", 0, 0, NOON_MS, About("fe4f"), deliveries, answer="told")
    return Entry(**{**known.__dict__, **more})


def delivery(status: DeliveryStatus, destination: str = "crm", **more: object) -> Delivery:
    return Delivery(destination, "msg", status, **more)  # type: ignore[arg-type]


HAD = delivery(DeliveryStatus.DELIVERED, delivered_ms=NOON_MS + MINUTE_MS)
SKIPPED = delivery(DeliveryStatus.SKIPPED)
WAITS = delivery(DeliveryStatus.WAITING, reason="crm: answered 503", tries=2, next_try_ms=NOON_MS + 5 * MINUTE_MS)
DEAD = delivery(DeliveryStatus.DEAD, reason="crm: answered 404", tries=1)
ORIGINAL_MS = NOON_MS - 118 * MINUTE_MS


def original(*deliveries: Delivery) -> Entry:
    return entry(*deliveries, id="e1", created_ms=ORIGINAL_MS, about=About("f", sender="a@b"))


STOP = Stop(GROUP, "e1", ORIGINAL_MS)
FOLLOWS = Stop(GROUP, "e1", ORIGINAL_MS, follows=True)


@pytest.mark.parametrize(
    ("decided", "repeats", "said"),
    [
        (entry(HAD), None, "Delivered to crm at 12:01"),
        (
            entry(answer="imported"),
            None,
            "Imported at 12:00, from the mail before: known, and not sent from here",
        ),
        (
            entry(SKIPPED, stop=STOP),
            replace(original(), answer="imported"),
            "Not sent: same subject group lot_456 as the email of 10:02 from a@b, which was imported",
        ),
        (
            entry(HAD, delivery(DeliveryStatus.SKIPPED, "erp")),
            None,
            "Delivered to crm at 12:01; not sent to erp, which had the same words before",
        ),
        (
            entry(HAD, repeats=1, repeated_ms=NOON_MS + 2 * MINUTE_MS),
            None,
            "Delivered to crm at 12:01. It came again once, last at 12:02, and was not sent again",
        ),
        (
            entry(HAD, repeats=3, repeated_ms=NOON_MS - 24 * 60 * MINUTE_MS),
            None,
            "Delivered to crm at 12:01. It came again 3 times, last at 2026-11-15 12:00, and was not sent again",
        ),
        (entry(WAITS), None, "Waiting for crm (answered 503), after 2 tries; next try at 12:05"),
        (entry(DEAD), None, "Not delivered to crm, given up after 1 try: answered 404"),
        (
            entry(SKIPPED, stop=STOP),
            original(HAD),
            "Not sent: same subject group lot_456 as the email of 10:02 from a@b, delivered to crm",
        ),
        (
            entry(SKIPPED, stop=FOLLOWS),
            original(WAITS),
            "Not sent: same subject group lot_456 as the email of 10:02 from a@b, which waits for crm."
            " If that one fails for good, this one goes out in its place",
        ),
        (
            entry(SKIPPED, stop=STOP),
            None,
            "Not sent: same subject group lot_456 as the email of 10:02, which is no longer kept",
        ),
        (
            entry(SKIPPED, stop=Stop(Name(Kind.MEDIA, "", "https://a.example/1"), "e1", ORIGINAL_MS)),
            original(HAD),
            "Not sent: same file https://a.example/1 as the email of 10:02 from a@b, delivered to crm",
        ),
        (
            entry(SKIPPED, stop=Stop(WORDS, "e1", ORIGINAL_MS)),
            original(DEAD),
            "Not sent: same first words as the email of 10:02 from a@b, which could not be delivered to crm",
        ),
        (entry(SKIPPED, stop=Stop(EMAIL_ID)), None, "Not sent: another program has marked its email id fe4f as done"),
        (
            entry(HAD, stop=STOP, released_ms=NOON_MS + MINUTE_MS),
            original(HAD),
            "Released at 12:01, after it was stopped (same subject group lot_456 as the email of 10:02 from a@b,"
            " delivered to crm): delivered to crm at 12:01",
        ),
        (
            entry(WAITS, stop=FOLLOWS, released_ms=NOON_MS),
            None,
            "Sent at 12:00 in place of the email of 10:02, which could not be delivered:"
            " waiting for crm (answered 503), after 2 tries; next try at 12:05",
        ),
        (
            entry(delivery(DeliveryStatus.DELIVERING), state=State.PENDING, lease_until_ms=NOON_MS + 1),
            None,
            "Being delivered to crm now, since 12:00",
        ),
        (
            entry(delivery(DeliveryStatus.DELIVERING), state=State.PENDING, lease_until_ms=NOON_MS),
            None,
            "Not decided: its request of 12:00 ended without an answer. It goes on when its provider sends it again",
        ),
        (
            entry(
                delivery(DeliveryStatus.DELIVERING, attempts=(Attempt(NOON_MS, 5, None, "connection refused"),)),
                delivery(DeliveryStatus.DELIVERED, "erp"),
                state=State.FREE,
            ),
            None,
            "Given back to its provider, which sends it again (delivered to erp already): connection refused",
        ),
        (
            entry(SKIPPED, state=State.FREE, generation=1),
            None,
            "Forgotten by a reset: if it comes again, it is delivered",
        ),
        (
            entry(answer=Status.SKIPPED_OLD),
            None,
            "Not sent: it is older than the service, and its route takes new ones only",
        ),
        (
            entry(HAD, is_trial=True),
            None,
            "Only printed: no destination is configured yet. It goes out if it comes again once there is one",
        ),
        (entry(), None, "Published by a script"),
        (
            entry(delivery(DeliveryStatus.DELIVERING), HAD),
            None,
            "Delivered to crm at 12:01; being delivered to crm now",
        ),
    ],
)
def test_every_case_is_one_sentence(decided: Entry, repeats: Entry | None, said: str) -> None:
    seen = [Seen(decided, each, each.reason, 0, 10, PayloadPlace.GONE) for each in decided.deliveries]
    case = Case(decided, decided_status(decided, NOON_MS), repeats, seen, lambda ms: said_at(ms, NOON_MS, UTC))
    assert sentence(case) == said


def test_times_are_those_of_the_place_where_it_runs() -> None:
    assert said_at(NOON_MS, NOON_MS, ZoneInfo("Asia/Tokyo")) == "21:00"
    late_ms = NOON_MS + 4 * 60 * MINUTE_MS
    assert said_at(NOON_MS, late_ms, ZoneInfo("Asia/Tokyo")) == "2026-11-16 21:00", "there it is tomorrow by then"
