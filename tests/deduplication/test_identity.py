"""The names that an email is recognised by, and which emails are different."""

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduplication.email import Attachment, Email
from deduplication.identity import (
    compute_canonical_id,
    compute_email_id,
    compute_fingerprint,
    compute_post_keys,
    own_names,
)
from deduplication.names import MAX_POST_KEY_CHARS, WEEK_MS, Fingerprint, Kind, Name, conflicts
from orchestrator.item import email_item

DAY_MS = 24 * 3600 * 1000


def md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def email(**fields: Any) -> Email:
    """An email; give what matters to the test."""
    usual = {
        "subject": "Réunion",
        "sender": "Ada <Ada@Example.org>",
        "date": "2017-10-12T01:31:04Z",
        "plain": "Bonjour",
    }
    return Email(**(usual | fields))


@pytest.mark.parametrize(
    ("sender", "address"),
    [("A@B.example", "a@b.example"), ('"Lovelace, Ada" <A@B.EXAMPLE>', "a@b.example"), ("Ada", "Ada")],
)
def test_the_email_id_is_the_md5_of_the_values_as_received_with_the_address_alone(sender: str, address: str) -> None:
    email_id = compute_email_id(subject=" Réunion ", sender=sender, date="2017-10-12T01:31:04.000Z")
    assert email_id == md5(f" Réunion |{address}|2017-10-12T01:31:04.000Z")


@pytest.mark.parametrize(
    "other",
    [
        {"date": "Wed, 11 Oct 2017 18:31:04 -0700 (PDT)"},
        {"date": "20171012T013104"},
        {"date": "1507771864"},
        {"date": "2017-10-12T01:31:04.789Z"},
        {"subject": "=?utf-8?B?UsOpdW5pb24=?="},
        {"subject": "Re\u0301union"},
        {"subject": " Réunion\r\n "},
        {"sender": "ADA@example.org"},
    ],
)
def test_the_canonical_id_is_equal_over_notations(other: dict[str, str]) -> None:
    assert compute_canonical_id(email(**other)) == compute_canonical_id(email())


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("ada@bücher.example", "ada@xn--bcher-kva.example", True),
        ("ada@BU\u0308CHER.example", "Ada@XN--BCHER-KVA.example", True),
        ("ada@mail.straße.example", "ada@mail.xn--strae-oqa.example", True),
        ("xn--bcher-kva@example.org", "bücher@example.org", False),
        ("ada@xn--99999999.example", "ada@xn--99999998.example", False),
        (f"ada@xn--{'a' * 60_000}.example", f"ada@xn--{'a' * 60_001}.example", False),
        ("Zoë", "Zoé", False),
    ],
)
def test_an_international_domain_is_the_same_in_both_of_its_forms(one: str, other: str, is_same: bool) -> None:
    assert (compute_canonical_id(email(sender=one)) == compute_canonical_id(email(sender=other))) is is_same


SUBJECT_DATE_SENDER = "Réunion::2017-10-12T01:31:04Z::ada@example.org"


@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        ({"event_id": "evt-1", "message_id": "<m@example.org>"}, ("evt-1", "m@example.org")),
        ({"event_id": "evt-1"}, ("evt-1",)),
        ({"event_id": "", "message_id": "<m@example.org>"}, ("m@example.org",)),
        ({"event_id": "same", "message_id": "<same>"}, ("same",)),
        ({"message_id": " <m@example.org>\r\n"}, ("m@example.org",)),
        ({"message_id": "m@example.org", "date": ""}, ("m@example.org",)),
        ({}, (SUBJECT_DATE_SENDER,)),
        ({"event_id": "  ", "message_id": "<>"}, (SUBJECT_DATE_SENDER,)),
        ({"subject": ""}, ()),
        ({"subject": "  "}, ()),
        ({"date": ""}, ()),
        ({"date": "yesterday"}, ()),
        ({"sender": ""}, ()),
        ({"plain": ""}, (SUBJECT_DATE_SENDER,)),
    ],
)
def test_post_keys_are_event_id_and_message_id_or_the_head(fields: dict[str, str], keys: tuple[str, ...]) -> None:
    assert compute_post_keys(email(**fields)) == keys


