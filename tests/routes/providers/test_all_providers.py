"""What holds for all providers together: one email is one email, and no bytes bring the service down."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations, permutations
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from deduplication.fingerprint import conflicts
from deduplication.identity import compute_canonical_id, compute_fingerprint
from routes.providers.registry import TYPES
from routes.providers.samples import Enclosure, Letter, SampleRequest
from tests.routes.conftest import bearer
from tests.routes.providers.conftest import LETTER, Door, Fetches, OpenDoor, email_in, provider_of, with_headers
from tests.routes.providers.everyone import ADDRESSES, FORMS, SETTINGS, forms_of, provider_named, wrapping_of
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN

RETRY = {"brevo": 429}
LETTERS = {
    "with everything": LETTER,
    "text only": replace(LETTER, html="", enclosures=()),
    "no attachment": replace(LETTER, enclosures=()),
    "other characters": replace(
        LETTER,
        subject="Ünïcödé ✓ – 日本語の件名がとても長いので折り返されます, encore et encore et encore et encore",
        sender="日本 太郎 <taro@example.jp>",
        text="本文です。\n",
        html="<p>本文です。</p>\n",
    ),
    "what forms and URLs are made of": replace(
        LETTER, subject="100 %41 + a&b=c; =", text="100 %41 + a&b=c; =3D\n", html="<p>100 %41 + a&amp;b=c; =3D</p>\n"
    ),
    "another zone": replace(LETTER, date="Mon, 16 Nov 2026 04:00:00 -0500"),
}


@pytest.mark.parametrize("letter", LETTERS.values(), ids=LETTERS)
def test_one_email_in_all_forms_has_one_canonical_id_and_one_text(letter: Letter, fetches: Fetches) -> None:
    emails = {
        form: email_in(provider_of(SETTINGS, provider_named(form), fetches), request())
        for form, request in forms_of(letter, fetches).items()
    }
    assert {form: compute_canonical_id(email) for form, email in emails.items()} == dict.fromkeys(
        emails, compute_canonical_id(emails["mime"])
    )
    says = {form: compute_fingerprint(email) for form, email in emails.items()}
    assert [pair for pair in combinations(says, 2) if conflicts(says[pair[0]], says[pair[1]])] == []
    assert {fingerprint.text for fingerprint in says.values()} == {says["mime"].text}
    told = {form: fingerprint for form, fingerprint in says.items() if form not in ("gmail", "json", "brevo")}
    assert {form: fingerprint.files for form, fingerprint in told.items()} == dict.fromkeys(told, says["mime"].files)
    assert None not in {fingerprint.file_names for form, fingerprint in says.items() if form not in ("gmail", "json")}
    assert {email.message_id for email in emails.values()} == {letter.message_id}
    assert {"inbox@in.example.com" in email.recipients for email in emails.values()} == {True}


def test_every_provider_takes_part_here() -> None:
    assert {provider_named(form) for form in FORMS} == set(TYPES)


@pytest.mark.parametrize("first", FORMS)
def test_one_email_in_all_forms_is_delivered_exactly_once(open_door: OpenDoor, fetches: Fetches, first: str) -> None:
    forms = forms_of(LETTER, fetches)
    door = open_door(SETTINGS)
    assert door.status_of(forms[first]()) == "processed"
    statuses = {form: door.status_of(request()) for form, request in forms.items()}
    assert statuses == dict.fromkeys(forms, "already_processed")
    assert len(door.delivered) == 1


ONE = replace(LETTER, text="See attached.\n", html="<p>See attached.</p>\n")
OTHERS = {
    "another file": replace(ONE, enclosures=(replace(ONE.enclosures[0], content=b"lot;457\n"), *ONE.enclosures[1:])),
    "one file more": replace(ONE, enclosures=(*ONE.enclosures, Enclosure("b.txt", "text/plain", b"more\n"))),
    "another link": replace(ONE, html='<p><a href="https://files.example/1">See attached.</a></p>\n'),
    "another image": replace(ONE, html='<p>See attached.<img src="https://files.example/1.png"></p>\n'),
    "another text": replace(ONE, text="See below.\n", html="<p>See below.</p>\n"),
}
PAIRS = list(permutations(["mime", "mailgun", "postmark", "sendgrid", "cloudmailin"], 2))
TELL_NO_FILES = ("gmail", "json")
TELL_NAMES_AND_SIZES = ("brevo",)


@pytest.mark.parametrize(
    ("form", "other"),
    [
        (form, other)
        for form in FORMS
        for other in OTHERS
        if form != "mailgun/mime"  # its sample has one token for both
        and not (form in TELL_NO_FILES and "file" in other)
    ],
)
def test_an_email_that_says_something_else_is_another_one_whatever_it_is_called(
    open_door: OpenDoor, fetches: Fetches, form: str, other: str
) -> None:
    letter = OTHERS[other]
    if other == "another file" and form in TELL_NAMES_AND_SIZES:
        letter = replace(
            letter, enclosures=(replace(ONE.enclosures[0], content=b"another size\n"), *ONE.enclosures[1:])
        )
    door = open_door(SETTINGS)
    assert door.status_of(forms_of(ONE, fetches)[form]()) == "processed"
    second = forms_of(letter, fetches)[form]
    assert door.status_of(second()) == "processed"
    assert door.status_of(second()) == "already_processed"
    assert door.status_of(forms_of(ONE, fetches)[form]()) == "already_processed"


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_scans_without_a_text_are_two_by_whichever_doors_they_come(
    open_door: OpenDoor, fetches: Fetches, first: str, second: str
) -> None:
    empty = replace(LETTER, text="\n", html="")
    pages = (Enclosure("scan.pdf", "application/pdf", content) for content in (b"%PDF 1", b"%PDF 2"))
    scans = [replace(empty, enclosures=(page,)) for page in pages]
    door = open_door(SETTINGS)
    assert door.status_of(forms_of(scans[0], fetches)[first]()) == "processed"
    assert door.status_of(forms_of(scans[1], fetches)[second]()) == "processed"
    assert door.status_of(forms_of(scans[0], fetches)[second]()) == "already_processed"


def test_a_message_id_is_a_name_beside_the_providers_event_id(open_door: OpenDoor, fetches: Fetches) -> None:
    """Other headers make another id; the retry is known by Postmark's MessageID, the raw copy by its Message-ID."""
    door = open_door(SETTINGS)
    assert door.status_of(forms_of(LETTER, fetches)["postmark"]()) == "processed"
    names = {name.value for entry in door.recorded for name in entry.own}
    assert {f"postmark:{LETTER.event_id}", LETTER.message_id.strip("<>")} <= names
    later = "Mon, 16 Nov 2026 10:00:07 +0100"
    assert door.status_of(forms_of(replace(LETTER, date=later), fetches)["mime"]()) == "already_processed"
    retry = json.loads(forms_of(replace(LETTER, date=later), fetches)["postmark"]().body)
    retry["Headers"] = []
    request = replace(forms_of(LETTER, fetches)["postmark"](), body=json.dumps(retry).encode())
    assert door.status_of(request) == "already_processed"
    assert len(door.delivered) == 1


