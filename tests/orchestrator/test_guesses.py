from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from orchestrator.delivery.counters import process_counters
from orchestrator.guesses import LIMIT, GuessLimit


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def guesses(clock: Clock) -> Iterator[GuessLimit]:
    with closing(process_counters(clock)) as shared, closing(process_counters(clock)) as alone:
        yield GuessLimit(shared, alone, clock)


def use_up(guesses: GuessLimit, address: str) -> None:
    for _ in range(LIMIT.amount):
        assert guesses.wait_s(address) == 0
        guesses.count(address)


def test_a_guesser_waits_until_the_first_wrong_token_is_a_minute_old(guesses: GuessLimit, clock: Clock) -> None:
    use_up(guesses, "192.0.2.1")
    clock.now_s += 20
    assert guesses.wait_s("192.0.2.1") == 40
    clock.now_s += 41
    use_up(guesses, "192.0.2.1")


def test_looking_at_the_limit_counts_nothing_and_others_are_not_held_up(guesses: GuessLimit) -> None:
    assert {guesses.wait_s("192.0.2.1") for _ in range(3 * LIMIT.amount)} == {0}
    use_up(guesses, "192.0.2.1")
    assert guesses.wait_s("192.0.2.1") > 0
    assert guesses.wait_s("192.0.2.2") == 0


def test_all_addresses_of_an_ipv6_network_are_one(guesses: GuessLimit) -> None:
    use_up(guesses, "2001:db8:0:1::1")
    assert guesses.wait_s("2001:db8:0:1:ffff::2") > 0
    assert guesses.wait_s("2001:db8:0:2::1") == 0


def test_whoever_has_no_address_is_limited_too(guesses: GuessLimit) -> None:
    use_up(guesses, "-")
    assert guesses.wait_s("-") > 0
