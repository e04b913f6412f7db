"""By which names an email is recognised, and when two emails are told apart."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduplication.email import Attachment, Email
from deduplication.fingerprint import Fingerprint, agree, conflicts, digest
from deduplication.identity import (
    MAX_POST_KEY,
    compute_canonical_id,
    compute_email_id,
    compute_fingerprint,
    compute_post_keys,
    is_recognisable,
    own_names,
)
from deduplication.names import WEEK_MS, Kind, Name

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


def test_the_email_id_is_the_md5_of_the_values_as_received() -> None:
    email_id = compute_email_id(subject=" Réunion ", sender="a@b.example", date="2017-10-12T01:31:04.000Z")
    assert email_id == md5(" Réunion |a@b.example|2017-10-12T01:31:04.000Z")


@pytest.mark.parametrize("sender", ["A@B.example", "Ada <a@b.example>", '"Lovelace, Ada" <A@B.EXAMPLE>'])
def test_of_the_sender_only_the_address_counts(sender: str) -> None:
    assert compute_email_id(subject="s", sender=sender, date="d") == md5("s|a@b.example|d")


def test_a_sender_without_an_address_counts_as_it_is() -> None:
    assert compute_email_id(subject="s", sender="Ada", date="d") == md5("s|Ada|d")
    ada, bob = (compute_canonical_id(email(sender=name)) for name in ("Ada", "Bob"))
    assert ada != bob


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
    "other",
    [
        {"date": "2017-10-12T01:31:05Z"},
        {"date": ""},
        {"date": "yesterday"},
        {"subject": "Reunion"},
        {"subject": "réunion"},
        {"sender": "bob@example.org"},
    ],
)
def test_the_canonical_id_tells_different_emails_apart(other: dict[str, str]) -> None:
    assert compute_canonical_id(email(**other)) != compute_canonical_id(email())


def test_the_canonical_id_of_a_canonical_email_is_its_email_id() -> None:
    assert compute_canonical_id(email()) == md5("Réunion|ada@example.org|2017-10-12T01:31:04Z")


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
def test_event_id_and_message_id_are_both_names_and_none_is_made_of_gaps(
    fields: dict[str, str], keys: tuple[str, ...]
) -> None:
    assert compute_post_keys(email(**fields)) == keys


def test_the_same_words_of_two_people_in_the_same_second_are_two_emails() -> None:
    bob, carla = (
        own_names(email(subject="DESABO", plain="STOP", sender=f"{who}@x.org"), None) for who in ("bob", "carla")
    )
    assert set(bob).isdisjoint(carla)


def test_two_monstrous_subjects_that_end_differently_have_ids_of_their_own() -> None:
    ids = [{name.value for name in own_names(email(subject="é" * 1_000_000 + end), None)} for end in "ab"]
    assert not ids[0] & ids[1]


def test_a_monstrous_message_id_makes_a_short_key_of_its_own() -> None:
    keys = [compute_post_keys(email(message_id=f"<{'x' * 1_000_000}{end}>"))[0] for end in "ab"]
    assert all(len(key) <= MAX_POST_KEY for key in keys)
    assert keys[0] != keys[1]


def file(content: bytes = b"one", name: str = "a.pdf") -> Attachment:
    return Attachment.of(name, "application/pdf", content, inline=False)


def described(name: str = "a.pdf", size_bytes: int = 3) -> Attachment:
    """A file of which the door has not the contents."""
    return Attachment(name, "application/pdf", size_bytes, sha256="")


def differ(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return conflicts(compute_fingerprint(email(**one)), compute_fingerprint(email(**other)))


@pytest.mark.parametrize(
    "body",
    [
        {"plain": "Fish & chips, you"},
        {"html": "<p>Fish &amp; <b>chips</b>,\r\n you</p>"},
        {"plain": "  Fish  &\n chips, you\u00a0"},
    ],
)
def test_equal_text_has_an_equal_fingerprint_in_html_and_in_plain(body: dict[str, str]) -> None:
    assert compute_fingerprint(email(**body)).text == digest("Fish & chips, you")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"plain": "x" * 100_000 + "a"}, {"plain": "x" * 100_000 + "b"}),
        ({"plain": ""}, {"plain": "Bonjour"}),
        ({"attachments": (file(b"one"),)}, {"attachments": (file(b"two"),)}),
        ({"attachments": ()}, {"attachments": (file(),)}),
        ({"attachments": (file(b"one"),)}, {"attachments": (file(b"one"), file(b"two"))}),
        ({"plain": "", "attachments": (file(b"one"),)}, {"plain": "", "attachments": (file(b"two"),)}),
        ({"attachments": (described(),)}, {"attachments": (described("b.pdf"),)}),
        ({"attachments": (described(),)}, {"attachments": (described(size_bytes=4),)}),
        ({"attachments": (described(),)}, {"attachments": ()}),
        ({"attachments": (described("b.pdf"),)}, {"attachments": (file(),)}),
        ({"html": "<a href='https://a.example/1'>here</a>"}, {"html": "<a href='https://a.example/2'>here</a>"}),
        ({"html": "<img src='https://a.example/1.png'>"}, {"html": "<img src='https://a.example/2.png'>"}),
        ({"html": "<img src='data:image/png;base64,AAAA'>"}, {"html": "<img src='data:image/png;base64,BBBB'>"}),
        ({"html": "<img src='https://a.example/1.png'>"}, {"html": "<p></p>", "plain": ""}),
        ({"html": "<img src='https://a.example/1.png'>"}, {"plain": ""}),
        ({"html": "Bonjour"}, {"html": "<a href='https://a.example/1'>Bonjour</a>"}),
        ({"html": "<a href='mailto:yes@a.example'>Go</a>"}, {"html": "<a href='mailto:no@a.example'>Go</a>"}),
        ({"subject": "Door open"}, {"subject": "Fire alarm"}),
        ({"sender": "d1@example.org"}, {"sender": "d2@example.org"}),
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
        ({"plain": "see https://a.example"}, {"html": "see <a href='https://a.example'>https://a.example</a>"}),
        ({"html": "Bonjour <img src='cid:1@mail'>"}, {"html": "Bonjour <img src='cid:photo.png'>"}),
        ({"html": "Bonjour"}, {"plain": "", "tells_body": False}),
        ({"message_id": "<a@example.org>"}, {"message_id": "<b@example.org>"}),
        ({"message_id": "<a@example.org>"}, {"message_id": "<a@example.org>", "date": ""}),
    ],
)
def test_what_one_door_does_not_tell_or_writes_otherwise_makes_no_other_email(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert not differ(one, other)


def test_a_file_that_is_no_text_is_compared_to_the_byte() -> None:
    assert differ({"attachments": (file(b"\0\r\n"),)}, {"attachments": (file(b"\0\n"),)})


@pytest.mark.parametrize("date", ["", "yesterday"])
@pytest.mark.parametrize("body", ["", "Bonjour"])
def test_undated_emails_agree_only_if_their_message_ids_are_the_same(date: str, body: str) -> None:
    one, two = (compute_fingerprint(email(date=date, plain=body, message_id=f"<{each}@example.org>")) for each in "ab")
    again = compute_fingerprint(email(date=date, plain=body, message_id=" a@example.org"))
    event = compute_fingerprint(email(date=date, plain=body, event_id="a@example.org"))
    assert not agree(one, two)
    assert agree(one, again)
    assert agree(one, event)


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
    assert is_recognisable(email(**fields)) is is_known


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
    assert names[0].value == compute_email_id(subject=mail.subject, sender=mail.sender, date=mail.date)
    assert all(name.label.encode().decode() == name.label for name in names)
    assert Fingerprint.parse(str(compute_fingerprint(mail))) == compute_fingerprint(mail)


def test_a_script_gets_the_same_id_as_the_service_for_half_a_surrogate_pair() -> None:
    fields = {"subject": "half \ud83c", "sender": "a@b.example", "date": "d"}
    assert compute_email_id(**fields) == own_names(Email(**fields), None)[0].value  # type: ignore[arg-type]


# New emails are compared with stored fingerprints, so these must not change, whatever reads the HTML.
HTML = {
    "a paragraph": "<p>Bonjour à tous</p>",
    "a newsletter": "<!DOCTYPE html><html><head><title>News</title><style>p > b { margin: 0 }</style></head>"
    + "<body><table>"
    + "<tr><td style='x:1'><p>Lot&nbsp;<b>42</b></p></td></tr>" * 20
    + "<tr><td background=b.png><a href='https://a.example/?x=1&amp;y=2&copy=3' style=c>here</a>"
    + "<img src='https://i.example/1.png' alt='logo'></td></tr></table></body></html>",
    "tags closed in the wrong order": "<p><b><a href=1>one<p>two</b> three</a><div>four</p>five",
    "text in a table": "<table>zero<tr>one<td>two</table>three",
    "a stray end": "one</div>two</p>three</br>four",
    "what is hidden": "a<!-- <p>b</p> -->c<script>d</script><style>e</style><textarea><p>f</textarea><title>g</title>h",
    "entities": "&eacute;&#8217;&ampx &notit; &#1; &#x80; &copy=1 <a href='?a&copy=1&copy;'>x</a>",
    "links in upper case": "<A HREF=HTTPS://A.EXAMPLE/X>X</A><IMAGE SRC='https://b.example'><BODY BACKGROUND=c>",
    "styles": "<div style='background:url(a.png)'>x</div><div style='color:red'>y</div>",
    "brackets in attributes": "<img alt='a<p>b' src=\"x>y\"><a title='>' href='<td>'>z</a>",
    "unclosed": "<ul><li>a<li>b</ul><p>c<p>d<table><tr><td>e<td>f",
    "old": "<FONT FACE=x><CENTER>a<HR>b</CENTER></FONT><O:P></O:P>c",
    "nothing": "<p> &nbsp; </p>",
}
RECORDED = {
    "a paragraph": ("2bb9271671b868ac4862815f", "0"),
    "a newsletter": ("bec9b004245a752111c19a9f", "c876f33a8f1e6e3f396e756c"),
    "tags closed in the wrong order": ("bb1262c1cf29a3e8785c9129", "48ef9e352e9bae7b2fbeff4a"),
    "text in a table": ("f8d0cf68b8635212dc44b346", "0"),
    "a stray end": ("113f69ccf08f80a63beba2f4", "0"),
    "what is hidden": ("cabfa175f580debde8de9542", "0"),
    "entities": ("caafb2d1396d109b5a37f710", "f23d234fdeb2a8e577d53060"),
    "links in upper case": ("4b68ab3847feda7d6c62c1fb", "fac5c87eb6c306f8ef985615"),
    "styles": ("887fcea6a80333c6c02ae7e7", "f073d2ad4f3975a88fe9e68f"),
    "brackets in attributes": ("594e519ae499312b29433b7d", "76d7abc8045cea19f4776a65"),
    "unclosed": ("2278f6cde63745760a389942", "0"),
    "old": ("0e9f64031fcb2bc708b531c2", "0"),
    "nothing": ("0", "0"),
}


@pytest.mark.parametrize("name", HTML)
def test_the_fingerprint_of_html_is_what_it_was(name: str) -> None:
    fingerprint = compute_fingerprint(Email(html=HTML[name]))

    assert (fingerprint.text, fingerprint.links) == RECORDED[name]
