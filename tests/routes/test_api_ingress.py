"""POST /api/ingress/gmail: authentication, accepted bodies, the webhook, and the answers."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import TestResponse

from orchestrator.pipeline import Pipeline
from tests.routes.conftest import NEW_TOKEN, OLD_TOKEN, App, StartApp, bearer
from tests.support.redis_server import RedisServer, free_port
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, email
from tests.support.sink import Reply, Sink

NEW, KNOWN = "processed", "already_processed"
SKIPPED = "skipped_subject_group"


def error_in(answer: TestResponse, http_status: int, status: str) -> dict[str, Any]:
    """The body of an answer that refuses the request in the usual form."""
    assert (answer.status_code, answer.content_type) == (http_status, "application/json")
    body: dict[str, Any] = answer.get_json()
    assert (body["success"], body["status"]) == (False, status)
    assert body["error"]
    return body


def statuses(app: App, *emails: dict[str, Any]) -> list[str]:
    return [app.status_of(each) for each in emails]


# Authentication


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong-token-of-some-length",
        INGRESS_TOKEN,
        f"Basic {INGRESS_TOKEN}",
        f"Bearer {INGRESS_TOKEN}x",
        f"Bearer {INGRESS_TOKEN[:-1]}",
        "Bearer \xe9\xff",
        f"Bearer {ADMIN_TOKEN}",
    ],
)
def test_a_request_without_the_right_token_is_refused(app: App, sink: Sink, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = app.http.post("/api/ingress/gmail", json=email(), headers=headers)
    error_in(answer, 401, "unauthorized")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert (sink.received, app.entries) == ([], [])


@pytest.mark.parametrize(
    ("body", "content_type"), [(b"{", "application/json"), (b"x" * 3_000_000, "application/json"), (b"x", "text/plain")]
)
def test_the_token_is_checked_before_the_body(start_app: StartApp, body: bytes, content_type: str) -> None:
    app = start_app(max_body_mb=1)
    error_in(app.http.post("/api/ingress/gmail", data=body, content_type=content_type), 401, "unauthorized")


def test_both_tokens_of_a_rotation_and_a_generated_one_are_accepted(start_app: StartApp, tmp_path: Path) -> None:
    rotated, generated = start_app(ingress_token=f"{OLD_TOKEN},{NEW_TOKEN}"), start_app(ingress_token=())
    made = (tmp_path / "data" / "ingress_token").read_text().strip()
    for app, scheme, token in (
        (rotated, "bearer", OLD_TOKEN),
        (rotated, "BEARER", NEW_TOKEN),
        (generated, "Bearer", made),
    ):
        headers = {"Authorization": f"{scheme} {token}"}
        assert app.http.post("/api/ingress/gmail", json=email(), headers=headers).status_code == 200


# Bodies


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field in ("subject", "sender", "date", "body") for value in (1, 1.5, True, ["x"], {"x": "x"})]
    + [("sender", value) for value in (None, "", "  ", "Ada", "ada@", "@example.org", "<>")],
)
def test_a_wrong_field_is_named(app: App, sink: Sink, field: str, value: object) -> None:
    body = error_in(app.post(email(**{field: value})), 400, "invalid")
    assert body["field"] == field
    assert field in body["error"]
    assert sink.received == []


def test_an_absent_sender_is_named(app: App) -> None:
    assert error_in(app.post({"subject": "x"}), 400, "invalid")["field"] == "sender"


@pytest.mark.parametrize(
    "given", [{}, dict.fromkeys(("subject", "date", "body"), ""), dict.fromkeys(("subject", "date"))]
)
def test_subject_date_and_body_are_optional(app: App, sink: Sink, given: dict[str, Any]) -> None:
    assert app.status_of({"sender": "ada@example.org"} | given) == NEW
    (received,) = sink.received
    assert [received.payload[field] for field in ("subject", "date", "body")] == ["", "", ""]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"subject=x",
        b'{"sender": "ada@example.org"',
        b'{"sender": "ada@example.org", "x": NaN}',
        b'{"sender": "ada@example.org", "x": -Infinity}',
        b'{"sender": "ada@example.org", "x": [' + b"1," * 200_000 + b"1]}",
        b'{"sender": "ada@example.org", "x": "\xff"}',
        b'{"sender": "ada@example.org", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"sender": "ada@example.org", "x": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"sender": "ada@example.org", "x": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}",
        b"[]",
        b'["sender"]',
        b'"text"',
        b"1",
        b"null",
    ],
    ids=lambda body: body[:60].decode("latin-1"),
)
def test_a_body_that_is_no_valid_json_object_is_refused(app: App, sink: Sink, body: bytes) -> None:
    error_in(app.post_raw(body), 400, "invalid")
    assert sink.received == []


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 400, "9" * 5000], ids=lambda number: number[:6])
def test_a_number_of_any_size_is_passed_on_as_written(app: App, sink: Sink, number: str) -> None:
    app.post_raw(f'{{"sender": "ada@example.org", "x": {number}}}'.encode())
    assert str(sink.received[0].payload["extra"]["x"]) == number


@pytest.mark.parametrize("half", [rb"\ud83d", rb"\udc00", b"\xed\xa0\xbd", rb"\ud83d\u0041"])
def test_half_a_surrogate_pair_is_replaced_everywhere(app: App, sink: Sink, half: bytes) -> None:
    template = b'{"sender": "ada@example.org", "to": "a%s@b.org", "x%s": ["%s"]}'
    assert app.post_raw(template % (half, half, half)).get_json()["status"] == NEW
    (received,) = sink.received
    assert "\ufffd" in "".join(received.payload["extra"])
    json.dumps(received.payload, ensure_ascii=False).encode()


def test_a_whole_surrogate_pair_is_one_character(app: App, sink: Sink) -> None:
    app.post_raw(rb'{"sender": "ada@example.org", "subject": "\ud83c\udf89 \\ud83c"}')
    assert sink.received[0].payload["subject"] == "🎉 \\ud83c"


@pytest.mark.parametrize("field", ["subject", "body", "date", "x"])
def test_control_characters_are_accepted(app: App, sink: Sink, field: str) -> None:
    odd = f', "{field}": "nul \\u0000 \u2028 and half a pair \\\\ud83c"}}'.encode()
    payload = json.dumps(email()).encode().replace(b"}", odd)
    assert [app.post_raw(payload).get_json()["status"] for _ in range(2)] == [NEW, KNOWN]
    assert len(sink.received) == 1


@pytest.mark.parametrize(
    ("content_type", "http_status"),
    [
        (None, 415),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/jsonx", 415),
        ("application/json; charset=utf-8", 200),
        ("APPLICATION/JSON", 200),
        ("application/x+json", 200),
    ],
)
def test_only_json_is_accepted(app: App, content_type: str | None, http_status: int) -> None:
    answer = app.post_raw(json.dumps(email()).encode(), content_type)
    assert answer.status_code == http_status
    if http_status != 200:
        error_in(answer, 415, "invalid")


def test_a_body_over_the_limit_is_refused(start_app: StartApp, sink: Sink) -> None:
    app = start_app(max_body_mb=0.01, webhook_url=sink.url)
    error_in(app.post(email(body="x" * 11_000)), 413, "invalid")
    assert app.status_of(email(body="x" * 9_000)) == NEW
    assert len(sink.received) == 1


@pytest.mark.parametrize(
    ("method", "path", "http_status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/api/ingress/nobody", 404),
        ("POST", "/api/ingress/nobody", 404),
        ("GET", "/api/ingress/gmail", 405),
        ("PUT", "/api/ingress/gmail", 405),
        ("GET", "/api/admin/reset", 405),
        ("POST", "/health", 405),
    ],
)
def test_a_wrong_path_or_method_is_answered_in_json(app: App, method: str, path: str, http_status: int) -> None:
    answer = app.http.open(path, method=method)
    if path.startswith("/api/ingress/"):
        error = error_in(answer, http_status, "invalid")["error"]
        if http_status == 404:
            assert error.startswith("nothing has this address; a provider has /api/ingress/ and its name")
    else:
        body = answer.get_json()
        assert (answer.status_code, body["status"], body["code"]) == (http_status, http_status, "invalid")
    assert ("POST" in answer.headers.get("Allow", "")) == (http_status == 405 and path != "/health")


def test_an_internal_error_asks_for_a_retry_and_shows_no_details(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("inner details")

    monkeypatch.setattr(Pipeline, "receive", fail)
    answer = app.post(email())
    assert "inner details" not in error_in(answer, 500, "retry_later")["error"]
    assert answer.headers["Retry-After"]
    assert "inner details" in caplog.text


# The webhook


def test_the_webhook_holds_the_whole_email(start_app: StartApp, sink: Sink) -> None:
    app = start_app(lambda: datetime.fromisoformat("2026-11-16T10:00:00+01:00"), webhook_url=sink.url)
    body = "<p>Voir <a href='https://a.example/?x=1&amp;y=2'>ici</a>&nbsp;!</p>" + "<p>mot</p>" * 100
    extra = {"message_id": "<m1@example.org>", "snippet": "Voir", "labels": ["a", {"b": [1, None, 2.5]}]}
    sent = {
        "subject": "=?utf-8?Q?Lot_456_=C3=A9t=C3=A9?=",
        "sender": "Ada Lovelace <Ada@Example.org>",
        "date": "Mon, 16 Nov 2026 09:59:00 +0100",
        "body": body,
        "recipient": "Inbox <Inbox@example.com>",
    }
    answer = app.post(sent | extra)
    email_id = hashlib.md5(  # the values as received, of the sender the address
        b"=?utf-8?Q?Lot_456_=C3=A9t=C3=A9?=|ada@example.org|Mon, 16 Nov 2026 09:59:00 +0100", usedforsecurity=False
    ).hexdigest()
    (received,), (entry,) = sink.received, app.entries
    assert (answer.status_code, answer.get_json()) == (
        200,
        {
            "success": True,
            "status": NEW,
            "email_id": email_id,
            "id": entry.id,
            "subject_group": "lot_456",
            "deliveries": {"default": {"id": f"{entry.id}:default", "status": "delivered"}},
        },
    )
    assert entry.deliveries[0].webhook_id == received.webhook_id
    assert received.payload == {
        "type": "email.received",
        "timestamp": "2026-11-16T09:00:00Z",
        "email_id": email_id,
        "subject": "Lot 456 été",
        "sender": "Ada Lovelace <Ada@Example.org>",
        "sender_email": "ada@example.org",
        "date": "Mon, 16 Nov 2026 09:59:00 +0100",
        "received_at": "2026-11-16T09:00:00Z",
        "body": body,
        "body_preview": ("Voir ici !" + " mot" * 100)[:200],
        "subject_group": "lot_456",
        "links": ["https://a.example/?x=1&y=2"],
        "message_id": "<m1@example.org>",
        "recipients": ["inbox@example.com"],
        "plain": "",
        "attachments": [],
        "spam": {},
        "extra": extra,
    }
    assert received.headers["Content-Type"] == "application/json"
    assert received.webhook_id.startswith("msg_")


def test_the_webhook_id_depends_on_the_email_alone(app: App, sink: Sink) -> None:
    app.post(email())
    app.reset({"scope": "all", "confirm": "all"})
    app.post(email())
    app.post(email(subject="another"))
    first, again, another = (received.webhook_id for received in sink.received)
    assert first == again != another


def test_a_failed_delivery_is_tried_again_when_the_destination_asked_for(start_app: StartApp) -> None:
    with Sink(Reply(429, headers={"Retry-After": "77"})) as sink:
        app = start_app(webhook_url=sink.url)
        assert app.status_of(email()) == "queued"
    (delivery,) = app.entries[0].deliveries
    assert delivery.status == "waiting"
    waits_s = ((delivery.next_try_ms or 0) - delivery.attempts[0].at_ms) / 1000
    assert 77 <= waits_s <= 85 + 60, "the time that the destination asked for, and some jitter"


def test_without_a_destination_the_webhook_is_printed(start_app: StartApp, capsys: pytest.CaptureFixture[str]) -> None:
    assert start_app().status_of(email(subject="Bonjour")) == NEW
    assert '"subject": "Bonjour"' in capsys.readouterr().out


def test_without_redis_a_closed_service_asks_for_a_retry(start_app: StartApp, sink: Sink) -> None:
    away = f"redis://127.0.0.1:{free_port()}/0"
    answer = start_app(webhook_url=sink.url, redis_url=away, on_store_failure="closed").post(email())
    assert error_in(answer, 503, "retry_later")["error"] == "the store is away; send it again"
    assert answer.headers["Retry-After"]
    assert sink.received == []


def test_an_unreadable_date_causes_a_warning(app: App) -> None:
    answer = app.post(email(date="yesterday")).get_json()
    assert answer["status"] == NEW
    (warning,) = answer["warnings"]
    assert warning.startswith("date cannot be read and counts as absent")
    for readable in ("", "2026-11-16T09:00:00Z"):
        assert "warnings" not in app.post(email(date=readable, subject=f"dated {readable}")).get_json()


# Duplicates


@pytest.mark.parametrize(
    "notation",
    [
        {},
        {"date": "Mon, 16 Nov 2026 10:00:00 +0100"},
        {"date": "20261116T090000"},
        {"subject": "=?utf-8?Q?Rapport_hebdomadaire?="},
        {"sender": "ADA@EXAMPLE.ORG"},
        {"body": "Bonjour"},
        {"snippet": "another unknown field"},
    ],
)
def test_a_duplicate_in_any_notation_names_the_original(app: App, sink: Sink, notation: dict[str, str]) -> None:
    original = app.post(email()).get_json()["id"]
    answer = app.post(email(**notation))
    assert (answer.status_code, answer.get_json()["status"]) == (200, KNOWN)
    reason = answer.get_json()["reason"]
    assert (reason["gate"], reason["original"]) == ("identity", original)
    assert reason["name"].startswith(("email_id:2026-11-16:", "post::"))
    assert abs((datetime.now(UTC) - datetime.fromisoformat(reason["first_seen"])).total_seconds()) < 60
    assert len(sink.received) == 1


def attached(*files: Any) -> list[dict[str, Any]]:
    return [email(attachments=each) for each in files]


def alarm(subject: str, sender: str, hour: int) -> dict[str, Any]:
    return email(subject=subject, sender=sender, date=f"2026-11-16T{hour}:00:00Z", body="", message_id="<1@device>")


ALARMS = [alarm("Door open", "d1@a.example", 10), alarm("Fire", "d1@a.example", 11), alarm("Fire", "d2@a.example", 12)]
SEQUENCES = {
    "two texts under one id": (
        [email(body=f"<p>{text}</p>") for text in ("un", "deux", "un", "deux", "un")],
        [NEW, NEW, KNOWN, KNOWN, KNOWN],
    ),
    "a forged Message-ID": (
        [
            email(message_id="<m@x>", sender="eve@example.net", date="2026-11-16T08:00:00Z", body="first come"),
            email(message_id="<m@x>"),
        ],
        [NEW, NEW],
    ),
    "one Message-ID for all emails of a device": ([*ALARMS, *ALARMS], [NEW] * 3 + [KNOWN] * 3),
    "undated": ([email(date="", body=text) for text in ("un", "deux", "un")], [NEW, NEW, KNOWN]),
    "an empty email first": (
        [{"sender": "ada@example.org", "body": text} for text in ("", "un", "deux", "", "un")],
        [NEW, NEW, NEW, KNOWN, KNOWN],
    ),
    "neither date nor text": ([{"subject": "Alarm", "sender": "ada@example.org"}] * 3, [NEW] * 3),
    "file sizes, then unknown files": (
        attached(
            *([{"name": "a.pdf", "size": size}] for size in (1000, 2000)), None, [{"name": "a.pdf", "size": 1000}]
        ),
        [NEW, NEW, KNOWN, KNOWN],
    ),
    **{
        f"files as {one}": (attached(one, other, one), [NEW, NEW, KNOWN])
        for one, other in (
            ([{"name": "a.pdf", "content": "MQ=="}], [{"name": "a.pdf", "content": "Mg=="}]),
            ([{"filename": "a.pdf"}], [{"filename": "b.pdf"}]),
            ({"name": "a.pdf"}, {"name": "b.pdf"}),
            (["a.pdf"], ["b.pdf"]),
            ([{"title": "a.pdf", "id": 1}], [{"title": "a.pdf", "id": 2}]),
        )
    },
    **{
        f"angle brackets in {one}": ([email(body=one), email(body=other)], [NEW, NEW])
        for one, other in (
            ("Hello<br>call List<String>", "Hello<br>call List<Integer>"),
            ("Hello<br>from Joe <joe@x.example>", "Hello<br>from Joe <jim@x.example>"),
            ("<p>hi</p> password <abc123>", "<p>hi</p> password <xyz789>"),
        )
    },
}


@pytest.mark.parametrize("store", ["sqlite", "redis"])
@pytest.mark.parametrize(("emails", "expected"), SEQUENCES.values(), ids=SEQUENCES)
def test_no_email_is_taken_for_another(
    start_app: StartApp,
    sink: Sink,
    request: pytest.FixtureRequest,
    store: str,
    emails: list[dict[str, Any]],
    expected: list[str],
) -> None:
    redis_url = request.getfixturevalue("redis_server").url if store == "redis" else ""
    app = start_app(webhook_url=sink.url, subject_groups="off", redis_url=redis_url)
    assert statuses(app, *emails) == expected
    assert len({received.webhook_id for received in sink.received}) == expected.count(NEW), "receivers tell them apart"


# Subject groups


def test_the_second_email_of_a_group_is_skipped_with_the_reason(app: App, sink: Sink) -> None:
    original = app.post(email(subject="Lot 456 - Documents")).get_json()["id"]
    second = email(subject="Re: Lot 456", date="2026-11-17T09:00:00Z", sender="bob@example.org", body="Merci")
    answer = app.post(second)
    body, reason = answer.get_json(), answer.get_json()["reason"]
    assert (answer.status_code, body["success"], body["status"], body["subject_group"]) == (
        200,
        True,
        SKIPPED,
        "lot_456",
    )
    assert (reason["gate"], reason["original"]) == ("subject_group", original)
    assert reason["name"].startswith("subject_group:") and reason["name"].endswith(":lot_456")
    assert reason["first_seen"]
    assert app.status_of(second) == SKIPPED, "a skipped email is settled"
    assert len(sink.received) == 1


@pytest.mark.parametrize(
    ("mode", "subject", "second"),
    [
        ("all", "Lot 456", SKIPPED),
        ("all", "Bonjour", SKIPPED),
        ("all", "", NEW),
        ("all", "  ", NEW),
        ("all", "Re:", NEW),
        ("all", None, NEW),
        ("patterns", "Lot 456", SKIPPED),
        ("patterns", "Bonjour", NEW),
        ("patterns", "Désabonnement Lot 456", NEW),
        ("off", "Lot 456", NEW),
        ("off", "Bonjour", NEW),
    ],
)
def test_which_subjects_group(start_app: StartApp, mode: str, subject: str | None, second: str) -> None:
    emails = [email(subject=subject, sender=f"{name}@example.org", body=name) for name in ("ada", "bob")]
    assert statuses(start_app(subject_groups=mode), *emails, emails[0]) == [NEW, second, KNOWN]


def test_patterns_and_routes_of_the_file_are_used(start_app: StartApp, sink: Sink) -> None:
    Path("mailonce.toml").write_text(
        f"""
        [destinations.crm]
        url = "{sink.url}"
        [[routes]]
        name = "opt out"
        match = [{{ field = "subject", contains = "opt out" }}]
        subject_groups = "off"
        [[routes]]
        name = "rest"
        [[subject_patterns]]
        name = "ticket"
        regex = 'ticket (\\d+)'
        """
    )
    app = start_app(subject_groups="patterns")
    for subject in ("Ticket #7", "Re: ticket 7", "ticket 7: opt out", "desabo ticket 7"):
        app.post(email(subject=subject, body=subject))
    assert [received.payload["subject_group"] for received in sink.received] == ["ticket_7", None]


@pytest.mark.parametrize(
    ("zone", "before", "after"),
    [
        ("UTC", "2026-11-30T23:59:59+00:00", "2026-12-01T00:00:00+00:00"),
        ("Europe/Paris", "2026-11-30T22:59:59+00:00", "2026-11-30T23:00:00+00:00"),
        ("America/New_York", "2026-12-01T04:59:59+00:00", "2026-12-01T05:00:00+00:00"),
    ],
)
def test_a_group_ends_with_the_month_of_the_configured_zone(
    start_app: StartApp, zone: str, before: str, after: str
) -> None:
    moments = ["2026-11-20T12:00:00+00:00"]
    app = start_app(lambda: datetime.fromisoformat(moments[-1]), timezone=zone)
    emails = [email(subject="Lot 456", date=f"2026-11-{day}T09:00:00Z", body=str(day)) for day in (16, 17, 18, 19)]
    for each, now, status in zip(emails, (*moments, before, after, after), (NEW, SKIPPED, NEW, SKIPPED), strict=True):
        moments.append(now)
        assert app.status_of(each) == status
    assert app.status_of(emails[0]) == KNOWN, "the email itself is known for ever"


def test_with_a_ttl_its_key_decides_and_the_set_is_history(
    start_app: StartApp, redis_server: RedisServer, sink: Sink
) -> None:
    app = start_app(
        lambda: datetime.fromisoformat("2026-11-20T12:00:00+00:00"),
        webhook_url=sink.url,
        redis_url=redis_server.url,
        subject_group_ttl_seconds=90,
    )
    client = redis_server.client
    first, second, third = (email(subject="Lot 456", body=text) for text in ("un", "deux", "trois"))
    assert app.status_of(first) == NEW
    app.settle()
    assert app.status_of(second) == SKIPPED
    assert 0 < client.ttl("ttl:subject_groups:2026-11:lot_456") <= 90
    client.delete("ttl:subject_groups:2026-11:lot_456")
    assert client.smembers("subject_groups:2026-11") == {"2026-11:lot_456"}
    assert app.status_of(third) == NEW


# Providers


def test_the_last_email_and_the_last_refusal_of_each_provider_are_recorded(app: App) -> None:
    seen = app.service.providers.read
    assert statuses(app, email(), email()) == [NEW, KNOWN]
    assert (seen()["gmail"].status, seen()["gmail"].refused_ms) == (KNOWN, 0)
    app.post(email(sender="nobody"))
    assert seen()["gmail"].why.startswith("sender takes an email address")
    app.http.post("/api/ingress/gmail", json=email(), headers=bearer("x" * 20))
    assert (seen()["gmail"].why, seen()["gmail"].status) == ("it does not prove its origin, from 127.0.0.1", KNOWN)
    app.http.post("/api/ingress/ses", data=b"{}")
    assert "topics" in seen()["ses"].why
    app.http.post("/api/ingress/message", json={})
    assert seen()["message"].why == "no or wrong token, from 127.0.0.1"
    for document, key in (({"source": "a"}, "why"), ({"source": "tg:news", "id": 1, "text": "Hello"}, "status")):
        app.http.post("/api/ingress/message", json=document, headers=bearer(INGRESS_TOKEN))
        assert getattr(seen()["message"], key) not in ("", "no or wrong token, from 127.0.0.1")
    assert not any(content in str(seen()) for content in ("Rapport", "Bonjour", "Ada", "nobody"))
