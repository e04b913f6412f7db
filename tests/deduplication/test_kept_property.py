from __future__ import annotations

import threading

from deduplication.kept_property import kept_property


class Letter:
    """Its text is computed once another one was, if it is given."""

    def __init__(self, after: Letter | None = None) -> None:
        self.after = after
        self.readings = 0
        self.is_begun, self.is_read = threading.Event(), threading.Event()

    @kept_property
    def text(self) -> str:
        self.readings += 1
        self.is_begun.set()
        assert self.after is None or self.after.is_read.wait(10)
        self.is_read.set()
        return "Bonjour"


def test_it_is_computed_once_for_each_instance_and_nobody_waits_for_another_instance() -> None:
    quick = Letter()
    slow = Letter(after=quick)
    reader = threading.Thread(target=lambda: slow.text)
    reader.start()
    assert slow.is_begun.wait(10)
    assert (quick.text, quick.text) == ("Bonjour", "Bonjour")
    reader.join(10)
    assert (slow.text, slow.readings, quick.readings) == ("Bonjour", 1, 1)
