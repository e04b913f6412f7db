"""The way of an email through the pipeline: what the provider hears, what destinations get, what is marked when."""

from __future__ import annotations

import pytest

from deduplication.journal.base import Released
from orchestrator.intake import ProofUsed
from tests.orchestrator.conftest import Open
from tests.support.journals import JournalBench
from tests.support.pipeline import DOWN, LEASE_MS, REFUSES, FakeDestination, Reaction, item, open_pipeline

LOT = "Lot 456 - Documents"
FILE = "<p>https://we.tl/t-abc</p>"


# Where nothing can be stored


@pytest.mark.parametrize("with_queue", [False, True], ids=["inline", "with a queue"])
def test_what_cannot_be_stored_goes_to_a_destination_that_is_well(full: JournalBench, with_queue: bool) -> None:
    with open_pipeline(full, {"crm": FakeDestination()}, with_queue=with_queue) as pipeline:
        assert [pipeline.status_of() for _ in range(2)] == ["processed", "already_processed"]
        assert (len(pipeline.destinations["crm"].taken), pipeline.queue.announced) == (1, [])


@pytest.mark.parametrize("with_queue", [False, True], ids=["inline", "with a queue"])
def test_what_cannot_be_stored_stays_with_its_provider_while_its_destination_is_down(
    full: JournalBench, with_queue: bool
) -> None:
    with open_pipeline(full, {"crm": FakeDestination([DOWN] * 2)}, with_queue=with_queue) as pipeline:
        assert pipeline.status_of() == "retry_later"
        assert (pipeline.entry().state, pipeline.deliver_due()) == ("free", 0)
        assert pipeline.status_of() == "processed", "at once: it is nobody's"
        assert len({webhook.webhook_id for webhook in pipeline.destinations["crm"].asked}) == 1


def test_what_cannot_be_stored_goes_once_to_those_of_several_that_are_well(full: JournalBench) -> None:
    destinations = {"crm": FakeDestination([DOWN] * 2), "mail": FakeDestination()}
    with open_pipeline(full, destinations) as pipeline:
        pipeline.journal.failing.add("finish")  # what was delivered is said again when it is given back
        assert [pipeline.status_of() for _ in range(2)] == ["retry_later", "processed"]
        assert [len(each.taken) for each in destinations.values()] == [1, 1]


def test_what_is_refused_for_good_is_a_dead_letter_also_where_it_cannot_be_stored(full: JournalBench) -> None:
    with open_pipeline(full, {"crm": FakeDestination([REFUSES])}) as pipeline:
        assert [pipeline.status_of() for _ in range(2)] == ["dead_lettered"] * 2
        assert pipeline.entry().payload_bytes == 0


def test_what_is_skipped_is_skipped_also_where_it_can_no_longer_be_released(full: JournalBench) -> None:
    with open_pipeline(full, {"crm": FakeDestination()}) as pipeline:
        second = "2026-11-16T10:00:00.000Z"
        told = [pipeline.status_of(subject=LOT), *(pipeline.status_of(subject=LOT, date=second) for _ in range(2))]
        assert told == ["processed", "skipped_subject_group", "skipped_subject_group"]
        assert pipeline.journal.release(pipeline.entry(subject=LOT, date=second).id) is Released.NO_PAYLOAD


# One destination


@pytest.mark.parametrize(
    ("reactions", "told", "asked", "taken"),
    [
        # what the destination does, what the provider is told each time it sends, webhooks asked for and taken
        ([], ["processed", "already_processed", "already_processed"], 1, 1),
        ([DOWN], ["processed", "already_processed"], 2, 1),  # one quick second try in the same request
        ([DOWN] * 2, ["queued", "queued"], 2, 0),
        ([REFUSES], ["dead_lettered", "dead_lettered"], 1, 0),
        ([DOWN, REFUSES], ["dead_lettered", "dead_lettered"], 2, 0),
    ],
    ids=["takes it", "at the second try", "is down", "refuses it", "refuses the second try"],
)
def test_what_the_destination_does_decides_what_the_provider_is_told(
    start: Open, reactions: list[Reaction], told: list[str], asked: int, taken: int
) -> None:
    pipeline = start({"crm": reactions})
    assert [pipeline.status_of() for _ in told] == told
    crm = pipeline.destinations["crm"]
    assert (len(crm.asked), len(crm.taken)) == (asked, taken)
    assert len({webhook.webhook_id for webhook in crm.asked}) == 1, "a receiver must recognise the attempts"


