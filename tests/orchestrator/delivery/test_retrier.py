"""What is stored is delivered by the service itself: once, when it is due, whatever happens to one delivery."""

import pytest

from orchestrator.delivery import retrier as module
from orchestrator.delivery.sender import MOST_AGE_MS, UNKNOWN_FOR_MS
from tests.orchestrator.conftest import Open
from tests.support.pipeline import DOWN, LEASE_MS, PipelineBench, limited
from tests.support.waiting import wait_for


def store(bench: PipelineBench, count: int = 1) -> None:
    """As requests leave them to the workers, one after the other: Redis orders those of one moment by their ids."""
    for number in range(count):
        assert bench.status_of(subject=f"Mail {number}") == "queued"
        bench.let_time_pass(1)


def statuses(bench: PipelineBench, count: int) -> list[str]:
    return [str(bench.delivery(subject=f"Mail {number}").status) for number in range(count)]


def test_a_process_that_slept_past_its_lease_sends_nothing(start: Open) -> None:
    bench = start(by_workers=True)
    store(bench)
    take = bench.machine.coordinator.take

    def take_and_sleep(*values: object) -> object:
        taken = take(*values)  # type: ignore[arg-type]
        bench.let_time_pass(LEASE_MS)
        return taken

    bench.machine.coordinator.take = take_and_sleep  # type: ignore[assignment, method-assign]
    bench.retrier.deliver_due("crm")
    assert bench.destinations["crm"].asked == []
    bench.machine.coordinator.take = take  # type: ignore[method-assign]
    assert (bench.deliver_due(), len(bench.destinations["crm"].taken)) == (1, 1)


@pytest.fixture
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.01)


