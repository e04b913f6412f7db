from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from orchestrator import settler
from orchestrator.settler import Settler


def test_what_was_sent_is_settled_while_the_next_one_is_being_sent() -> None:
    settled = threading.Event()

    def settle(sent: Sequence[str]) -> list[str]:
        settled.set()
        return [each.upper() for each in sent]

    with Settler(settle) as settling:
        settling.put(0, "a")
        assert settled.wait(60), "without waiting for the end of the block"
        settling.put(7, "b")
    assert settling.results == {0: "A", 7: "B"}


def test_what_comes_up_while_others_are_settled_is_settled_in_one_step() -> None:
    is_busy, may_go_on = threading.Event(), threading.Event()
    steps: list[list[int]] = []

    def settle(sent: Sequence[int]) -> list[int]:
        steps.append(list(sent))
        is_busy.set()
        assert may_go_on.wait(60)
        return list(sent)

    with Settler(settle) as settling:
        settling.put(0, 0)
        assert is_busy.wait(60)
        for number in range(1, 6):
            settling.put(number, number)
        may_go_on.set()
    assert steps == [[0], [1, 2, 3, 4, 5]]
    assert settling.results == {number: number for number in range(6)}


def test_what_was_sent_quickly_is_settled_in_one_step_when_the_block_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settler, "GRACE_S", 600)
    steps: list[list[str]] = []

    def settle(sent: Sequence[str]) -> list[str]:
        steps.append(list(sent))
        assert threading.current_thread() is threading.main_thread()
        return [each.upper() for each in sent]

    with Settler(settle) as settling:
        for position, each in enumerate("abc"):
            settling.put(position, each)
    assert (steps, settling.results) == ([["a", "b", "c"]], {0: "A", 1: "B", 2: "C"})


def test_what_was_sent_before_an_error_is_settled_all_the_same() -> None:
    settling = Settler[str, str](lambda sent: list(sent))
    with pytest.raises(KeyboardInterrupt), settling:
        settling.put(0, "a")
        raise KeyboardInterrupt
    assert settling.results == {0: "a"}


def test_nothing_sent_is_nothing_settled() -> None:
    def settle(sent: Sequence[int]) -> list[int]:
        raise AssertionError("asked to settle nothing")

    with Settler(settle) as settling:
        pass
    assert settling.results == {}
