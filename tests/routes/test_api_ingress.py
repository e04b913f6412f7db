"""POST /api/ingress/gmail: bodies, the webhook and the answers. Its authentication: providers/test_gmail.py."""

import hashlib
import json
from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock

import pytest
from werkzeug.test import TestResponse

from deduplication.errors import StoreUnavailable
from orchestrator.pipeline import Pipeline
from tests.routes.conftest import App, StartApp, bearer
from tests.support.redis_server import RedisServer
from tests.support.server import INGRESS_TOKEN, email
from tests.support.sink import Sink
from tests.support.waiting import wait_for

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


@pytest.mark.parametrize(
    "given", [{}, dict.fromkeys(("subject", "date", "body"), ""), dict.fromkeys(("subject", "date"))]
)
def test_subject_date_and_body_are_optional(app: App, sink: Sink, given: dict[str, Any]) -> None:
    assert app.status_of({"sender": "ada@example.org"} | given) == NEW
    (received,) = sink.received
    assert [received.payload[field] for field in ("subject", "date", "body")] == ["", "", ""]


@pytest.mark.parametrize(
    ("content_type", "http_status"),
    [
        (None, 415),
        ("application/jsonx", 415),
        ("application/json; charset=utf-8", 200),
        ("APPLICATION/JSON", 200),
        ("application/x+json", 200),
    ],
)
def test_only_json_is_accepted(app: App, content_type: str | None, http_status: int) -> None:
    sent: dict[str, Any] = {"data": json.dumps(email()), "content_type": content_type, "headers": bearer(INGRESS_TOKEN)}
    assert app.http.post("/api/ingress/gmail", **sent).status_code == http_status


def test_the_answer_does_not_name_the_address_of_a_store(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pipeline, "receive", Mock(side_effect=StoreUnavailable("redis.internal:6379 is away")))
    answer = app.post(email())
    assert error_in(answer, 503, "retry_later")["error"] == "the store is unavailable"
    assert answer.headers["Retry-After"] == "10"


# The webhook


ABSENT = (
    "provider_id", "provider_thread", "to", "cc", "reply_to", "return_path", "in_reply_to", "references", "text",
    "reply_text", "list", "automated", "headers", "raw_url",
)  # fmt: skip


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
        "message_id": "m1@example.org",
        "delivered_to": ["inbox@example.com"],
        "recipients": ["inbox@example.com"],
        "plain": "",
        "attachments": [],
        "spam": {},
        "extra": extra,
        "version": 2,
        "provider": "gmail",
        "envelope_recipient": "inbox@example.com",
        "date_utc": "2026-11-16T08:59:00Z",
        "thread": "m1@example.org",
        "html": body,
        "authentication": dict.fromkeys(("spf", "dkim", "dmarc", "from_aligned", "source")),
        "headers_omitted": 0,
        "extra_omitted": 0,
        "raw_url": None,
        **dict.fromkeys(ABSENT),
    }
    assert received.headers["Content-Type"] == "application/json"
    assert received.webhook_id.startswith("msg_")


def test_an_unreadable_date_causes_a_warning(app: App) -> None:
    answer = app.post(email(date="yesterday")).get_json()
    assert answer["status"] == NEW
    (warning,) = answer["warnings"]
    assert warning.startswith("date cannot be read and counts as absent")
    for readable in ("", "2026-11-16T09:00:00Z"):
        assert "warnings" not in app.post(email(date=readable, subject=f"dated {readable}")).get_json()


# Duplicates


def test_a_duplicate_in_any_notation_names_the_original(app: App, sink: Sink) -> None:
    original = app.post(email()).get_json()["id"]
    date, subject = "Mon, 16 Nov 2026 10:00:00 +0100", "=?utf-8?Q?Rapport_hebdomadaire?="
    for notation in ({}, {"date": date}, {"subject": subject}, {"sender": "ADA@EXAMPLE.ORG"}, {"body": "Bonjour"}):
        answer = app.post(email(snippet="another unknown field", **notation))
        assert (answer.status_code, answer.get_json()["status"]) == (200, KNOWN), notation
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
    "one Message-ID for all emails of a device": ([*ALARMS, *ALARMS], [NEW] * 3 + [KNOWN] * 3),
    "two Message-IDs, and nothing is known of the files": (
        [email(message_id="<1@x>"), email(message_id="<2@x>"), email(message_id="<1@x>"), email()],
        [NEW, NEW, KNOWN, KNOWN],
    ),
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
}


def test_no_email_is_taken_for_another(start_app: StartApp, sink: Sink, redis_url: str) -> None:
    app = start_app(webhook_url=sink.url, subject_groups="off", redis_url=redis_url)
    for name, (emails, expected) in SEQUENCES.items():
        before = len(sink.received)
        assert statuses(app, *emails) == expected, name
        webhook_ids = {received.webhook_id for received in sink.received[before:]}
        assert len(webhook_ids) == expected.count(NEW), f"receivers tell them apart: {name}"
        app.settle()
        app.act("reset", scope="all", confirm="all")


# Subject groups


@pytest.mark.parametrize(("mode", "answer"), [("patterns", NEW), ("all", SKIPPED)])
def test_a_group_stops_replies_only_in_mode_all(start_app: StartApp, sink: Sink, mode: str, answer: str) -> None:
    app = start_app(webhook_url=sink.url, subject_groups=mode)
    assert app.status_of(email(subject="Lot 456")) == NEW
    prefixes = ("Re:", "AW :", "Fwd:", "[EXT] Re:", "Re[2]:", "I:", "Réf. :", "转发：")
    replies = [email(subject=f"{prefix} Lot 456", body=prefix) for prefix in prefixes]
    assert statuses(app, *replies) == [answer] * len(prefixes)
    assert {each.payload["subject_group"] for each in sink.received} == {"lot_456"}, "receivers may do more"


def test_patterns_and_routes_of_the_file_are_used(start_app: StartApp, sink: Sink) -> None:
    route = "[[routes]]\nname = 'out'\nmatch = [{ field = 'subject', contains = 'opt out' }]\nsubject_groups = 'off'\n"
    pattern = "[[routes]]\nname = 'rest'\n[[subject_patterns]]\nname = 'ticket'\nregex = 'ticket (\\d+)'\n"
    app = start_app(toml=f"[destinations.crm]\nurl = '{sink.url}'\n{route}{pattern}", subject_groups="patterns")
    for subject in ("Ticket #7", "Again ticket 7", "ticket 7: opt out", "desabo ticket 7"):
        app.post(email(subject=subject, body=subject))
    assert [received.payload["subject_group"] for received in sink.received] == ["ticket_7", None]


def test_a_group_ends_with_its_ttl_and_with_the_month_of_the_configured_zone(
    start_app: StartApp, sink: Sink, redis_server: RedisServer
) -> None:
    moments = ["2026-11-30T22:59:59+00:00"]
    settings = {"timezone": "Europe/Paris", "subject_group_ttl_seconds": 90, "redis_url": redis_server.url}
    app = start_app(lambda: datetime.fromisoformat(moments[-1]), webhook_url=sink.url, **settings)
    emails = [email(subject="Lot 456", body=text) for text in ("un", "deux", "trois")]
    assert statuses(app, *emails[:2]) == [NEW, SKIPPED]
    moments.append("2026-11-30T23:00:00+00:00")
    assert statuses(app, emails[2], emails[0]) == [NEW, KNOWN], "the email itself is known for ever"
    wait_for(lambda: 0 < redis_server.client.ttl("ttl:subject_groups:2026-12:lot_456@example.org") <= 90)


# Providers
