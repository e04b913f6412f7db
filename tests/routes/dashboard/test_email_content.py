from __future__ import annotations

from typing import Any

import pytest

from routes.dashboard.email_content import MOST_SHOWN_CHARS, EmailContent, harmless_html


@pytest.mark.parametrize(
    ("payload", "text", "html"),
    [
        ({"body": "Just <text>", "plain": ""}, "Just <text>", None),
        ({"body": "<p>Dear</p>", "plain": "Dear\nall"}, "Dear\nall", "<p>Dear</p>"),
        ({"body": "<p>Dear</p><p>all</p>", "plain": ""}, "Dear all", "<p>Dear</p><p>all</p>"),
        ({"body": "", "plain": ""}, "", None),
        ({"text": "a message", "message_key": "k"}, "a message", None),
        ({}, "", None),
    ],
)
def test_text_and_html_are_told_apart(payload: dict[str, Any], text: str, html: str | None) -> None:
    content = EmailContent(payload)
    assert (content.text, content.html) == (text, html)


def test_headers_are_those_that_say_something() -> None:
    payload = {
        "sender": "Ada <a@b>",
        "recipients": ["x@y", "z@y"],
        "subject": "",
        "date": None,
        "extra": {"in_reply_to": "<1@b>", "attachments": [{}]},
    }
    assert EmailContent(payload).headers == {"From": "Ada <a@b>", "To": "x@y, z@y", "in_reply_to": "<1@b>"}


@pytest.mark.parametrize("tag", ["link", "META", "Base", "iframe", "object", "embed", "frame"])
def test_what_fetches_by_itself_does_not_reach_the_browser(tag: str) -> None:
    assert f"<{tag}".lower() not in harmless_html(f"<p>x</p><{tag} href=y><{tag}/><{tag}\n></{tag}>").lower()


def test_other_elements_stay_as_they_are_and_the_length_is_bounded() -> None:
    html = "<linked><basis><p style='color: red'>x</p>"
    assert harmless_html(html) == html
    assert len(harmless_html("x" * 2 * MOST_SHOWN_CHARS)) == MOST_SHOWN_CHARS
