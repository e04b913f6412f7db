from collections.abc import Iterator

import pytest

from orchestrator.delivery.counters import Counters
from orchestrator.guesses import LIMIT, GuessLimit
from tests.deduplication.journal.world import Machine, Time


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine(None, Time())
    yield machine
    machine.close()


@pytest.fixture
def guesses(machine: Machine) -> GuessLimit:
    return GuessLimit(Counters(machine.coordinator))


def use_up(guesses: GuessLimit, address: str) -> None:
    for _ in range(LIMIT.amount):
        assert guesses.wait_s(address) == 0
        guesses.count(address)


def test_a_guesser_waits_until_the_first_wrong_token_is_a_minute_old(guesses: GuessLimit, machine: Machine) -> None:
    use_up(guesses, "192.0.2.1")
    machine.time.pass_ms(20_000)
    assert guesses.wait_s("192.0.2.1") == 41
    machine.time.pass_ms(41_000)
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
