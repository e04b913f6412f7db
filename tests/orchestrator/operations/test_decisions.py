"""What happened to each email and delivery: found by any filter, page by page, and with its reason."""

from datetime import UTC, datetime
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from deduplication.journal.entry import DeliveryStatus
from orchestrator.build import Service
from orchestrator.operations.decisions import list_decisions, list_deliveries, read_decision, read_delivery
from orchestrator.operations.resend import Release, send_again
from orchestrator.operations.search import (
    _BY_STATUS,
    LATE_S,
    DecisionFilter,
    DeliveryFilter,
    InvalidCursor,
    Listing,
    count_emails,
    count_repeats,
    find_ids,
    index_some,
)
from orchestrator.pipeline import Status
from tests.deduplication.journal.world import Machine
from tests.orchestrator.conftest import ON_REDIS
from tests.orchestrator.operations.conftest import Desk
from tests.support.pipeline import DOWN, MAX_ATTEMPTS, REFUSES

FIRST, SECOND, SLOW, GONE = "Lot 456 : nouvelle mission", "Lot 456 : rappel", "To slow", "To gone"
EMAILS: tuple[tuple[dict[str, Any], list[str]], ...] = (
    ({}, [GONE, SLOW, SECOND, FIRST]),
    ({"status": "processed"}, [FIRST]),
    ({"status": "queued"}, [SLOW]),
    ({"status": "dead_lettered"}, [GONE]),
    ({"status": "skipped_subject_group"}, [SECOND]),
    ({"status": "retry_later"}, []),
    ({"status": "already_processing"}, []),
    ({"outcome": "delivered"}, [FIRST]),
    ({"outcome": "waiting"}, [SLOW]),
    ({"outcome": "waiting", "destination": "crm"}, []),
    ({"outcome": "dead_letter", "destination": "slack"}, [GONE]),
    ({"outcome": "dead_letter", "destination": "crm"}, []),
    ({"outcome": "suppressed"}, [SECOND]),
    ({"outcome": "duplicate"}, []),
    ({"outcome": "stopped"}, [SECOND]),
    ({"outcome": "needs_attention"}, [GONE]),
    ({"outcome": "stopped", "q": "rappel"}, [SECOND]),
    ({"outcome": "returned"}, []),
    ({"gate": "subject_group"}, [SECOND]),
    ({"gate": "media"}, []),
    ({"provider": "gmail", "destination": "slack"}, [GONE, SLOW, SECOND, FIRST]),
    ({"provider": "mailgun"}, []),
    ({"route": "another"}, []),
    ({"destination": "cr"}, []),
    ({"q": "456 LOT"}, [SECOND, FIRST]),
    ({"q": "lot nouv"}, [FIRST]),
    ({"q": "bob@one"}, [SECOND]),
    ({"q": "ADA@one.example", "status": "processed"}, [FIRST]),
    ({"q": "to"}, [GONE, SLOW]),
    ({"q": "t o"}, [GONE, SLOW, SECOND, FIRST]),
    ({"q": "To slow"}, [SLOW]),
    ({"sender": "ada@"}, [SLOW, FIRST]),
    ({"sender": "ad", "q": "lot"}, [FIRST]),
    ({"sender": "lot"}, []),
    ({"q": '"'}, []),
    ({"q": "%"}, []),
    ({"q": 'a"b OR sender:x'}, []),
    ({"q": "\0\ud800 lot 456 rappel"}, []),
    ({"q": "lot", "gate": "subject_group"}, [SECOND]),
    ({"since": "2020-01-01", "q": "slow"}, [SLOW]),
    ({"until": "2020-01-01"}, []),
    ({"since": "9999-12-31T23:59:59Z"}, []),
    ({"since": "0001-01-01T00:00:00Z", "status": "queued"}, [SLOW]),
)
DELIVERIES: tuple[tuple[dict[str, Any], list[str]], ...] = (
    ({"status": "waiting"}, ["slack: To slow"]),
    ({"status": "waiting", "destination": "crm"}, []),
    ({"status": "dead"}, ["slack: To gone"]),
    ({"status": "dead", "q": "slow"}, []),
    ({"status": "skipped"}, ["crm: Lot 456 : rappel", "slack: Lot 456 : rappel"]),
    ({"status": "delivered", "destination": "slack"}, ["slack: Lot 456 : nouvelle mission"]),
    ({"status": "claimed"}, []),
    ({"q": "slow"}, ["crm: To slow", "slack: To slow"]),
    ({"sender": "carl", "destination": "crm"}, ["crm: To gone"]),
    ({"gate": "subject_group", "destination": "crm"}, ["crm: Lot 456 : rappel"]),
    ({"until": "2020-01-01"}, []),
)


