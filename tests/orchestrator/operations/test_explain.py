"""What happened to an email, in one sentence."""

from datetime import UTC

import pytest
from msgspec.structs import replace

from deduplication.journal.entry import About, Attempt, Delivery, DeliveryStatus, Entry, Stop
from deduplication.names import Kind, Name
from orchestrator.operations.decisions import explain, shown_time_of_day

GROUP, EMAIL_ID = Name(Kind.SUBJECT_GROUP, "2026-11", "lot_456"), Name(Kind.EMAIL_ID, "2026-11-16", "fe4f")
WORDS = Name(Kind.CONTENT, "crm", "0123456789abcdef")
AT_MS = 1_763_283_600_000
ATTEMPT = Attempt(AT_MS, 10, 500, "crm: answered 500")
D = Delivery("crm", "msg_1", DeliveryStatus.DELIVERED, tries=1, ended_ms=AT_MS)
W = Delivery("crm", "msg_1", DeliveryStatus.WAITING, tries=2, next_try_ms=AT_MS, reason="crm: paused")
X = Delivery("crm", "msg_1", DeliveryStatus.DEAD, tries=1, ended_ms=AT_MS, reason="crm: answered 500")
R = Delivery("crm", "msg_1", DeliveryStatus.RETURNED, tries=1, attempts=(ATTEMPT,), reason="crm: answered 500")
S, C = (Delivery("crm", "msg_1", status) for status in (DeliveryStatus.SKIPPED, DeliveryStatus.CLAIMED))
ORIGINAL = Entry("first", "m", (EMAIL_ID,), AT_MS, about=About("fe4f", sender="ada@x.example"), deliveries=(D,))
FAILED = Entry("first", "m", (EMAIL_ID,), AT_MS, deliveries=(X,))
BY_SCRIPT = Entry("id", "m", (), AT_MS, deliveries=(replace(D, destination=""),))


def entry(*deliveries: Delivery, stop: Stop | None = None, released_ms: int | None = None) -> Entry:
    pairs = zip(deliveries, ("crm", "slack"), strict=False)
    named = tuple(replace(delivery, destination=name) for delivery, name in pairs)
    return Entry("id", "m", (), created_ms=AT_MS, deliveries=named, stop=stop, released_ms=released_ms)


OF_GROUP, LOT = Stop(GROUP, "first", AT_MS), "same subject group lot_456 as the email of 09:00"
CASES: list[tuple[Entry, Entry | None, str]] = [
    (entry(C), None, "Being delivered to crm"),
    (entry(R, D), None, "Returned to its provider for crm: answered 500; delivered to slack at 09:00"),
    (entry(replace(S, reason="older than the service")), None, "Suppressed: older than the service"),
    (entry(S, stop=OF_GROUP), ORIGINAL, f"Suppressed: {LOT} from ada@x.example, delivered to crm"),
    (entry(S, stop=OF_GROUP), None, f"Suppressed: {LOT}, which is no longer stored"),
    (
        entry(S, stop=Stop(WORDS, "first")),
        FAILED,
        "Suppressed: same text as the email of 09:00, dead letter at crm after 1 attempt: answered 500",
    ),
    (
        entry(S, stop=Stop(EMAIL_ID)),
        None,
        "Duplicate: its email id fe4f is marked as done by an import, another program or an email that",
    ),
    (entry(D, D), None, "Delivered to crm and slack at 09:00"),
    (entry(D, replace(D, had_already=("crm",))), None, "Delivered to crm at 09:00; delivered to slack when it was"),
    (entry(D, S), None, "Delivered to crm at 09:00; not sent to slack"),
    (entry(W), None, "Waiting for crm after 2 attempts: paused; next attempt at 09:00"),
    (entry(X, D), None, "Dead letter at crm after 1 attempt: answered 500; delivered to slack at 09:00"),
    (entry(D, stop=OF_GROUP, released_ms=AT_MS), ORIGINAL, "Released at 09:00: delivered to crm at 09:00"),
    (BY_SCRIPT, None, "Published by a script"),
    (entry(S, stop=OF_GROUP), BY_SCRIPT, f"Suppressed: {LOT}, published by a script"),
]


@pytest.mark.parametrize(("what", "original", "sentence"), CASES)
def test_what_happened_is_explained_in_one_sentence(what: Entry, original: Entry | None, sentence: str) -> None:
    assert explain(what, original, lambda ms: shown_time_of_day(ms, AT_MS, UTC)).startswith(sentence)


def test_a_time_of_another_day_has_its_date() -> None:
    assert shown_time_of_day(AT_MS, AT_MS + 86_400_000, UTC) == "2025-11-16 09:00"
