"""What the figures say after known events; the sums themselves are tested with orchestrator/metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deduplication.journal.entry import DeliveryStatus
from orchestrator.build import Parts, build_parts
from orchestrator.config.model import load_config
from orchestrator.config.settings import load_settings
from orchestrator.metrics.history import KEPT_S
from orchestrator.operations.figures import Span, over_time, totals


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    (tmp_path / "mailonce.toml").write_text("[destinations.crm]\nurl = 'log:'\n")
    settings = load_settings(data_dir=tmp_path / "data")
    parts = build_parts(settings, load_config(settings), slot="web")
    parts.meter.know_providers({"gmail"})
    yield parts
    parts.close()


def receive(parts: Parts, count: int, status: str = "processed", gate: str | None = None) -> None:
    for _ in range(count):
        parts.meter.count_email("gmail", status, gate)


def record(parts: Parts, ago_s: float) -> None:
    """What was counted until now, as if that had been so long ago."""
    parts.counted.history.record(parts.counted.here().counts, time.time() - ago_s)


@pytest.mark.parametrize("span", Span)
def test_a_span_has_its_points_without_gaps_and_ends_now(parts: Parts, span: Span) -> None:
    shown = over_time(parts, span)
    starts = [point.start_s for point in shown.points]
    assert len(starts) == span.length_s // span.step_s
    assert {later - earlier for earlier, later in zip(starts, starts[1:], strict=False)} == {span.step_s}
    assert 0 <= time.time() - starts[-1] < span.step_s + 60
    assert KEPT_S[span.bucket_s] >= span.length_s, "what is shown is still kept"


def test_what_happened_stands_where_it_happened(parts: Parts) -> None:
    receive(parts, 4)
    record(parts, ago_s=3 * 3600)
    receive(parts, 3)
    receive(parts, 2, "already_processed", "identity")
    receive(parts, 1, "skipped_media", "media")
    parts.meter.count_attempt("crm", DeliveryStatus.DELIVERED)
    parts.meter.count_attempt("crm", DeliveryStatus.WAITING)
    hour, day = over_time(parts, Span.HOUR), over_time(parts, Span.DAY)
    assert replace(hour.total, start_s=0) == replace(hour.points[-1], start_s=0), "not recorded yet, and known"
    last = hour.points[-1]
    assert (last.received, last.stopped, last.delivered, last.failed) == (6, 3, 1, 1)
    assert (hour.duplicates, hour.suppressed) == (2, 1)
    assert (day.total.received, day.points[-1].received) == (10, 6)
    assert [point.received for point in day.points if point.received] == [4, 6]
    assert over_time(parts, Span.WEEK).total.received == over_time(parts, Span.MONTH).total.received == 10


def test_points_of_a_month_are_several_hours(parts: Parts) -> None:
    start = int(time.time() // (6 * 3600)) * 6 * 3600 - 10 * 86_400
    for hour in range(6):
        receive(parts, 1)
        parts.counted.history.record(parts.counted.here().counts, start + hour * 3600 + 5)
    month = over_time(parts, Span.MONTH)
    assert [(point.start_s, point.received) for point in month.points if point.received] == [(start, 6)]


def test_each_destination_has_its_rate_and_times(parts: Parts) -> None:
    for _ in range(9):
        parts.meter.count_attempt("crm", DeliveryStatus.DELIVERED)
        parts.meter.time_delivery("crm", 0.02)
    parts.meter.count_attempt("crm", DeliveryStatus.DEAD)
    parts.meter.time_delivery("crm", 4.0)
    crm = over_time(parts, Span.HOUR).destinations["crm"]
    assert (crm.delivered, crm.failed, crm.success_rate) == (9, 1, 0.9)
    assert crm.whole_p50_ms is not None
    assert crm.whole_p95_ms is not None
    assert 10 < crm.whole_p50_ms <= 25
    assert 2_500 < crm.whole_p95_ms <= 5_000
    assert (crm.p50_ms[-1], crm.p95_ms[-1]) == (crm.whole_p50_ms, crm.whole_p95_ms)
    assert set(crm.p50_ms[:-1]) == {None}


def test_a_destination_that_nothing_was_sent_to_has_no_rate(parts: Parts) -> None:
    crm = over_time(parts, Span.HOUR).destinations["crm"]
    assert (crm.success_rate, crm.whole_p50_ms, crm.whole_p95_ms) == (None, None, None)


def test_neither_has_one_that_had_all_of_it_before(parts: Parts) -> None:
    parts.meter.count_attempt("crm", DeliveryStatus.SKIPPED)
    crm = over_time(parts, Span.HOUR).destinations["crm"]
    assert (crm.delivered, crm.failed, crm.success_rate) == (0, 0, None)


def test_totals_of_nothing(parts: Parts) -> None:
    shown = totals(parts)
    assert (shown.received, shown.hit_rate, shown.waiting, shown.oldest_waiting_s) == (0, None, 0, None)
    assert (shown.workers_alive, shown.is_whole) == (None, True)