def test_each_filter_finds_what_it_says(desk: Desk) -> None:
    for wanted, found in EMAILS:
        assert (wanted, desk.subjects(**wanted)) == (wanted, found)
        (count,) = count_emails(desk.service, DecisionFilter(**wanted), [DecisionFilter(**wanted).outcome])
        assert (wanted, count) == (wanted, len(found))
    for wanted, found in DELIVERIES:
        shown = [f"{delivery.destination}: {delivery.subject}" for delivery in desk.deliveries(**wanted)]
        assert (wanted, shown) == (wanted, found)


def test_what_waits_for_one_destination_is_found_by_an_index(desk: Desk) -> None:
    with desk.service.journal.reading() as step:
        for outcome in ("waiting", "needs_attention"):
            wanted = DecisionFilter.model_validate({"outcome": outcome, "destination": "crm"})
            query = Listing(step, wanted, desk.service.privacy)
            plan = step.query(f"EXPLAIN QUERY PLAN {query.select('1', 1)}", query.values)
            assert "INDEX deliveries_due (destination=?" in str(plan)


def test_a_repeat_is_found_as_a_duplicate_and_a_delivery_that_waits_for_long_needs_attention(desk: Desk) -> None:
    for subject, sender in ((FIRST, "Ada <ada@one.example>"), (SLOW, "ada@one.example")):
        desk.bench.send(subject=subject, sender=sender, message_id=f"<{subject.replace(' ', '.')}@mail.example>")
    desk.flush()
    assert desk.subjects(outcome="duplicate") == desk.subjects(gate="identity") == [SLOW, FIRST]
    assert [count_repeats(desk.service, since) for since in (None, datetime.max.replace(tzinfo=UTC))] == [2, 0]
    assert desk.subjects(outcome="stopped") == [SLOW, SECOND, FIRST]
    desk.bench.let_time_pass(LATE_S * 1000)
    assert desk.subjects(outcome="needs_attention") == [GONE, SLOW]


@pytest.mark.parametrize(
    ("delivery", "left_ms", "status"),
    [
        (DeliveryStatus.DELIVERED, 0, "processed"),
        (DeliveryStatus.CLAIMED, 60_000, "already_processing"),
        (DeliveryStatus.CLAIMED, 0, "retry_later"),
        (DeliveryStatus.RETURNED, 0, "retry_later"),
        (DeliveryStatus.WAITING, 0, "queued"),
        (DeliveryStatus.DEAD, 0, "dead_lettered"),
        (DeliveryStatus.SKIPPED, 0, "skipped_old"),
    ],
)
def test_the_status_follows_from_the_deliveries(
    desk: Desk, delivery: DeliveryStatus, left_ms: int, status: str
) -> None:
    (first,) = desk.decisions(status="processed")
    with desk.service.journal.step() as step:
        entry = step.read(first.id)
        assert entry
        ends_ms = step.steady_ms + left_ms
        held = {"status": delivery, "owner": "x", "lease_until_ms": ends_ms}
        deliveries = (structs.replace(old, **held) for old in entry.deliveries)
        step.put(structs.replace(entry, deliveries=tuple(deliveries)), entry, publishes=False)
    assert set(_BY_STATUS) == set(Status)
    listed = {known for known in Status if first.id in [email.id for email in desk.decisions(status=known)]}
    assert {email.status for email in desk.decisions() if email.id == first.id} == listed == {status}


