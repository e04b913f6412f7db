"""What holds for all providers together: one email is one email, and no bytes bring the service down."""

import json
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deduplication.identity import compute_canonical_id, compute_fingerprint
from deduplication.names import conflicts
from routes.providers.registry import TYPES
from routes.providers.samples import Enclosure, Letter, SampleRequest
from tests.routes.conftest import bearer
from tests.routes.providers.conftest import LETTER, Fetches, Ingress, Serve, email_in, provider_of, with_headers
from tests.routes.providers.contract import QUIETLY, assert_valid, bodies, changed, places, values
from tests.routes.providers.everyone import ADDRESSES, FORMS, SETTINGS, forms_of, provider_named
from tests.support.server import INGRESS_TOKEN

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
    told = {form: fingerprint for form, fingerprint in says.items() if form not in ("json", "brevo")}
    assert {form: fingerprint.files for form, fingerprint in told.items()} == dict.fromkeys(told, says["mime"].files)
    assert None not in {fingerprint.file_names for form, fingerprint in says.items() if form != "json"}
    assert {email.message_id for email in emails.values()} == {letter.message_id}
    assert {"inbox@in.example.com" in (*email.recipients, *email.to) for email in emails.values()} == {True}


def test_every_provider_is_covered_here() -> None:
    assert {provider_named(form) for form in FORMS} == set(TYPES)


@pytest.mark.parametrize("first", FORMS)
def test_one_email_in_all_forms_is_delivered_exactly_once(serve: Serve, fetches: Fetches, first: str) -> None:
    forms = forms_of(LETTER, fetches)
    ingress = serve(SETTINGS)
    assert ingress.status_of(forms[first]()) == "processed"
    statuses = {form: ingress.status_of(request()) for form, request in forms.items()}
    assert statuses == dict.fromkeys(forms, "already_processed")
    assert len(ingress.delivered) == 1


ONE = replace(LETTER, text="See attached.\n", html="<p>See attached.</p>\n")
OTHERS = {
    "another file": replace(ONE, enclosures=(replace(ONE.enclosures[0], content=b"lot;457\n"), *ONE.enclosures[1:])),
    "one file more": replace(ONE, enclosures=(*ONE.enclosures, Enclosure("b.txt", "text/plain", b"more\n"))),
    "another link": replace(ONE, html='<p><a href="https://files.example/1">See attached.</a></p>\n'),
    "another image": replace(ONE, html='<p>See attached.<img src="https://files.example/1.png"></p>\n'),
    "another text": replace(ONE, text="See below.\n", html="<p>See below.</p>\n"),
    **{
        f"a file without a text: {number}": replace(
            ONE, text="\n", html="", enclosures=(Enclosure("scan.pdf", "application/pdf", b"%PDF" * number),)
        )
        for number in (1, 2)
    },
}
TELL_NO_FILES = ("json",)
TELL_NAMES_AND_SIZES = ("brevo",)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "mailgun/mime"])  # its sample has one token for all
def test_an_email_with_other_contents_is_another_email(serve: Serve, fetches: Fetches, form: str) -> None:
    letters = {other: letter for other, letter in OTHERS.items() if not (form in TELL_NO_FILES and "file" in other)}
    if form in TELL_NAMES_AND_SIZES:
        resized = replace(ONE.enclosures[0], content=b"another size\n")
        letters["another file"] = replace(ONE, enclosures=(resized, *ONE.enclosures[1:]))
    ingress = serve(SETTINGS)
    for other, letter in {"the first": ONE, **letters}.items():
        assert ingress.status_of(forms_of(letter, fetches)[form]()) == "processed", other
        assert ingress.status_of(forms_of(letter, fetches)[form]()) == "already_processed", other
    assert ingress.status_of(forms_of(ONE, fetches)[form]()) == "already_processed"


