"""POST /api/admin/reset: who may, what it takes, and that the same email is delivered again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from deduplication.names import Kind
from tests.routes.conftest import NEW_TOKEN, OLD_TOKEN, App, StartApp, bearer
from tests.support.redis_server import RedisServer, free_port
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, email
from tests.support.sink import Sink

ALL = {"scope": "all", "confirm": "all"}


@pytest.fixture(params=["sqlite", "redis"])
def app(request: pytest.FixtureRequest, start_app: StartApp, sink: Sink) -> Iterator[App]:
    store = {}
    if request.param == "redis":
        redis_server: RedisServer = request.getfixturevalue("redis_server")
        store = {"redis_url": redis_server.url}
    yield start_app(webhook_url=sink.url, **store)


@pytest.fixture
def quick(start_app: StartApp) -> App:
    return start_app()


@pytest.mark.parametrize("headers", [{}, bearer("wrong-token-of-some-length"), bearer(INGRESS_TOKEN)])
@pytest.mark.parametrize("body", [b"{", b'{"scope": "all", "confirm": "all"}', b"x" * 2_000_000])
def test_without_the_admin_token_nothing_is_looked_at_or_forgotten(
    start_app: StartApp, headers: dict[str, str], body: bytes
) -> None:
    app = start_app(max_body_mb=1)
    app.post(email())
    answer = app.http.post("/api/admin/reset", data=body, content_type="application/json", headers=headers)
    assert (answer.status_code, answer.get_json()["code"]) == (401, "unauthorized")
    assert app.status_of(email()) == "already_processed"


def test_while_admin_tokens_are_rotated_both_are_taken(start_app: StartApp) -> None:
    app = start_app(admin_token=f"{OLD_TOKEN},{NEW_TOKEN}")
    for token in (OLD_TOKEN, NEW_TOKEN):
        assert app.http.post("/api/admin/reset", json=ALL, headers=bearer(token)).status_code == 200


@pytest.mark.parametrize(
    ("payload", "field", "error"),
    [
        ({}, "scope", "email_id, subject_group, month, date, destination, media, all"),
        ({"scope": "everything"}, "scope", "scope must be one of"),
        ({"scope": 1}, "scope", "scope must be one of"),
        ({"scope": "email_id"}, "value", "value must be the email_id"),
        ({"scope": "email_id", "value": 1}, "value", "value must be a string"),
        ({"scope": "month", "value": "November"}, "value", "a month such as 2026-11"),
        ({"scope": "date", "value": "2026-11"}, "value", "a day such as 2026-11-16"),
        ({"scope": "email_id", "value": "x", "dry_run": "false"}, "dry_run", "true or false"),
        ({"scope": "email_id", "value": "x", "dry_run": 1}, "dry_run", "true or false"),
        ({"scope": "email_id", "value": "x", "dryrun": True}, "dryrun", "accepts scope, value, dry_run, confirm"),
        ({"scope": "all"}, "confirm", "confirm must be"),
        ({"scope": "all", "confirm": True}, "confirm", "confirm must be"),
        ({"scope": "all", "confirm": "ALL"}, "confirm", "confirm must be"),
    ],
)
def test_a_wrong_request_is_refused_with_the_field_and_forgets_nothing(
    quick: App, payload: dict[str, Any], field: str, error: str
) -> None:
    quick.post(email())
    answer = quick.reset(payload)
    assert answer.status_code == 400
    body = answer.get_json()
    assert (body["status"], body["code"], body["field"]) == (400, "invalid", field)
    assert error in body["detail"]
    assert quick.status_of(email()) == "already_processed"


@pytest.mark.parametrize("payload", [[], "all", 1])
def test_what_is_not_an_object_is_refused(quick: App, payload: object) -> None:
    assert quick.reset(payload).status_code == 400


def test_another_content_type_is_refused(quick: App) -> None:
    answer = quick.http.post("/api/admin/reset", data=b"{}", content_type="text/plain", headers=bearer(ADMIN_TOKEN))
    assert answer.status_code == 415


def reset_of(scope: str, app: App, email_id: str) -> dict[str, Any]:
    with app.service.journal.reading() as step:
        entries = [entry for _, entry in step.read_rows("1", ())]
    (group,) = {name for entry in entries for name in entry.shared if name.kind is Kind.SUBJECT_GROUP}
    values = {
        "email_id": email_id,
        "date": "2026-11-16",
        "month": group.scope,
        "subject_group": group.value,
        "all": "",
    }
    return {"scope": scope, "value": values[scope]} | ({"confirm": "all"} if scope == "all" else {})


@pytest.mark.parametrize("scope", ["email_id", "date", "month", "subject_group", "all"])
def test_after_a_reset_the_same_email_is_delivered_again(
    app: App, sink: Sink, scope: str, caplog: pytest.LogCaptureFixture
) -> None:
    mail = email(subject="Lot 456", date="Mon, 16 Nov 2026 10:00:00 +0100")
    request = reset_of(scope, app, app.post(mail).get_json()["email_id"])

    dry = app.reset(request | {"dry_run": True})
    assert dry.status_code == 200
    assert dry.get_json() == {
        "success": True,
        "status": "reset",
        "scope": scope,
        "dry_run": True,
        "names": dry.get_json()["names"],
        "kept": [],
        "behind": [],
    }
    assert dry.get_json()["names"] >= 3
    assert app.status_of(mail) == "already_processed"

    assert app.reset(request).get_json() == dry.get_json() | {"dry_run": False}
    assert f"AUDIT reset scope={scope} " in caplog.text
    assert app.status_of(mail) == "processed"
    assert len(sink.received) == 2
    assert len({received.webhook_id for received in sink.received}) == 1


def test_a_dry_run_of_all_needs_no_confirmation(quick: App) -> None:
    quick.post(email())
    assert quick.reset({"scope": "all", "dry_run": True}).get_json()["names"] > 0
    assert quick.status_of(email()) == "already_processed"


def test_a_skipped_email_is_delivered_after_a_reset_of_its_id(app: App, sink: Sink) -> None:
    first, second = email(subject="Lot 456", body="un"), email(subject="Re: Lot 456", body="deux")
    app.post(first)
    app.settle()
    skipped = app.post(second).get_json()
    assert skipped["status"] == "skipped_subject_group"
    app.reset({"scope": "email_id", "value": skipped["email_id"]})
    assert app.status_of(second) == "processed"
    assert app.status_of(first) == "already_processed"
    assert [received.payload["body"] for received in sink.received] == ["un", "deux"]


def test_another_worker_of_the_same_store_forgets_too(start_app: StartApp) -> None:
    one, two = start_app(), start_app()
    email_id = one.post(email()).get_json()["email_id"]
    assert two.status_of(email()) == "already_processed"
    assert two.reset({"scope": "email_id", "value": email_id}).status_code == 200
    assert one.status_of(email()) == "processed"


def test_while_the_store_is_gone_the_operator_is_asked_to_try_again(start_app: StartApp) -> None:
    app = start_app(redis_url=f"redis://127.0.0.1:{free_port()}/0")
    answer = app.reset(ALL)
    assert (answer.status_code, answer.get_json()["code"]) == (503, "retry_later")
    assert answer.headers["Retry-After"]