def test_page_by_page_each_email_and_delivery_is_shown_once(desk: Desk) -> None:
    slack = desk.bench.destinations["slack"]
    slack.by_subject |= {"Slower": [DOWN] * 9, "Gone, too": [REFUSES]}
    for subject, slack.max_attempts in (("Slower", MAX_ATTEMPTS), ("Gone, too", 1)):
        desk.bench.send(subject=subject)
    for_both: tuple[dict[str, Any], ...] = ({}, {"q": "lot"}, {"destination": "crm"}, {"q": "to"})
    lists = [model(**fields) for model, fields in product((DecisionFilter, DeliveryFilter), for_both)]
    lists += [DeliveryFilter(status=status) for status in (DeliveryStatus.WAITING, DeliveryStatus.DEAD)]
    lists += [DeliveryFilter(status=DeliveryStatus.DEAD, q="gone")]
    for wanted, limit in product(lists, (1, 2, 3)):
        found, cursor = find_ids(desk.service, wanted, limit)
        while cursor is not None and len(found) < 30:
            ids, cursor = find_ids(desk.service, wanted, limit, cursor)
            found += ids
        assert found == find_ids(desk.service, wanted)[0]
        assert len(found) == len(set(found)) > 1


def test_a_cursor_of_another_list_or_with_another_text_is_refused(desk: Desk) -> None:
    """tests/routes/test_api.py tries forged numbers."""
    _, cursor = find_ids(desk.service, DeliveryFilter(), 1)
    forged = (f"{cursor}\ud800", "e.created_ms~1.5~1~x", "\ud800")
    for wanted, text in (
        (DeliveryFilter(status=DeliveryStatus.DEAD), cursor),
        *((DeliveryFilter(), text) for text in forged),
    ):
        with pytest.raises(InvalidCursor):
            list_deliveries(desk.service, wanted, 10, text)


def test_one_is_found_by_any_of_its_ids(desk: Desk) -> None:
    (slow,) = desk.decisions(status="queued")
    (delivery,) = desk.deliveries(status="waiting")
    for text in (slow.id, slow.email_id, "<To.slow@mail.example>", delivery.webhook_id):
        one = read_decision(desk.service, text)
        assert one is not None and one.id == slow.id
        assert desk.subjects(q=text) == [SLOW]
    assert read_decision(desk.service, "nothing") is None


def test_repeats_are_counted_and_one_in_full_has_its_names_gates_original_and_payload(desk: Desk) -> None:
    desk.bench.send(
        subject=FIRST, sender="Ada <ada@one.example>", message_id="<Lot.456.:.nouvelle.mission@mail.example>"
    )
    desk.flush()
    first = read_decision(desk.service, desk.decisions(status="processed")[0].id)
    second = read_decision(desk.service, desk.decisions(gate="subject_group")[0].id)
    assert first is not None and second is not None and second.original_email is not None
    assert first.reason.startswith("Delivered to crm and slack at ")
    assert first.reason.endswith(", and was not sent again")
    assert (first.repeats, first.took_ms is not None) == (1, True)
    assert (first.payload, first.payload_machine, len(first.deliveries[0].attempts)) == (None, None, 1)
    assert first.store == ("redis" if desk.service.coordinator.registry else "local")
    assert second.payload and (second.payload["subject"], second.original_email.id) == (SECOND, first.id)
    assert {name.gate for name in second.names if name.is_own} == {"identity"}
    reports = [(report.gate, report.said.split(":")[0]) for report in second.gates]
    assert reports == [("identity", "passed"), ("subject_group", "stopped")]
    assert second.releasable_until == second.received_at + desk.service.settings.decision_ms


def test_a_waiting_delivery_says_why_for_how_long_and_where_its_payload_is(desk: Desk) -> None:
    (slow,) = desk.deliveries(status="waiting")
    assert (slow.reason, slow.tries, slow.max_attempts, slow.age_s) == ("answered 500", 2, 4, 2)
    assert slow.storage == ("redis" if desk.service.coordinator.registry else "journal")
    assert slow.next_try and slow.next_try > slow.created
    desk.service.guard.set_paused("slack", True, reason="moves", by="test")
    one = read_delivery(desk.service, slow.id)
    assert one is not None and one.payload is not None
    assert (one.reason, one.payload["subject"]) == ("slack: paused (moves)", SLOW)
    assert one.next_try is None, "not while it is paused"
    assert read_delivery(desk.service, "nothing:crm") is None