@pytest.mark.parametrize(("first", "second"), [("", LETTER.date), (LETTER.date, "")])
@pytest.mark.parametrize("form", ["mime", "postmark", "brevo"])
def test_the_undated_and_the_dated_form_of_one_email_are_one(
    open_door: OpenDoor, fetches: Fetches, form: str, first: str, second: str
) -> None:
    door = open_door(SETTINGS)
    assert door.status_of(forms_of(replace(LETTER, date=first), fetches)[form]()) == "processed"
    assert door.status_of(forms_of(replace(LETTER, date=second), fetches)["mime"]()) == "already_processed"


def test_undated_emails_with_the_same_words_and_other_message_ids_are_all_delivered(
    open_door: OpenDoor, fetches: Fetches
) -> None:
    door = open_door(SETTINGS)
    for number in range(3):
        letter = replace(LETTER, date="", message_id=f"<{number}@mail.example.org>")
        assert door.status_of(forms_of(letter, fetches)["mime"]()) == "processed"
        assert door.status_of(forms_of(letter, fetches)["mime"]()) == "already_processed"
    assert len({delivered.webhook_id for delivered in door.sink.accepted}) == 3


def test_in_another_notation_of_the_date_it_is_still_the_same(open_door: OpenDoor, fetches: Fetches) -> None:
    notations = [
        "Mon, 16 Nov 2026 10:00:00 +0100",
        "16 Nov 2026 09:00:00 -0000",
        "Mon, 16 Nov 2026 10:00:00 +0100 (CET)",
        "Mon, 16 Nov 2026 01:00:00 -0800 (PST)",
        "2026-11-16T09:00:00.000Z",
    ]
    door = open_door(SETTINGS)
    names = ["postmark", "gmail", "brevo", "cloudmailin", "mailjet", "mailgun", "json"]
    for place, name in enumerate(names):
        letter = replace(LETTER, date=notations[place % len(notations)])
        door.post(forms_of(letter, fetches)[name]())
    assert len(door.delivered) == 1


# Whatever comes