def test_what_fails_for_now_is_tried_again_by_the_service_itself_until_it_is_through(start: Open) -> None:
    pipeline = start({"crm": [DOWN] * 3})
    assert pipeline.status_of() == "queued"
    waiting = pipeline.delivery()
    assert (waiting.status, waiting.tries, waiting.reason) == ("waiting", 1, "answered 500")
    assert (pipeline.payload() or {})["subject"], "what is to be sent is stored with it"
    assert pipeline.deliver_due() == 0, "not before its time"
    pipeline.let_time_pass(5_500)
    assert (pipeline.deliver_due(), pipeline.status_of()) == (1, "queued")
    pipeline.let_time_pass(330_000)
    assert (pipeline.deliver_due(), pipeline.status_of()) == (1, "already_processed")
    crm = pipeline.destinations["crm"]
    assert (len(crm.asked), len(crm.taken)) == (4, 1)
    assert len({webhook.webhook_id for webhook in crm.asked}) == 1
    assert pipeline.payload() is None


def test_what_fails_at_every_try_is_a_dead_letter_that_keeps_its_payload_and_is_not_revived_by_its_provider(
    start: Open,
) -> None:
    pipeline = start({"crm": [DOWN] * 9})
    pipeline.send()
    for _ in range(2):
        pipeline.let_time_pass(2_000_000)
        assert pipeline.deliver_due() == 1
    assert [pipeline.status_of() for _ in range(2)] == ["dead_lettered", "dead_lettered"]
    assert (pipeline.delivery().status, pipeline.delivery().reason) == ("dead", "answered 500; tried 3 times")
    assert pipeline.payload() is not None
    pipeline.let_time_pass(90_000_000)
    assert pipeline.deliver_due() == 0


def test_nothing_counts_as_delivered_before_it_is(start: Open) -> None:
    """The same email comes again in the middle of a delivery, which then fails."""
    heard: list[str] = []

    def fail_after_it_came_again() -> None:
        heard.append(pipeline.status_of())
        raise DOWN

    pipeline = start({"crm": [fail_after_it_came_again, DOWN]})
    assert (pipeline.status_of(), heard) == ("queued", ["already_processing"])
    pipeline.let_time_pass(5_500)
    pipeline.deliver_due()
    assert pipeline.status_of() == "already_processed"
    assert len(pipeline.destinations["crm"].taken) == 1


def test_an_error_of_our_own_gives_the_email_back(start: Open) -> None:
    pipeline = start({"crm": [RuntimeError("a bug")]})
    with pytest.raises(RuntimeError):
        pipeline.send()
    assert [pipeline.status_of() for _ in range(2)] == ["processed", "already_processed"]
    assert len(pipeline.destinations["crm"].taken) == 1


def test_a_dead_letter_keeps_its_payload_and_what_was_delivered_does_not(start: Open) -> None:
    pipeline = start({"crm": [REFUSES]})
    pipeline.send(subject="refused")
    pipeline.send(subject="taken")
    assert pipeline.delivery(subject="refused").status == "dead"
    assert (pipeline.payload(subject="refused") or {})["subject"] == "refused"
    assert pipeline.delivery(subject="taken").status == "delivered"
    assert pipeline.payload(subject="taken") is None


def die() -> None:
    raise KeyboardInterrupt


