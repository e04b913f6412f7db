"""/api/admin/decisions and /api/admin/deliveries over HTTP: what is refused, released and replayed, and by whom.

What the filters find, the order of the lists and the sentences are tested in tests/orchestrator/operations.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from orchestrator.operations.search import FIELDS
from tests.routes.conftest import App, StartApp, bearer
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, Server, email
from tests.support.sink import Reply, Sink

LATER = Reply(503, headers={"Retry-After": "600"})
SUBJECT, SENDER = "Grievance about lot 456", "whistle@blower.example"
LOT = "Lot 456 : nouvelle mission"


def ask(app: App, path: str) -> Any:
    return app.http.get(f"/api/admin/{path}", headers=bearer(ADMIN_TOKEN)).get_json()


def act(app: App, path: str, **document: Any) -> Any:
    return app.http.post(f"/api/admin/{path}", json=document, headers=bearer(ADMIN_TOKEN)).get_json()


def subjects(app: App, query: str = "") -> list[str]:
    return [each["subject"] for each in ask(app, f"decisions?{query}")["decisions"]]


@pytest.fixture(params=["sqlite", "redis"])
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param == "sqlite":
        return {}
    server: RedisServer = request.getfixturevalue("redis_server")
    return {"redis_url": server.url}


@pytest.fixture
def stopped(start_app: StartApp, sink: Sink, settings: dict[str, Any]) -> App:
    """A delivered email, and one of the same group that was not sent."""
    app = start_app(webhook_url=sink.url, **settings)
    app.post(email(subject=LOT, sender="first@a.example"))
    app.settle()
    assert app.status_of(email(subject=f"{LOT} bis", sender="second@b.example")) == "skipped_subject_group"
    return app


def test_each_email_is_listed_with_its_reason_newest_first(stopped: App, settings: dict[str, Any]) -> None:
    stopped.post(email(subject=LOT, sender="first@a.example"))
    stopped.settle()
    second, first = ask(stopped, "decisions")["decisions"]
    assert (first["status"], first["gate"], first["original"], first["repeats"]) == ("processed", None, None, 1)
    assert first["reason"].startswith("Delivered to default at ")
    assert (second["status"], second["original"]) == ("skipped_subject_group", first["id"])
    assert second["reason"].endswith(" from first@a.example, delivered to default")
    assert second["releasable_until"] > second["received_at"]
    assert {first["store"], second["store"]} == {"redis" if settings else "local"}
    one = ask(stopped, f"decisions/{second['id']}")
    assert (one["payload"]["subject"], one["original_email"]["id"]) == (f"{LOT} bis", first["id"])
    assert ask(stopped, "decisions/nothing")["code"] == "unknown"
    assert subjects(stopped, "q=second@b&gate=subject_group&provider=gmail&route=everything%20else") == [f"{LOT} bis"]


def test_a_released_email_is_delivered_once_and_audited(
    stopped: App, sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    second, first = ask(stopped, "decisions")["decisions"]
    path = f"decisions/{second['id']}/release"
    assert act(stopped, path, dry_run=True)["status"] == "would_release"
    answer = act(stopped, path)
    assert (answer["success"], answer["status"], answer["decision"]["status"]) == (True, "released", "processed")
    assert [each.payload["subject"] for each in sink.accepted] == [LOT, f"{LOT} bis"]
    again = stopped.http.post(f"/api/admin/{path}", headers=bearer(ADMIN_TOKEN))
    assert (again.status_code, again.get_json()["code"]) == (409, "already_released")
    assert act(stopped, f"decisions/{first['id']}/release")["code"] == "not_suppressed"
    assert act(stopped, "decisions/nothing/release")["code"] == "unknown"
    assert caplog.text.count(f"AUDIT release entry={second['id']} force=False by=api") == 1


def test_all_that_match_are_released_with_the_count_first(
    stopped: App, sink: Sink, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    refused = act(stopped, "decisions/release")
    assert (refused["status"], refused["field"]) == (400, "all")
    assert ", ".join(FIELDS) in refused["detail"]
    counted = act(stopped, "decisions/release", dry_run=True, q="second@b")
    assert (counted["matched"], counted["would_release"], counted["dry_run"]) == (1, 1, True)
    done = act(stopped, "decisions/release", all=True)
    assert (done["matched"], done["released"]) == (1, 1)
    eventually(lambda: len(sink.accepted) == 2)
    assert act(stopped, "decisions/release", gate="subject_group")["matched"] == 0


def test_a_delivery_is_replayed_and_says_what_came_of_it(start_app: StartApp, settings: dict[str, Any]) -> None:
    with Sink(otherwise=Reply(422)) as sink:
        app = start_app(webhook_url=sink.url, **settings)
        id_ = f"{app.post(email()).get_json()['id']}:default"
        one = ask(app, f"deliveries/{id_}")
        assert (one["status"], one["reason"], one["payload"]["subject"]) == (
            "dead",
            "default: answered 422",
            "Rapport hebdomadaire",
        )
        assert act(app, f"deliveries/{id_}/replay", dry_run=True)["status"] == "would_replay"
        sink.otherwise = Reply()
        answer = act(app, f"deliveries/{id_}/replay")
        assert (answer["status"], answer["delivery"]["status"]) == ("replayed", "delivered")
        assert "payload" not in answer["delivery"]
        assert [each.webhook_id for each in sink.received] == [one["webhook_id"]] * 2
        assert act(app, f"deliveries/{id_}/replay")["code"] == "already_delivered"
        assert act(app, "deliveries/replay", destination="default", dry_run=True) == {
            "success": True,
            "dry_run": True,
            "matched": 1,
            "already_delivered": 1,
        }
        assert act(app, "deliveries/nothing:default/replay")["code"] == "unknown"
        assert ask(app, "deliveries/nothing")["code"] == "unknown"


def test_suppressed_emails_without_a_payload_cannot_be_released(
    start_app: StartApp, sink: Sink, settings: dict[str, Any]
) -> None:
    app = start_app(webhook_url=sink.url, keep_suppressed="0", **settings)
    for name in ("first", "second"):
        app.post(email(subject=f"{LOT} {name}", sender=f"{name}@a.example"))
        app.settle()
    second, _ = ask(app, "decisions")["decisions"]
    assert (second["status"], second["releasable_until"]) == ("skipped_subject_group", None)
    for document in ({}, {"dry_run": True}):
        assert act(app, f"decisions/{second['id']}/release", **document)["code"] == "no_payload"


FORGED = [
    b"dead\n1\n\xed\xa0\x80\ncrm",
    b"dead\n" + b"9" * 30 + b"\n1\ncrm",
    b"[" * 2000,
    b"dead\n1\n1\ncrm\n",
    b"waiting\n1\n1\ncrm",
    b"%d" % ((1 << 63) - 1),
]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        *(
            (f"{path}?{query}", query.partition("=")[0])
            for path in ("decisions", "deliveries")
            for query in (
                "status=gone",
                "gate=lock",
                "since=yesterday",
                "until=x",
                "limit=0",
                "limit=1001",
                "cursor=x",
                "cursor=WzEsMiwzXQ",
                "cursor=é",
                "colour=red",
            )
        ),
        *(
            (f"deliveries?status=dead&cursor={base64.urlsafe_b64encode(place).decode().rstrip('=')}", "cursor")
            for place in FORGED
        ),
    ],
)
def test_a_wrong_question_is_refused_by_its_field(app: App, path: str, field: str) -> None:
    answer = ask(app, path)
    assert (answer["status"], answer["field"]) == (400, field)


def test_a_forged_place_is_only_a_place(app: App) -> None:
    place = base64.urlsafe_b64encode(FORGED[-1]).decode().rstrip("=")
    assert ask(app, f"decisions?cursor={place}&q=lot")["decisions"] == []


@pytest.mark.parametrize(
    ("path", "document", "field"),
    [
        ("decisions/release", {"status": 1}, "status"),
        ("decisions/release", {"q": ["x"]}, "q"),
        ("decisions/release", {"dry_run": "yes"}, "dry_run"),
        ("decisions/release", {"limit": 1}, "limit"),
        ("decisions/release", {"force": True, "q": ""}, "all"),
        ("decisions/release", {"all": True, "gate": "media"}, "all"),
        ("deliveries/replay", {"status": "processed"}, "status"),
        ("deliveries/replay", {"new_id": True}, "all"),
        ("decisions/x/release", {"q": "x"}, "q"),
        ("decisions/x/release", {"force": 1}, "force"),
        ("deliveries/x/replay", {"new_id": 1}, "new_id"),
    ],
)
def test_a_wrong_action_is_refused_by_its_field(app: App, path: str, document: Any, field: str) -> None:
    answer = act(app, path, **document)
    assert (answer["status"], answer["field"]) == (400, field)


@pytest.mark.parametrize("path", ["decisions", "decisions/x", "deliveries", "deliveries/x"])
def test_a_stranger_sees_nothing(app: App, path: str) -> None:
    assert app.http.get(f"/api/admin/{path}").status_code == 401
    action = "release" if path.startswith("decisions") else "replay"
    assert app.http.post(f"/api/admin/{path}/{action}").status_code == 401


def test_with_strict_privacy_only_digests_are_stored_and_exact_search_works(
    start_app: StartApp, sink: Sink, settings: dict[str, Any], tmp_path: Path
) -> None:
    app = start_app(webhook_url=sink.url, privacy="strict", **settings)
    id_ = app.post(email(subject=SUBJECT, sender=SENDER, message_id="")).get_json()["id"]
    for q in (SUBJECT, SENDER, SENDER.upper()):
        (found,) = ask(app, f"decisions?q={q}")["decisions"]
        assert (found["subject"], found["sender"]) == ("", "")
    assert subjects(app, "q=whistle") == []
    shown = repr(ask(app, f"decisions/{id_}")) + repr(ask(app, "deliveries"))
    assert SENDER not in shown and SUBJECT not in shown
    app.service.close()
    for file in (tmp_path / "data").iterdir():
        assert SENDER.encode() not in file.read_bytes() and SUBJECT.encode() not in file.read_bytes(), file


def test_every_process_lists_everything(tmp_path: Path) -> None:
    with Sink() as sink, Server(tmp_path / "data", WEBHOOK_URL=sink.url, WEB_CONCURRENCY="3") as server:
        for number in range(4):
            server.post(email(subject=f"number {number}"))
        url = f"{server.url}/api/admin/decisions?q=number"
        for _ in range(6):
            found = requests.get(url, headers=bearer(ADMIN_TOKEN), timeout=60).json()["decisions"]
            assert [each["subject"] for each in found] == [f"number {number}" for number in (3, 2, 1, 0)]


@pytest.mark.real_redis
def test_while_redis_is_gone_the_lists_stay_and_a_reset_is_refused(
    start_app: StartApp, sink: Sink, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    redis = RedisServer().start()
    app = start_app(webhook_url=sink.url, redis_url=redis.url, redis_timeout_ms=500)
    app.post(email(subject="before"))
    redis.stop()
    eventually(lambda: app.service.coordinator.redis.status == "gone")
    assert app.status_of(email(subject="alone")) == "processed"
    assert subjects(app) == ["alone", "before"]
    assert [each["store"] for each in ask(app, "decisions")["decisions"]] == ["local", "redis"]
    answer = app.reset({"scope": "date", "value": "2026-11-16"})
    assert answer.status_code == 503
    assert answer.get_json()["detail"].startswith("a reset needs Redis, so that all machines forget")
