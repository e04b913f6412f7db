"""One silence is enough, for as long as one answer is being put together."""

from __future__ import annotations

import pytest

from deduplication.errors import StoreUnavailable
from deduplication.silence import is_silent, note_silence, raise_if_silent, waiting_once

NO_ANSWER = StoreUnavailable("redis: no answer in time")


def test_within_one_answer_a_silent_server_is_not_asked_again() -> None:
    with waiting_once():
        raise_if_silent()
        note_silence(NO_ANSWER)
        with pytest.raises(StoreUnavailable, match="no answer in time"):
            raise_if_silent()
        assert is_silent()
    raise_if_silent()
    assert not is_silent(), "the next answer waits anew"


def test_one_inside_another_is_the_same() -> None:
    with waiting_once():
        with waiting_once():
            note_silence(NO_ANSWER)
        assert is_silent()


def test_another_server_is_not_silent_for_it() -> None:
    with waiting_once():
        note_silence(NO_ANSWER, "the queue's")
        raise_if_silent()
        assert is_silent("the queue's") and not is_silent()


def test_an_email_on_its_way_asks_each_time() -> None:
    note_silence(NO_ANSWER)
    raise_if_silent()
    assert not is_silent()
