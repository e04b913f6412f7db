from __future__ import annotations

import threading

from deduplication.kept_property import kept_property


class Letter:
    def __init__(self) -> None:
        self.readings = 0

    @kept_property
    def text(self) -> str:
        """What it says."""
        self.readings += 1
        return "Bonjour"


class Slow:
    """Is read only once another one was."""

    def __init__(self, other: Slow | None = None) -> None:
        self.other = other
        self.is_begun = threading.Event()
        self.is_read = threading.Event()

    @kept_property
    def text(self) -> str:
        self.is_begun.set()
        if self.other is not None:
            assert self.other.is_read.wait(10)
        self.is_read.set()
        return "read"


def test_it_is_worked_out_once_for_each_instance() -> None:
    letter, other = Letter(), Letter()

    assert (letter.text, letter.text, other.text) == ("Bonjour", "Bonjour", "Bonjour")
    assert (letter.readings, other.readings) == (1, 1)


def test_nobody_waits_for_what_another_instance_works_out() -> None:
    quick = Slow()
    slow = Slow(quick)
    reader = threading.Thread(target=lambda: slow.text)
    reader.start()
    assert slow.is_begun.wait(10)

    assert quick.text == "read"
    reader.join(10)
    assert vars(slow)["text"] == "read"
