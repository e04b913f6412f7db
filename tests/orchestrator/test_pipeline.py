"""An email in the pipeline: the answer to its provider, its deliveries, and when its names are marked."""

from dataclasses import replace
from typing import Any

import pytest

from deduplication import again
from deduplication.email import Email
from deduplication.subject_group import GroupScope
from orchestrator.delivery.webhook import PostResult
from orchestrator.item import email_item
from tests.deduplication.journal.world import Machine
from tests.orchestrator.conftest import ON_REDIS, Open
from tests.support.pipeline import DOWN, LEASE_MS, MISPLACED, REFUSES, Reaction, item

LOT = "Lot 456 - Documents"
FILE = "<p>https://we.tl/t-abc</p>"
NOON = "2026-11-16T12:00:00Z"


# One destination


@pytest.mark.parametrize(
    ("reactions", "answers", "asked", "taken"),
    [
        # reactions of the destination, answers to each request of the provider, webhooks tried and accepted
        ([], ["processed", "already_processed", "already_processed"], 1, 1),
        ([DOWN], ["processed", "already_processed"], 2, 1),  # one quick second try in the same request
        ([DOWN] * 2, ["queued", "queued"], 2, 0),
        ([MISPLACED] * 2, ["queued", "queued"], 2, 0),
        ([REFUSES], ["queued", "queued"], 1, 0),
        ([DOWN, REFUSES], ["queued", "queued"], 2, 0),
    ],
    ids=["takes it", "at the second try", "is down", "is misplaced", "refuses it", "refuses the second try"],
)
def test_what_the_destination_does_decides_the_answer(
    start: Open, reactions: list[Reaction], answers: list[str], asked: int, taken: int
) -> None:
    bench = start({"crm": reactions})
    assert [bench.status_of() for _ in answers] == answers
    crm = bench.destinations["crm"]
    assert (len(crm.asked), len(crm.taken)) == (asked, taken)
    assert len({webhook.webhook_id for webhook in crm.asked}) == 1, "a receiver must recognise the attempts"


@pytest.mark.parametrize(
    "reactions", [[DOWN] * 3, [MISPLACED] * 3, [REFUSES] * 2], ids=["is down", "is misplaced", "refuses it"]
)
def test_a_failed_delivery_is_retried_until_it_succeeds(start: Open, reactions: list[PostResult]) -> None:
    bench = start({"crm": reactions})
    assert bench.status_of() == "queued"
    waiting = bench.delivery()
    assert (waiting.status, waiting.tries, waiting.reason) == ("waiting", len(reactions) - 1, reactions[0].error)
    assert (bench.payload() or {})["subject"], "the payload is stored with it"
    assert bench.deliver_due() == 0, "not before its time"
    bench.let_time_pass(5_500)
    assert (bench.deliver_due(), bench.status_of()) == (1, "queued")
    bench.let_time_pass(330_000)
    assert (bench.deliver_due(), bench.status_of()) == (1, "already_processed")
    crm = bench.destinations["crm"]
    assert (len(crm.asked), len(crm.taken)) == (len(reactions) + 1, 1)
    assert len({webhook.webhook_id for webhook in crm.asked}) == 1
    assert bench.payload() is None


def die() -> None:
    raise KeyboardInterrupt


def coordinator(bench: Any) -> Any:
    return bench.pipeline.coordinator


def test_a_process_that_slept_past_its_lease_sends_nothing(start: Open) -> None:
    """Another process has taken the email over meanwhile."""
    sleeper, other = start(), start()

    def sleep() -> None:
        sleeper.let_time_pass(LEASE_MS)
        assert other.status_of() == "processed"

    coordinator(sleeper).after_claim = sleep
    assert sleeper.status_of() == "retry_later"
    assert [len(each.destinations["crm"].taken) for each in (sleeper, other)] == [0, 1]
    assert sleeper.status_of() == "already_processed"


# The store fails


@pytest.mark.parametrize("first", [{}, {"subject": LOT}], ids=["failed delivery", "suppressed"])
def test_an_outcome_that_cannot_be_recorded_stays_with_its_provider(start: Open, first: dict[str, str]) -> None:
    bench = start({"crm": [] if first else [DOWN] * 2})
    if first:
        bench.send(**first, body="another")
    bench.failing.add("settle")
    assert bench.status_of(**first) == "retry_later"
    bench.failing.clear()
    bench.let_time_pass(LEASE_MS)
    assert bench.status_of(**first) == ("skipped_subject_group" if first else "processed")


