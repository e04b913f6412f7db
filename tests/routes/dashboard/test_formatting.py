"""Times, shares, statuses and the content of emails, as the page shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from routes.dashboard import formatting
from routes.dashboard.formatting import MOST_SHOWN_CHARS, email_content, harmless_html, moment


@pytest.mark.parametrize(
    ("shown", "value", "text"),
    [
        (formatting.percent, None, "–"),
        (formatting.percent, 0, "0 %"),
        (formatting.percent, 1, "100 %"),
        (formatting.percent, 0.00001, "0.1 %"),  # never all or nothing unless it is
        (formatting.percent, 0.99999, "99.9 %"),
        (formatting.percent, 0.5, "50 %"),
        (formatting.percent, 0.034, "3.4 %"),
        (formatting.milliseconds, 12.4, "12 ms"),
        (formatting.milliseconds, 12_400, "12.4 s"),
        (formatting.label, "oldest_waiting_s", "Oldest waiting"),
        (formatting.badge, "dead_lettered", '<span class="badge bad">dead</span>'),
        (formatting.badge, "<b>", '<span class="badge plain">&lt;b&gt;</span>'),
    ],
)
def test_a_value_is_shown_as(shown: Callable[[Any], str], value: object, text: str) -> None:
    assert shown(value) == text


@pytest.mark.parametrize("at", [1_763_341_323_000, "2025-11-17T01:02:03+00:00", "2025-11-17T02:02:03+01:00"])
def test_a_moment_has_its_exact_time_as_title(at: int | str) -> None:
    assert 'title="2025-11-17 01:02:03 UTC"' in moment(at)
    assert 'datetime="2025-11-17T01:02:03.000+00:00"' in moment(at)


@pytest.mark.parametrize(
    ("payload", "text", "html"),
    [
        ({"body": "Just <text>", "plain": ""}, "Just <text>", None),
        ({"body": "<p>Dear</p>", "plain": "Dear\nall"}, "Dear\nall", "<p>Dear</p>"),
        ({"body": "<p>Dear</p><p>all</p>", "plain": ""}, "Dear all", "<p>Dear</p><p>all</p>"),
        ({"text": "a message", "message_key": "k"}, "a message", None),
        ({}, "", None),
    ],
)
def test_text_and_html_are_distinguished(payload: dict[str, Any], text: str, html: str | None) -> None:
    content = email_content(payload)
    assert (content.text, content.html) == (text, html)


def test_empty_headers_are_left_out() -> None:
    extra = {"in_reply_to": "<1@b>", "attachments": [{}]}
    payload = {"sender": "Ada <a@b>", "recipients": ["x@y", "z@y"], "subject": "", "date": None, "extra": extra}
    assert email_content(payload).headers == {"Sender": "Ada <a@b>", "Recipients": "x@y, z@y", "in_reply_to": "<1@b>"}


@pytest.mark.parametrize("tag", ["link", "META", "Base", "iframe", "object", "embed", "frame"])
def test_elements_that_load_something_do_not_reach_the_browser(tag: str) -> None:
    assert f"<{tag}".lower() not in harmless_html(f"<p>x</p><{tag} href=y><{tag}/><{tag}\n></{tag}>").lower()


def test_other_elements_stay_as_they_are_and_the_length_is_bounded() -> None:
    html = "<linked><basis><p style='color: red'>x</p>"
    assert harmless_html(html) == html
    assert len(harmless_html("x" * 2 * MOST_SHOWN_CHARS)) == MOST_SHOWN_CHARS