def test_a_conversation_is_found_by_its_thread(desk: Desk) -> None:
    root = "<To.slow@mail.example>"
    desk.bench.send(subject="Re: one", message_id="<r1@mail.example>", in_reply_to=root)
    desk.bench.send(subject="Re: two", message_id="<r2@mail.example>", references=f"{root} <r1@mail.example>")
    for q in (root, root.strip("<>")):
        assert desk.subjects(q=q) == ["Re: two", "Re: one", SLOW]
    found = read_decision(desk.service, root)
    assert found and found.subject == SLOW, "by its Message-ID, the email itself"
    with desk.service.journal.step() as step:
        for reply in desk.decisions(q="Re: "):
            entry = step.read(reply.id)
            assert entry and entry.about.thread == root.strip("<>")
            step.forget(entry)
        assert step.query("SELECT count(*) FROM keys WHERE value LIKE 'thread:%'") == [(0,)]


def test_what_is_forgotten_is_found_no_more_and_its_number_can_be_used_again(desk: Desk) -> None:
    """SQLite gives the number of the last row again; the index must not take the new email for the old one."""
    journal = desk.service.journal
    assert desk.subjects(q="gone") == [GONE]
    with journal.step() as step:
        entry = step.read(desk.decisions(q="gone")[0].id)
        assert entry
        step.forget(entry)
    desk.bench.send(subject="A newer one")
    assert desk.subjects(q="gone") == []
    with journal.reading() as step:
        assert step.query("SELECT count(*) FROM search") == [(4,)], "the old one is gone from the disk as well"
        assert step.query("SELECT count(*) FROM keys WHERE seq NOT IN (SELECT seq FROM entries)") == [(0,)]
    assert desk.subjects(q="newer") == ["A newer one"]
    with journal.step() as step:  # a new one gets the number in the same millisecond, and so the same place
        entry = step.read(desk.decisions(q="newer")[0].id)
        assert entry
        step.forget(entry)
        step.put(
            structs.replace(entry, id="again", about=structs.replace(entry.about, subject="At the same place")), None
        )
    assert desk.subjects(q="newer") == []
    assert desk.subjects(q="same place") == ["At the same place"]
    assert index_some(journal) == 0


@ON_REDIS
def test_another_machine_lists_the_same_and_asks_the_one_that_has_the_payload(desk: Desk) -> None:
    here = desk.bench.machine
    there = Machine(here.url, here.time)
    try:
        there.tick()
        there.follow()
        service = SimpleNamespace(**vars(desk.service) | {"journal": there.journal, "coordinator": there.coordinator})
        other = cast(Service, service)
        listed = list_decisions(other, DecisionFilter(), 10).decisions
        assert [decision.reason for decision in listed] == [decision.reason for decision in desk.decisions()]
        (second,) = list_decisions(other, DecisionFilter(gate="subject_group"), 10).decisions
        found = read_decision(other, second.id)
        assert found is not None and second.releasable_until is not None
        payload = (found.payload, found.payload_machine, found.deliveries[0].storage)
        assert payload == (None, here.name, "another_machine")
        assert send_again(other, second.id, Release()) == "released"
        here.follow()
        desk.bench.deliver_due()
        assert desk.bench.destinations["crm"].taken[-1].payload["subject"] == SECOND
    finally:
        there.close()


def test_what_was_evicted_can_no_longer_be_released_on_any_machine(desk: Desk) -> None:
    (listed,) = desk.decisions(gate="subject_group")
    with desk.bench.machine.journal.step() as step:
        entry = step.read(listed.id)
        assert entry and listed.releasable_until
        step.query("DELETE FROM payloads")
        step.put(structs.replace(entry, machine="another", is_evicted=True), entry, publishes=False)
    (listed,) = desk.decisions(gate="subject_group")
    assert listed.releasable_until is None
