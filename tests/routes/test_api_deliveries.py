"""/api/admin/deliveries: page by page, and why each one waits."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.routes.conftest import App, StartApp, bearer
from tests.support.server import ADMIN_TOKEN, email
from tests.support.sink import Reply, Sink

LATER = Reply(503, headers={"Retry-After": "600"})


def ask(app: App, path: str) -> Any:
    return app.http.get(f"/api/admin/{path}", headers=bearer(ADMIN_TOKEN)).get_json()


def pages(app: App, query: str, limit: int) -> Iterator[list[str]]:
    cursor = ""
    for _ in range(50):
        answer = ask(app, f"deliveries?{query}&limit={limit}{cursor}")
        yield [each["id"] for each in answer["deliveries"]]
        assert answer["more"] is (answer["next"] is not None)
        if not answer["more"]:
            return
        cursor = f"&cursor={answer['next']}"
    raise AssertionError("there is no end to it")


@pytest.mark.parametrize("query", ["status=waiting", "status=waiting&destination=crm", "", "destination=slack"])
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_page_by_page_each_delivery_is_shown_once(start_app: StartApp, tmp_path: Path, query: str, limit: int) -> None:
    with Sink(otherwise=LATER) as sink:
        config = tmp_path / "m.toml"
        both = "".join(
            f"[destinations.{name}]\nurl = '{sink.url}'\nbreaker_failures = 0\n" for name in ("crm", "slack")
        )
        config.write_text(f"{both}[[routes]]\nname = 'all'\ndestinations = ['crm', 'slack']\nsubject_groups = 'off'\n")
        app = start_app(mailonce_config=config)
        for number in range(3):
            app.post(email(subject=f"number {number}"))
        whole = [each["id"] for each in ask(app, f"deliveries?{query}")["deliveries"]]
        found = list(pages(app, query, limit))
    assert [id_ for page in found for id_ in page] == whole
    assert len(whole) == len(set(whole)) == (3 if "destination" in query else 6)
    assert all(len(page) == limit for page in found[:-1])


def test_a_cursor_with_half_a_character_is_refused(start_app: StartApp, sink: Sink) -> None:
    cursor = base64.urlsafe_b64encode(rb'[null, 1, "\ud800", "crm"]').decode().rstrip("=")
    answer = ask(start_app(webhook_url=sink.url), f"deliveries?cursor={cursor}")
    assert (answer["status"], answer.get("field")) == (400, "cursor")


@pytest.mark.parametrize("cursor", ["x", "bm90IGpzb24", "WzEsMiwzXQ", "W251bGwsIDEsICJhIiwgImIiXQ", "é"])
def test_a_cursor_of_nothing_or_of_another_list_is_refused(start_app: StartApp, sink: Sink, cursor: str) -> None:
    answer = ask(start_app(webhook_url=sink.url), f"deliveries?status=dead&cursor={cursor}")
    assert (answer["status"], answer["field"]) == (400, "cursor")


def test_what_waits_says_why_for_how_long_and_where_its_payload_is(start_app: StartApp) -> None:
    with Sink(otherwise=LATER) as sink:
        app = start_app(webhook_url=sink.url)
        for number in range(6):
            app.post(email(subject=f"number {number}"))
        waiting = ask(app, "deliveries?status=waiting")["deliveries"]
        (id_,) = {each["id"] for each in waiting if each["tries"] == 0}
        one = ask(app, f"deliveries/{id_}")
    assert {each["reason"] for each in waiting} == {"default: failed too often, given a pause"}, "the breaker is open"
    assert {each["tries"] for each in waiting} == {0, 1}
    assert {(each["max_attempts"], each["storage"], each["provider"]) for each in waiting} == {(10, "disk", "gmail")}
    assert all(0 <= each["age_s"] < 60 and each["next_try"] for each in waiting)
    assert (one["reason"], one["storage"]) == ("default: failed too often, given a pause", "disk")
    assert not {"subject", "sender"} & waiting[0].keys(), "who wrote what is in no list"


def test_stats_have_the_totals_and_what_happened_over_a_span(app: App) -> None:
    for subject in ("one", "one", "two"):
        app.post(email(subject=subject))
    answer = ask(app, "stats?span=hour")
    assert (answer["totals"]["received"], answer["totals"]["duplicates"], answer["totals"]["delivered"]) == (3, 1, 2)
    assert answer["totals"]["statuses"] == {"already_processed": 1, "processed": 2}
    assert (answer["over_time"]["span"], answer["over_time"]["step_s"]) == ("hour", 60)
    assert answer["over_time"]["points"][-1]["received"] + answer["over_time"]["points"][-2]["received"] == 3
    assert answer["over_time"]["destinations"]["default"]["success_rate"] == 1.0
    assert answer["destinations"]["default"]["deliveries"]["delivered"] == 2
    assert ask(app, "stats")["over_time"]["span"] == "day"


@pytest.mark.parametrize(("query", "field"), [("span=year", "span"), ("span=", "span"), ("since=x", "since")])
def test_stats_of_something_else_are_refused_by_its_name(app: App, query: str, field: str) -> None:
    answer = ask(app, f"stats?{query}")
    assert (answer["status"], answer["field"]) == (400, field)
    assert "takes" in answer["detail"]
