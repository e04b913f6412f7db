from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from orchestrator.delivery.counters import process_counters
from orchestrator.sign_ins import TRIES, SignIns


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sign_ins(clock: Clock) -> Iterator[SignIns]:
    with closing(process_counters(clock)) as shared, closing(process_counters(clock)) as alone:
        yield SignIns(shared, alone, clock)


def use_up(sign_ins: SignIns, address: str) -> None:
    assert [sign_ins.wait_s(address) for _ in range(TRIES.amount)] == [0] * TRIES.amount


def test_a_guesser_waits_until_the_first_try_is_a_minute_old(sign_ins: SignIns, clock: Clock) -> None:
    use_up(sign_ins, "192.0.2.1")
    clock.now_s += 20
    assert sign_ins.wait_s("192.0.2.1") == 40
    clock.now_s += 41
    assert sign_ins.wait_s("192.0.2.1") == 0


def test_others_are_not_held_up_and_a_right_token_ends_it(sign_ins: SignIns) -> None:
    use_up(sign_ins, "192.0.2.1")
    assert sign_ins.wait_s("192.0.2.2") == 0
    sign_ins.succeeded("192.0.2.1")
    use_up(sign_ins, "192.0.2.1")


def test_all_addresses_of_an_ipv6_network_are_one(sign_ins: SignIns) -> None:
    use_up(sign_ins, "2001:db8:0:1::1")
    assert sign_ins.wait_s("2001:db8:0:1:ffff::2") > 0
    assert sign_ins.wait_s("2001:db8:0:2::1") == 0


def test_whoever_has_no_address_is_limited_too(sign_ins: SignIns) -> None:
    use_up(sign_ins, "-")
    assert sign_ins.wait_s("-") > 0
