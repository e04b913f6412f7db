from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.guesses import LIMIT, GuessLimit
from tests.orchestrator.delivery.test_counters import FakeClock, on_journal


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def guesses(clock: FakeClock) -> Iterator[GuessLimit]:
    with on_journal(clock=clock) as counters:
        yield GuessLimit(counters)


def use_up(guesses: GuessLimit, address: str) -> None:
    for _ in range(LIMIT.amount):
        assert guesses.wait_s(address) == 0
        guesses.count(address)


def test_a_guesser_waits_until_the_first_wrong_token_is_a_minute_old(guesses: GuessLimit, clock: FakeClock) -> None:
    use_up(guesses, "192.0.2.1")
    clock.now_s += 20
    assert guesses.wait_s("192.0.2.1") == 41
    clock.now_s += 41
    use_up(guesses, "192.0.2.1")


@pytest.mark.parametrize(
    ("guesser", "same", "other"),
    [
        ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", "2001:db8:0:2::1"),
        ("-", "-", "192.0.2.1"),
    ],
    ids=["IPv4", "an IPv6 network is one", "no address"],
)
def test_only_the_guesser_is_limited(guesses: GuessLimit, guesser: str, same: str, other: str) -> None:
    use_up(guesses, guesser)
    assert guesses.wait_s(same) > 0
    assert guesses.wait_s(other) == 0
