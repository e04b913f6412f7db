"""What happened to an email, in one sentence."""

from datetime import UTC

import pytest
from msgspec.structs import replace

from deduplication.journal.entry import About, Attempt, Delivery, DeliveryStatus, Entry, Stop
from deduplication.names import Kind, Name
from orchestrator.operations.decisions import explain, shown_time_of_day
from orchestrator.pipeline import Status

GROUP, EMAIL_ID = Name(Kind.SUBJECT_GROUP, "2026-11", "lot_456"), Name(Kind.EMAIL_ID, "2026-11-16", "fe4f")
WORDS = Name(Kind.CONTENT, "crm", "0123456789abcdef")
AT_MS = 1_763_283_600_000
ATTEMPT = Attempt(AT_MS, 10, 500, "crm: answered 500")
D = Delivery("crm", "msg_1", DeliveryStatus.DELIVERED, tries=1, ended_ms=AT_MS)
W = Delivery("crm", "msg_1", DeliveryStatus.WAITING, tries=2, next_try_ms=AT_MS, reason="crm: paused")
X = Delivery("crm", "msg_1", DeliveryStatus.DEAD, tries=1, ended_ms=AT_MS, reason="crm: answered 500")
R = Delivery("crm", "msg_1", DeliveryStatus.RETURNED, tries=1, attempts=(ATTEMPT,))
S, C = (Delivery("crm", "msg_1", status) for status in (DeliveryStatus.SKIPPED, DeliveryStatus.CLAIMED))
ORIGINAL = Entry("first", "m", (EMAIL_ID,), AT_MS, about=About("fe4f", sender="ada@x.example"), deliveries=(D,))
FAILED = Entry("first", "m", (EMAIL_ID,), AT_MS, deliveries=(X,))
BY_SCRIPT = Entry("id", "m", (), AT_MS, deliveries=(replace(D, destination=""),))


def entry(*deliveries: Delivery, stop: Stop | None = None, released_ms: int | None = None) -> Entry:
    pairs = zip(deliveries, ("crm", "slack"), strict=False)
    named = tuple(replace(delivery, destination=name) for delivery, name in pairs)
    return Entry("id", "m", (), created_ms=AT_MS, deliveries=named, stop=stop, released_ms=released_ms)


OF_GROUP, LOT = Stop(GROUP, "first", AT_MS), "same subject group lot_456 as the email of 09:00"
CASES: list[tuple[Entry, Status, Entry | None, str]] = [
    (entry(C), Status.ALREADY_PROCESSING, None, "Being delivered to crm, since 09:00"),
    (entry(C), Status.RETRY_LATER, None, "Not finished: its request at 09:00 ended without a result. It continues"),
    (
        entry(R, D),
        Status.RETRY_LATER,
        None,
        "Returned to its provider, which sends it again (already delivered to slack): ",
    ),
    (entry(S), Status.SKIPPED_OLD, None, "Suppressed: it is older than the service, and its route accepts only new"),
    (
        entry(S, stop=OF_GROUP),
        Status.SKIPPED_SUBJECT_GROUP,
        ORIGINAL,
        f"Suppressed: {LOT} from ada@x.example, delivered to crm",
    ),
    (entry(S, stop=OF_GROUP), Status.SKIPPED_SUBJECT_GROUP, None, f"Suppressed: {LOT}, which is no longer stored"),
    (
        entry(S, stop=Stop(WORDS, "first")),
        Status.SKIPPED_CONTENT,
        FAILED,
        "Suppressed: same first words as the email of 09:00, dead letter at crm after 1 attempt",
    ),
    (
        entry(S, stop=Stop(EMAIL_ID)),
        Status.ALREADY_PROCESSED,
        None,
        "Duplicate: its email id fe4f is marked as done by an import, another",
    ),
    (entry(D, D), Status.PROCESSED, None, "Delivered to crm and slack at 09:00"),
    (entry(D, S), Status.PROCESSED, None, "Delivered to crm at 09:00; not sent to slack, which received the same"),
    (entry(W), Status.QUEUED, None, "Waiting for crm after 2 attempts: paused; next attempt at 09:00"),
    (
        entry(X, D),
        Status.DEAD_LETTERED,
        None,
        "Delivered to slack at 09:00; dead letter at crm after 1 attempt: answered",
    ),
    (
        entry(D, stop=OF_GROUP, released_ms=AT_MS),
        Status.PROCESSED,
        ORIGINAL,
        f"Released at 09:00, after it was stopped ({LOT} from",
    ),
    (BY_SCRIPT, Status.PROCESSED, None, "Published by a script"),
    (entry(S, stop=OF_GROUP), Status.SKIPPED_SUBJECT_GROUP, BY_SCRIPT, f"Suppressed: {LOT}, published by a script"),
]


@pytest.mark.parametrize(("what", "status", "original", "sentence"), CASES)
def test_what_happened_is_explained_in_one_sentence(
    what: Entry, status: Status, original: Entry | None, sentence: str
) -> None:
    shown = explain(what, status, original, lambda ms: shown_time_of_day(ms, AT_MS, UTC))
    assert shown.startswith(sentence)


def test_a_time_of_another_day_has_its_date() -> None:
    assert shown_time_of_day(AT_MS, AT_MS + 86_400_000, UTC) == "2025-11-16 09:00"
