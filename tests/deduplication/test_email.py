"""How the parts of an email are read, whatever notation they came in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deduplication.body import links_of, plain_text
from deduplication.dates import parse_date
from deduplication.email import Email, address_of, decode_subject

MOMENT = datetime(2017, 10, 12, 1, 31, 4, tzinfo=UTC)


@pytest.fixture(params=["UTC", "Asia/Tokyo", "America/Los_Angeles"])
def server_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("sender", "address"),
    [
        ("Name <A@B>", "a@b"),
        ("Ada Lovelace <Ada@EXAMPLE.org>", "ada@example.org"),
        ('"Doe, John" <john@example.org>', "john@example.org"),
        ('"a@spoof.example" <real@example.org>', "real@example.org"),
        ('"<a@spoof.example>" <real@example.org>', "real@example.org"),
        ("=?utf-8?q?J=C3=B6rg?= <joerg@example.org>", "joerg@example.org"),
        ("Name < ada@example.org >", "ada@example.org"),
        ("Name <ada@example.org", "ada@example.org"),
        ("ADA@EXAMPLE.ORG", "ada@example.org"),
        ("ada@example.org (Ada)", "ada@example.org"),
        ("mailto:ada@example.org", "ada@example.org"),
        ("'ada@example.org'", "ada@example.org"),
        ("ada@example.org.", "ada@example.org"),
        ("o'brien@example.org", "o'brien@example.org"),
        ("O'Brien <o'brien@example.org>", "o'brien@example.org"),
        ("ada+tag=x@example.org", "ada+tag=x@example.org"),
        ("ada@example.org, bob@example.org", "ada@example.org"),
        ("", ""),
        ("Ada", ""),
        ("ada@", ""),
        ("@example.org", ""),
        ("...@..", ""),
        ("undisclosed-recipients:;", ""),
    ],
)
def test_the_address_is_found_in_every_notation_of_a_sender(sender: str, address: str) -> None:
    assert address_of(sender) == address


@pytest.mark.parametrize("sender", ["a" * 200_000, "(" * 200_000 + "ada@example.org", "<" * 200_000, "a@" * 100_000])
@pytest.mark.timeout(60)
def test_a_monstrous_sender_is_read_in_no_time(sender: str) -> None:
    assert address_of(sender) in ("", "ada@example.org", "a@a")


@pytest.mark.parametrize(
    ("subject", "clean"),
    [
        ("Réunion", "Réunion"),
        ("=?utf-8?B?UsOpdW5pb24=?=", "Réunion"),
        ("=?ISO-8859-1?Q?R=E9union?= du =?utf-8?Q?15?=", "Réunion du 15"),
        ("=?utf-8?Q?R=C3=A9?=\r\n =?utf-8?Q?union?=", "Réunion"),
        ("=?utf-8?Q?=C3=A9?= =?us-ascii?Q?tat?=", "état"),
        ("=?gb2312?B?1tDOxA==?=", "中文"),
        ("中文 =?utf-8?Q?=C3=A9t=C3=A9?= été", "中文 été été"),
        ("Réunion\r\n du 15", "Réunion du 15"),
        ("Réunion\n\tdu 15", "Réunion du 15"),
        ("Re\u0301union", "Réunion"),
        ("Réunion\u00a0du   15 ", "Réunion du 15"),
        ("Bravo 🎉", "Bravo 🎉"),
        ("", ""),
        ("=?no-such-charset?Q?abc?=", "=?no-such-charset?Q?abc?="),
        ("=?utf-8?Q?=FF?=", "=?utf-8?Q?=FF?="),
        ("2 =? 3", "2 =? 3"),
        ("half a pair \ud83c", "half a pair \ufffd"),
        ("=?utf-7?Q?+2AA-?=", "\ufffd"),
    ],
)
def test_a_subject_is_decoded_unfolded_and_composed(subject: str, clean: str) -> None:
    assert decode_subject(subject) == clean


@pytest.mark.parametrize(
    "date",
    [
        "Wed, 11 Oct 2017 18:31:04 -0700",
        "Wed, 11 Oct 2017 18:31:04 -0700 (PDT)",
        "Wed, 11 Oct 2017 18:31:04 -0700\r\n (PDT)",
        "Wed, 11 Oct 2017 18:31:04 PDT",
        "11 Oct 2017 18:31:04 -0700",
        "Thu, 12 Oct 2017 01:31:04 -0000",
        "Thu, 12 Oct 2017 01:31:04 GMT",
        "Thu, 12 Oct 2017 01:31:04",
        "Thu, 12 Oct 2017 03:31:04 CEST",
        "Thu, 12 Oct 2017 03:31:04 +0200 (CEST)",
        "Thu, 12 Oct 2017 03:31:04 +0200 (Central European (Summer) Time)",
        "Thu, 12 Oct 2017 03:31:04 +02:00",
        "Thu, 12 Oct 2017 03:31:04 GMT+0200",
        "Thu, 12 Oct 2017 10:31:04 JST",
        "20171012T013104",
        "2017-10-12T01:31:04Z",
        "2017-10-12T01:31:04.000Z",
        "2017-10-12T03:31:04+02:00",
        "2017-10-12T03:31:04.000 +0200",
        "2017-10-12 01:31:04",
        "2017-10-12 01:31:04 UTC",
        "2017-10-12 03:31:04 +0200",
        "Wed Oct 11 2017 18:31:04 GMT-0700 (Pacific Daylight Time)",
        "Thu Oct 12 2017 01:31:04 GMT+0000 (Coordinated Universal Time)",
        "Thu Oct 12 01:31:04 2017",
        "1507771864",
        "1507771864000",
        "  2017-10-12T01:31:04Z  ",
    ],
)
@pytest.mark.usefixtures("server_zone")
def test_every_notation_is_one_moment_wherever_the_server_stands(date: str) -> None:
    assert parse_date(date) == MOMENT


@pytest.mark.parametrize(
    "date",
    [
        "",
        "   ",
        "yesterday",
        "Wed, 31 Feb 2017 18:31:04 -0700",
        "Thu, 12 Oct 2017 25:31:04 +0000",
        "Thu, 12 Oct 2017 01:31:04 +9999",
        "12345",
        "99999999999999",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-12:00",
        "Oct 11, 2017, 6:31:04 PM",
        "(" * 10_000,
    ],
)
def test_an_absent_or_unreadable_date_is_none(date: str) -> None:
    assert parse_date(date) is None


_ALMOST_DATES = st.text(alphabet="0123456789:+-TZ,. ()WedOctGMTCEST", max_size=40)


@given(st.one_of(st.text(), _ALMOST_DATES))
@example("0000000000")
@example("Wed, 11 Oct 99999 18:31:04 -0700")
@example("Wed, 11 Oct 2017 18:31:04 -99999999999999")
def test_no_text_breaks_the_reading_of_a_date(date: str) -> None:
    moment = parse_date(date)
    assert moment is None or moment.tzinfo is UTC


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("Bonjour  à\r\n\ttous", "Bonjour à tous"),
        ("<p>Bonjour&nbsp;<b>à</b> tous</p>", "Bonjour à tous"),
        ("<p>un</p><p>deux</p>", "un deux"),
        ("un<br>deux<br/>trois", "un deux trois"),
        ("<table><tr><td>un</td><td>deux</td></tr></table>", "un deux"),
        ("<p><b>Hel</b>lo, <i>you</i>!</p>", "Hello, you!"),
        ("<p>Fish &amp; chips &lt;3 &eacute; &#233;</p>", "Fish & chips <3 é é"),
        ("<html><head><title>no</title></head><body><style>p{}</style>Yes<script>no()</script></body></html>", "Yes"),
        ("<p>seen<!-- not seen --></p>", "seen"),
        ("<p title='a > b'>seen</p>", "seen"),
        ("<P>CAPS</P>", "CAPS"),
        ("<p>never closed", "never closed"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("<ada@example.org> wrote:", "<ada@example.org> wrote:"),
        ("Re\u0301union", "Réunion"),
        ("<p></p>", ""),
        ("<img src='https://a.example/x.png'>", ""),
        ("", ""),
    ],
)
def test_the_text_is_what_a_reader_sees(body: str, text: str) -> None:
    assert plain_text(body) == text


def test_a_huge_html_body_reads_like_a_small_one() -> None:
    row = "<tr><td>Fish &amp; <b>ch</b>ips</td><td><a href='https://a.example/?x=1&amp;y=2'>link</a></td></tr>"
    body = f"<head><style>p {{}}</style><title>no</title></head><table>{row * 3000}</table><script>no</script>"
    assert plain_text(body) == " ".join(["Fish & chips link"] * 3000)
    assert links_of(body) == ("https://a.example/?x=1&y=2",)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("body", ["<div>" * 60_000 + "deep", "<script>" * 60_000, "<a href=" * 60_000 + ">"])
def test_tags_within_tags_within_tags_do_not_keep_the_service_busy(body: str) -> None:
    email = Email(body=body)
    assert len(email.text) <= len(body)
    assert email.links == ()


@pytest.mark.parametrize(
    ("body", "links"),
    [
        ("see https://a.example/x.", ("https://a.example/x",)),
        ("(https://a.example/x), https://b.example/y!", ("https://a.example/x", "https://b.example/y")),
        ("[https://a.example/x] «https://b.example/y»", ("https://a.example/x", "https://b.example/y")),
        ("https://fr.example/wiki/Lot_(jeu)", ("https://fr.example/wiki/Lot_(jeu)",)),
        ("<https://a.example/x>", ("https://a.example/x",)),
        ("https://a.example/x https://a.example/x", ("https://a.example/x",)),
        ("https://a.example/?u=https://b.example", ("https://a.example/?u=https://b.example",)),
        ("<a href='https://a.example/?x=1&amp;y=2'>here</a>", ("https://a.example/?x=1&y=2",)),
        ("<a href='https://a.example/x'>https://a.example/x</a>", ("https://a.example/x",)),
        ("<p>https://b.example/?x=1&amp;y=2</p>", ("https://b.example/?x=1&y=2",)),
        ("<a href='https://a.example'>a</a> https://b.example", ("https://a.example", "https://b.example")),
        ("<a href='mailto:ada@example.org'>m</a> <a href='#top'>t</a> <a href>n</a>", ()),
        ("https:// and https://.", ()),
        ("ftp://a.example", ()),
        ("", ()),
    ],
)
def test_links_are_found_once_each_and_without_the_sentence_around_them(body: str, links: tuple[str, ...]) -> None:
    assert links_of(body) == links


@pytest.mark.timeout(60)
def test_a_link_that_ends_in_a_thousand_brackets_is_trimmed_in_no_time() -> None:
    assert links_of("https://a.example/x" + ")." * 200_000) == ("https://a.example/x",)


_ANYTHING = st.text(st.characters(), max_size=60)  # half surrogate pairs included


@given(_ANYTHING, _ANYTHING, _ANYTHING)
@example("=?utf-7?Q?+2AA-?=", "=?utf-7?Q?+2AA-?= <a@b>", "<p>&#xD800;</p>")
def test_whatever_an_email_holds_its_parts_can_be_written_out(subject: str, sender: str, body: str) -> None:
    email = Email(subject=subject, sender=sender, body=body)
    for part in (email.clean_subject, email.sender_email, email.text, *email.links):
        assert part.encode().decode() == part


@pytest.mark.parametrize("field", ["subject", "sender", "date", "body", "message_id", "event_id"])
def test_half_a_surrogate_pair_never_gets_into_an_email(field: str) -> None:
    email = Email(**{field: "a \ud83c b"})  # type: ignore[arg-type]
    assert getattr(email, field) == "a \ufffd b"


def test_two_halves_of_a_surrogate_pair_are_one_character() -> None:
    assert Email(subject="\ud83c\udf89").subject == "🎉"
