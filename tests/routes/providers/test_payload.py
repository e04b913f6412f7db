"""One email with everything through every provider, and what receivers get of it."""

import copy
import json
from typing import Any

import jsonschema_rs
import pytest

from deduplication.email import MAX_FIELDS_CHARS, MOST_HEADERS
from tests.payload_page import LETTER_WITH_EVERYTHING, PAGE, WITH_TRUSTED, payloads, providers_page
from tests.routes.providers.conftest import Fetches, Serve, email_in, provider_of, request_of, with_body
from tests.routes.providers.everyone import FORMS, forms_of, provider_named
from tests.support.surroundings import ROOT

SHOWN = [("liste.csv", None, False), ("photo.png", None, False), ("logo.png", "logo@example.org", True)]
EXPECTED: dict[str, Any] = {
    "version": 2,
    "message_id": "4f145791.8040802@mail.example.org",
    "date_utc": "2026-11-16T09:00:00Z",
    "to": ["inbox@in.example.com"],
    "cc": ["carla@example.org"],
    "reply_to": ["desk@example.org"],
    "return_path": "bounces@mail.example.org",
    "envelope_recipient": "inbox@in.example.com",
    "in_reply_to": "1@mail.example.org",
    "references": ["0@mail.example.org", "1@mail.example.org"],
    "thread": "0@mail.example.org",
    "list": {"id": "lots.example.org", "unsubscribe": None},
    "html": LETTER_WITH_EVERYTHING.html.strip(),
    "text": LETTER_WITH_EVERYTHING.text.strip(),
    "reply_text": None,
    "automated": ("auto_reply", "Auto-Submitted: auto-replied"),
    "authentication": ("pass", "pass", "pass", True, "mx.example.com"),
    "attachments": SHOWN,
    "headers_omitted": 0,
    "extra_omitted": 0,
}
STRIPPED = {"reply_text": "Voilà un."}
BY_CLOUDMAILIN = {"authentication": ("pass", "pass", "pass", True, "cloudmailin, mx.example.com")}
NOT_INLINE = [(name, None, False) for name, *_ in SHOWN]
DIFFERENT: dict[str, dict[str, Any]] = {
    "mime": {"envelope_recipient": None},
    "resend": {"envelope_recipient": None},
    "brevo": {"envelope_recipient": None, **STRIPPED},
    "sendgrid raw": {"envelope_recipient": None},
    "sendgrid": {"authentication": ("pass", "pass", "pass", True, "sendgrid, mx.example.com")},
    "ses": {"authentication": ("pass", "pass", "pass", True, "ses")},
    "ses in Base64": {"authentication": ("pass", "pass", "pass", True, "ses")},
    "mandrill": {
        "authentication": ("pass", "pass", "pass", True, "mandrill, mx.example.com"),
        "attachments": [*SHOWN[:2], ("logo@example.org", "logo@example.org", True)],
    },
    "mailgun": STRIPPED,
    "postmark": STRIPPED,
    "json": {"attachments": []},
    "cloudmailin": {**BY_CLOUDMAILIN, **STRIPPED},
    "cloudmailin multipart": {**BY_CLOUDMAILIN, **STRIPPED, "attachments": NOT_INLINE},
    "cloudmailin raw": BY_CLOUDMAILIN,
}


@pytest.mark.parametrize("form", FORMS)
def test_one_email_with_everything_reaches_receivers_whole(serve: Serve, fetches: Fetches, form: str) -> None:
    ingress = serve(WITH_TRUSTED)
    assert ingress.status_of(forms_of(LETTER_WITH_EVERYTHING, fetches)[form]()) == "processed"
    (payload,) = ingress.delivered
    read = {name: payload[name] for name in EXPECTED}
    read["automated"] = (payload["automated"]["kind"], payload["automated"]["why"])
    read["authentication"] = tuple(payload["authentication"].values())
    read["attachments"] = [(file["name"], file["content_id"], file["inline"]) for file in payload["attachments"]]
    read |= {name: text.strip() for name in ("html", "text", "reply_text") if (text := payload[name])}
    assert read == EXPECTED | DIFFERENT.get(form, {})
    names = [header["name"].lower().replace("_", "-") for header in payload["headers"]]
    written = [name.lower() for name, _ in LETTER_WITH_EVERYTHING.more]
    assert [name for name in names if name in written] == written, "all, in their order"


def test_the_table_of_fields_is_what_make_docs_reference_writes() -> None:
    assert PAGE.read_text() == providers_page(), "stale: run make docs-reference"


def test_receivers_of_version_1_accept_version_2() -> None:
    """The schema that was published before, as it was."""
    schema = json.loads((ROOT / "tests/fixtures/payload-version-1.json").read_text())
    validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    around = {"type": "email.received", "timestamp": "2026-11-16T09:30:00Z", "received_at": "2026-11-16T09:30:00Z"}
    for form, payload in payloads().items():
        errors = [each.message for each in validator.iter_errors({**payload, **around, "subject_group": None})]
        assert not errors, form
    (payload, *_) = payloads().values()
    for name in set(schema["required"]) - {*around, "subject_group"}:
        changed = copy.deepcopy({**payload, **around, "subject_group": None})
        del changed[name]
        assert not validator.is_valid(changed), f"the schema of version 1 needs {name}"


def test_what_has_no_field_is_passed_on_and_what_does_not_fit_is_counted(fetches: Fetches) -> None:
    document = json.loads(request_of(WITH_TRUSTED, "postmark").body)
    document |= {"Tag": "vip", "MailboxHash": "42", "Big": "x" * MAX_FIELDS_CHARS, "Empty": "", "Nested": {"a": [1]}}
    document["Headers"] += [{"Name": f"X-{number}", "Value": "1"} for number in range(MOST_HEADERS)]
    document["Headers"].insert(0, {"Name": "X-Long", "Value": "x" * 65536})
    request = with_body(request_of(WITH_TRUSTED, "postmark"), json.dumps(document).encode())
    email = email_in(provider_of(WITH_TRUSTED, "postmark", fetches), request)
    assert email.extra == {"Tag": "vip", "MailboxHash": "42", "Nested": {"a": [1]}}
    assert (email.extra_omitted, len(email.headers), email.headers_omitted) == (1, MOST_HEADERS, 4)


def test_nothing_of_a_proof_of_origin_is_passed_on(fetches: Fetches) -> None:
    for form, request in forms_of(LETTER_WITH_EVERYTHING, fetches).items():
        extra = email_in(provider_of(WITH_TRUSTED, provider_named(form), fetches), request()).extra
        assert not {"signature", "Signature", "token", "timestamp"} & extra.keys(), form
