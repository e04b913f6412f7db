"""What the figures say after known events."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deduplication.journal.entry import DeliveryStatus
from orchestrator.metrics.counts import DAY_S, HOUR_S, KEPT_S, MINUTE_S
from orchestrator.operations.figures import Span, over_time, stats, totals
from tests.deduplication.journal.world import Email, claimed, send, stored
from tests.orchestrator.operations.fleet_bench import OpenProcess, Process, open_process, process, time

__all__ = ["open_process", "process", "time"]  # fixtures


def receive(process: Process, count: int, status: str = "processed", gate: str | None = None) -> None:
    for _ in range(count):
        process.meter.count_email("gmail", status, gate)


@pytest.mark.parametrize("span", Span)
def test_a_span_has_its_points_without_gaps_and_ends_now(process: Process, span: Span) -> None:
    shown = over_time(process.service, span)
    starts = [point.start_s for point in shown.points]
    assert len(starts) == span.length_s // span.step_s
    assert {later - earlier for earlier, later in zip(starts, starts[1:], strict=False)} == {span.step_s}
    assert 0 <= process.machine.time.now_ms / 1000 - starts[-1] < span.step_s
    assert (
        KEPT_S[min(span.step_s // MINUTE_S * MINUTE_S, HOUR_S) if span.step_s >= HOUR_S else MINUTE_S] >= span.length_s
    )


def test_events_are_shown_when_they_happened(process: Process) -> None:
    receive(process, 4)
    process.counts.flush()
    process.machine.time.pass_ms(3 * HOUR_S * 1000)
    receive(process, 3)
    receive(process, 2, "already_processed", "identity")
    receive(process, 1, "skipped_media", "media")
    process.meter.count_attempt("crm", DeliveryStatus.DELIVERED)
    process.meter.count_attempt("crm", DeliveryStatus.WAITING)
    hour, day = over_time(process.service, Span.HOUR), over_time(process.service, Span.DAY)
    last = hour.points[-1]
    assert replace(hour.total, start_s=0) == replace(last, start_s=0), "counted in this process, and not written yet"
    assert (last.received, last.stopped, last.delivered, last.failed) == (6, 3, 1, 1)
    assert (hour.duplicates, hour.suppressed) == (2, 1)
    assert [point.received for point in day.points if point.received] == [4, 6]
    assert [over_time(process.service, span).total.received for span in (Span.WEEK, Span.MONTH)] == [10, 10]


def test_points_of_a_month_are_several_hours(process: Process) -> None:
    time = process.machine.time
    time.pass_ms(6 * HOUR_S * 1000 - time.now_ms % (6 * HOUR_S * 1000))
    start_s = time.now_ms // 1000
    for _ in range(6):
        receive(process, 1)
        process.counts.flush()
        time.pass_ms(HOUR_S * 1000)
    time.pass_ms(2 * DAY_S * 1000)
    process.counts.purge()
    month = over_time(process.service, Span.MONTH)
    assert [(point.start_s, point.received) for point in month.points if point.received] == [(start_s, 6)]


def test_each_destination_has_its_rate_and_times(process: Process) -> None:
    for _ in range(9):
        process.meter.count_attempt("crm", DeliveryStatus.DELIVERED)
        process.meter.time_delivery("crm", 0.02)
    process.meter.count_attempt("crm", DeliveryStatus.DEAD)
    process.meter.time_delivery("crm", 4.0)
    process.meter.count_attempt("archive", DeliveryStatus.SKIPPED)
    found = over_time(process.service, Span.HOUR).destinations
    crm, archive = found["crm"], found["archive"]
    assert (crm.delivered, crm.failed, crm.success_rate) == (9, 1, 0.9)
    assert (crm.p50_ms[-1], crm.p95_ms[-1]) == (crm.whole_p50_ms, crm.whole_p95_ms)
    assert crm.whole_p50_ms is not None and 10 < crm.whole_p50_ms <= 25
    assert set(crm.p50_ms[:-1]) == {None}
    assert (archive.success_rate, archive.whole_p50_ms) == (None, None)


def test_totals_and_stats(process: Process) -> None:
    shown = totals(process.service)
    assert (shown.received, shown.hit_rate, shown.waiting, shown.oldest_waiting_s) == (0, None, 0, None)
    assert (shown.workers_alive, shown.is_whole) == (None, True)
    send(process.machine, Email("one"))
    stored(process.machine, claimed(process.machine, Email("two")), in_ms=5_000)
    receive(process, 2)
    process.meter.count_attempt("crm", DeliveryStatus.DELIVERED)
    process.machine.time.pass_ms(90_000)
    found = stats(process.service, Span.DAY)
    assert (found["totals"]["received"], found["totals"]["waiting"], found["totals"]["oldest_waiting_s"]) == (2, 1, 90)
    assert found["destinations"]["crm"]["deliveries"] == {"waiting": 1, "delivered": 1, "dead": 0, "skipped": 0}
    assert found["destinations"]["archive"]["enabled"] is False


def test_while_redis_is_gone_the_figures_are_not_whole(open_process: OpenProcess) -> None:
    process = open_process(with_redis=True)
    assert (totals(process.service).is_whole, over_time(process.service, Span.HOUR).is_whole) == (True, True)
    process.coordinator.redis.give_up()
    assert (totals(process.service).is_whole, over_time(process.service, Span.HOUR).is_whole) == (False, False)
