"""Posts and chat messages; tests/routes/test_messages.py sends them in."""

from __future__ import annotations

from deduplication.message import Message


def test_the_text_of_a_message_is_text_whatever_it_holds() -> None:
    one, two = (Message(id="1", text=f"Host <web{number}> is down <https://a.example/{number}>") for number in (1, 2))
    assert one.fingerprint != two.fingerprint
    assert (one.links, two.links) == (("https://a.example/1",), ("https://a.example/2",))
