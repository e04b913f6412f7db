"""What makes two emails the same: pairs of emails, and whether the second one is new, as every provider sends them."""

import uuid
from dataclasses import replace
from email.message import EmailMessage
from email.policy import SMTP, SMTPUTF8
from typing import Any

import pytest

from deduplication.values import frozen
from routes.providers.samples import Enclosure, Letter
from tests.routes.providers.conftest import LETTER, Fetches, Serve
from tests.routes.providers.everyone import FORMS, SETTINGS, forms_of, provider_named
from tests.routes.test_api_ingress import KNOWN, NEW
from tests.support.waiting import wait_for

FORM_NAMES = [form for form in FORMS if form != "mailgun/mime"]  # its sample has one token for all emails of an id
RAW = [form for form in FORM_NAMES if "raw" in form or provider_named(form) in ("mime", "resend", "ses")]
TELL_CONTENTS = [form for form in FORM_NAMES if form not in ("json", "brevo")]  # of files

AT_TEN, AT_ELEVEN = "Mon, 16 Nov 2026 10:00:00 +0100", "Mon, 16 Nov 2026 11:00:00 +0100"


def csv(content: bytes) -> dict[str, Any]:
    return {"enclosures": (Enclosure("liste.csv", "text/csv", content),)}


def saying(text: str) -> dict[str, Any]:
    return {"text": f"{text}\n", "html": f"<p>{text}</p>\n"}


# In these cases both emails have the same Message-ID, and all that is not mentioned.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "identical words an hour later": ({}, {"date": AT_ELEVEN}, NEW),
    "identical words a second later": ({}, {"date": AT_TEN.replace(":00 +", ":01 +")}, NEW),
    "the same moment in another zone": ({}, {"date": "Mon, 16 Nov 2026 04:00:00 -0500 (EST)"}, KNOWN),
    "another time, in no zone": ({"date": "2026-11-16T10:00:00"}, {"date": "2026-11-16T11:00:00"}, KNOWN),
    "a time in no zone": ({}, {"date": "2026-11-16T11:00:00"}, KNOWN),
    "a domain in Unicode and its xn-- form": (
        {"sender": "Ada <ada@bücher.example>"},
        {"sender": "Ada <ada@xn--bcher-kva.example>"},
        KNOWN,
    ),
    "another domain in its xn-- form": (
        {"sender": "Ada <ada@bücher.example>"},
        {"sender": "Ada <ada@xn--bchers-4ya.example>"},
        NEW,
    ),
    "ISO-8859-1 read by the letter": (saying("It’s 5 € … – "), saying("It\x92s 5 \x80 \x85 \x96"), KNOWN),
    "another such letter": (saying("5 €"), saying("5 \x85"), NEW),
    "an empty HTML part beside two texts": (
        {"text": "un\n", "html": "<html><body><p>&nbsp;</p></body></html>\n"},
        {"text": "deux\n", "html": "<html><body><p>&nbsp;</p></body></html>\n"},
        NEW,
    ),
    "a tag in front": ({}, {"subject": "[EXT] Case {}"}, KNOWN),
    "a tag that is gone": ({"subject": "[SPAM?] Case {}"}, {}, KNOWN),
    "a second tag": ({"subject": "[list] Case {}"}, {"subject": "[EXT] [list] Case {}"}, KNOWN),
    "two tags": ({}, {"subject": "[EXT][list] Case {}"}, KNOWN),
    "another tag": ({"subject": "[sensor 1] Case {}"}, {"subject": "[sensor 2] Case {}"}, NEW),
    "a tag behind": ({}, {"subject": "Case {} [EXT]"}, NEW),
    "a tag and another word": ({}, {"subject": "[EXT] Case {} again"}, NEW),
    "a tag and another text": ({}, {"subject": "[EXT] Case {}", **saying("Voici.")}, NEW),
    "a tag and another sender": ({}, {"subject": "[EXT] Case {}", "sender": "Bob <bob@example.org>"}, NEW),
    "a tag, an hour later": ({}, {"subject": "[EXT] Case {}", "date": AT_ELEVEN}, NEW),
    "a tag, at an unknown time": ({}, {"subject": "[EXT] Case {}", "date": "2026-11-16T09:00:00"}, NEW),
    "a tag and another Message-ID": ({}, {"subject": "[EXT] Case {}", "message_id": "<another@{}>"}, NEW),
}
OF_FILES = {
    "the last line end of a text file": (csv(b"lot;456\n"), csv(b"lot;456"), KNOWN),
    "the line ends of a text file": (csv(b"lot\r\n456\r\n"), csv(b"lot\n456"), KNOWN),
    "two line ends more": (csv(b"lot;456"), csv(b"lot;456\n\n"), NEW),
    "the last byte of another file": (csv(b"\0\n"), csv(b"\0"), NEW),
    "another file": (csv(b"lot;456\n"), csv(b"lot;457\n"), NEW),
}


@frozen
class InUtf8(Letter):
    """Its domain may be international."""

    @property
    def mime(self) -> EmailMessage:
        message = super().mime
        message.policy = SMTPUTF8
        return message


