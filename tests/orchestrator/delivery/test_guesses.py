from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.delivery.counters import GUESS_RATE, Counters
from tests.orchestrator.delivery.test_counters import FakeClock, on_journal


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def guesses(clock: FakeClock) -> Iterator[Counters]:
    with on_journal(clock=clock) as counters:
        yield counters


def use_up(guesses: Counters, address: str) -> None:
    for _ in range(GUESS_RATE.amount):
        assert guesses.guess_wait_s(address) == 0
        guesses.guess_wait_s(address, counts=True)


def test_a_guesser_waits_until_the_first_wrong_token_is_a_minute_old(guesses: Counters, clock: FakeClock) -> None:
    use_up(guesses, "192.0.2.1")
    clock.now_s += 20
    assert guesses.guess_wait_s("192.0.2.1") == 41
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
def test_only_the_guesser_is_limited(guesses: Counters, guesser: str, same: str, other: str) -> None:
    use_up(guesses, guesser)
    assert guesses.guess_wait_s(same) > 0
    assert guesses.guess_wait_s(other) == 0