@pytest.fixture
def everyones_door(open_door: OpenDoor) -> Door:
    """One service for all examples of a test."""
    return open_door(SETTINGS)


def is_sound(name: str, answer: TestResponse) -> None:
    """A JSON answer below 500, or the provider's own "try again", which is not to cover up an error of ours."""
    assert "internal error" not in answer.text
    assert answer.status_code < 500 or answer.status_code == RETRY.get(name, 503), answer.text
    if answer.content_type == "application/problem+json":  # of an operator's request
        assert not answer.request.path.startswith("/api/ingress/")
        assert answer.get_json()["status"] == answer.status_code
    else:
        assert answer.content_type == "application/json"
        assert isinstance(answer.get_json()["success"], bool)


content_types = st.sampled_from(
    [
        "application/json",
        "text/plain",
        "message/rfc822",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=xYzZY",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "",
    ]
)
PIECES = [
    b"--xYzZY",
    b"--xYzZY--",
    b"\r\n",
    b"\n\n",
    b'Content-Disposition: form-data; name="headers"',
    b"=",
    b"&",
    b"%",
]
PIECES += [
    b"Content-Type: multipart/mixed; boundary=x",
    b"--x",
    b"Subject: ",
    b"From: a@b.org",
    b"{",
    b'"',
    b":",
    b"\x00\xff",
]
pieces = st.lists(st.sampled_from(PIECES) | st.binary(max_size=20), max_size=30).map(b"".join)
HOSTILE = [
    10**400,
    -(10**400),
    1e300,
    "http://[::1",
    "http://℀.com/a",
    "\ud800",
    "a\n\x00b",
    "\u0301" * 50,
    "é" * 70_000,
]
texts = st.text(st.characters(), max_size=20)  # half surrogate pairs included
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts | st.sampled_from(HOSTILE)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
QUIETLY = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.mark.parametrize("name", ADDRESSES)
@settings(max_examples=60, deadline=None, suppress_health_check=QUIETLY)
@given(body=st.binary(max_size=300) | pieces | values.map(lambda value: json.dumps(value).encode()), kind=content_types)
@example(body=b"", kind="")
@example(body=b"[" * 100_000, kind="application/json")
def test_whatever_a_stranger_sends_nothing_is_recorded(
    everyones_door: Door, fetches: Fetches, name: str, body: bytes, kind: str
) -> None:
    door = everyones_door
    request = SampleRequest(f"/api/ingress/{name}", {"Content-Type": kind}, body)
    answer = door.post(request)
    is_sound(name, answer)
    assert answer.status_code == 401
    assert door.recorded == []
    assert fetches.asked == []


@pytest.mark.parametrize("form", FORMS)
def test_what_is_fuzzed_below_reaches_the_parser(
    everyones_door: Door, fetches: Fetches, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("in the parser")

    request, wrapping = forms_of(LETTER, fetches)[form](), wrapping_of(form)
    monkeypatch.setattr(TYPES[provider_named(form)], "parse", fail)
    assert "internal error" in everyones_door.post(wrapping.proven(request, wrapping.words_of(request) + b" ")).text


def is_taken_for_the_providers_own(form: str, answer: TestResponse) -> None:
    is_sound(provider_named(form), answer)
    assert answer.status_code != 401, "the request is not proven, so that nothing was read: everyone.WRAPPINGS says how"


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=60, deadline=None, suppress_health_check=QUIETLY)
@given(words=st.binary(max_size=300) | pieces | values.map(lambda value: json.dumps(value).encode()))
@example(words=b"[" * 100_000)
@example(words=b'{"a":' * 5_000)
@example(words=b"\x00" * 5_000)
def test_whatever_the_provider_itself_sends_is_answered(
    everyones_door: Door, fetches: Fetches, form: str, words: bytes
) -> None:
    request = forms_of(LETTER, fetches)[form]()
    is_taken_for_the_providers_own(form, everyones_door.post(wrapping_of(form).proven(request, words)))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(copy[path[0]], path[1:], new)
    return copy


def json_in(form: str, fetches: Fetches) -> Any:
    """None where the provider's words are something else."""
    try:
        return json.loads(wrapping_of(form).words_of(forms_of(LETTER, fetches)[form]()))
    except ValueError:
        return None


@pytest.fixture
def sample(form: str, fetches: Fetches) -> SampleRequest:
    """The letter in that form, for all examples: none of those in JSON can be used once only."""
    return forms_of(LETTER, fetches)[form]()