def test_an_email_whose_process_died_can_be_taken_over_when_its_lease_is_over(start: Open) -> None:
    pipeline = start()
    pipeline.journal.after_claim = die
    with pytest.raises(KeyboardInterrupt):
        pipeline.send()
    assert pipeline.status_of() == "already_processing"
    pipeline.let_time_pass(LEASE_MS)
    assert pipeline.status_of() == "processed"
    assert len(pipeline.destinations["crm"].taken) == 1


def test_a_process_that_slept_over_its_lease_sends_nothing(bench: JournalBench, start: Open) -> None:
    """Another server took the email over in the meantime."""
    sleeper, other = start(), start(journal=bench.another)

    def sleep() -> None:
        sleeper.let_time_pass(LEASE_MS)
        assert other.status_of() == "processed"

    sleeper.journal.after_claim = sleep
    assert sleeper.status_of() == "retry_later"
    assert [len(each.destinations["crm"].taken) for each in (sleeper, other)] == [0, 1]
    assert sleeper.status_of() == "already_processed"


# The journal fails


def test_while_names_cannot_be_claimed_nothing_is_sent_and_the_provider_keeps_the_email(start: Open) -> None:
    pipeline = start()
    pipeline.journal.failing.add("claim")
    assert (pipeline.status_of(), pipeline.destinations["crm"].asked) == ("retry_later", [])
    pipeline.journal.failing.clear()
    assert pipeline.status_of() == "processed"


def test_what_was_delivered_but_could_not_be_marked_is_marked_later_and_never_sent_again(start: Open) -> None:
    pipeline = start()
    pipeline.journal.failing.add("settle")
    assert [pipeline.status_of() for _ in range(2)] == ["processed", "already_processing"]
    pipeline.journal.failing.clear()
    pipeline.settle_what_is_owed()
    assert pipeline.status_of() == "already_processed"
    assert len(pipeline.destinations["crm"].taken) == 1


def test_what_is_not_through_and_cannot_be_stored_stays_with_its_provider(start: Open) -> None:
    pipeline = start({"crm": [DOWN] * 2})
    pipeline.journal.failing.add("settle")
    assert pipeline.status_of() == "retry_later"
    pipeline.journal.failing.clear()
    pipeline.let_time_pass(LEASE_MS)
    assert pipeline.status_of() == "processed"


def test_an_email_that_cannot_be_stored_as_skipped_stays_with_its_provider(start: Open) -> None:
    pipeline = start()
    pipeline.send(subject=LOT, body="one")
    pipeline.journal.failing.add("settle")
    assert pipeline.status_of(subject=LOT, body="two") == "retry_later"
    pipeline.journal.failing.clear()
    pipeline.let_time_pass(LEASE_MS)
    assert pipeline.status_of(subject=LOT, body="two") == "skipped_subject_group"


# Several destinations


@pytest.mark.parametrize(
    ("crm", "archive", "told", "taken"),
    [
        ([], [], ["processed", "already_processed"], (1, 1)),
        ([], [DOWN] * 2, ["queued", "already_processed"], (1, 1)),
        ([DOWN] * 2, [DOWN] * 2, ["queued", "already_processed"], (1, 1)),
        ([REFUSES], [], ["dead_lettered", "dead_lettered"], (0, 1)),
        ([REFUSES], [DOWN] * 2, ["queued", "dead_lettered"], (0, 1)),
        ([REFUSES], [REFUSES], ["dead_lettered", "dead_lettered"], (0, 0)),
    ],
)
def test_each_destination_gets_it_once_whatever_the_others_do(
    start: Open, crm: list[Reaction], archive: list[Reaction], told: list[str], taken: tuple[int, int]
) -> None:
    pipeline = start({"crm": crm, "archive": archive})
    first = pipeline.status_of()
    pipeline.let_time_pass(5_500)
    pipeline.deliver_due()
    assert [first, pipeline.status_of()] == told
    assert tuple(len(each.taken) for each in pipeline.destinations.values()) == taken
    assert len({w.webhook_id for each in pipeline.destinations.values() for w in each.asked}) == 2


