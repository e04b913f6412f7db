"""What read_stats shows after known events, how machines share their counts, and how long these are kept."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deduplication.errors import StoreUnavailable
from deduplication.journal.entry import DeliveryStatus
from orchestrator.metrics.meter import DAY_S, DELIVERIES, DELIVERY_S, EMAILS, HOUR_S, MINUTE_S, read_sums
from orchestrator.operations.stats import LENGTH_S, STEP_S, OverTime, Span, read_stats
from tests.deduplication.journal.world import Email, claimed, send, stored
from tests.orchestrator.operations.fleet_bench import OpenProcess, Process
from tests.support.redis_server import RedisServer


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


# Counts of a fleet


EMAIL = "emails|gmail|processed|"


def receive_and_flush(process: Process, count: int) -> None:
    for _ in range(count):
        process.meter.count((1, EMAILS, "gmail", "processed", ""))
    process.meter.flush()


def fleet_sum(process: Process) -> float:
    with process.journal.reading() as step:
        return read_sums(step).counts.get(EMAIL, 0)


def counts(process: Process, step_s: int) -> list[float]:
    """Of the fleet, in each minute or hour that has some."""
    query = "SELECT sum(value) FROM counts WHERE step_s = ? AND key = ? GROUP BY start_s ORDER BY start_s"
    with process.journal.reading() as step:
        return [count for (count,) in step.query(query, (step_s, EMAIL))]


def test_counts_of_a_failed_flush_are_written_by_the_next(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def fail() -> Iterator[None]:
        raise StoreUnavailable("the disk is full")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(process.journal, "step", fail)
        with pytest.raises(StoreUnavailable):
            receive_and_flush(process, 2)
    receive_and_flush(process, 1)
    assert fleet_sum(process) == 3


def test_machines_share_their_counts(open_process: OpenProcess) -> None:
    one, two = open_process(with_redis=True), open_process(with_redis=True)
    receive_and_flush(one, 3)
    receive_and_flush(two, 4)
    for member in (one, two, one):
        member.share()
    assert fleet_sum(one) == fleet_sum(two) == 7
    assert counts(one, MINUTE_S) == counts(two, MINUTE_S) == [7]
    two.machine.time.pass_ms(1)
    receive_and_flush(two, 1)
    for member in (two, one, one):
        member.share()
    assert fleet_sum(one) == 8
    with one.journal.reading() as step:
        assert read_sums(step, one.machine.name).counts[EMAIL] == 3


def test_a_machine_that_was_without_redis_shares_later_what_it_counted_meanwhile(open_process: OpenProcess) -> None:
    one, two = open_process(with_redis=True), open_process(with_redis=True)
    receive_and_flush(two, 1)
    for member in (two, one):
        member.share()
    for _ in range(3):
        one.machine.time.pass_ms(20 * MINUTE_S * 1000)
        receive_and_flush(two, 2)
        receive_and_flush(one, 1)
        one.share()
    assert fleet_sum(one) == 4
    for member in (two, one):
        member.share()
    assert fleet_sum(one) == 10
    assert counts(one, MINUTE_S) == [1, 3, 3, 3]


def test_a_redis_that_was_emptied_learns_everything_again(open_process: OpenProcess, redis_server: RedisServer) -> None:
    one = open_process(with_redis=True)
    receive_and_flush(one, 2)
    one.machine.time.pass_ms(3 * DAY_S * 1000)
    receive_and_flush(one, 1)
    one.share()
    redis_server.client.flushall()
    one.machine.tick()
    one.share()
    late = open_process(with_redis=True)
    late.share()
    assert fleet_sum(late) == sum(counts(late, HOUR_S)) == 3


def test_old_counts_end_here_and_in_redis_but_not_the_sum(open_process: OpenProcess, redis_server: RedisServer) -> None:
    one = open_process(with_redis=True)
    receive_and_flush(one, 2)
    one.share()
    keys = redis_server.client.keys(f"counts:{one.machine.name}:*")
    kept_s = {str(key).split(":")[2]: redis_server.client.ttl(key) for key in keys}
    assert kept_s == {"60": 26 * HOUR_S, "3600": 32 * DAY_S, "0": 32 * DAY_S}
    for passed_s, steps in ((27 * HOUR_S, [(0,), (3600,)]), (32 * DAY_S, [(0,)])):
        one.machine.time.pass_ms(passed_s * 1000)
        one.meter.purge()
        with one.journal.reading() as step:
            assert step.query("SELECT DISTINCT step_s FROM counts ORDER BY 1") == steps
    assert fleet_sum(one) == 2
