"""POST /api/ingress/gmail: who may, what it takes, what is delivered and what is answered."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import TestResponse

from deduplication.email import Email
from deduplication.journal.entry import State
from orchestrator.intake import Sources
from tests.routes.conftest import NEW_TOKEN, OLD_TOKEN, App, StartApp, bearer
from tests.support.redis_server import RedisServer, free_port
from tests.support.server import INGRESS_TOKEN, email
from tests.support.sink import Reply, Sink

LINES = "\u2028 and half a pair \\ud83c"


class Calendar:
    """A clock that the test sets, and owner tokens that never repeat."""

    def __init__(self, now: str) -> None:
        self.now = now
        self._numbers = count()

    @property
    def sources(self) -> Sources:
        return Sources(now=lambda: datetime.fromisoformat(self.now), new_token=lambda: f"owner {next(self._numbers)}")


def refused(answer: TestResponse, http_status: int, status: str) -> dict[str, Any]:
    """The body of an answer that is a refusal in the usual form."""
    assert (answer.status_code, answer.content_type) == (http_status, "application/json")
    body: dict[str, Any] = answer.get_json()
    assert (body["success"], body["status"]) == (False, status)
    assert body["error"]
    return body


# Who may


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer wrong-token-of-some-length"},
        {"Authorization": INGRESS_TOKEN},
        {"Authorization": f"Basic {INGRESS_TOKEN}"},
        {"Authorization": f"Bearer {INGRESS_TOKEN}x"},
        {"Authorization": f"Bearer {INGRESS_TOKEN[:-1]}"},
        {"Authorization": "Bearer \xe9\xff"},
        bearer("admin-token-for-tests-only"),
    ],
)
def test_without_the_right_token_nothing_is_taken(app: App, sink: Sink, headers: dict[str, str]) -> None:
    answer = app.http.post("/api/ingress/gmail", json=email(), headers=headers)
    refused(answer, 401, "unauthorized")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert sink.received == []
    assert list(app.service.journal.find()) == []


@pytest.mark.parametrize(
    ("body", "content_type"), [(b"{", "application/json"), (b"x" * 3_000_000, "application/json"), (b"x", "text/plain")]
)
def test_the_token_is_asked_for_before_the_body_is_looked_at(
    start_app: StartApp, body: bytes, content_type: str
) -> None:
    app = start_app(max_body_mb=1)
    refused(app.http.post("/api/ingress/gmail", data=body, content_type=content_type), 401, "unauthorized")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_while_tokens_are_rotated_both_are_taken(start_app: StartApp, scheme: str) -> None:
    app = start_app(ingress_token=f"{OLD_TOKEN},{NEW_TOKEN}")
    for token in (OLD_TOKEN, NEW_TOKEN):
        headers = {"Authorization": f"{scheme} {token}"}
        assert app.http.post("/api/ingress/gmail", json=email(), headers=headers).status_code == 200


def test_a_token_made_on_the_first_run_opens_the_door(start_app: StartApp, tmp_path: Path) -> None:
    app = start_app(ingress_token=())
    token = (tmp_path / "data" / "ingress_token").read_text().strip()
    assert app.http.post("/api/ingress/gmail", json=email(), headers=bearer(token)).status_code == 200


# What it takes


@pytest.mark.parametrize("field", ["subject", "sender", "date", "body"])
@pytest.mark.parametrize("value", [1, 1.5, True, ["text"], {"text": "text"}])
def test_a_field_of_another_type_is_named(app: App, sink: Sink, field: str, value: object) -> None:
    body = refused(app.post(email(**{field: value})), 400, "invalid")
    assert body["field"] == field
    assert field in body["error"]
    assert sink.received == []


@pytest.mark.parametrize("sender", [None, "", "  ", "Ada", "ada@", "@example.org", "<>"])
def test_a_sender_without_an_address_is_named(app: App, sender: str | None) -> None:
    assert refused(app.post(email(sender=sender)), 400, "invalid")["field"] == "sender"


def test_an_absent_sender_is_named(app: App) -> None:
    payload = email()
    del payload["sender"]
    assert refused(app.post(payload), 400, "invalid")["field"] == "sender"


@pytest.mark.parametrize(
    "absent", [{}, {"subject": "", "date": "", "body": ""}, dict.fromkeys(("subject", "date", "body"))]
)
def test_subject_date_and_body_may_be_empty_or_absent(app: App, sink: Sink, absent: dict[str, Any]) -> None:
    assert app.status_of({"sender": "ada@example.org"} | absent) == "processed"
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
def test_what_is_not_a_sound_json_object_is_refused(app: App, sink: Sink, body: bytes) -> None:
    refused(app.post_raw(body), 400, "invalid")
    assert sink.received == []


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 400, "9" * 5000], ids=lambda number: number[:6])
def test_a_number_of_any_size_is_handed_on_as_it_is_written(app: App, sink: Sink, number: str) -> None:
    app.post_raw(f'{{"sender": "ada@example.org", "x": {number}}}'.encode())
    assert str(sink.received[0].payload["extra"]["x"]) == number


def test_half_a_surrogate_pair_is_mended_wherever_it_stands(app: App, sink: Sink) -> None:
    halves = [rb"\ud83d", rb"\udc00", b"\xed\xa0\xbd", rb"\ud83d\u0041"]
    for number, half in enumerate(halves):
        body = b'{"sender": "ada@example.org", "to": "a%s@b.org", "date": "%d", "x%s": ["%s"]}' % (
            half,
            number,
            half,
            half,
        )
        assert app.post_raw(body).get_json()["status"] == "processed"
    for received in sink.received:
        assert "\ufffd" in "".join(received.payload["extra"])
        json.dumps(received.payload, ensure_ascii=False).encode()


def test_two_halves_of_a_surrogate_pair_stay_one_character(app: App, sink: Sink) -> None:
    app.post_raw(rb'{"sender": "ada@example.org", "subject": "\ud83c\udf89 \\ud83c"}')
    assert sink.received[0].payload["subject"] == "🎉 \\ud83c"


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
def test_another_content_type_is_refused(app: App, content_type: str | None) -> None:
    refused(app.post_raw(json.dumps(email()).encode(), content_type), 415, "invalid")


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/x+json"])
def test_json_is_taken_under_each_of_its_names(app: App, content_type: str) -> None:
    assert app.post_raw(json.dumps(email()).encode(), content_type).status_code == 200


def test_a_body_over_the_limit_is_refused_and_one_within_is_taken(start_app: StartApp, sink: Sink) -> None:
    app = start_app(max_body_mb=0.01, webhook_url=sink.url)
    refused(app.post(email(body="x" * 11_000)), 413, "invalid")
    assert app.status_of(email(body="x" * 9_000)) == "processed"
    assert len(sink.received) == 1


@pytest.mark.parametrize(
    ("method", "path", "http_status"),
    [
        ("GET", "/nowhere", 404),
        ("POST", "/api/ingress/nobody", 404),
        ("GET", "/api/ingress/gmail", 405),
        ("PUT", "/api/ingress/gmail", 405),
        ("GET", "/api/admin/reset", 405),
        ("POST", "/health", 405),
    ],
)
def test_a_wrong_address_or_method_is_answered_in_json(app: App, method: str, path: str, http_status: int) -> None:
    answer = app.http.open(path, method=method)
    if path.startswith("/api/ingress/"):
        refused(answer, http_status, "invalid")
    else:
        body = answer.get_json()
        assert (answer.status_code, body["status"], body["code"]) == (http_status, http_status, "invalid")
    assert ("POST" in answer.headers.get("Allow", "")) == (http_status == 405 and path != "/health")


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unknown_provider_is_told_where_providers_are(app: App, method: str) -> None:
    answer = app.http.open("/api/ingress/nobody", method=method)
    refused(answer, 404, "invalid")
    assert answer.get_json()["error"].startswith("nothing has this address; a provider has /api/ingress/ and its name")


def test_an_error_of_our_own_is_a_500_that_asks_for_a_retry_and_tells_nothing(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Email) -> None:
        raise RuntimeError("inner details")

    monkeypatch.setattr(type(app.service.intake), "receive", lambda _, email: fail(email))
    answer = app.post(email())
    body = refused(answer, 500, "retry_later")
    assert answer.headers["Retry-After"]
    assert "inner details" not in body["error"]
    assert "inner details" in caplog.text


# What is delivered


def test_the_webhook_holds_the_whole_email(start_app: StartApp, sink: Sink) -> None:
    app = start_app(Calendar("2026-11-16T10:00:00+01:00").sources, webhook_url=sink.url)
    answer = app.post(
        {
            "subject": "=?utf-8?Q?Lot_456_=C3=A9t=C3=A9?=",
            "sender": "Ada Lovelace <Ada@Example.org>",
            "date": "Mon, 16 Nov 2026 09:59:00 +0100",
            "body": "<p>Voir <a href='https://a.example/?x=1&amp;y=2'>ici</a>&nbsp;!</p>" + "<p>mot</p>" * 100,
            "message_id": "<m1@example.org>",
            "snippet": "Voir",
            "recipient": "Inbox <Inbox@example.com>",
            "labels": ["a", {"b": [1, None, 2.5]}],
        }
    )
    email_id = hashlib.md5(  # the values as received, of the sender the address
        b"=?utf-8?Q?Lot_456_=C3=A9t=C3=A9?=|ada@example.org|Mon, 16 Nov 2026 09:59:00 +0100", usedforsecurity=False
    ).hexdigest()
    assert answer.status_code == 200
    (received,), (entry,) = sink.received, app.service.journal.find()
    assert answer.get_json() == {
        "success": True,
        "status": "processed",
        "email_id": email_id,
        "id": entry.id,
        "subject_group": "lot_456",
        "deliveries": {"default": {"id": f"{entry.id}:default", "status": "delivered"}},
    }
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
        "body": "<p>Voir <a href='https://a.example/?x=1&amp;y=2'>ici</a>&nbsp;!</p>" + "<p>mot</p>" * 100,
        "body_preview": ("Voir ici !" + " mot" * 100)[:200],
        "subject_group": "lot_456",
        "links": ["https://a.example/?x=1&y=2"],
        "message_id": "<m1@example.org>",
        "recipients": ["inbox@example.com"],
        "plain": "",
        "attachments": [],
        "spam": {},
        "extra": {
            "message_id": "<m1@example.org>",
            "snippet": "Voir",
            "labels": ["a", {"b": [1, None, 2.5]}],
        },
    }
    assert received.headers["Content-Type"] == "application/json"
    assert received.webhook_id.startswith("msg_")


def test_the_webhook_id_is_the_emails_own(app: App, sink: Sink) -> None:
    first = email()
    app.post(first)
    app.reset({"scope": "all", "confirm": "all"})
    app.post(first)
    app.post(email(subject="another"))
    one, two, three = (received.webhook_id for received in sink.received)
    assert one == two
    assert one != three


@pytest.mark.parametrize("field", ["subject", "body", "date", "x"])
def test_strange_characters_come_through(app: App, sink: Sink, field: str) -> None:
    payload = json.dumps(email()).encode().replace(b"}", f', "{field}": "nul \\u0000 {LINES}"}}'.encode())
    assert app.post_raw(payload).status_code == 200
    assert len(sink.received) == 1
    assert app.post_raw(payload).get_json()["status"] == "already_processed"


def test_a_failed_delivery_is_stored_and_tried_again_when_the_destination_asked_for(start_app: StartApp) -> None:
    with Sink(Reply(429, headers={"Retry-After": "77"})) as sink:
        app = start_app(webhook_url=sink.url)
        answer = app.post(email())
        assert (answer.status_code, answer.get_json()["status"]) == (200, "queued")
        (entry,) = app.service.journal.find()
    (delivery,) = entry.deliveries
    assert (entry.state, delivery.status) == (State.DONE, "waiting")
    assert delivery.next_try_ms is not None
    waits_s = (delivery.next_try_ms - delivery.attempts[0].at_ms) / 1000
    assert 77 <= waits_s <= 85 + 60, "what the destination asked for, and some jitter"


def test_without_a_destination_the_webhook_is_printed(start_app: StartApp, capsys: pytest.CaptureFixture[str]) -> None:
    app = start_app()
    assert app.status_of(email(subject="Bonjour")) == "processed"
    assert '"subject": "Bonjour"' in capsys.readouterr().out


def test_while_the_store_is_gone_the_provider_is_asked_to_keep_the_email(start_app: StartApp, sink: Sink) -> None:
    away = f"redis://127.0.0.1:{free_port()}/0"
    app = start_app(webhook_url=sink.url, redis_url=away, on_store_failure="closed")
    answer = app.post(email())
    assert (answer.status_code, answer.get_json()["status"]) == (503, "retry_later")
    assert answer.get_json()["error"] == "the store is away; send it again"
    assert answer.headers["Retry-After"]
    assert sink.received == []


def test_a_date_that_cannot_be_read_is_said_to_be_so(app: App) -> None:
    answer = app.post(email(date="yesterday")).get_json()
    assert answer["status"] == "processed", "an absent date is no reason to lose an email"
    (warning,) = answer["warnings"]
    assert warning.startswith("date cannot be read and counts as absent")
    for readable in ("", "2026-11-16T09:00:00Z"):
        assert "warnings" not in app.post(email(date=readable, subject=f"dated {readable}")).get_json()


# What is recognised


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
def test_the_same_email_in_any_notation_is_a_duplicate_that_names_the_original(
    start_app: StartApp, sink: Sink, notation: dict[str, str]
) -> None:
    app = start_app(webhook_url=sink.url, subject_groups="off")
    original = app.post(email()).get_json()["id"]
    answer = app.post(email(**notation))
    assert (answer.status_code, answer.get_json()["status"]) == (200, "already_processed")
    reason = answer.get_json()["reason"]
    assert (reason["gate"], reason["original"]) == ("identity", original)
    assert reason["name"].startswith(("email_id:2026-11-16:", "post::"))
    assert abs((datetime.now(UTC) - datetime.fromisoformat(reason["first_seen"])).total_seconds()) < 60
    assert len(sink.received) == 1


@pytest.fixture(params=["sqlite", "redis"])
def ungrouped(request: pytest.FixtureRequest, start_app: StartApp, sink: Sink) -> Iterator[App]:
    store = {}
    if request.param == "redis":
        redis_server: RedisServer = request.getfixturevalue("redis_server")
        store = {"redis_url": redis_server.url}
    yield start_app(webhook_url=sink.url, subject_groups="off", **store)


def test_two_emails_of_one_md5_are_both_delivered_and_each_is_then_recognised(ungrouped: App, sink: Sink) -> None:
    one, two = email(body="<p>un</p>"), email(body="<p>deux</p>")
    answers = [ungrouped.post(each).get_json() for each in (one, two, one, two, one)]
    assert [answer["status"] for answer in answers] == ["processed"] * 2 + ["already_processed"] * 3
    assert len({answer["email_id"] for answer in answers}) == 1
    assert [received.payload["body"] for received in sink.received] == ["<p>un</p>", "<p>deux</p>"]
    assert len({received.webhook_id for received in sink.received}) == 2, "a receiver must tell them apart"


def test_a_message_id_never_suppresses_an_email_with_another_text(ungrouped: App, sink: Sink) -> None:
    forged = {"message_id": "<m1@example.org>", "sender": "eve@example.net", "date": "2026-11-16T08:00:00Z"}
    assert ungrouped.status_of(email(**forged, body="first come")) == "processed"
    assert ungrouped.status_of(email(message_id="<m1@example.org>")) == "processed"
    assert len(sink.received) == 2


def test_undated_emails_of_one_subject_are_told_apart_by_their_text(ungrouped: App, sink: Sink) -> None:
    assert [ungrouped.status_of(email(date="", body=text)) for text in ("un", "deux", "un")] == [
        "processed",
        "processed",
        "already_processed",
    ]


def test_an_empty_email_does_not_suppress_what_the_sender_writes_later(ungrouped: App, sink: Sink) -> None:
    texts = ("", "un", "deux", "", "un")
    assert [ungrouped.status_of({"sender": "ada@example.org", "body": text}) for text in texts] == [
        *["processed"] * 3,
        *["already_processed"] * 2,
    ]


def test_of_an_undated_email_that_says_nothing_each_is_a_new_one(ungrouped: App, sink: Sink) -> None:
    """Neither an id nor a text: that it is the same as before, nobody can know."""
    assert [ungrouped.status_of({"subject": "Alarm", "sender": "ada@example.org"}) for _ in range(3)] == [
        "processed"
    ] * 3
    assert len({received.webhook_id for received in sink.received}) == 3


def test_an_email_with_another_file_is_another_email(ungrouped: App, sink: Sink) -> None:
    files = [[{"name": "a.pdf", "size": size}] for size in (1000, 2000)]
    one, two, untold = (email(attachments=each) for each in (*files, None))
    assert [ungrouped.status_of(each) for each in (one, two, untold, one)] == [
        *["processed"] * 2,
        *["already_processed"] * 2,
    ]
    assert [received.payload["attachments"][0]["size_bytes"] for received in sink.received] == [1000, 2000]


@pytest.mark.parametrize(
    "files",
    [
        [[{"name": "a.pdf", "content": content}] for content in ("MQ==", "Mg==")],
        [[{"filename": name}] for name in ("a.pdf", "b.pdf")],
        [{"name": name} for name in ("a.pdf", "b.pdf")],
        [["a.pdf"], ["b.pdf"]],
        [[{"title": "a.pdf", "id": number}] for number in (1, 2)],
    ],
)
def test_files_told_in_any_way_tell_emails_apart(ungrouped: App, files: list[Any]) -> None:
    one, two = (email(attachments=each) for each in files)
    assert [ungrouped.status_of(each) for each in (one, two, one)] == ["processed", "processed", "already_processed"]


def test_one_message_id_for_all_emails_of_a_device_drops_none_of_them(ungrouped: App) -> None:
    alarms = [
        email(subject=subject, sender=sender, date=f"2026-11-16T{hour}:00:00Z", body="", message_id="<1@device>")
        for subject, sender, hour in (
            ("Door open", "d1@a.example", "09"),
            ("Fire", "d1@a.example", "11"),
            ("Fire", "d2@a.example", "12"),
        )
    ]
    assert [ungrouped.status_of(each) for each in (*alarms, *alarms)] == ["processed"] * 3 + ["already_processed"] * 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Hello<br>call List<String>", "Hello<br>call List<Integer>"),
        ("Hello<br>from Joe <joe@x.example>", "Hello<br>from Joe <jim@x.example>"),
        ("<p>hi</p> password <abc123>", "<p>hi</p> password <xyz789>"),
    ],
)
def test_a_body_that_nobody_says_the_type_of_hides_no_difference(ungrouped: App, one: str, other: str) -> None:
    assert [ungrouped.status_of(email(body=body)) for body in (one, other)] == ["processed"] * 2


def test_the_second_email_of_a_group_is_skipped_with_the_reason(app: App, sink: Sink) -> None:
    original = app.post(email(subject="Lot 456 - Documents")).get_json()["id"]
    second = email(subject="Re: Lot 456", date="2026-11-17T09:00:00Z", sender="bob@example.org", body="Merci")
    answer = app.post(second)
    body = answer.get_json()
    assert (answer.status_code, body["success"], body["status"]) == (200, True, "skipped_subject_group")
    assert body["subject_group"] == "lot_456"
    reason = body["reason"]
    assert (reason["gate"], reason["original"]) == ("subject_group", original)
    assert reason["name"].startswith("subject_group:")
    assert reason["name"].endswith(":lot_456")
    assert reason["first_seen"]
    assert app.status_of(second) == "skipped_subject_group", "what was skipped is settled"
    assert [entry.repeats for entry in app.service.journal.find()] == [1, 0]
    assert len(sink.received) == 1


def test_the_same_unsubscribe_subject_is_delivered_every_time(app: App, sink: Sink) -> None:
    mails = [email(subject="Désabonnement Lot 456", date=f"2026-11-16T09:00:0{second}Z") for second in (1, 2)]
    assert [app.status_of(mail) for mail in mails] == ["processed", "processed"]
    assert [received.payload["subject_group"] for received in sink.received] == [None, None]
    assert app.status_of(mails[0]) == "already_processed", "the same email is still the same email"


@pytest.mark.parametrize("subject", ["", "  ", "Re:", None])
def test_empty_subjects_never_group(app: App, sink: Sink, subject: str | None) -> None:
    mails = [email(subject=subject, sender=f"{name}@example.org", body=name) for name in ("ada", "bob")]
    assert [app.status_of(mail) for mail in mails] == ["processed", "processed"]


@pytest.mark.parametrize(
    ("mode", "subject", "second"),
    [
        ("all", "Lot 456", "skipped_subject_group"),
        ("all", "Bonjour", "skipped_subject_group"),
        ("patterns", "Lot 456", "skipped_subject_group"),
        ("patterns", "Bonjour", "processed"),
        ("off", "Lot 456", "processed"),
        ("off", "Bonjour", "processed"),
    ],
)
def test_subject_groups_says_which_subjects_group(start_app: StartApp, mode: str, subject: str, second: str) -> None:
    app = start_app(subject_groups=mode)
    mails = [email(subject=subject, sender=f"{name}@example.org", body=name) for name in ("ada", "bob")]
    assert [app.status_of(mail) for mail in mails] == ["processed", second]


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
def test_a_group_starts_anew_at_the_month_end_of_the_configured_zone(
    start_app: StartApp, zone: str, before: str, after: str
) -> None:
    calendar = Calendar("2026-11-20T12:00:00+00:00")
    app = start_app(calendar.sources, timezone=zone)
    mails = [email(subject="Lot 456", date=f"2026-11-{day}T09:00:00Z", body=str(day)) for day in (16, 17, 18, 19)]
    statuses = []
    for mail, now in zip(mails, ("2026-11-20T12:00:00+00:00", before, after, after), strict=True):
        calendar.now = now
        statuses.append(app.status_of(mail))
    assert statuses == ["processed", "skipped_subject_group", "processed", "skipped_subject_group"]
    assert app.status_of(mails[0]) == "already_processed", "the email itself is known for ever"


def test_with_a_ttl_its_key_decides_and_the_set_is_history(
    start_app: StartApp, redis_server: RedisServer, sink: Sink
) -> None:
    app = start_app(
        Calendar("2026-11-20T12:00:00+00:00").sources,
        webhook_url=sink.url,
        redis_url=redis_server.url,
        subject_group_ttl_seconds=90,
    )
    mails = [email(subject="Lot 456", body=text) for text in ("un", "deux", "trois")]
    assert [app.status_of(mail) for mail in mails[:2]] == ["processed", "skipped_subject_group"]
    client = redis_server.client
    assert 0 < client.ttl("ttl:subject_groups:2026-11:lot_456") <= 90
    client.delete("ttl:subject_groups:2026-11:lot_456")
    assert client.smembers("subject_groups:2026-11") == {"2026-11:lot_456"}
    assert app.status_of(mails[2]) == "processed"


# What came last


def test_of_each_provider_the_last_email_and_the_last_refusal_are_known(app: App) -> None:
    seen = app.service.parts.providers
    app.post(email())
    app.post(email())
    assert (seen.read()["gmail"].status, seen.read()["gmail"].refused_ms) == ("already_processed", 0)
    app.post(email(sender="nobody"))
    assert seen.read()["gmail"].why.startswith("sender takes an email address")
    app.http.post("/api/ingress/gmail", json=email(), headers=bearer("x" * 20))
    assert seen.read()["gmail"].why == "it does not prove its origin, from 127.0.0.1"
    assert seen.read()["gmail"].status == "already_processed"
    app.http.post("/api/ingress/ses", data=b"{}")
    assert "topics" in seen.read()["ses"].why
    app.http.post("/api/ingress/message", json={})
    assert seen.read()["message"].why == "no or wrong token, from 127.0.0.1"
    app.http.post("/api/ingress/message", json={"source": "a"}, headers=bearer(INGRESS_TOKEN))
    assert "takes" in seen.read()["message"].why
    document = {"source": "tg:news", "id": 1, "text": "Hello"}
    app.http.post("/api/ingress/message", json=document, headers=bearer(INGRESS_TOKEN))
    assert seen.read()["message"].status == "processed"
    for content in ("Rapport", "Bonjour", "Ada", "nobody"):
        assert content not in str(seen.read())