def test_one_of_several_that_has_it_does_not_get_it_again_when_the_request_dies(start: Open) -> None:
    pipeline = start({"crm": [], "archive": [RuntimeError("a bug")]})
    with pytest.raises(RuntimeError):
        pipeline.send()
    assert pipeline.status_of() == "processed"
    assert [len(each.taken) for each in pipeline.destinations.values()] == [1, 1]


# What an email shares with others: the group of its subject, its files

SHARING = [
    ("skipped_subject_group", {"subject": LOT, "body": "one"}, {"subject": f"Re: {LOT}", "body": "two"}),
    ("skipped_media", {"subject": "one", "body": FILE}, {"subject": "two", "body": f"Again: {FILE}"}),
]
shared = pytest.mark.parametrize(("skipped", "first", "second"), SHARING, ids=["group", "file"])


@shared
def test_what_repeats_another_email_is_skipped_with_its_reason(
    start: Open, skipped: str, first: dict[str, str], second: dict[str, str]
) -> None:
    pipeline = start()
    original = pipeline.send(**first)
    outcome = pipeline.send(**second)
    assert (original.status, outcome.status) == ("processed", skipped)
    assert outcome.reason is not None
    assert outcome.reason.original == original.id
    assert pipeline.status_of(**second) == skipped, "what was skipped is settled"
    assert pipeline.entry(**second).repeats == 1
    assert len(pipeline.destinations["crm"].asked) == 1


@shared
def test_what_was_skipped_can_be_released_and_goes_out_once(
    start: Open, skipped: str, first: dict[str, str], second: dict[str, str]
) -> None:
    pipeline = start()
    pipeline.send(**first)
    pipeline.send(**second)
    assert (pipeline.payload(**second) or {})["subject"] == second["subject"]
    assert pipeline.journal.release(pipeline.entry(**second).id) is Released.RELEASED
    assert pipeline.deliver_due() == 1
    assert pipeline.journal.release(pipeline.entry(**second).id) is Released.ALREADY_RELEASED
    assert [each.payload["subject"] for each in pipeline.destinations["crm"].taken] == [
        first["subject"],
        second["subject"],
    ]


@shared
def test_while_the_first_is_under_way_the_second_waits_as_it_may_still_fail(
    start: Open, skipped: str, first: dict[str, str], second: dict[str, str]
) -> None:
    heard: list[str] = []

    def fail_after_the_second_came() -> None:
        heard.append(pipeline.status_of(**second))
        raise DOWN

    pipeline = start({"crm": [fail_after_the_second_came, DOWN]})
    assert (pipeline.status_of(**first), heard) == ("queued", ["already_processing"])


@shared
def test_behind_one_that_waits_the_second_follows_and_goes_out_if_the_first_is_dead_in_the_end(
    start: Open, skipped: str, first: dict[str, str], second: dict[str, str]
) -> None:
    pipeline = start({"crm": [DOWN, DOWN, REFUSES]})
    assert [pipeline.status_of(**first), pipeline.status_of(**second)] == ["queued", skipped]
    pipeline.let_time_pass(5_500)
    assert [pipeline.deliver_due() for _ in range(3)] == [1, 1, 0]
    assert pipeline.status_of(**first) == "dead_lettered"
    (taken,) = pipeline.destinations["crm"].taken
    assert (taken.payload["subject"], taken.payload["type"]) == (second["subject"], "email.received")


@shared
def test_behind_one_that_waits_the_second_stays_skipped_if_the_first_is_delivered(
    start: Open, skipped: str, first: dict[str, str], second: dict[str, str]
) -> None:
    pipeline = start({"crm": [DOWN, DOWN]})
    assert [pipeline.status_of(**first), pipeline.status_of(**second)] == ["queued", skipped]
    pipeline.let_time_pass(5_500)
    assert [pipeline.deliver_due() for _ in range(2)] == [1, 0]
    assert [each.payload["subject"] for each in pipeline.destinations["crm"].taken] == [first["subject"]]


