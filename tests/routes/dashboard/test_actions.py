"""Acting from the page: what is said before, what is done, and that it is audited."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.audit import audit, keep_audit
from orchestrator.operations.deliveries import list_deliveries
from orchestrator.operations.search import DeliveryFilter
from routes.dashboard.actions import AT_ONCE
from tests.routes.conftest import App, StartApp
from tests.routes.dashboard.conftest import FRAGMENT, Visitor, signed_in
from tests.support.server import email
from tests.support.sink import Reply, Sink

ALL_DEAD = "/do/replay?all=yes&status=dead&back=/deliveries?status=dead"


@pytest.fixture
def audited(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "data").mkdir(exist_ok=True)
    handler = keep_audit(tmp_path / "data", "service")
    yield tmp_path / "data/audit.log"
    audit.removeHandler(handler)
    handler.close()


@pytest.fixture
def sink() -> Iterator[Sink]:
    with Sink(otherwise=Reply(422)) as sink:
        yield sink


@pytest.fixture
def app(start_app: StartApp, sink: Sink) -> App:
    return start_app(webhook_url=sink.url)


def ids(app: App, **wanted: Any) -> list[str]:
    return [each.id for each in list_deliveries(app.service, DeliveryFilter(**wanted), 1000).deliveries]


def dead(app: App) -> list[str]:
    return ids(app, status="dead")


def fields_of(page: str) -> dict[str, str]:
    return dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', page.rpartition("</header>")[2]))


def test_one_delivery_is_sent_again_at_once(
    app: App, operator: Visitor, sink: Sink, audited: Path, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    app.post(email())
    sink.otherwise = Reply()
    (id_,) = dead(app)
    asked = operator.text(f"/do/replay?id={id_}")
    assert "Replay 1 delivery?" in asked
    assert len(sink.received) == 1, "asking does nothing"
    answer = operator.post("/do/replay", id=id_, back="/deliveries?status=dead")
    assert (answer.status_code, answer.location) == (303, "/deliveries?status=dead")
    eventually(lambda: len(sink.accepted) == 1)  # the thread that looks for what is due may have it already
    assert "1 delivery: sent again." in operator.text("/deliveries")
    assert "page, Ada: AUDIT replay" in audited.read_text()
    assert "page, Ada" in operator.text("/audit")


def test_what_the_destination_has_is_left_alone(sink: Sink, operator: Visitor) -> None:
    app = operator.app
    sink.otherwise = Reply()
    app.post(email())
    (id_,) = ids(app)
    operator.post("/do/replay", id=id_)
    assert "1 delivery: the destination has received it" in operator.text("/")
    assert len(sink.accepted) == 1


def test_all_that_match_are_counted_first_and_then_done_a_few_at_a_time(
    app: App, operator: Visitor, sink: Sink, audited: Path
) -> None:
    total = AT_ONCE + 7
    for number in range(total):
        app.post(email(subject=f"number {number}", body=f"body {number}"))
    app.service.retrier.close()  # what is made due stays so, and can be counted
    asked = operator.text(ALL_DEAD)
    assert f"Replay {total} deliveries?" in asked and "status=dead" in asked
    first = operator.post("/do/replay", **fields_of(asked) | {"force": "yes"})
    assert first.status_code == 200
    assert f"Replay: {AT_ONCE} of {total}" in first.text
    assert fields_of(first.text)["force"] == "yes"
    assert len(dead(app)) == 7
    rest = operator.http.post("/do/replay", data=fields_of(first.text), headers=FRAGMENT)
    assert rest.headers["HX-Redirect"] == "/deliveries?status=dead"
    assert dead(app) == []
    assert f"{total} deliveries: sent again." in operator.text("/deliveries")
    assert audited.read_text().count("AUDIT replay") == total


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/do/replay", 400, "Select at least one"),
        ("/do/replay?" + "&".join("id=x:y" for _ in range(201)), 400, "Select up to 200"),
        ("/do/replay?all=yes&status=lost", 400, "status must be one of"),
        ("/do/nothing?all=yes", 404, "There is no page at this address"),
        ("/destinations/nowhere/pause", 404, "There is no page at this address"),
        ("/destinations/default/explode", 404, "There is no page at this address"),
    ],
)
def test_a_wrong_wish_is_told_what_it_takes(operator: Visitor, path: str, status: int, said: str) -> None:
    answer = operator.get(path)
    assert answer.status_code == status
    assert said in answer.text


def test_what_is_gone_by_now_is_said_to_be(operator: Visitor) -> None:
    operator.post("/do/replay", id="nobody:default")
    assert "1 delivery: unknown, or no longer stored." in operator.text("/")


def test_a_destination_is_paused_resumed_and_tested_after_asking(
    app: App, operator: Visitor, sink: Sink, audited: Path
) -> None:
    assert "New emails for it are queued" in operator.text("/destinations/default/pause")
    operator.post("/destinations/default/pause", reason="it <b>moves</b>")
    assert app.service.states.of("default").is_paused
    shown = operator.text("/destinations")
    assert "it &lt;b&gt;moves&lt;/b&gt;" in shown and "page, Ada" in shown
    assert app.status_of(email()) == "queued"
    assert "1 delivery waits" in operator.text("/destinations/default/resume")
    sink.otherwise = Reply()
    operator.post("/destinations/default/test")
    assert "accepted the test event: answered 200" in operator.text("/")
    (event,) = sink.received
    assert event.payload["type"] == "mailonce.test"
    sink.otherwise = Reply(500)
    operator.post("/destinations/default/test")
    assert "did not accept the test event" in operator.text("/")
    operator.post("/destinations/default/resume")
    assert not app.service.states.of("default").is_paused
    written = audited.read_text()
    assert all(f"page, Ada: AUDIT {what} destination=default" in written for what in ("pause", "resume", "test"))


def test_a_reason_that_is_too_long_is_refused(app: App, operator: Visitor) -> None:
    operator.post("/destinations/default/pause", reason="x" * 201)
    assert "reason must be at most 200 characters" in operator.text("/")
    assert not app.service.states.of("default").is_paused


def test_a_fragment_is_only_the_question(app: App) -> None:
    operator = signed_in(app)
    asked = operator.get("/destinations/default/pause", **FRAGMENT).text
    assert "Pause default?" in asked and "<html" not in asked