@pytest.mark.parametrize("field", ["subject", "message_id", "event_id"])
def test_two_monstrous_values_that_end_differently_make_short_names_of_their_own(field: str) -> None:
    one, other = (own_names(email(**{field: "é" * 1_000_000 + end}), None) for end in "ab")
    assert one[-1] != other[-1] and (field != "subject" or not set(one) & set(other))
    assert all(len(name.value) <= MAX_POST_KEY_CHARS for name in one)


def file(content: bytes = b"one", name: str = "a.pdf") -> Attachment:
    return Attachment(name, "application/pdf", data=content)


def described(name: str = "a.pdf", size_bytes: int = 3) -> Attachment:
    """A file whose contents the provider does not send."""
    return Attachment(name, "application/pdf", size_bytes, sha256="")


def differ(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return conflicts(compute_fingerprint(email(**one)), compute_fingerprint(email(**other)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"plain": "x" * 100_000 + "a"}, {"plain": "x" * 100_000 + "b"}),
        ({"plain": ""}, {"plain": "Bonjour"}),
        ({"attachments": (file(b"one"),)}, {"attachments": (file(b"two"),)}),
        ({"attachments": (file(b"\0\r\n"),)}, {"attachments": (file(b"\0\n"),)}),
        ({"attachments": ()}, {"attachments": (file(),)}),
        ({"attachments": (file(b"one"),)}, {"attachments": (file(b"one"), file(b"two"))}),
        ({"plain": "", "attachments": (file(b"one"),)}, {"plain": "", "attachments": (file(b"two"),)}),
        ({"attachments": (described(),)}, {"attachments": (described("b.pdf"),)}),
        ({"attachments": (described(),)}, {"attachments": (described(size_bytes=4),)}),
        ({"attachments": (described(),)}, {"attachments": ()}),
        ({"attachments": (described("b.pdf"),)}, {"attachments": (file(),)}),
        ({"html": "<a href='https://a.example/1'>here</a>"}, {"html": "<a href='https://a.example/2'>here</a>"}),
        ({"html": "<img src='https://a.example/1.png'>"}, {"html": "<img src='https://a.example/2.png'>"}),
        ({"html": "<img src='https://a.example/1.png'>"}, {"html": "<p></p>", "plain": ""}),
        ({"html": "<img src='https://a.example/1.png'>"}, {"plain": ""}),
        ({"html": "Bonjour"}, {"html": "<a href='https://a.example/1'>Bonjour</a>"}),
        ({"subject": "Door open"}, {"subject": "Fire alarm"}),
        ({"sender": "d1@example.org"}, {"sender": "d2@example.org"}),
        ({"message_id": "<a@x>", "tells_files": False}, {"message_id": "<b@x>", "tells_files": False}),
        ({"date_source": "gmail"}, {"date": "2017-10-12T01:31:09Z", "date_source": "gmail"}),
        ({"html": "<p>un</p><p>deux</p>", "first_html": "<p>un</p>"}, {"html": "<p>un</p>", "first_html": ""}),
    ],
)
def test_text_files_links_and_images_are_what_an_email_says(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert differ(one, other)
    assert differ(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"attachments": (file(b"1"), file(b"2"))}, {"attachments": (file(b"2"), file(b"1"))}),
        ({"attachments": (file(name="a.pdf"),)}, {"attachments": (file(name="noname"),)}),
        ({"attachments": (file(),)}, {"attachments": (described(),)}),
        ({"attachments": (file(name="C:\\scans\\a.pdf"),)}, {"attachments": (described(),)}),
        ({"attachments": (file(name="e\u0301te\u0301.pdf"),)}, {"attachments": (described("été.pdf"),)}),
        ({"attachments": (file(name=""),)}, {"attachments": (described("ATT0001.pdf"),)}),
        ({"attachments": (described(size_bytes=0),)}, {"attachments": (described(size_bytes=4),)}),
        ({"attachments": (file(),)}, {"tells_files": False}),
        ({"attachments": (file(b"a;1\r\nb;2\r\n"),)}, {"attachments": (file(b"a;1\nb;2\n"),)}),
        ({"plain": " Fish  &\n chips\u00a0"}, {"html": "<p>Fish &amp; <b>chips</b></p>"}),
        ({"plain": "see https://a.example"}, {"html": "see <a href='https://a.example'>https://a.example</a>"}),
        ({"html": "Bonjour <img src='cid:1@mail'>"}, {"html": "Bonjour <img src='cid:photo.png'>"}),
        ({"html": "Bonjour <img src='cid:1@mail'>"}, {"html": "Bonjour <img src='?view=att&th=1'>"}),
        ({"html": "Bonjour"}, {"plain": "", "tells_body": False}),
        ({"message_id": "<a@example.org>"}, {"message_id": "<b@example.org>"}),
        ({"message_id": "<a@example.org>"}, {"message_id": "<a@example.org>", "date": ""}),
        ({"message_id": "<a@example.org>", "tells_files": False}, {"message_id": "<b@example.org>"}),
        ({"message_id": "<a@example.org>", "tells_files": False}, {"tells_files": False}),
        ({"date": "2017-10-12T01:31:04Z", "date_source": "gmail"}, {"date": "2017-10-12T01:31:09Z"}),
        ({"html": "<p>un</p><p>deux</p>", "first_html": "<p>un</p>"}, {"html": "<p>un</p>"}),
        ({"html": "<p>un</p><p>deux</p>", "first_html": "<p>un</p>"}, {"html": "<p>un</p><p>deux</p>"}),
        ({"html": "<p>un</p><p>deux</p>", "first_html": "<p>un</p>"}, {"plain": "un deux"}),
    ],
)
def test_omitted_or_rewritten_parts_make_no_other_email(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert not differ(one, other)


@pytest.mark.parametrize("date", ["", "yesterday"])
@pytest.mark.parametrize("body", ["", "Bonjour"])
def test_undated_emails_agree_only_if_their_message_ids_are_the_same(date: str, body: str) -> None:
    one, two = (compute_fingerprint(email(date=date, plain=body, message_id=f"<{each}@example.org>")) for each in "ab")
    again = compute_fingerprint(email(date=date, plain=body, message_id=" a@example.org"))
    event = compute_fingerprint(email(date=date, plain=body, event_id="a@example.org"))
    assert one != two
    assert one == again
    assert one == event


@pytest.mark.parametrize(
    ("fields", "is_known"),
    [
        ({}, True),
        ({"tells_body": False}, True),
        ({"date": "", "message_id": "<m@example.org>", "tells_body": False}, True),
        ({"date": ""}, True),
        ({"date": "", "tells_body": False}, False),
    ],
)
def test_nothing_recognises_an_undated_email_without_ids_and_body(fields: dict[str, Any], is_known: bool) -> None:
    assert email_item(email(**fields), None).is_recognisable is is_known


def test_an_email_has_its_id_its_canonical_id_its_event_id_and_its_message_id_as_names() -> None:
    mail = email(date="Wed, 11 Oct 2017 18:31:04 -0700", message_id="<m@example.org>", event_id="postmark:1")
    names = own_names(mail, ids_kept_ms=30 * DAY_MS)
    assert names == [
        Name(Kind.EMAIL_ID, "2017-10-12", md5("Réunion|ada@example.org|Wed, 11 Oct 2017 18:31:04 -0700")),
        Name(Kind.EMAIL_ID, "2017-10-12", md5("Réunion|ada@example.org|2017-10-12T01:31:04Z")),
        Name(Kind.POST, "", "postmark:1"),
        Name(Kind.POST, "", "m@example.org"),
    ]
    assert [name.kept_ms for name in names] == [30 * DAY_MS, 30 * DAY_MS, WEEK_MS, WEEK_MS]


def test_the_canonical_id_is_a_name_only_where_it_differs() -> None:
    names = own_names(email(), ids_kept_ms=None)
    assert [name.kind for name in names] == [Kind.EMAIL_ID, Kind.POST]
    assert names[0].kept_ms is None


@pytest.mark.parametrize(
    ("date", "day"),
    [
        ("2025-03-01T23:30:00-05:00", "2025-03-02"),
        ("Sun, 2 Mar 2025 00:30:00 +0200", "2025-03-01"),
        ("0900-01-02T00:00:00Z", "0900-01-02"),
        ("", "undated"),
        ("yesterday", "undated"),
    ],
)
def test_the_day_of_an_id_is_the_emails_own_day_in_utc(date: str, day: str) -> None:
    assert {name.scope for name in own_names(email(date=date), None) if name.kind is Kind.EMAIL_ID} == {day}


def test_separators_in_the_fields_may_merge_an_id_but_then_the_fingerprint_decides() -> None:
    one = email(subject="a|ada@example.org", date="d", plain="one")
    two = email(subject="a", date="ada@example.org|d", plain="two")
    assert own_names(one, None)[0] == own_names(two, None)[0]
    assert conflicts(compute_fingerprint(one), compute_fingerprint(two))


_ANYTHING = st.text(st.characters(), max_size=40)  # half surrogate pairs included


@given(subject=_ANYTHING, sender=_ANYTHING, date=_ANYTHING, html=_ANYTHING, plain=_ANYTHING, message_id=_ANYTHING)
def test_every_email_has_names_a_store_can_write(**fields: str) -> None:
    mail = Email(**fields)  # type: ignore[arg-type]
    names = own_names(mail, None)
    by_script = compute_email_id(subject=fields["subject"], sender=fields["sender"], date=fields["date"])
    assert names[0].value == by_script, "of the values as received, half surrogate pairs included"
    assert all(name.label.encode().decode() == name.label for name in names)
    assert Fingerprint.parse(str(compute_fingerprint(mail))) == compute_fingerprint(mail)


# New emails are compared with stored fingerprints, so these must not change, whatever reads the HTML.
RECORDED = {
    "<p>Bonjour à tous</p>": "2bb92716 0",
    "<!DOCTYPE html><html><head><title>News</title><style>p > b { margin: 0 }</style></head><body><table>"
    + "<tr><td style='x:1'><p>Lot&nbsp;<b>42</b></p></td></tr>" * 20
    + "<tr><td background=b.png><a href='https://a.example/?x=1&amp;y=2&copy=3' style=c>here</a>"
    + "<img src='https://i.example/1.png' alt='logo'></td></tr></table></body></html>": "bec9b004 c876f33a",
    "<p><b><a href=1>one<p>two</b> three</a><div>four</p>five": "bb1262c1 48ef9e35",
    "<table>zero<tr>one<td>two</table>three": "f8d0cf68 0",
    "one</div>two</p>three</br>four": "113f69cc 0",
    "a<!-- <p>b</p> -->c<script>d</script><style>e</style><textarea><p>f</textarea><title>g</title>h": "cabfa175 0",
    "&eacute;&#8217;&ampx &notit; &#1; &#x80; &copy=1 <a href='?a&copy=1&copy;'>x</a>": "caafb2d1 f23d234f",
    "<A HREF=HTTPS://A.EXAMPLE/X>X</A><IMAGE SRC='https://b.example'><BODY BACKGROUND=c>": "4b68ab38 fac5c87e",
    "<div style='background:url(a.png)'>x</div><div style='color:red'>y</div>": "887fcea6 f073d2ad",
    "<img alt='a<p>b' src=\"x>y\"><a title='>' href='<td>'>z</a>": "594e519a 76d7abc8",
    "<ul><li>a<li>b</ul><p>c<p>d<table><tr><td>e<td>f": "2278f6cd 0",
    "<FONT FACE=x><CENTER>a<HR>b</CENTER></FONT><O:P></O:P>c": "0e9f6403 0",
    "<p> &nbsp; </p>": "0 0",
}


@pytest.mark.parametrize("html", RECORDED, ids=range(len(RECORDED)))
def test_the_fingerprint_of_html_is_what_it_was(html: str) -> None:
    fingerprint = compute_fingerprint(Email(html=html))
    assert f"{str(fingerprint.text)[:8]} {str(fingerprint.links)[:8]}" == RECORDED[html]