@shared
@pytest.mark.parametrize("destinations", [["crm"], ["crm", "archive"]], ids=["one", "two"])
def test_what_every_destination_refused_does_not_stand_in_the_way_of_others(
    start: Open, skipped: str, first: dict[str, str], second: dict[str, str], destinations: list[str]
) -> None:
    pipeline = start({name: [REFUSES] for name in destinations})
    assert [pipeline.status_of(**first), pipeline.status_of(**second)] == ["dead_lettered", "processed"]


def test_one_new_file_among_known_ones_is_news(start: Open) -> None:
    pipeline = start()
    told = [pipeline.status_of(subject=s, body=b) for s, b in (("one", FILE), ("two", f"{FILE} https://we.tl/t-new"))]
    assert told == ["processed", "processed"]
    assert pipeline.status_of(subject="three", body="https://we.tl/t-new") == "skipped_media"


# Routes


def test_what_is_older_than_the_service_takes_no_names_on_a_route_for_new_ones(start: Open) -> None:
    old = {"date": "2026-11-15T23:59:59Z"}
    only_new, any_age = start(realtime_only=True), start()
    assert [only_new.status_of(**old) for _ in range(2)] == ["skipped_old", "skipped_old"]
    assert only_new.status_of() == "processed"
    assert any_age.status_of(**old) == "processed"


def test_what_is_under_way_is_never_too_old(start: Open) -> None:
    """Its provider's retry after our restart is older than our start."""
    old = {"date": "2026-11-15T23:59:59Z"}
    before = start({"crm": [RuntimeError("a bug")]})
    with pytest.raises(RuntimeError):
        before.send(**old)
    assert start(realtime_only=True).status_of(**old) == "processed"


# Where its origin is proven by something that does not cover what it says


def test_a_proof_is_good_for_one_email_and_for_its_retries(start: Open) -> None:
    pipeline = start({"crm": [RuntimeError("a bug")]})
    first, other = item(subject="one").proven_by("token"), item(subject="two").proven_by("token")
    with pytest.raises(RuntimeError):
        pipeline.intake.receive(first)
    assert [pipeline.intake.receive(first).status for _ in range(2)] == ["processed", "already_processed"]
    with pytest.raises(ProofUsed):
        pipeline.intake.receive(other)
    assert len(pipeline.destinations["crm"].taken) == 1


# With a queue


def test_with_a_queue_the_request_stores_and_a_worker_delivers(start: Open) -> None:
    pipeline = start(with_queue=True)
    assert [pipeline.status_of() for _ in range(2)] == ["queued", "queued"]
    assert pipeline.destinations["crm"].asked == []
    pipeline.queue.announced *= 2  # a queue may tell twice
    pipeline.deliver_announced()
    assert len(pipeline.destinations["crm"].taken) == 1
    assert pipeline.status_of() == "already_processed"


def test_an_announcement_that_is_lost_is_made_good_by_the_schedule(start: Open) -> None:
    pipeline = start(with_queue=True)
    pipeline.send()
    pipeline.queue.announced.clear()
    pipeline.let_time_pass(600_001)
    assert pipeline.deliver_due() == 1
    assert len(pipeline.destinations["crm"].taken) == 1


@pytest.mark.parametrize(
    ("reactions", "told", "again", "record"),
    [
        ([], "processed", "already_processed", "delivered"),
        ([DOWN], "queued", "queued", "waiting"),
        ([REFUSES], "dead_lettered", "dead_lettered", "dead"),
    ],
)
def test_while_the_queue_is_away_the_request_delivers_and_what_fails_is_left_to_the_schedule(
    start: Open, reactions: list[Reaction], told: str, again: str, record: str
) -> None:
    pipeline = start({"crm": reactions}, with_queue=True)
    pipeline.queue.is_away = True
    assert pipeline.status_of() == told
    assert (pipeline.delivery().status, pipeline.payload() is None) == (record, record == "delivered")
    assert (pipeline.delivery().next_try_ms is not None) == (record == "waiting")
    assert pipeline.status_of() == again
