"""What one machine tells, another reads. What a machine makes of it: tests/orchestrator/metrics/test_counted.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from deduplication.errors import StoreUnavailable
from deduplication.journal.redis_figures import News, RedisFigures
from deduplication.redis_client import connect
from tests.support.redis_server import RedisServer, free_port

KEPT_S = {60: 3600, 3600: 86_400}
NEWS = News("", "first", '{"n":1}', workers=2, workers_for_s=20, buckets={(60, 120): '{"n":3}', (3600, 0): '{"n":4}'})


@pytest.fixture
def machines(redis_server: RedisServer) -> Iterator[list[RedisFigures]]:
    made = [RedisFigures(connect(redis_server.url, 5), name, "test:", KEPT_S) for name in ("one", "two")]
    yield made
    for each in made:
        each.close()


@pytest.mark.real_redis
def test_another_machine_reads_what_one_told_and_the_one_itself_does_not(machines: list[RedisFigures]) -> None:
    one, two = machines
    one.tell(NEWS)
    assert (two.totals(), two.workers()) == ({"one": '{"n":1}'}, 2)
    assert two.buckets(60, [60, 120, 180]) == [(120, '{"n":3}')]
    assert two.buckets(3600, [0]) == [(0, '{"n":4}')]
    assert (one.totals(), one.workers(), one.buckets(60, [120])) == ({}, 0, [])


@pytest.mark.real_redis
def test_who_tells_hears_whether_what_was_told_before_is_there(
    machines: list[RedisFigures], redis_server: RedisServer
) -> None:
    one, _ = machines
    assert one.tell(NEWS) is False, "nothing was told before"
    assert one.tell(replace(NEWS, before="first", mark="second")) is True
    assert one.tell(replace(NEWS, before="first", mark="third")) is False, "it has another mark"
    redis_server.client.flushall()
    assert one.tell(replace(NEWS, before="third", mark="fourth")) is False


@pytest.mark.real_redis
def test_what_is_told_again_takes_the_place_of_what_was_told(machines: list[RedisFigures]) -> None:
    one, two = machines
    one.tell(NEWS)
    one.tell(replace(NEWS, totals='{"n":2}', workers=0, buckets={(60, 120): '{"n":5}'}))
    assert (two.totals(), two.workers(), two.buckets(60, [120])) == ({"one": '{"n":2}'}, 0, [(120, '{"n":5}')])


@pytest.mark.real_redis
def test_only_what_is_old_is_dropped(machines: list[RedisFigures]) -> None:
    one, two = machines
    now = int(time.time())
    one.tell(replace(NEWS, buckets={(60, now - 3700): "{}", (60, now): "{}", (3600, now - 3700): "{}"}))
    one.drop_old()
    assert two.buckets(60, [now - 3700, now]) == [(now, "{}")]
    assert two.buckets(3600, [now - 3700]) == [(now - 3700, "{}")]


def test_a_redis_that_is_away_is_told_as_everywhere() -> None:
    figures = RedisFigures(connect(f"redis://127.0.0.1:{free_port()}/0", 1), "one", "", KEPT_S)
    for ask in (lambda: figures.tell(NEWS), figures.totals, figures.workers, figures.drop_old):
        with pytest.raises(StoreUnavailable):
            ask()
    figures.close()
