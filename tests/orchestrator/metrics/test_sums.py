from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduplication.journal.entry import DeliveryStatus
from orchestrator.metrics.meter import BUCKETS_S, DECISION_S, Meter
from orchestrator.metrics.sums import Sums
from orchestrator.metrics.tally import Tally


def counted(meter_on: Tally) -> Sums:
    return Sums(meter_on.read())


@pytest.fixture
def tally() -> Tally:
    return Tally()


@pytest.fixture
def meter(tally: Tally) -> Meter:
    meter = Meter(tally, destinations=("crm", "archive"))
    meter.know_providers({"gmail", "message"})
    return meter


def test_what_is_received_is_new_repeated_or_suppressed(meter: Meter, tally: Tally) -> None:
    for status, gate in (
        ("processed", None),
        ("queued", None),
        ("dead_lettered", None),
        ("already_processed", "identity"),
        ("queued", "identity"),
        ("skipped_subject_group", "subject_group"),
        ("skipped_media", "media"),
        ("skipped_content", "content"),
        ("skipped_old", "realtime"),
    ):
        meter.count_email("gmail", status, gate)
    for status in ("retry_later", "already_processing", "invalid", "unauthorized", "no_email"):
        meter.count_email("gmail", status)
    sums = counted(tally)
    assert (sums.received, sums.duplicates, sums.suppressed, sums.stopped) == (9, 2, 4, 6)
    assert sums.hit_rate == 6 / 9
    assert sums.statuses["queued"] == 2
    assert sums.statuses["unauthorized"] == 1


def test_attempts_are_told_apart_by_destination_and_outcome(meter: Meter, tally: Tally) -> None:
    meter.count_attempt("crm", DeliveryStatus.DELIVERED)
    meter.count_attempt("archive", DeliveryStatus.WAITING)
    meter.count_attempt("archive", DeliveryStatus.DEAD, 3)
    sums = counted(tally)
    assert (sums.delivered, sums.failed, sums.died) == (1, 4, 3)
    assert sums.attempts("archive") == {"failed": 1, "dead": 3}
    assert sums.destinations == ["archive", "crm"]


def test_labels_that_are_not_in_the_configuration_are_one(meter: Meter, tally: Tally) -> None:
    for number in range(50):
        meter.count_email(f"provider {number}", "processed")
        meter.count_attempt(f"gone-{number}", DeliveryStatus.DEAD)
        meter.time_delivery(f"gone-{number}", 0.001)
    assert set(tally.read()) == {
        "emails|other|processed",
        "deliveries|other|dead",
        "delivery_s|other|0.005",
        "delivery_s|other|sum",
    }


def test_nothing_received_has_no_rate() -> None:
    assert Sums({}).hit_rate is None
    assert Sums({}).delivery_times("crm").quantile_s(0.95) is None


@given(st.lists(st.floats(0.0001, 9.9), min_size=1, max_size=200), st.sampled_from([0.5, 0.95]))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(times_s: list[float], share: float) -> None:
    tally = Tally()
    meter = Meter(tally)
    for seconds in times_s:
        meter.time_decision(seconds)
    histogram = counted(tally).histogram(DECISION_S)
    assert histogram.count == len(times_s)
    assert histogram.sum_s == pytest.approx(sum(times_s))
    true_s = sorted(times_s)[max(0, -int(-share * len(times_s) // 1) - 1)]
    upper_s = next(bound for bound in BUCKETS_S if true_s <= bound)
    lower_s = max((bound for bound in BUCKETS_S if bound < upper_s), default=0.0)
    estimate_s = histogram.quantile_s(share)
    assert estimate_s is not None
    assert lower_s <= estimate_s <= upper_s


def test_what_took_longer_than_the_last_bucket_is_told_as_that(meter: Meter, tally: Tally) -> None:
    meter.time_delivery("crm", 60)
    assert counted(tally).delivery_times("crm").quantile_s(0.5) == BUCKETS_S[-1]
