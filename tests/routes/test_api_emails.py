"""/api/admin/decisions and /api/admin/deliveries over HTTP: what is refused, released and replayed.

What the filters find, the order of the lists and the sentences are tested in tests/orchestrator/operations.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.operations.search import FIELDS
from tests.routes.conftest import App, StartApp, bearer, impatient
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, email
from tests.support.sink import Reply, Sink

SUBJECT, SENDER = "Grievance about lot 456", "whistle@blower.example"
LOT = "Lot 456 : nouvelle mission"
Eventually = Callable[[Callable[[], bool]], None]


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


def test_emails_are_listed_released_once_and_audited(
    start_app: StartApp,
    sink: Sink,
    settings: dict[str, Any],
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = start_app(webhook_url=sink.url, **settings)
    for name in ("first", "second", "third"):
        app.post(email(subject=f"{LOT} {name}", sender=f"{name}@a.example"))
        app.settle()
    _, second, first = ask(app, "decisions")["decisions"]
    assert (first["status"], first["gate"], first["original"], first["repeats"]) == ("processed", None, None, 0)
    assert (second["status"], second["original"]) == ("skipped_subject_group", first["id"])
    assert second["reason"].endswith(" from first@a.example, delivered to default")
    assert second["releasable_until"] > second["received_at"]
    assert {first["store"], second["store"]} == {"redis" if settings else "local"}
    one = ask(app, f"decisions/{second['id']}")
    assert (one["payload"]["subject"], one["original_email"]["id"]) == (f"{LOT} second", first["id"])
    assert subjects(app, "q=second@a&gate=subject_group&provider=gmail&route=everything%20else") == [f"{LOT} second"]
    page = ask(app, "decisions?limit=2")
    assert (page["more"], subjects(app, f"cursor={page['next']}")) == (True, [f"{LOT} first"])

    path = f"decisions/{second['id']}/release"
    assert act(app, path, dry_run=True)["status"] == "would_release"
    answer = act(app, path)
    assert (answer["success"], answer["status"], answer["decision"]["status"]) == (True, "released", "processed")
    assert [each.payload["subject"] for each in sink.accepted] == [f"{LOT} first", f"{LOT} second"]
    again = app.http.post(f"/api/admin/{path}", headers=bearer(ADMIN_TOKEN))
    assert (again.status_code, again.get_json()["code"]) == (409, "already_released")
    assert caplog.text.count(f"AUDIT release entry={second['id']} force=False") == 1

    refused = act(app, "decisions/release")
    assert (refused["status"], refused["field"], ", ".join(FIELDS) in refused["detail"]) == (400, "all", True)
    counted = act(app, "decisions/release", dry_run=True, q="third@a")
    assert counted == {"success": True, "dry_run": True, "matched": 1, "would_release": 1}
    assert act(app, "decisions/release", all=True)["released"] == 1
    eventually(lambda: len(sink.accepted) == 3)
    assert act(app, "decisions/release", gate="subject_group")["matched"] == 0
    for path in ("decisions/nothing", "deliveries/nothing"):
        assert (ask(app, path)["status"], ask(app, path)["code"]) == (404, "unknown")
    for path in ("decisions/nothing/release", "deliveries/nothing:default/replay"):
        assert (act(app, path)["status"], act(app, path)["code"]) == (404, "unknown")


def test_a_delivery_is_replayed_and_the_answer_has_the_result(
    start_app: StartApp, settings: dict[str, Any], tmp_path: Path
) -> None:
    with Sink(otherwise=Reply(422)) as sink:
        app = start_app(mailonce_config=impatient(tmp_path, sink), **settings)
        id_ = f"{app.post(email(subject='Report')).get_json()['id']}:default"
        one = ask(app, f"deliveries/{id_}")
        shown = (one["status"], one["reason"], one["payload"]["subject"])
        assert shown == ("dead", "default: answered 422; tried 1 times", "Report")
        assert act(app, f"deliveries/{id_}/replay", dry_run=True)["status"] == "would_replay"
        sink.otherwise = Reply()
        answer = act(app, f"deliveries/{id_}/replay")
        assert (answer["status"], answer["delivery"]["status"]) == ("replayed", "delivered")
        assert "payload" not in answer["delivery"]
        assert [each.webhook_id for each in sink.received] == [one["webhook_id"]] * 2
        assert act(app, f"deliveries/{id_}/replay")["code"] == "already_delivered"
        counted = act(app, "deliveries/replay", destination="default", dry_run=True)
        assert counted == {"success": True, "dry_run": True, "matched": 1, "already_delivered": 1}


def test_suppressed_emails_without_a_payload_cannot_be_released(start_app: StartApp, sink: Sink) -> None:
    app = start_app(webhook_url=sink.url, keep_suppressed="0")
    for name in ("first", "second"):
        app.post(email(subject=f"{LOT} {name}", sender=f"{name}@a.example"))
    second, _ = ask(app, "decisions")["decisions"]
    assert (second["status"], second["releasable_until"]) == ("skipped_subject_group", None)
    for document in ({}, {"dry_run": True}):
        assert act(app, f"decisions/{second['id']}/release", **document)["code"] == "no_payload"


def test_an_invalid_request_is_refused_with_its_field(app: App) -> None:
    wrong = ("status=gone", "gate=lock", "since=yesterday", "until=1", "limit=0", "limit=1001", "colour=red")
    cursors = (
        "cursor=x",
        "cursor=é",
        "cursor=e.id~1~1~",
        "cursor=e.created_ms~-1~1~",
        f"cursor=e.created_ms~{'9' * 30}~1~",
    )
    for path in ("decisions", "deliveries"):
        for query in (*wrong, *cursors):
            answer = ask(app, f"{path}?{query}")
            assert (answer["status"], answer["field"]) == (400, query.partition("=")[0]), query
    for path, document, field in (
        ("decisions/release", {"status": 1}, "status"),
        ("decisions/release", {"q": ["x"]}, "q"),
        ("decisions/release", {"since": 1}, "since"),
        ("decisions/release", {"dry_run": "yes"}, "dry_run"),
        ("decisions/release", {"limit": 1}, "limit"),
        ("decisions/release", {"force": True, "q": ""}, "all"),
        ("decisions/release", {"all": True, "gate": "media"}, "all"),
        ("deliveries/replay", {"status": "processed"}, "status"),
        ("deliveries/replay", {"new_id": True}, "all"),
        ("decisions/x/release", {"q": "x"}, "q"),
        ("decisions/x/release", {"force": 1}, "force"),
        ("deliveries/x/replay", {"new_id": 1}, "new_id"),
    ):
        answer = act(app, path, **document)
        assert (answer["status"], answer["field"]) == (400, field), (path, document)


def test_with_strict_privacy_only_digests_are_stored_and_exact_search_works(
    start_app: StartApp, sink: Sink, settings: dict[str, Any], tmp_path: Path
) -> None:
    app = start_app(webhook_url=sink.url, privacy="strict", **settings)
    id_ = app.post(email(subject=SUBJECT, sender=SENDER, message_id="")).get_json()["id"]
    for q in (SUBJECT, SENDER, SENDER.upper()):
        (found,) = ask(app, f"decisions?q={q}")["decisions"]
        assert (found["subject"], found["sender"]) == ("", "")
    assert subjects(app, f"sender={SENDER}") == [""]
    assert subjects(app, "q=whistle") == []
    shown = repr(ask(app, f"decisions/{id_}")) + repr(ask(app, "deliveries"))
    assert "lot_456@" in shown, "the group counts among the emails of one domain, which is not shown"
    domain = SENDER.partition("@")[2]
    assert domain not in shown and SUBJECT not in shown
    app.service.close()
    for file in (tmp_path / "data").iterdir():
        assert domain.encode() not in file.read_bytes() and SUBJECT.encode() not in file.read_bytes(), file


@pytest.mark.real_redis
def test_while_redis_is_gone_the_lists_stay_and_a_reset_is_refused(
    start_app: StartApp, sink: Sink, eventually: Eventually
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
    assert (answer.status_code, answer.get_json()["code"]) == (503, "retry_later")
    assert answer.get_json()["detail"].startswith("a reset needs Redis, so that all machines forget")
    assert answer.headers["Retry-After"]