def test_a_message_id_is_a_name_beside_the_providers_event_id(serve: Serve, fetches: Fetches) -> None:
    """Another date makes another id; the retry is known by Postmark's MessageID, the raw copy by its Message-ID."""
    ingress = serve(SETTINGS)
    assert ingress.status_of(forms_of(LETTER, fetches)["postmark"]()) == "processed"
    names = {name.value for entry in ingress.recorded for name in entry.own}
    assert {f"postmark:{LETTER.event_id}", LETTER.message_id.strip("<>")} <= names
    later = "2026-11-16T10:00:07"  # in no zone: with one, it would be another email
    assert ingress.status_of(forms_of(replace(LETTER, date=later), fetches)["mime"]()) == "already_processed"
    retry = json.loads(forms_of(replace(LETTER, date=later), fetches)["postmark"]().body)
    retry["Headers"] = []
    request = replace(forms_of(LETTER, fetches)["postmark"](), body=json.dumps(retry).encode())
    assert ingress.status_of(request) == "already_processed"
    assert len(ingress.delivered) == 1


# Whatever comes


@pytest.fixture
def all_providers(serve: Serve) -> Ingress:
    """One service for all examples of a test."""
    return serve(SETTINGS)


MULTIPART = ["multipart/form-data; boundary=xYzZY", "multipart/form-data", "multipart/form-data; boundary="]
OTHER_TYPES = ["application/json", "text/plain", "message/rfc822", "application/x-www-form-urlencoded", ""]


@pytest.mark.parametrize("name", ADDRESSES)
@settings(max_examples=60, deadline=None, suppress_health_check=QUIETLY)
@given(body=bodies, kind=st.sampled_from(MULTIPART + OTHER_TYPES))
@example(body=b"", kind="")
@example(body=b"[" * 100_000, kind="application/json")
def test_strangers_leave_no_record(all_providers: Ingress, fetches: Fetches, name: str, body: bytes, kind: str) -> None:
    ingress = all_providers
    request = SampleRequest(f"/api/ingress/{name}", {"Content-Type": kind}, body)
    answer = ingress.post(request)
    assert_valid(answer, 401)
    assert ingress.recorded == []
    assert fetches.asked == []


MESSAGES: list[dict[str, Any]] = [
    {"source": "tg:news", "id": 1, "text": "Hello", "date": "2026-11-16T09:00:00Z", "media": ["https://a.example/1"]},
    {"permalink": "/r/1", "url": "https://a.example/2", "title": "T", "name": "", "destinations": ["default"]},
    {"title": "T", "created_utc": 5},
]


@settings(max_examples=150, deadline=None, suppress_health_check=QUIETLY)
@given(data=st.data())
def test_any_value_in_any_place_of_a_message_is_answered(all_providers: Ingress, data: st.DataObject) -> None:
    """Documents of operators are tried by test_openapi.py."""
    place = data.draw(st.sampled_from(places(MESSAGES)))
    body = changed(MESSAGES, place, data.draw(values))
    answer = all_providers.app.http.post("/api/ingress/message", json=body, headers=bearer(INGRESS_TOKEN))
    assert_valid(answer, 503)
    if place and "Infinity" not in json.dumps(body):
        assert "retry_later" not in [each["status"] for each in answer.get_json()["results"]]
        assert answer.status_code == 200, "an invalid message does not stop the others"


def test_logs_contain_nothing_private(serve: Serve, fetches: Fetches, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    ingress = serve(SETTINGS)
    for request in forms_of(LETTER, fetches).values():
        ingress.post(request())
        ingress.post(with_headers(request(), authorization="Basic c2VuZGVyOnNlY3JldA=="))
        ingress.post(replace(request(), body=request().body[:200]))
    ours = "\n".join(
        record.getMessage() for record in caplog.records if record.name.startswith(("routes", "orchestrator"))
    )
    secrets = ["password", "key-3ax6", "whsec_", "re_123", "c2VuZGVy", "sig-123"]
    for private in ("Voil", "ada@example.org", "lot 456", *secrets):
        assert private.lower() not in ours.lower()
    assert ours