def letters(number: int, one: dict[str, Any], other: dict[str, Any]) -> list[Letter]:
    """Two letters that have nothing in common with those of another number."""
    fields = vars(LETTER) | {"message_id": "<{}@mail.example.org>", "subject": "Case {}", "date": AT_TEN}
    usual = InUtf8(**fields | {"enclosures": ()})
    both = [replace(usual, **changes) for changes in (one, other)]
    return [
        replace(each, subject=each.subject.format(number), message_id=each.message_id.format(number)) for each in both
    ]


@pytest.mark.parametrize("first_by_mime", [False, True], ids=["by the same", "by another"])
@pytest.mark.parametrize("form", FORM_NAMES)
def test_the_second_email_is_new_or_known(serve: Serve, fetches: Fetches, form: str, first_by_mime: bool) -> None:
    """The dates that a script sends may be times of receipt: they are compared with other dates of that script only."""
    cases = CASES | (OF_FILES if form in TELL_CONTENTS else {})
    ingress, verdicts = serve(SETTINGS), {}
    for number, (name, (one, other, _)) in enumerate(cases.items()):
        first, second = letters(number, one, other)
        assert ingress.status_of(forms_of(first, fetches)["mime" if first_by_mime else form]()) == NEW, name
        verdicts[name] = ingress.status_of(forms_of(second, fetches)[form]())
    expected = {name: verdict for name, (_, _, verdict) in cases.items()}
    if first_by_mime and form in ("gmail", "json"):
        expected |= dict.fromkeys(("identical words an hour later", "identical words a second later"), KNOWN)
    assert verdicts == expected


@frozen
class SeveralParts(Letter):
    """With a second HTML part, which providers other than raw ones omit."""

    second_html: str = ""

    @property
    def mime(self) -> EmailMessage:
        message = EmailMessage(policy=SMTP)
        for name, value in self.headers.items():
            message[name] = value
        message.make_mixed()
        for html in (self.html, self.second_html):
            part = EmailMessage(policy=SMTP)
            part.set_content(html, subtype="html")
            message.attach(part)
        return message


@pytest.mark.parametrize("form", FORM_NAMES)
def test_of_several_html_parts_those_count_that_both_know(serve: Serve, fetches: Fetches, form: str) -> None:
    fields = vars(replace(LETTER, text="", enclosures=()))
    one, two = (SeveralParts(**fields, second_html=f"<p>{text}</p>") for text in ("un", "deux"))
    another = replace(one, html="<p>Autre</p>")
    sent: list[tuple[str, Letter]] = [
        ("mime", one),
        ("mime", two),
        ("mime", one),
        (form, one),
        (form, another),
        (form, another),
    ]
    ingress = serve(SETTINGS)
    statuses = [ingress.status_of(forms_of(letter, fetches)[by]()) for by, letter in sent]
    assert statuses == [NEW, NEW, KNOWN, KNOWN, NEW, KNOWN]

    later: dict[str, Any] = {"message_id": "<2@mail.example.org>", "date": AT_ELEVEN}
    one, alone = replace(one, **later), Letter(**fields | later)
    sent = [(form, one), ("mime", one), ("mime", alone)]
    statuses = [ingress.status_of(forms_of(letter, fetches)[by]()) for by, letter in sent]
    assert statuses == [NEW, KNOWN, NEW if form in RAW else KNOWN]


@frozen
class Bounce(Letter):
    """It has a subject and a text alone."""

    @property
    def headers(self) -> dict[str, str]:
        return {"Subject": self.subject, "To": self.to}

    @property
    def event_id(self) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, self.text))


@pytest.mark.parametrize("form", [form for form in FORM_NAMES if form not in ("gmail", "json")])  # they need a sender
def test_a_bounce_without_sender_date_and_message_id_is_an_email(serve: Serve, fetches: Fetches, form: str) -> None:
    bounces = [
        Bounce("Undelivered Mail", "", LETTER.recipients, "", "", f"{address} does not exist\n")
        for address in ("ada@example.org", "bob@example.org")
    ]
    ingress = serve(SETTINGS)
    statuses = [ingress.status_of(forms_of(each, fetches)[form]()) for each in (*bounces, *bounces)]
    assert statuses == [NEW, NEW, KNOWN, KNOWN]
    assert [payload["body"].strip() for payload in ingress.delivered] == [each.text.strip() for each in bounces]


def test_an_ignored_tag_is_mentioned_and_the_email_can_be_released(serve: Serve, fetches: Fetches) -> None:
    plain, tagged = letters(1, {}, {"subject": "[EXT] Case {}"})
    ingress = serve(SETTINGS)
    original = ingress.post(forms_of(plain, fetches)["mime"]()).get_json()["id"]
    answer = ingress.post(forms_of(tagged, fetches)["postmark"]()).get_json()
    assert (answer["status"], answer["reason"]["original"]) == (KNOWN, original)
    assert answer["warnings"] == ["it repeats an email whose subject differs only by a tag in front"]
    assert ingress.app.act(f"decisions/{answer['id']}/release", force=True)["status"] == "released"
    wait_for(lambda: [payload["subject"] for payload in ingress.delivered] == ["Case 1", "[EXT] Case 1"])
