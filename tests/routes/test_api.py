"""/api/admin over HTTP: what is refused, released, replayed, paused and forgotten.

What the filters find, the order of the lists, the sentences and the scopes of a reset are tested in
tests/orchestrator/operations.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator.delivery.guard import Blocker
from orchestrator.operations.search import FIELDS
from tests.routes.conftest import NEW_TOKEN, OLD_TOKEN, App, StartApp, bearer, impatient
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, email
from tests.support.sink import Reply, Sink
from tests.support.waiting import wait_for

SUBJECT, SENDER = "Grievance about lot 456", "whistle@blower.example"
LOT = "Lot 456 : nouvelle mission"
ALL = {"scope": "all", "confirm": "all"}


def subjects(app: App, query: str = "") -> list[str]:
    return [each["subject"] for each in app.ask(f"decisions?{query}")["decisions"]]


def crm(app: App) -> Any:
    return app.ask("destinations")["destinations"]["crm"]


# Requests that are refused


def test_without_the_admin_token_nothing_is_read_or_forgotten(start_app: StartApp) -> None:
    app = start_app(max_body_mb=1, admin_token=f"{OLD_TOKEN},{NEW_TOKEN}")
    app.post(email())
    for headers in ({}, bearer("wrong-token-of-some-length"), bearer(INGRESS_TOKEN)):
        for body in (b"{", b'{"scope": "all", "confirm": "all"}', b"x" * 2_000_000):
            answer = app.http.post("/api/admin/reset", data=body, content_type="application/json", headers=headers)
            assert (answer.status_code, answer.get_json()["code"]) == (401, "unauthorized")
    assert app.status_of(email()) == "already_processed"
    for token in (OLD_TOKEN, NEW_TOKEN):  # while tokens are rotated
        assert app.http.post("/api/admin/reset", json=ALL, headers=bearer(token)).status_code == 200


def test_an_invalid_document_is_refused_with_the_field_and_does_nothing(start_with: StartApp, sink: Sink) -> None:
    app = start_with(crm=sink)
    app.post(email())
    for path, document, field, error in (
        ("reset", {}, "scope", "email_id, subject_group, month, date, destination, media, all"),
        ("reset", {"scope": "everything"}, "scope", "scope must be 'email_id'"),
        ("reset", {"scope": "email_id"}, "value", "value must be the email_id to forget"),
        ("reset", {"scope": "month", "value": "November"}, "value", "a month such as 2026-11"),
        ("reset", {"scope": "date", "value": "2026-11"}, "value", "a day such as 2026-11-16"),
        ("reset", {"scope": "email_id", "value": "x", "dry_run": "false"}, "dry_run", "must be a valid boolean"),
        ("reset", {"scope": "email_id", "value": "x", "dryrun": True}, "dryrun", "scope, value, dry_run, confirm"),
        ("reset", {"scope": "all"}, "confirm", "confirm must be"),
        ("reset", {"scope": "all", "confirm": "ALL"}, "confirm", "confirm must be"),
        ("reset", [], None, "JSON object"),
        ("decisions/release", {}, "all", ", ".join(FIELDS)),
        ("decisions/release", {"status": 1}, "status", "status must be"),
        ("decisions/release", {"since": 1}, "since", "since"),
        ("decisions/release", {"limit": 1}, "limit", "the body accepts"),
        ("decisions/release", {"force": True, "q": ""}, "all", "all must be true"),
        ("decisions/release", {"all": True, "gate": "media"}, "all", "must not be combined with a filter"),
        ("deliveries/replay", {"new_id": True}, "all", "all must be true"),
        ("decisions/x/release", {"force": 1}, "force", "force must be"),
        ("deliveries/x/replay", {"new_id": 1}, "new_id", "new_id must be"),
        ("destinations/crn/pause", {}, "destination", "destination must be one of crm"),
        ("destinations/crn/resume", {}, "destination", "destination must be one of crm"),
        ("destinations/crn/test", {}, "destination", "destination must be one of crm"),
        ("destinations/crm/pause", {"reason": 7}, "reason", "reason must be a valid string"),
        ("destinations/crm/pause", {"reason": "x" * 201}, "reason", "reason must be at most 200 characters"),
        ("destinations/crm/resume", {"reason": "x"}, "reason", "the body accepts no fields"),
    ):
        answer = app.http.post(f"/api/admin/{path}", json=document, headers=bearer(ADMIN_TOKEN))
        body, status = answer.get_json(), 404 if "/crn/" in path else 400
        assert (answer.status_code, body["status"], body["code"]) == (status, status, "invalid"), (path, document)
        assert (body.get("field"), error in body["detail"]) == (field, True), (path, document)
    for data, status in ((b"{}", 415), (b"", 400)):
        headers = bearer(ADMIN_TOKEN)
        answer = app.http.post("/api/admin/reset", data=data, content_type="text/plain", headers=headers)
        assert answer.status_code == status
    assert app.act("reset", scope="all", dry_run=True)["names"] > 0, "it needs no confirmation"
    assert app.status_of(email()) == "already_processed"
    assert crm(app)["paused"] is None
    for path in ("crm/pause", "crm/resume"):
        answer = app.http.post(f"/api/admin/destinations/{path}", headers=bearer(ADMIN_TOKEN))
        assert answer.status_code == 200, "a body is not needed"


def test_an_invalid_query_is_refused_with_its_field(app: App) -> None:
    wrong = ("status=gone", "gate=lock", "since=yesterday", "until=1", "limit=0", "limit=1001", "colour=red")
    numbers = ("x", "é", "e.id~1~1~", "e.created_ms~-1~1~", f"e.created_ms~{'9' * 30}~1~")
    for path in ("decisions", "deliveries"):
        for query in (*wrong, *(f"cursor={each}" for each in numbers)):
            answer = app.ask(f"{path}?{query}")
            assert (answer["status"], answer["field"]) == (400, query.partition("=")[0]), query


# Decisions and deliveries


def test_emails_are_listed_released_once_and_audited(
    start_app: StartApp,
    sink: Sink,
    redis_url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = start_app(webhook_url=sink.url, redis_url=redis_url)
    for name in ("first", "second", "third"):
        app.post(email(subject=f"{LOT} {name}", sender=f"{name}@a.example"))
        app.settle()
    _, second, first = app.ask("decisions")["decisions"]
    assert (first["status"], first["gate"], first["original"], first["repeats"]) == ("processed", None, None, 0)
    assert (second["status"], second["original"]) == ("skipped_subject_group", first["id"])
    assert second["reason"].endswith(" from first@a.example, delivered to default")
    assert second["releasable_until"] > second["received_at"]
    assert {first["store"], second["store"]} == {"redis" if redis_url else "local"}
    one = app.ask(f"decisions/{second['id']}")
    assert (one["payload"]["subject"], one["original_email"]["id"]) == (f"{LOT} second", first["id"])
    assert subjects(app, "q=second@a&gate=subject_group&provider=gmail&route=everything%20else") == [f"{LOT} second"]
    page = app.ask("decisions?limit=2")
    assert (page["more"], subjects(app, f"cursor={page['next']}")) == (True, [f"{LOT} first"])

    path = f"decisions/{second['id']}/release"
    assert app.act(path, dry_run=True)["status"] == "would_release"
    answer = app.act(path)
    assert (answer["success"], answer["status"], answer["decision"]["id"]) == (True, "released", second["id"])
    wait_for(lambda: app.ask(f"decisions/{second['id']}")["status"] == "processed")
    assert [each.payload["subject"] for each in sink.accepted] == [f"{LOT} first", f"{LOT} second"]
    again = app.http.post(f"/api/admin/{path}", headers=bearer(ADMIN_TOKEN))
    assert (again.status_code, again.get_json()["code"]) == (409, "already_released")
    assert caplog.text.count(f"AUDIT release entry={second['id']} force=False") == 1

    counted = app.act("decisions/release", dry_run=True, q="third@a")
    assert counted == {"success": True, "dry_run": True, "matched": 1, "would_release": 1}
    assert app.act("decisions/release", all=True)["released"] == 1
    wait_for(lambda: len(sink.accepted) == 3)
    assert app.act("decisions/release", gate="subject_group")["matched"] == 0
    for path in ("decisions/nothing", "deliveries/nothing"):
        assert (app.ask(path)["status"], app.ask(path)["code"]) == (404, "unknown")
    for path in ("decisions/nothing/release", "deliveries/nothing:default/replay"):
        assert (app.act(path)["status"], app.act(path)["code"]) == (404, "unknown")


def test_a_replay_is_sent_at_once(start_app: StartApp, redis_url: str) -> None:
    with Sink(otherwise=Reply(422)) as sink:
        app = start_app(toml=impatient(sink), redis_url=redis_url)
        id_ = f"{app.post(email(subject='Report')).get_json()['id']}:default"
        one = app.ask(f"deliveries/{id_}")
        shown = (one["status"], one["reason"], one["payload"]["subject"])
        assert shown == ("dead", "default: answered 422; tried 1 time", "Report")
        assert app.act(f"deliveries/{id_}/replay", dry_run=True)["status"] == "would_replay"
        sink.otherwise = Reply()
        answer = app.act(f"deliveries/{id_}/replay")
        assert (answer["status"], answer["delivery"]["id"]) == ("replayed", id_)
        assert "payload" not in answer["delivery"]
        wait_for(lambda: app.ask(f"deliveries/{id_}")["status"] == "delivered")
        assert [each.webhook_id for each in sink.received] == [one["webhook_id"]] * 2
        first, second = (each.payload for each in sink.received)
        assert first == second and first["timestamp"] == first["received_at"], "the same event again"
        assert app.act(f"deliveries/{id_}/replay")["code"] == "already_delivered"
        counted = app.act("deliveries/replay", destination="default", dry_run=True)
        assert counted == {"success": True, "dry_run": True, "matched": 1, "already_delivered": 1}


def test_suppressed_emails_without_a_payload_cannot_be_released(start_app: StartApp, sink: Sink) -> None:
    app = start_app(webhook_url=sink.url, keep_suppressed="0")
    for name in ("first", "second"):
        app.post(email(subject=f"{LOT} {name}", sender=f"{name}@a.example"))
    second, _ = app.ask("decisions")["decisions"]
    assert (second["status"], second["releasable_until"]) == ("skipped_subject_group", None)
    for document in ({}, {"dry_run": True}):
        assert app.act(f"decisions/{second['id']}/release", **document)["code"] == "no_payload"


def test_with_strict_privacy_only_digests_are_stored_and_exact_search_works(
    start_app: StartApp, sink: Sink, redis_url: str, tmp_path: Path
) -> None:
    app = start_app(webhook_url=sink.url, privacy="strict", redis_url=redis_url)
    id_ = app.post(email(subject=SUBJECT, sender=SENDER, message_id="")).get_json()["id"]
    for q in (SUBJECT, SENDER, SENDER.upper()):
        (found,) = app.ask(f"decisions?q={q}")["decisions"]
        assert (found["subject"], found["sender"]) == ("", "")
    assert subjects(app, f"sender={SENDER}") == [""]
    assert subjects(app, "q=whistle") == []
    shown = repr(app.ask(f"decisions/{id_}")) + repr(app.ask("deliveries"))
    assert "lot_456@" in shown, "the group counts among the emails of one domain, which is not shown"
    domain = SENDER.partition("@")[2]
    assert domain not in shown and SUBJECT not in shown
    app.service.close()
    for file in (tmp_path / "data").iterdir():
        assert domain.encode() not in file.read_bytes() and SUBJECT.encode() not in file.read_bytes(), file


# Destinations


def test_410_pauses_the_destination_and_loses_nothing(start_with: StartApp, caplog: pytest.LogCaptureFixture) -> None:
    with Sink(Reply(410)) as sink:
        app = start_with(crm=f"url = '{sink.url}'\nmax_attempts = 1")
        for number in range(6):
            assert app.status_of(email(subject=f"number {number}")) == "queued"
        reasons = {(each["status"], each["reason"]) for each in app.ask("deliveries")["deliveries"]}
        assert reasons == {("waiting", "crm: paused (answered 410 Gone)")}
        assert (crm(app)["paused"]["by"], crm(app)["waiting"]) == ("410", 6)
        with app.service.journal.step() as step:
            step.query("UPDATE deliveries SET next_try_ms = ?", (step.now_ms,))
        app.service.retrier.tick()
        assert len(sink.received) == 1, "nothing is sent there"
        assert app.act("destinations/crm/resume")["status"] == "resumed"
        wait_for(lambda: len(sink.accepted) == 6)
        assert set(sink.counts().values()) == {1}
    assert caplog.text.count("AUDIT pause destination=crm by=410 reason=answered 410 Gone") == 1


def test_a_pause_is_noticed_by_every_process_survives_a_restart_and_ends_with_resume(
    start_with: StartApp, sink: Sink, redis_url: str
) -> None:
    one, other = start_with({"redis_url": redis_url}, crm=sink), start_with({"redis_url": redis_url}, crm=sink)
    answer = one.act("destinations/crm/pause", reason="moves to another host")
    assert (answer["success"], answer["status"]) == (True, "paused")
    assert answer["paused"] == crm(other)["paused"]
    assert (answer["paused"]["reason"], answer["paused"]["by"]) == ("moves to another host", "api")
    wait_for(lambda: other.service.guard.blocker("crm") is Blocker.PAUSED)
    wait_for(lambda: other.status_of(email()) == "queued")  # a new Redis grants nothing at first (rule 13)
    for app in (one, other):
        app.service.close()
    again = start_with({"redis_url": redis_url}, crm=sink)
    wait_for(lambda: again.status_of(email(subject="another")) == "queued")
    assert sink.received == []
    assert again.act("destinations/crm/resume")["status"] == "resumed"
    wait_for(lambda: len(sink.accepted) == 2)
    assert crm(again)["paused"] is None
    assert again.act("destinations/crm/resume")["status"] == "not_paused"
    assert again.status_of(email(subject="a third")) == "processed"


def test_a_pause_is_shown_everywhere_and_stops_replays_and_new_emails(start_with: StartApp) -> None:
    with Sink(otherwise=Reply(500)) as sink, Sink() as archive:
        app = start_with(crm=f"url = '{sink.url}'\nmax_attempts = 1", archive=archive)
        shown = crm(app)
        assert [shown[key] for key in ("enabled", "breaker", "paused")] == [True, "closed", None]
        assert [shown[key] for key in ("waiting", "dead", "oldest_s", "public_keys")] == [0, 0, None, []]
        assert app.http.get("/health").get_json()["paused"] == {}
        app.post(email())
        tried, dead = len(sink.received), app.delivery_to("crm")["id"]
        paused = app.act("destinations/crm/pause", reason="x")["paused"]
        assert app.ask("stats")["destinations"]["crm"]["paused"] == paused
        health = app.http.get("/health")
        shown = (health.status_code, health.get_json()["status"], health.get_json()["paused"])
        assert shown == (503, "degraded", {"crm": paused})
        answer = app.act(f"deliveries/{dead}/replay")
        assert (answer["delivery"]["status"], answer["delivery"]["reason"]) == ("waiting", "crm: paused (x)")
        answer = app.post(email(subject="To both")).get_json()
        statuses = {name: each["status"] for name, each in answer["deliveries"].items()}
        assert (answer["status"], statuses) == ("queued", {"crm": "waiting", "archive": "delivered"})
        assert (len(sink.received), len(archive.received)) == (tried, 2)


def test_a_test_event_is_one_post_even_to_a_paused_destination(start_with: StartApp, sink: Sink) -> None:
    app = start_with(crm=sink)
    app.act("destinations/crm/pause")
    taken = app.act("destinations/crm/test")
    assert (taken["success"], taken["status"], taken["status_code"], taken["error"]) == (True, "taken", 200, None)
    (event,) = sink.received
    assert (event.payload["type"], event.payload["destination"]) == ("mailonce.test", "crm")
    assert datetime.fromisoformat(event.payload["timestamp"]).tzinfo is UTC
    assert event.webhook_id.startswith("msg_test_")
    sink.otherwise = Reply(500)
    for _ in range(10):
        refused = app.act("destinations/crm/test")
        assert (refused["success"], refused["status"]) == (False, "refused")
        assert refused["error"] == "crm: answered 500"
    assert crm(app)["breaker"] == "closed", "it counts for no breaker"
    assert app.ask("deliveries")["deliveries"] == []


def test_the_public_key_of_a_destination_is_shown_and_never_its_secret(start_with: StartApp) -> None:
    private = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="
    public = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="
    url = "https://ada:pass@crm.example:8443/hooks/B01XKCD4T5Y6U7I8/new?token=s3cret&v="
    settings = f"url = '{url}'\nsecret = ['whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', '{private}']"
    app = start_with(crm=settings)
    assert crm(app)["public_keys"] == [public]
    assert crm(app)["url"] == "https://crm.example:8443/hooks/…/new?token=…&v=…"
    assert private[5:20] not in str(app.ask("destinations"))