def test_without_the_store_no_try_is_used_up(start: Open, quick_ticks: None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    bench = start(by_workers=True)
    store(bench)
    bench.failing.update({"take", "destinations_with_waiting"})
    bench.retrier.start()
    wait_for(lambda: "retrier: will retry" in caplog.text)
    bench.failing.discard("destinations_with_waiting")
    wait_for(lambda: "destination crm: will retry" in caplog.text)
    assert bench.destinations["crm"].asked == []
    bench.failing.clear()
    wait_for(lambda: statuses(bench, 1) == ["delivered"])
    assert bench.delivery(subject="Mail 0").tries == 1


def test_threads_of_several_processes_send_each_delivery_once(start: Open, quick_ticks: None) -> None:
    benches = [start(by_workers=True) for _ in range(2)]
    store(benches[0], 20)
    for bench in benches:
        bench.retrier.start()
    taken = [each.destinations["crm"].taken for each in benches]
    wait_for(lambda: sum(map(len, taken)) >= 20)
    wait_for(lambda: statuses(benches[0], 20) == ["delivered"] * 20)
    assert len({webhook.webhook_id for each in taken for webhook in each}) == sum(map(len, taken)) == 20


def test_after_the_breaker_closed_everything_that_waits_is_sent_before_its_own_next_try(start: Open) -> None:
    limits = limited(breaker_failures=2, breaker_pause_s=1)
    bench = start({"crm": [DOWN] * 2}, by_workers=True, limits=limits)
    store(bench, 4)
    for _ in range(4):
        bench.retrier.deliver_due("crm")
    assert len(bench.destinations["crm"].asked) == 2, "then the breaker opened"
    assert bench.retrier.deliver_due("crm") == 0
    bench.let_time_pass(1000)
    while "waiting" in statuses(bench, 4):  # a probe first, then the others, at a growing pace
        if not bench.retrier.deliver_due("crm"):
            bench.let_time_pass(1000)
    assert len(bench.destinations["crm"].taken) == 4, "the first retry would be after 5 s"


def test_emails_that_a_receiver_always_fails_for_delay_others_by_one_pause(start: Open) -> None:
    bench = start(by_workers=True, limits=limited(breaker_failures=3, breaker_pause_s=1))
    crm, retrier = bench.destinations["crm"], bench.retrier
    crm.max_attempts = 50
    crm.by_subject = {f"Mail {number}": [DOWN] * 50 for number in range(3)}
    store(bench, 3)
    while retrier.deliver_due("crm"):
        pass
    assert (len(crm.asked), bench.pipeline.sender.guard.breaker("crm")) == (3, "open")
    for subject in ("Good", "Better"):
        bench.status_of(subject=subject)
    bench.let_time_pass(1000)
    retrier.deliver_due("crm")
    assert [webhook.payload["subject"] for webhook in crm.taken] == ["Better"], "the newest that was never tried"
    while len(crm.asked) < 20:  # all others, at a growing pace
        bench.let_time_pass(400_000)
        retrier.deliver_due("crm")
    assert len(crm.taken) == 2
    assert bench.pipeline.sender.guard.breaker("crm") == "closed", "the second failure of an email does not count"


def test_too_few_failures_for_the_breaker_are_probed_as_well_and_a_probe_uses_up_no_try(start: Open) -> None:
    bench = start({"crm": [DOWN] * 12}, by_workers=True, limits=limited(breaker_failures=5, breaker_pause_s=1))
    crm, retrier = bench.destinations["crm"], bench.retrier
    store(bench, 2)
    while len(crm.asked) < 12:
        retrier.deliver_due("crm")
        bench.let_time_pass(1000)
    assert bench.pipeline.sender.guard.breaker("crm") == "closed"
    assert max(bench.delivery(subject=f"Mail {number}").tries for number in range(2)) == 2, "its own are at 0 and 5 s"
    for _ in range(3):
        retrier.deliver_due("crm")
        bench.let_time_pass(1000)
    assert statuses(bench, 2) == ["delivered"] * 2, "the third try would be after five minutes"


def test_the_probe_is_none_that_waits_for_a_name_or_that_another_process_has(start: Open) -> None:
    bench = start({"crm": [DOWN]}, by_workers=True, limits=limited(breaker_failures=1, breaker_pause_s=1))
    store(bench, 1)
    bench.retrier.deliver_due("crm")
    assert [bench.status_of(subject="Lot 456", body=str(number)) for number in range(2)] == ["queued"] * 2
    bench.let_time_pass(1000)
    assert len(bench.machine.coordinator.take("crm", 1, LEASE_MS)) == 1, "by a process that dies then"
    bench.retrier.deliver_due("crm")
    assert [webhook.payload["subject"] for webhook in bench.destinations["crm"].taken] == ["Mail 0"]


def test_without_an_untried_one_the_probe_is_what_has_waited_longest(start: Open) -> None:
    bench = start({"crm": [DOWN] * 4}, by_workers=True, limits=limited(breaker_failures=2, breaker_pause_s=1))
    store(bench, 2)
    for _ in range(2):
        bench.retrier.deliver_due("crm")
        bench.let_time_pass(10)
    bench.let_time_pass(1000)
    bench.retrier.deliver_due("crm")
    assert [webhook.payload["subject"] for webhook in bench.destinations["crm"].asked] == ["Mail 0", "Mail 1", "Mail 0"]


def test_after_trouble_the_pace_doubles_every_second_whichever_process_sends(start: Open) -> None:
    benches = [start(by_workers=True) for _ in range(2)]
    store(benches[0], 20)
    benches[0].machine.coordinator.hasten("crm", 100)
    taken = []
    for _ in range(4):
        lent = [benches[number % 2].machine.coordinator.take("crm", 3, LEASE_MS) for number in range(8)]
        taken.append(sum(map(len, lent)))
        benches[0].let_time_pass(1000)
    assert taken == [2, 4, 8, 6]


def test_what_waited_for_76_hours_becomes_a_dead_letter_once_a_probe_of_that_age_fails(start: Open) -> None:
    bench = start({"crm": [DOWN] * 9}, by_workers=True)
    store(bench, 3)
    bench.let_time_pass(MOST_AGE_MS + 1)
    bench.status_of(subject="Mail 3")
    assert bench.retrier.deliver_due("crm") == 1
    assert statuses(bench, 4) == ["dead", "dead", "dead", "waiting"]
    assert len(bench.destinations["crm"].asked) == 1, "the others were not sent at all"
    reasons = sorted(str(bench.delivery(subject=f"Mail {number}").reason) for number in range(3))
    assert reasons == ["answered 500; waited 76 h", "crm: waited 76 h", "crm: waited 76 h"]


@pytest.mark.parametrize("ends", ["dead", "delivered"])
def test_a_delivery_to_a_removed_destination_is_dead_after_an_hour(start: Open, ends: str) -> None:
    known, bench = start(by_workers=True), start({"archive": []})
    store(known)
    bench.retrier.tick()
    delivery = bench.delivery(subject="Mail 0")
    assert (delivery.status, delivery.reason) == ("waiting", "crm: no such destination in mailonce.toml")
    bench.let_time_pass(UNKNOWN_FOR_MS)
    if ends == "dead":
        bench.retrier.tick()
    else:
        known.deliver_due()
    delivery = bench.delivery(subject="Mail 0")
    assert (delivery.status, delivery.missing_ms is None) == (ends, ends == "delivered")
