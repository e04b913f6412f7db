"""What read_stats shows after known events."""

from __future__ import annotations

import pytest

from deduplication.journal.entry import DeliveryStatus
from orchestrator.metrics.meter import DAY_S, DELIVERIES, DELIVERY_S, EMAILS, HOUR_S, MINUTE_S
from orchestrator.operations.stats import LENGTH_S, STEP_S, OverTime, Span, read_stats
from tests.deduplication.journal.world import Email, claimed, send, stored
from tests.orchestrator.operations.fleet_bench import OpenProcess, Process


def receive(process: Process, count: int, status: str = "processed", gate: str = "") -> None:
    process.meter.count((count, EMAILS, "gmail", status, gate))


def attempt(process: Process, destination: str, status: DeliveryStatus) -> None:
    process.meter.count((1, DELIVERIES, destination, status))


def over_time(process: Process, span: Span) -> OverTime:
    return read_stats(process.service, span).over_time


@pytest.mark.parametrize("span", Span)
def test_a_span_has_its_points_without_gaps_and_ends_now(process: Process, span: Span) -> None:
    shown = over_time(process, span)
    starts = [point.start_s for point in shown.points]
    assert starts == list(range(starts[0], starts[0] + LENGTH_S[span], STEP_S[span]))
    assert 0 <= process.machine.time.now_ms / 1000 - starts[-1] < STEP_S[span] == shown.step_s


def test_events_are_shown_when_they_happened(process: Process) -> None:
    receive(process, 4)
    process.meter.flush()
    process.machine.time.pass_ms(3 * HOUR_S * 1000)
    receive(process, 3)
    receive(process, 2, "already_processed", "identity")
    receive(process, 1, "skipped_media", "media")
    for not_accepted in ("retry_later", "already_processing", "unauthorized", "invalid", "no_email"):
        receive(process, 9, not_accepted)
    attempt(process, "crm", DeliveryStatus.DELIVERED)
    attempt(process, "crm", DeliveryStatus.WAITING)
    hour, day = over_time(process, Span.HOUR), over_time(process, Span.DAY)
    last = hour.points[-1]
    assert hour.total.model_copy(update={"start_s": last.start_s}) == last, "counted, and not written yet"
    assert (last.received, last.stopped, last.delivered, last.failed) == (6, 3, 1, 1)
    assert (hour.total.duplicates, hour.total.suppressed) == (2, 1)
    assert [point.received for point in day.points if point.received] == [4, 6]
    assert [over_time(process, span).total.received for span in (Span.WEEK, Span.MONTH)] == [10, 10]
    totals = read_stats(process.service, Span.HOUR).totals
    assert (totals.received, totals.duplicates, totals.suppressed, totals.hit_rate) == (10, 2, 1, 0.3)
    assert totals.statuses["retry_later"] == 9


def test_the_last_hour_begins_within_the_hour_before(process: Process) -> None:
    time = process.machine.time
    time.pass_ms((HOUR_S + 30 * MINUTE_S) * 1000 - time.now_ms % (HOUR_S * 1000))
    receive(process, 1)
    process.meter.flush()
    for minutes, received in ((50, 1), (10, 0)):
        time.pass_ms(minutes * MINUTE_S * 1000)
        assert over_time(process, Span.HOUR).total.received == process.state().hour.received == received


def test_points_of_a_month_are_several_hours(process: Process) -> None:
    time = process.machine.time
    time.pass_ms(6 * HOUR_S * 1000 - time.now_ms % (6 * HOUR_S * 1000))
    start_s = time.now_ms // 1000
    for _ in range(6):
        receive(process, 1)
        process.meter.flush()
        time.pass_ms(HOUR_S * 1000)
    time.pass_ms(2 * DAY_S * 1000)
    process.meter.purge()
    month = over_time(process, Span.MONTH)
    assert [(point.start_s, point.received) for point in month.points if point.received] == [(start_s, 6)]


def test_each_destination_has_its_rate_and_times(process: Process) -> None:
    for _ in range(9):
        attempt(process, "crm", DeliveryStatus.DELIVERED)
        process.meter.count((0.02, DELIVERY_S, "crm"))
    attempt(process, "crm", DeliveryStatus.DEAD)
    process.meter.count((4.0, DELIVERY_S, "crm"))
    attempt(process, "archive", DeliveryStatus.SKIPPED)
    process.meter.count((60.0, DELIVERY_S, "old"))
    attempt(process, "old", DeliveryStatus.WAITING)
    found = over_time(process, Span.HOUR).destinations
    crm, archive = found["crm"], found["archive"]
    assert (crm.delivered, crm.failed, crm.success_rate) == (9, 1, 0.9)
    assert (crm.delivered_by_point[-1], crm.failed_by_point[-1]) == (crm.delivered, crm.failed)
    assert crm.whole_p50_ms is not None and 10 < crm.whole_p50_ms <= 25
    assert crm.whole_p95_ms is not None and 2_500 < crm.whole_p95_ms <= 5_000
    assert found["old"].whole_p50_ms == 10_000, "the last bucket has no end"
    assert set(crm.delivered_by_point[:-1]) == {0}
    assert (archive.success_rate, archive.whole_p50_ms) == (None, None)


def test_totals_and_destinations(process: Process) -> None:
    nothing = read_stats(process.service, Span.DAY).totals
    assert (nothing.received, nothing.hit_rate, nothing.waiting, nothing.oldest_waiting_s) == (0, None, 0, None)
    assert (nothing.workers_alive, nothing.is_whole) == (None, True)
    send(process.machine, Email("one"))
    stored(process.machine, claimed(process.machine, Email("two")), in_ms=5_000)
    receive(process, 2)
    attempt(process, "crm", DeliveryStatus.DELIVERED)
    process.machine.time.pass_ms(90_000)
    found = read_stats(process.service, Span.DAY)
    assert (found.totals.received, found.totals.waiting, found.totals.oldest_waiting_s) == (2, 1, 90)
    assert found.destinations["crm"].deliveries == {"waiting": 1, "delivered": 1, "dead": 0, "skipped": 0}
    assert found.destinations["archive"].enabled is False


def test_while_redis_is_gone_the_figures_are_not_whole(open_process: OpenProcess) -> None:
    process = open_process(with_redis=True)
    for is_whole in (True, False):
        found = read_stats(process.service, Span.HOUR)
        assert (found.totals.is_whole, found.over_time.is_whole) == (is_whole, is_whole)
        process.coordinator.redis.give_up()
