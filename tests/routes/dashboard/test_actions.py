"""Actions on the page: what the dialog says, what is done, and that it is audited."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deduplication.journal.entry import DeliveryStatus
from orchestrator.audit import audit, keep_audit
from orchestrator.operations.search import DeliveryFilter, find_ids
from tests.routes.conftest import App, StartApp, impatient
from tests.routes.dashboard.conftest import FRAGMENT, Visitor, signed_in
from tests.support.server import email
from tests.support.sink import Reply, Sink
from tests.support.waiting import wait_for


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
    return start_app(toml=impatient(sink))


def dead(app: App) -> list[str]:
    return find_ids(app.service, DeliveryFilter(status=DeliveryStatus.DEAD))[0]


def test_one_delivery_is_sent_again_unless_it_was_received(
    app: App, operator: Visitor, sink: Sink, audited: Path
) -> None:
    app.post(email())
    sink.otherwise = Reply()
    (id_,) = dead(app)
    assert "Replay 1 delivery?" in operator.text(f"/do/replay?id={id_}")
    assert len(sink.received) == 1, "asking does nothing"
    answer = operator.post("/do/replay", id=id_, back="/decisions?outcome=dead_letter")
    assert (answer.status_code, answer.location) == (303, "/decisions?outcome=dead_letter")
    wait_for(lambda: find_ids(app.service, DeliveryFilter(status=DeliveryStatus.DELIVERED))[0] == [id_])
    assert "1 delivery: sent again." in operator.text("/decisions")
    assert "page, Ada: AUDIT replay" in audited.read_text()
    assert "page, Ada" in operator.text("/audit")
    for again, result in ((id_, "already delivered"), ("nobody:default", "unknown, or no longer stored.")):
        operator.post("/do/replay", id=again)
        assert f"1 delivery: {result}" in operator.text("/")
    assert len(sink.accepted) == 1


def test_all_that_match_are_counted_before_anything_is_done(
    app: App, operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("routes.dashboard.views.MOST_COUNTED", 3)
    for number in range(5):
        asked = operator.text("/do/replay?all=yes&outcome=dead_letter")
        assert f"Replay {'more than 3' if number > 3 else number} email{'s' * (number != 1)}?" in asked
        app.post(email(subject=f"number {number}", body=f"body {number}"))
    assert "disabled" in operator.text("/do/replay?all=yes&q=nothing") and "disabled" not in asked


def test_one_email_is_replayed_wherever_it_is_dead_and_keeps_its_names_while_it_waits(
    start_with: StartApp, sink: Sink
) -> None:
    with Sink() as well:
        app = start_with(crm=f"url = '{sink.url}'\nmax_attempts = 2", archive=well)
        id_ = app.post(email()).get_json()["id"]
        app.try_again()
        wait_for(lambda: dead(app) == [f"{id_}:crm"])
        operator, sink.otherwise = signed_in(app), Reply(503)
        operator.post("/do/replay", id=id_)
        assert "1 email: sent again." in operator.text("/")
        assert len(well.received) == 1
        operator.post("/do/forget", id=id_)
        assert "1 email: kept: still to be delivered." in operator.text("/")
        assert app.status_of(email()) == "queued"


@pytest.mark.parametrize(
    ("path", "status", "shown"),
    [
        ("/do/replay", 400, "Select at least one"),
        ("/do/replay?all=yes&status=lost", 400, "status must be"),
        ("/do/nothing?all=yes", 404, "There is no page at this address"),
        ("/destinations/nowhere/pause", 404, "There is no page at this address"),
        ("/forget?scope=all&value=x", 400, "scope must be one of"),
        ("/forget?scope=subject_group&value=", 400, "value must be"),
    ],
)
def test_an_invalid_request_says_what_is_expected(operator: Visitor, path: str, status: int, shown: str) -> None:
    answer = operator.get(path)
    assert (answer.status_code, shown in answer.text) == (status, True)
    form = dict(each.split("=") for each in path.partition("?")[2].split("&") if each)
    if status == 400:
        assert operator.post(path.partition("?")[0], **form).status_code == 400


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("scope=subject_group&value=lot_1", "4 names will be forgotten"),
        ("scope=subject_group&value=lot_1@example.org", "4 names will be forgotten"),
        ("scope=subject_group&value=lot_1@other.example", "0 names will be forgotten"),
        ("scope=media&value=https://files.example/1", "0 names will be forgotten"),
    ],
)
def test_the_dialog_says_how_many_names_will_be_forgotten(
    operator: Visitor, sink: Sink, query: str, shown: str
) -> None:
    sink.otherwise = Reply()
    operator.app.post(email(subject="Lot 1"))
    assert shown in operator.text(f"/forget?{query}")
    assert operator.app.status_of(email(subject="Lot 1")) == "already_processed", "asking forgets nothing"
    operator.post("/forget", **dict(each.split("=") for each in query.split("&")))
    assert shown.replace("will be ", "") in operator.text("/")


def test_actions_on_a_destination_are_asked_for_audited_and_say_how_they_went(
    app: App, operator: Visitor, sink: Sink, audited: Path
) -> None:
    """test_in_browser.py pauses and resumes one."""
    assert "<html" not in operator.get("/destinations/default/pause", **FRAGMENT).text
    operator.post("/destinations/default/pause", reason="x" * 201)
    assert "reason must be at most 200 characters" in operator.text("/")
    assert not app.service.guard.pause_of("default").is_paused
    operator.post("/destinations/default/pause", reason="it <b>moves</b>")
    shown = operator.text("/destinations")
    assert "it &lt;b&gt;moves&lt;/b&gt;" in shown and "page, Ada" in shown
    assert not any("<b>moves" in operator.text(path) for path in ("/", "/audit", "/servers", "/notices"))
    assert app.status_of(email()) == "queued"
    assert "1 delivery waits" in operator.text("/destinations/default/resume")
    for reply, result in ((Reply(), "accepted the test event: answered 200"), (Reply(500), "did not accept the test")):
        sink.otherwise = reply
        operator.post("/destinations/default/test")
        assert result in operator.text("/")
    assert [event.payload["type"] for event in sink.received] == ["mailonce.test"] * 2
    operator.post("/destinations/default/resume")
    written = audited.read_text()
    assert all(f"page, Ada: AUDIT {what} destination=default" in written for what in ("pause", "resume", "test"))
