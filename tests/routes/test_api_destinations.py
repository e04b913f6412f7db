"""A destination that is paused, by its own 410 or by an operator, and what becomes of the emails meanwhile."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator.delivery.guard import Blocker
from tests.routes.commands.conftest import Run, run
from tests.routes.conftest import App, StartApp, bearer
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, email
from tests.support.sink import Reply, Sink

__all__ = ["run"]  # a fixture

Eventually = Callable[[Callable[[], bool]], None]
DOWN, GONE = Reply(500), Reply(410)


def toml(path: Path, **destinations: str) -> Path:
    """A file with these destinations, one route to all of them, and no subject groups."""
    sections = [f"[destinations.{name}]\n{lines}" for name, lines in destinations.items()]
    route = f"[[routes]]\nname = 'all'\ndestinations = {list(destinations)}\nsubject_groups = 'off'\n"
    path.write_text("\n".join([*sections, route]))
    return path


def admin(app: App, path: str, body: object = None) -> Any:
    headers = bearer(ADMIN_TOKEN)
    if body is None:
        return app.http.get(f"/api/admin/{path}", headers=headers).get_json()
    return app.http.post(f"/api/admin/{path}", json=body, headers=headers).get_json()


def records(app: App) -> dict[str, Any]:
    return {each["destination"]: each for each in admin(app, "deliveries")["deliveries"]}


def crm(app: App) -> Any:
    return admin(app, "destinations")["destinations"]["crm"]


@pytest.fixture
def config(sink: Sink, tmp_path: Path) -> Path:
    return toml(tmp_path / "m.toml", crm=f"url = '{sink.url}'\nbreaker_pause_s = 1")


def test_410_pauses_the_destination_and_loses_nothing(
    start_app: StartApp, tmp_path: Path, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    with Sink(GONE) as sink:
        app = start_app(mailonce_config=toml(tmp_path / "m.toml", crm=f"url = '{sink.url}'\nmax_attempts = 1"))
        for number in range(6):
            assert app.status_of(email(subject=f"number {number}")) == "queued"
        reasons = {(each["status"], each["reason"]) for each in admin(app, "deliveries")["deliveries"]}
        assert reasons == {("waiting", "crm: paused (answered 410 Gone)")}
        assert (crm(app)["paused"]["by"], crm(app)["waiting"]) == ("410", 6)
        with app.service.journal.step() as step:
            step.query("UPDATE deliveries SET next_try_ms = ?", (step.now_ms,))
        app.service.retrier.tick()
        assert len(sink.received) == 1, "nothing is sent there"
        assert admin(app, "destinations/crm/resume", {})["status"] == "resumed"
        eventually(lambda: len(sink.accepted) == 6)
        assert set(sink.counts().values()) == {1}
    assert caplog.text.count("AUDIT pause destination=crm by=410 reason=answered 410 Gone") == 1


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_a_pause_is_noticed_by_every_process_survives_a_restart_and_ends_with_resume(
    start_app: StartApp, sink: Sink, config: Path, eventually: Eventually, redis_server: RedisServer, store: str
) -> None:
    settings = {"mailonce_config": config} | ({"redis_url": redis_server.url} if store == "redis" else {})
    one, other = start_app(**settings), start_app(**settings)
    answer = admin(one, "destinations/crm/pause", {"reason": "moves to another host"})
    assert (answer["success"], answer["status"]) == (True, "paused")
    assert answer["paused"] == crm(other)["paused"]
    assert (answer["paused"]["reason"], answer["paused"]["by"]) == ("moves to another host", "api")
    eventually(lambda: other.service.guard.blocker("crm") is Blocker.PAUSED)
    eventually(lambda: other.status_of(email()) == "queued")  # a new Redis grants nothing at first (rule 13)
    for app in (one, other):
        app.service.close()
    again = start_app(**settings)
    eventually(lambda: again.status_of(email(subject="another")) == "queued")
    assert sink.received == []
    assert admin(again, "destinations/crm/resume", {})["status"] == "resumed"
    eventually(lambda: len(sink.accepted) == 2)
    assert crm(again)["paused"] is None
    assert admin(again, "destinations/crm/resume", {})["status"] == "not_paused"
    assert again.status_of(email(subject="a third")) == "processed"


def test_a_pause_is_shown_wherever_an_operator_looks_and_stops_replays_and_new_emails(
    start_app: StartApp, tmp_path: Path
) -> None:
    with Sink(otherwise=DOWN) as sink, Sink() as archive:
        both = {"crm": f"url = '{sink.url}'\nmax_attempts = 1", "archive": f"url = '{archive.url}'"}
        app = start_app(mailonce_config=toml(tmp_path / "m.toml", **both))
        shown = crm(app)
        assert [shown[key] for key in ("enabled", "breaker", "paused")] == [True, "closed", None]
        assert [shown[key] for key in ("waiting", "dead", "oldest_s", "public_keys")] == [0, 0, None, []]
        assert app.http.get("/health").get_json()["paused"] == {}
        app.post(email())
        tried, dead = len(sink.received), records(app)["crm"]["id"]
        paused = admin(app, "destinations/crm/pause", {"reason": "x"})["paused"]
        assert admin(app, "stats")["destinations"]["crm"]["paused"] == paused
        health = app.http.get("/health")
        shown = (health.status_code, health.get_json()["status"], health.get_json()["paused"])
        assert shown == (503, "degraded", {"crm": paused})
        answer = admin(app, f"deliveries/{dead}/replay", {})
        assert (answer["delivery"]["status"], answer["delivery"]["reason"]) == ("waiting", "crm: paused (x)")
        answer = app.post(email(subject="To both")).get_json()
        statuses = {name: each["status"] for name, each in answer["deliveries"].items()}
        assert (answer["status"], statuses) == ("queued", {"crm": "waiting", "archive": "delivered"})
        assert (len(sink.received), len(archive.received)) == (tried, 2)


def test_an_invalid_request_says_what_is_expected(start_app: StartApp, config: Path) -> None:
    app = start_app(mailonce_config=config)
    for path, body, status, field, detail in (
        ("crn/pause", {}, 404, "destination", "destination must be one of crm"),
        ("crn/resume", {}, 404, "destination", "destination must be one of crm"),
        ("crn/test", {}, 404, "destination", "destination must be one of crm"),
        ("crm/pause", {"reason": 7}, 400, "reason", "reason must be a valid string"),
        ("crm/pause", {"reason": "x" * 201}, 400, "reason", "reason must be at most 200 characters"),
        ("crm/pause", {"why": "x"}, 400, "why", "the body accepts reason"),
        ("crm/resume", {"reason": "x"}, 400, "reason", "the body accepts no fields"),
    ):
        answer = app.http.post(f"/api/admin/destinations/{path}", json=body, headers=bearer(ADMIN_TOKEN))
        assert (answer.status_code, answer.get_json()["field"], answer.get_json()["detail"]) == (status, field, detail)
    assert crm(app)["paused"] is None
    for path in ("crm/pause", "crm/resume"):
        answer = app.http.post(f"/api/admin/destinations/{path}", headers=bearer(ADMIN_TOKEN))
        assert answer.status_code == 200, "a body is not needed"


# mailonce pause, mailonce resume


def test_a_command_pauses_and_resumes_the_running_service_and_is_audited(
    run: Run, start_app: StartApp, sink: Sink, tmp_path: Path, eventually: Eventually
) -> None:
    toml(tmp_path / "mailonce.toml", crm=f"url = '{sink.url}'")
    app = start_app()
    assert run("pause", "crm", "--reason", "moves").exit_code == 0
    assert (crm(app)["paused"]["reason"], crm(app)["paused"]["by"]) == ("moves", getpass.getuser())
    eventually(lambda: app.service.guard.blocker("crm") is Blocker.PAUSED)
    assert app.status_of(email()) == "queued"
    assert sink.received == []
    assert "resumed" in run("resume", "crm").output
    eventually(lambda: len(sink.accepted) == 1)
    assert "was not paused" in run("resume", "crm").output
    for command in ("pause", "resume"):
        refused = run(command, "crn")
        assert (refused.exit_code, "destination must be one of crm" in refused.output) == (1, True)
    paused, resumed = (tmp_path / "data/audit.log").read_text().splitlines()
    assert f"mailonce, by {getpass.getuser()}: AUDIT pause destination=crm" in paused and "reason=moves" in paused
    assert "AUDIT resume destination=crm" in resumed


# A test event


def test_a_test_event_is_one_post_that_leaves_no_trace_and_is_not_stopped_by_a_pause(
    start_app: StartApp, config: Path, sink: Sink
) -> None:
    app = start_app(mailonce_config=config)
    admin(app, "destinations/crm/pause", {})
    taken = admin(app, "destinations/crm/test", {})
    assert (taken["success"], taken["status"], taken["status_code"], taken["error"]) == (True, "taken", 200, None)
    (event,) = sink.received
    assert (event.payload["type"], event.payload["destination"]) == ("mailonce.test", "crm")
    assert datetime.fromisoformat(event.payload["timestamp"]).tzinfo is UTC
    assert event.webhook_id.startswith("msg_test_")
    sink.otherwise = DOWN
    for _ in range(10):
        refused = admin(app, "destinations/crm/test", {})
        assert (refused["success"], refused["status"]) == (False, "refused")
        assert refused["error"] == f"crm: answered {DOWN.status}"
    assert crm(app)["breaker"] == "closed", "it counts for no breaker"
    assert admin(app, "deliveries")["deliveries"] == []


def test_the_public_key_of_a_destination_is_shown_and_never_its_secret(start_app: StartApp, tmp_path: Path) -> None:
    private = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="
    public = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="
    settings = f"url = 'https://crm.example'\nsecret = ['whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', '{private}']"
    app = start_app(mailonce_config=toml(tmp_path / "m.toml", crm=settings))
    assert crm(app)["public_keys"] == [public]
    assert private[5:20] not in app.http.get("/api/admin/destinations", headers=bearer(ADMIN_TOKEN)).get_data(True)
