from __future__ import annotations

import pytest

from routes.dashboard.words import badge, counted, duration, fact, milliseconds, moment, percent, size


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (None, "–"),
        (0, "0 %"),
        (1, "100 %"),
        (0.00001, "0.1 %"),
        (0.99999, "99.9 %"),
        (0.5, "50 %"),
        (0.034, "3.4 %"),
        (0.995, "99.5 %"),
    ],
)
def test_a_share_is_never_all_or_nothing_unless_it_is(part: float | None, shown: str) -> None:
    assert percent(part) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0 s"), (119, "119 s"), (120, "2 min"), (90_000, "25 h"), (None, "–")]
)
def test_durations(seconds: int | None, shown: str) -> None:
    assert duration(seconds) == shown


def test_numbers_have_their_units() -> None:
    assert (milliseconds(12.4), milliseconds(12_400), milliseconds(None)) == ("12 ms", "12.4 s", "–")
    assert (size(1), size(2048), size(5 << 20), size(71 << 30)) == ("1 bytes", "2 KB", "5.0 MB", "71.0 GB")
    assert (fact("redis_payload_bytes"), fact("oldest_waiting_s"), fact("breakers")) == (
        "Payloads in Redis",
        "Oldest waiting",
        "Breakers",
    )
    assert (counted(1, "delivery", "deliveries"), counted(1234, "email")) == ("1 delivery", "1,234 emails")


@pytest.mark.parametrize("at", [1_763_341_323_000, "2025-11-17T01:02:03+00:00", "2025-11-17T02:02:03+01:00"])
def test_a_moment_has_its_exact_time_as_title(at: int | str) -> None:
    assert 'title="2025-11-17 01:02:03 UTC"' in moment(at)
    assert 'datetime="2025-11-17T01:02:03.000+00:00"' in moment(at)


def test_a_status_is_a_word_with_a_colour_and_markup_in_it_is_text() -> None:
    assert badge("dead_lettered") == '<span class="badge bad">dead</span>'
    assert badge("<b>") == '<span class="badge plain">&lt;b&gt;</span>'