@pytest.mark.parametrize("form", [form for form in FORMS if json_in(form, Fetches()) is not None])
@settings(max_examples=150, deadline=None, suppress_health_check=QUIETLY)
@given(data=st.data())
def test_any_value_in_any_place_of_an_email_is_answered(
    everyones_door: Door, sample: SampleRequest, form: str, data: st.DataObject
) -> None:
    wrapping = wrapping_of(form)
    document = json.loads(wrapping.words_of(sample))
    place = data.draw(st.sampled_from(places(document)))
    words = json.dumps(changed(document, place, data.draw(values))).encode()
    is_taken_for_the_providers_own(form, everyones_door.post(wrapping.proven(sample, words)))


DOCUMENTS: dict[str, Any] = {
    "ingress/message": [
        {
            "source": "tg:news",
            "id": 1,
            "text": "Hello",
            "date": "2026-11-16T09:00:00Z",
            "media": ["https://a.example/1"],
        },
        {"permalink": "/r/1", "url": "https://a.example/2", "title": "T", "name": "", "destinations": ["default"]},
        {"title": "T", "created_utc": 5},
    ],
    "admin/reset": {"scope": "email_id", "value": "x", "dry_run": True, "confirm": "all"},
    "admin/deliveries/replay": {"status": "dead", "destination": "default", "since": "2026-11-16", "dry_run": True},
    "admin/deliveries/x/replay": {"force": True, "new_id": False, "dry_run": True},
    "admin/decisions/release": {
        "status": "skipped_media",
        "gate": "media",
        "provider": "gmail",
        "destination": "default",
        "q": "x",
        "since": "2026-11-16",
        "dry_run": True,
    },
    "admin/decisions/x/release": {"force": True, "dry_run": True},
}


@pytest.mark.parametrize("path", DOCUMENTS)
@settings(max_examples=150, deadline=None, suppress_health_check=QUIETLY)
@given(data=st.data())
def test_any_value_in_any_place_of_any_other_document_is_answered(
    everyones_door: Door, path: str, data: st.DataObject
) -> None:
    document = DOCUMENTS[path]
    place = data.draw(st.sampled_from(places(document)))
    token = ADMIN_TOKEN if path.startswith("admin") else INGRESS_TOKEN
    body = changed(document, place, data.draw(values))
    answer = everyones_door.app.http.post(f"/api/{path}", json=body, headers=bearer(token))
    is_sound("", answer)
    is_json = "Infinity" not in json.dumps(body)
    if place and is_json and path == "ingress/message":
        assert [each["status"] for each in answer.get_json()["results"]].count("retry_later") == 0
        assert answer.status_code == 200, "no message spoils the others"


@settings(max_examples=100, deadline=None, suppress_health_check=QUIETLY)
@given(
    path=st.builds(
        lambda kind, text: f"{kind}/{quote(text, errors='surrogatepass')}" if text else kind,
        st.sampled_from(["deliveries", "decisions"]),
        texts,
    ),
    query=st.dictionaries(
        st.sampled_from(["status", "gate", "provider", "destination", "q", "since", "until", "limit", "cursor", "x"]),
        st.binary(max_size=20),
        max_size=3,
    ),
)
@example(path="deliveries", query={"limit": b"9" * 5000})
@example(path="deliveries", query={"since": b"9" * 5000})
@example(path="deliveries//0", query={})
def test_any_question_of_an_operator_is_answered(everyones_door: Door, path: str, query: dict[str, bytes]) -> None:
    url = f"/api/admin/{path}?{urlencode(query)}"
    is_sound("", everyones_door.app.http.get(url, headers=bearer(ADMIN_TOKEN)))


def test_the_answer_to_a_stranger_is_the_same_whatever_he_sends(open_door: OpenDoor, fetches: Fetches) -> None:
    door = open_door(SETTINGS)
    for request in forms_of(LETTER, fetches).values():
        sent = replace(request(), headers={"content-type": request().headers["Content-Type"]})
        answers = {door.post(replace(sent, body=body)).text for body in (sent.body[:-10], b"", b"{", b"x" * 5000)}
        assert len(answers) == 1


def test_no_log_line_holds_what_is_private(
    open_door: OpenDoor, fetches: Fetches, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    door = open_door(SETTINGS)
    for request in forms_of(LETTER, fetches).values():
        door.post(request())
        door.post(with_headers(request(), authorization="Basic c2VuZGVyOnNlY3JldA=="))
        door.post(replace(request(), body=request().body[:200]))
    ours = "\n".join(
        record.getMessage() for record in caplog.records if record.name.startswith(("routes", "orchestrator"))
    )
    for private in (
        "Voil",
        "ada@example.org",
        "lot 456",
        "password",
        "key-3ax6",
        "whsec_",
        "re_123",
        "c2VuZGVy",
        "sig-123",
    ):
        assert private.lower() not in ours.lower()
    assert ours