# Several destinations


@pytest.mark.parametrize(
    ("crm", "archive", "impatient", "answers", "taken"),
    [
        ([], [], [], ["processed", "already_processed"], (1, 1)),
        ([], [DOWN] * 2, [], ["queued", "already_processed"], (1, 1)),
        ([DOWN] * 2, [DOWN] * 2, [], ["queued", "already_processed"], (1, 1)),
        ([REFUSES], [MISPLACED] * 2, [], ["queued", "already_processed"], (1, 1)),
        ([REFUSES], [], ["crm"], ["dead_lettered", "dead_lettered"], (0, 1)),
        ([REFUSES], [DOWN] * 2, ["crm"], ["queued", "dead_lettered"], (0, 1)),
        ([REFUSES], [REFUSES], ["crm", "archive"], ["dead_lettered", "dead_lettered"], (0, 0)),
    ],
)
def test_each_destination_gets_it_once_whatever_the_others_do(
    start: Open,
    crm: list[Reaction],
    archive: list[Reaction],
    impatient: list[str],
    answers: list[str],
    taken: tuple[int, int],
) -> None:
    bench = start({"crm": crm, "archive": archive}, impatient=impatient)
    first = bench.status_of()
    bench.let_time_pass(5_500)
    bench.deliver_due()
    assert [first, bench.status_of()] == answers
    assert tuple(len(each.taken) for each in bench.destinations.values()) == taken
    assert len({w.webhook_id for each in bench.destinations.values() for w in each.asked}) == 2


def test_a_destination_that_has_it_does_not_get_it_again_when_the_request_dies(start: Open) -> None:
    bench = start({"crm": [], "archive": [RuntimeError("a bug")]})
    with pytest.raises(RuntimeError):
        bench.send()
    assert bench.status_of() == "processed"
    assert [len(each.taken) for each in bench.destinations.values()] == [1, 1]


# Names that emails share: the group of a subject, files

SHARING = [
    ("skipped_subject_group", {"subject": LOT, "body": "one"}, {"subject": f"{LOT}, again", "body": "two"}),
    ("skipped_media", {"subject": "one", "body": FILE}, {"subject": "two", "body": f"Again: {FILE}"}),
]
shared = pytest.mark.parametrize(("skipped", "first", "second"), SHARING, ids=["group", "file"])
Fields = dict[str, str]


@shared
@pytest.mark.parametrize("days", [0, 6, 9, 400])
def test_the_email_of_a_stranger_stops_only_strangers_of_the_same_domain(
    start: Open, skipped: str, first: Fields, second: Fields, days: int
) -> None:
    bench = start()
    assert bench.status_of(**first, sender="eve@evil.example") == "processed"
    bench.let_time_pass(days * 24 * 3600 * 1000)
    senders = ["eve@evil.example", "mallory@evil.example", "ada@bücher.example", "bob@xn--bcher-kva.example"]
    senders += ["ada@gmail.com", "eve@gmail.com", "eve@mail.evil.example"]
    answers = [bench.status_of(**second | {"body": f"{second['body']} {each}"}, sender=each) for each in senders]
    assert answers[1:] == [skipped, "processed", skipped, "processed", "processed", "processed"]


@shared
def test_an_email_without_a_sender_stops_nobody_and_nobody_stops_it(
    start: Open, skipped: str, first: Fields, second: Fields
) -> None:
    bench = start()
    emails = [Email(subject=each["subject"], plain=each["body"], date=NOON) for each in (first, second)]
    answers = [bench.receive(email_item(each, ids_kept_ms=None)).status for each in emails]
    assert answers == ["processed", "processed"]


@shared
def test_with_the_scope_of_everyone_senders_do_not_count(
    start: Open, skipped: str, first: Fields, second: Fields
) -> None:
    bench = start()
    settings = bench.pipeline.settings.model_copy(update={"group_scope": GroupScope.EVERYONE})
    bench = replace(bench, pipeline=replace(bench.pipeline, settings=settings))
    assert bench.status_of(**first, sender="eve@evil.example") == "processed"
    assert bench.status_of(**second, sender="ada@example.org") == skipped
    value = {name.value for name in bench.entry(**first, sender="eve@evil.example").shared}
    assert value == {"lot_456" if skipped == "skipped_subject_group" else "https://we.tl/t-abc"}


