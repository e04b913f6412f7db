"""POST /api/admin/reset: access, validation, and that the same email is delivered again.

What each scope forgets, with Redis and without it, is tested in tests/orchestrator/operations/test_reset.py.
"""

from __future__ import annotations

import pytest

from tests.routes.conftest import NEW_TOKEN, OLD_TOKEN, App, StartApp, bearer
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, email
from tests.support.sink import Sink

ALL = {"scope": "all", "confirm": "all"}


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


def test_an_invalid_request_is_refused_with_the_field_and_forgets_nothing(start_app: StartApp) -> None:
    app = start_app()
    app.post(email())
    for payload, field, error in (
        ({}, "scope", "email_id, subject_group, month, date, destination, media, all"),
        ({"scope": "everything"}, "scope", "scope must be 'email_id'"),
        ({"scope": 1}, "scope", "scope must be 'email_id'"),
        ({"scope": "email_id"}, "value", "value must be the email_id to forget"),
        ({"scope": "email_id", "value": 1}, "value", "value must be a valid string"),
        ({"scope": "month", "value": "November"}, "value", "a month such as 2026-11"),
        ({"scope": "date", "value": "2026-11"}, "value", "a day such as 2026-11-16"),
        ({"scope": "email_id", "value": "x", "dry_run": "false"}, "dry_run", "must be a valid boolean"),
        ({"scope": "email_id", "value": "x", "dryrun": True}, "dryrun", "accepts scope, value, dry_run, confirm"),
        ({"scope": "all"}, "confirm", "confirm must be"),
        ({"scope": "all", "confirm": True}, "confirm", "confirm must be"),
        ({"scope": "all", "confirm": "ALL"}, "confirm", "confirm must be"),
        ([], None, "JSON object"),
        ("all", None, "JSON object"),
    ):
        answer = app.reset(payload)
        body = answer.get_json()
        assert (answer.status_code, body["status"], body["code"], body.get("field")) == (400, 400, "invalid", field)
        assert error in body["detail"]
    for data, status in ((b"{}", 415), (b"", 400)):
        headers = bearer(ADMIN_TOKEN)
        answer = app.http.post("/api/admin/reset", data=data, content_type="text/plain", headers=headers)
        assert answer.status_code == status
    assert app.reset({"scope": "all", "dry_run": True}).get_json()["names"] > 0, "it needs no confirmation"
    assert app.status_of(email()) == "already_processed"


@pytest.mark.parametrize("scope", ["email_id", "all"])
def test_after_a_reset_the_same_email_is_delivered_again(
    app: App, start_app: StartApp, sink: Sink, scope: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = start_app(webhook_url=sink.url)  # another process of the machine
    mail = email(subject="Lot 456", date="Mon, 16 Nov 2026 10:00:00 +0100")
    email_id = app.post(mail).get_json()["email_id"]
    request = ALL if scope == "all" else {"scope": "email_id", "value": email_id}
    dry = app.reset(request | {"dry_run": True}).get_json()
    found = {"names": dry["names"], "kept": [], "behind": []}
    assert dry == {"success": True, "status": "reset", "scope": scope, "dry_run": True} | found
    assert dry["names"] >= 3
    assert app.status_of(mail) == "already_processed"
    assert other.reset(request).get_json() == dry | {"dry_run": False}
    assert f"AUDIT reset scope={scope} " in caplog.text
    assert app.status_of(mail) == "processed"
    assert len(sink.received) == 2
    assert len({received.webhook_id for received in sink.received}) == 1
