"""Times, shares, statuses and the content of emails, as the page shows them."""

from collections.abc import Callable
from typing import Any

import pytest

from routes.dashboard import formatting
from routes.dashboard.formatting import MOST_SHOWN_CHARS, email_content, harmless_html, moment
from tests.routes.conftest import StartApp


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
        (formatting.badge, "dead_lettered", '<span class="badge bad">dead letter</span>'),
        (formatting.badge, "<b>", '<span class="badge plain">&lt;b&gt;</span>'),
    ],
)
def test_a_value_is_shown_as(shown: Callable[[Any], str], value: object, text: str) -> None:
    assert shown(value) == text


@pytest.mark.parametrize("at", [1_763_341_323_000, "2025-11-17T01:02:03+00:00", "2025-11-17T03:02:03+02:00"])
def test_a_moment_is_shown_in_the_zone_of_the_settings(start_app: StartApp, at: int | str) -> None:
    with start_app(timezone="Europe/Paris").http.application.app_context():
        assert moment(at) == (
            '<time datetime="2025-11-17T02:02:03.000+01:00" title="2025-11-17 02:02:03 CET">17 Nov 02:02</time>'
        )


def test_a_plot_begins_where_there_is_data_and_marks_what_failed(start_app: StartApp) -> None:
    values = [0] * 90 + [4] * 10
    series = {"delivered": values, "failed": [0] * 98 + [1, 0]}
    series["delivered"][98] = 0
    with start_app().http.application.app_context():
        drawn = formatting.plot(range(0, 6000, 60), 60, series, series["failed"], only_failed=True)
    columns = drawn["columns"]
    assert (len(columns), drawn["most"]) == (formatting.LEAST_COLUMNS, 4)
    assert [column["is_marked"] for column in columns] == [False] * 22 + [True, False]
    assert columns[-2]["bars"] == [("failed", 3, 1)]
    assert columns[-1]["title"].endswith("01:39 to 01:40: 4 delivered")


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
    assert (content["text"], content["html"]) == (text, html)


def test_empty_headers_are_left_out() -> None:
    extra = {"in_reply_to": "<1@b>", "attachments": [{}]}
    payload: dict[str, Any] = {
        "sender": "Ada <a@b>",
        "recipients": ["x@y", "z@y"],
        "subject": "",
        "date": None,
        "extra": extra,
    }
    known = [("Sender", "Ada <a@b>"), ("Recipients", "x@y, z@y"), ("in_reply_to", "<1@b>")]
    assert email_content(payload)["headers"] == known
    payload["headers"] = [{"name": "Received", "value": "from a"}, {"name": "Received", "value": "from b"}]
    assert email_content(payload)["headers"] == [("Received", "from a"), ("Received", "from b")]


@pytest.mark.parametrize("tag", ["link", "META", "Base", "iframe", "object", "embed", "frame"])
def test_elements_that_load_something_do_not_reach_the_browser(tag: str) -> None:
    assert f"<{tag}".lower() not in harmless_html(f"<p>x</p><{tag} href=y><{tag}/><{tag}\n></{tag}>").lower()


def test_other_elements_stay_as_they_are_and_the_length_is_bounded() -> None:
    html = "<linked><basis><p style='color: red'>x</p>"
    assert harmless_html(html) == html
    assert len(harmless_html("x" * 2 * MOST_SHOWN_CHARS)) == MOST_SHOWN_CHARS