@shared
@pytest.mark.parametrize(
    ("reactions", "sent"),
    [([DOWN] * 2, ["first"]), ([DOWN] * 3, ["second"])],
    ids=["first is delivered", "first is dead"],
)
def test_behind_an_email_that_waits_the_next_one_waits_for_the_name(
    start: Open, skipped: str, first: Fields, second: Fields, reactions: list[Reaction], sent: list[str]
) -> None:
    bench = start({"crm": reactions})
    bench.destinations["crm"].max_attempts = 3
    assert [bench.status_of(**first), bench.status_of(**second)] == ["queued", "queued"]
    for _ in range(4):
        bench.let_time_pass(5_500)
        bench.deliver_due()
    subjects = [each.payload["subject"] for each in bench.destinations["crm"].taken]
    assert subjects == [{"first": first, "second": second}[each]["subject"] for each in sent]
    assert bench.delivery(**second).status == ("skipped" if sent == ["first"] else "delivered")


@shared
@pytest.mark.parametrize("destinations", [["crm"], ["crm", "archive"]], ids=["one", "two"])
def test_an_email_that_is_dead_at_every_destination_stops_no_other(
    start: Open, skipped: str, first: Fields, second: Fields, destinations: list[str]
) -> None:
    bench = start({name: [REFUSES] for name in destinations}, impatient=destinations)
    assert [bench.status_of(**first), bench.status_of(**second)] == ["dead_lettered", "processed"]


# Routes


rules = pytest.mark.parametrize(
    ("rule", "status"), [({"realtime_only": True}, "skipped_old"), ({"dropped_by": "junk"}, "skipped_route")]
)


@rules
def test_an_email_that_a_rule_of_its_route_stops_takes_no_names_and_can_be_released(
    start: Open, rule: Fields, status: str
) -> None:
    old = {"date": "2026-11-15T23:59:59Z"}
    bench, any_age = start(**rule), start()
    outcomes = [bench.send(**old) for _ in range(2)]
    assert [each.status for each in outcomes] == [status, status]
    assert len({each.id for each in outcomes}) == 1, "one entry, however often it comes"
    assert any_age.status_of(**old) == "processed"
    assert bench.status_of(**old) == "already_processed", "an email that was answered keeps its status"
    assert again.replay(bench.pipeline.coordinator, outcomes[0].id) is None
    assert bench.deliver_due() == 1


@rules
def test_an_email_that_is_being_delivered_is_stopped_by_no_rule(start: Open, rule: Fields, status: str) -> None:
    """Its provider's retry after our restart is older than our start."""
    old = {"date": "2026-11-15T23:59:59Z"}
    before = start()
    coordinator(before).after_claim = die
    with pytest.raises(KeyboardInterrupt):
        before.send(**old)
    before.let_time_pass(LEASE_MS)
    assert start(**rule).status_of(**old) == "processed"
    assert start(**rule).status_of(subject="another", **old) == status


# With workers


def test_a_request_stores_what_workers_deliver(start: Open) -> None:
    bench = start(by_workers=True)
    assert [bench.status_of() for _ in range(2)] == ["queued", "queued"]
    assert bench.destinations["crm"].asked == []
    assert (bench.deliver_due(), len(bench.destinations["crm"].taken)) == (1, 1)
    assert bench.status_of() == "already_processed"


@ON_REDIS  # without it the journal stores
@pytest.mark.parametrize(
    ("reactions", "answers", "status"),
    [
        ([], ["processed", "already_processed"], "delivered"),
        ([DOWN] * 2, ["retry_later", "processed"], "delivered"),
        ([DOWN] * 4, ["retry_later", "retry_later"], "returned"),
    ],
)
def test_without_redis_nothing_can_be_stored_so_the_request_delivers(
    start: Open, machine: Machine, reactions: list[Reaction], answers: list[str], status: str
) -> None:
    bench = start({"crm": reactions}, by_workers=True)
    machine.coordinator.redis.give_up()
    assert [str(bench.pipeline.receive(item()).status) for _ in answers] == answers
    assert (bench.delivery().status, len(bench.destinations["crm"].taken)) == (status, status == "delivered")
