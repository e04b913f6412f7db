"""Raw emails, well-formed and not, and what is read of them."""

from __future__ import annotations

import base64
import email.message
import email.policy
import hashlib
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduplication.email import Email, decode_subject
from deduplication.fingerprint import conflicts
from deduplication.identity import compute_canonical_id, compute_fingerprint
from deduplication.mime import MAX_PARTS, parse_mime

PDF = b"%PDF-1.7\n\x00\xff not really\r\n"


def raw(*lines: str | bytes, newline: bytes = b"\r\n") -> bytes:
    return newline.join(line.encode() if isinstance(line, str) else line for line in lines)


def with_headers(*lines: str | bytes, body: str | bytes = "Bonjour") -> Email:
    return parse_mime(raw(*lines, "", body))


def base64_lines(content: bytes) -> bytes:
    return base64.encodebytes(content).strip()


REPORT = raw(
    "Return-Path: <bounces@example.org>",
    "Delivered-To: inbox@mail.example",
    "Received: from a.example by b.example; Wed, 11 Oct 2017 18:31:09 -0700",
    "From: Ada Lovelace <Ada@Example.org>",
    "To: Charles Babbage <charles@example.com>, desk@example.com",
    "Cc: Charles@Example.com",
    "Subject: Weekly report",
    "Date: Wed, 11 Oct 2017 18:31:04 -0700",
    "Message-ID: <report-41@example.org>",
    "MIME-Version: 1.0",
    'Content-Type: multipart/mixed; boundary="outer"',
    "",
    "This is a message in several parts.",
    "--outer",
    "Content-Type: multipart/alternative; boundary=inner",
    "",
    "--inner",
    "Content-Type: text/plain; charset=utf-8",
    "",
    "The engine runs.",
    "",
    "--inner",
    "Content-Type: multipart/related; boundary=related",
    "",
    "--related",
    "Content-Type: text/html; charset=utf-8",
    "",
    "<p>The engine <b>runs</b>.</p>",
    "--related",
    "Content-Type: image/png; name=logo.png",
    "Content-Disposition: inline",
    "Content-Transfer-Encoding: base64",
    "",
    base64_lines(b"\x89PNG"),
    "--related--",
    "--inner--",
    "",
    "--outer",
    "Content-Type: application/pdf",
    'Content-Disposition: attachment; filename="report 41.pdf"',
    "Content-Transfer-Encoding: base64",
    "",
    base64_lines(PDF),
    "--outer--",
    "An epilogue.",
)


def test_a_simple_message_is_read() -> None:
    read = parse_mime(
        raw(
            "From: Ada Lovelace <Ada@Example.org>",
            "To: charles@example.com",
            "Subject: Weekly report",
            "Date: Wed, 11 Oct 2017 18:31:04 -0700",
            "Message-ID: <41@example.org>",
            "",
            "The engine runs.",
            "Ada",
        )
    )
    assert read == Email(
        subject="Weekly report",
        sender="Ada Lovelace <Ada@Example.org>",
        date="Wed, 11 Oct 2017 18:31:04 -0700",
        plain="The engine runs.\r\nAda",
        message_id="<41@example.org>",
        provider="mime",
        recipients=("charles@example.com",),
    )
    assert read.date_utc == datetime(2017, 10, 12, 1, 31, 4, tzinfo=UTC)


def test_the_body_is_the_html_and_the_text_stands_beside_it() -> None:
    read = parse_mime(REPORT)
    assert read.body == "<p>The engine <b>runs</b>.</p>"
    assert read.plain == "The engine runs.\r\n"


def test_attachments_are_described() -> None:
    logo, report = parse_mime(REPORT).attachments
    assert (logo.name, logo.content_type, logo.size_bytes) == ("logo.png", "image/png", 4)
    assert (report.name, report.content_type, report.size_bytes) == ("report 41.pdf", "application/pdf", len(PDF))
    assert report.sha256 == hashlib.sha256(PDF).hexdigest()
    assert (logo.content, report.content) == (None, None)


@pytest.mark.parametrize(
    ("inline_bytes", "contents"),
    [
        (0, [None, None]),
        (3, [None, None]),
        (4, [b"\x89PNG", None]),
        (3 + len(PDF), [b"\x89PNG", None]),
        (4 + len(PDF), [b"\x89PNG", PDF]),
    ],
)
def test_attachments_are_inline_while_they_fit_into_the_total(inline_bytes: int, contents: list[bytes | None]) -> None:
    read = parse_mime(REPORT, inline_attachment_bytes=inline_bytes)
    decoded = [each.content and base64.b64decode(each.content) for each in read.attachments]
    assert decoded == contents


def test_an_empty_attachment_is_inline_where_others_may_be() -> None:
    empty = [parse_mime(_two_files(b""), inline_attachment_bytes=limit).attachments[0] for limit in (0, 1)]
    assert [(each.size_bytes, each.content) for each in empty] == [(0, None), (0, "")]


def test_a_small_attachment_after_one_too_big_is_inline_all_the_same() -> None:
    big, small = parse_mime(_two_files(PDF, b"ok"), inline_attachment_bytes=4).attachments
    assert (big.content, small.content) == (None, base64.b64encode(b"ok").decode())


def _two_files(*contents: bytes) -> bytes:
    parts = [
        raw("--x", "Content-Type: image/png", "Content-Transfer-Encoding: base64", "", base64_lines(each))
        for each in contents
    ]
    return raw("From: a@example.org", "Content-Type: multipart/mixed; boundary=x", "", *parts, "--x--")


def test_the_providers_own_words_are_kept() -> None:
    read = parse_mime(REPORT, provider="mailgun", event_id="e-1")
    assert (read.provider, read.event_id) == ("mailgun", "e-1")


def test_recipients_are_the_envelopes_then_where_it_went_then_whom_it_names_each_once() -> None:
    read = parse_mime(REPORT, recipients=["Inbox+Tag@Mail.Example", "DESK@example.com", ""])
    assert read.recipients == (
        "inbox+tag@mail.example",
        "desk@example.com",
        "inbox@mail.example",
        "charles@example.com",
    )


@pytest.mark.parametrize(
    ("header", "recipients"),
    [
        ('To: "Doe, John" <john@example.org>, "b@spoof.example, c" <jane@example.org>', ("john@", "jane@")),
        ("To: Team: john@example.org, Jane <JANE@example.org>;", ("john@", "jane@")),
        ("To: john@example.org,\r\n\tjane@example.org", ("john@", "jane@")),
        ("To: john@example.org\r\nTo: jane@example.org", ("john@", "jane@")),
        ('To: "Doe \\" x@spoof.example" <john@example.org>', ("john@",)),
        ('To: "never closed, john@example.org', ("john@",)),
        ("To: =?utf-8?q?x=40spoof=2Eexample?= <john@example.org>,", ("john@",)),
        ("X-Original-To: john@example.org\r\nEnvelope-To: jane@example.org", ("john@", "jane@")),
        ("To: undisclosed-recipients:;", ()),
        ("To: (c):", ()),
    ],
)
def test_recipients_are_found_in_every_notation(header: str, recipients: tuple[str, ...]) -> None:
    assert with_headers(header).recipients == tuple(f"{name}example.org" for name in recipients)


@pytest.mark.parametrize(
    ("header", "subject"),
    [
        ("Subject: =?utf-8?B?UsOpdW5pb24=?= du 15", "Réunion du 15"),
        ("Subject: =?ISO-8859-1?Q?R=E9union?=\r\n =?utf-8?Q?_du_15?=", "Réunion du 15"),
        ("Subject: Réunion\r\n\tdu 15", "Réunion du 15"),
        ("subject:Réunion du 15", "Réunion du 15"),
        ("SUBJECT :\r\n Réunion du 15", "Réunion du 15"),
        ("Subject: Réunion du 15\r\nSubject: another", "Réunion du 15"),
        ("Subject: =?iso-2022-jp?B?GyRCMnE1RBsoQg==?=", "会議"),
        ("Subject: =?koi8-r?B?8NLJ18XU?=", "Привет"),
        ("Subject: =?utf-8?B?8J+O?= =?utf-8?B?iQ==?=", "🎉"),
        ("Subject:", ""),
        ("X-Other: 1", ""),
    ],
)
def test_a_subject_is_decoded_text(header: str, subject: str) -> None:
    assert with_headers("From: a@example.org", header).subject == subject


@pytest.mark.parametrize(
    ("value", "charset", "subject"),
    [
        ("Réunion".encode(), "", "Réunion"),
        ("Réunion".encode("latin-1"), "", "Réunion"),
        ("Привет".encode("koi8-r"), "koi8-r", "Привет"),
        ("Привет".encode(), "koi8-r", "Привет"),
        (b"10 \x80", "", "10 €"),
        (b"\xff\xfe\x81", "no-such-charset", "ÿþ\x81"),
    ],
)
def test_a_raw_8_bit_subject_is_utf_8_or_as_the_body_is(value: bytes, charset: str, subject: str) -> None:
    read = with_headers(b"Subject: " + value, f"Content-Type: text/plain; charset={charset}")
    assert read.subject == subject


@pytest.mark.parametrize(
    ("header", "sender", "address"),
    [
        ('From: "Doe, John" <John@Example.org>', '"Doe, John" <John@Example.org>', "john@example.org"),
        ("From: =?utf-8?Q?J=C3=B6rg?= <j@example.org>", "Jörg <j@example.org>", "j@example.org"),
        ("From: Jörg\r\n <j@example.org>", "Jörg <j@example.org>", "j@example.org"),
        ("From: j@example.org (Jörg)", "j@example.org (Jörg)", "j@example.org"),
        ("From: =?utf-8?q?=3Cspoof=40evil=2Eexample=3E?= <j@example.org>", None, "j@example.org"),
        ("From: j@example.org =?utf-8?q?=3Cspoof=40evil=2Eexample=3E?=", None, "j@example.org"),
        ("Sender: j@example.org\r\nReturn-Path: <j@example.org>", "", ""),
        ("From: nobody", "nobody", ""),
    ],
)
def test_the_sender_is_the_header_with_its_name_decoded(header: str, sender: str | None, address: str) -> None:
    read = with_headers(header)
    assert read.sender_email == address
    assert sender is None or read.sender == sender


@pytest.mark.parametrize(
    "date",
    [
        "Wed, 11 Oct 2017 18:31:04 -0700 (PDT)",
        "Wed, 11 Oct 2017\r\n 18:31:04 -0700",
        "Thu, 12 Oct 2017 01:31:04 -0000",
        "Thu, 12 Oct 2017 03:31:04 CEST",
        "Thu, 12 Oct 2017 03:31:04 +02 (comment)",
        "Thu, 12 Oct 2017 (comment) 03:31:04.250 +0200",
        "Thu, 12 Oct 2017 03:31:04 GMT+2",
    ],
)
def test_a_redelivery_has_the_same_id_and_fingerprint(date: str) -> None:
    first = parse_mime(REPORT)
    again = parse_mime(
        b"Received: from elsewhere.example; Thu, 12 Oct 2017 09:00:00 +0000\r\n"
        + REPORT.replace(b"Wed, 11 Oct 2017 18:31:04 -0700\r\nMessage", date.encode() + b"\r\nMessage")
    )
    assert again.date == " ".join(date.split())
    assert compute_canonical_id(again) == compute_canonical_id(first)
    assert compute_fingerprint(again) == compute_fingerprint(first)


def test_an_email_has_the_same_id_raw_and_as_another_provider_decoded_it() -> None:
    read = with_headers(
        "From: =?utf-8?Q?J=C3=B6rg?= <J@Example.org>",
        "Subject: =?utf-8?Q?R=C3=A9union?=\r\n =?utf-8?Q?_du_15?=",
        "Date: Wed, 11 Oct 2017 18:31:04 -0700 (PDT)",
        "Content-Type: text/plain; charset=iso-8859-1",
        body="À bientôt".encode("latin-1"),
    )
    pushed = Email(
        subject="Réunion du 15",
        sender='"Jörg" <j@example.org>',
        date="2017-10-12T01:31:04.000Z",
        html="<div>À bientôt</div>",
    )
    assert compute_canonical_id(read) == compute_canonical_id(pushed)
    assert not conflicts(compute_fingerprint(read), compute_fingerprint(pushed))


@pytest.mark.parametrize(
    ("charset", "encoding", "text"),
    [
        ("utf-8", "utf-8", "À bientôt 🎉"),
        ("ISO-8859-1", "latin-1", "À bientôt"),
        ("iso-8859-1", "cp1252", "10 € – ‘so’"),
        ("windows-1252", "cp1252", "10 € – ‘so’"),
        ("iso-2022-jp", "iso2022_jp", "会議の件"),
        ("shift_jis", "cp932", "①会議"),
        ("koi8-r", "koi8-r", "Привет"),
        ("gb2312", "gb18030", "镕基"),
        ("iso-8859-8-i", "iso8859-8", "שלום"),
        ("utf-16", "utf-16", "Привет 🎉"),
        ("'utf-8'", "utf-8", "À bientôt"),
        ("us-ascii", "utf-8", "À bientôt"),
        ("us-ascii", "cp1252", "À bientôt"),
        ("shift_jis", "utf-8", "会議の件を話しましょう"),
        ("utf-8", "cp1252", "À bientôt"),
        ("no-such-charset", "utf-8", "À bientôt"),
        ("no-such-charset", "cp1252", "À bientôt"),
        ("rot13", "utf-8", "À bientôt"),
        ("unicode_escape", "utf-8", "C:\\dir \\x41"),
        ("utf-8", "utf-8-sig", "À bientôt"),
        ("\x00\xff", "utf-8", "À bientôt"),
        ("", "utf-8", "À bientôt"),
        ("", "cp1252", "À bientôt"),
    ],
)
@pytest.mark.parametrize("transfer", ["8bit", "base64", "quoted-printable"])
def test_a_text_is_read_in_its_charset_whatever_is_declared(
    charset: str, encoding: str, text: str, transfer: str
) -> None:
    content = text.encode(encoding)
    read = with_headers(
        f'Content-Type: TEXT/plain; format=flowed; CHARSET="{charset}"',
        f"Content-Transfer-Encoding: {transfer}",
        body=_transferred(content, transfer),
    )
    assert read.body == text


def _transferred(content: bytes, transfer: str) -> bytes:
    if transfer == "quoted-printable":
        return "".join(f"={byte:02X}" for byte in content).encode()
    return base64_lines(content) if transfer == "base64" else content


@pytest.mark.parametrize(
    ("charset", "content", "text"),
    [
        ("utf-8", "Déjà vu, élève".encode()[:-1] + b"\xc3", "Déjà vu, élèv\ufffd"),
        ("iso-2022-jp", "会議の件".encode("iso2022_jp").replace(b"\x1b(B", b"\x1b"), "会議の件"),
        ("utf-16-le", "Привет".encode("utf-16-le") + b"\x00", "Привет\ufffd"),
    ],
)
def test_a_text_with_a_little_damage_is_not_turned_into_another_charset(
    charset: str, content: bytes, text: str
) -> None:
    assert with_headers(f"Content-Type: text/plain; charset={charset}", body=content).body.startswith(text)


@pytest.mark.parametrize(
    ("encoded", "text"),
    [
        ("Qm9uam91cg==", "Bonjour"),
        ("Qm9uam91cg", "Bonjour"),
        ("Qm9uam91c", "Bonjou"),
        ("Qm9u\r\n am91\t\r\ncg==", "Bonjour"),
        ("Qm9u!am91*cg==", "Bonjour"),
        ("Qm9uam91cg==\r\n-- \r\nlist footer", "Bonjour"),
        ("====", ""),
        ("A", ""),
        ("", ""),
    ],
)
def test_broken_base64_yields_what_can_be_read(encoded: str, text: str) -> None:
    assert with_headers("Content-Transfer-Encoding: BASE64 (as it were)", body=encoded).body == text


@pytest.mark.parametrize(
    ("encoded", "text"),
    [("caf=C3=A9 =\r\nnoir", "café noir"), ("50 =% =XY", "50 =% =XY"), ("caf=C3=A9=", "café"), ("a=3", "a=3")],
)
def test_broken_quoted_printable_yields_what_can_be_read(encoded: str, text: str) -> None:
    assert with_headers("Content-Transfer-Encoding: quoted-printable", body=encoded).body == text


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        (['Content-Disposition: attachment; filename="r.pdf"'], "r.pdf"),
        (["Content-Disposition: attachment; FILENAME=r.pdf"], "r.pdf"),
        (["Content-Disposition: attachment; filename=r.pdf; filename=virus.exe"], "r.pdf"),
        (['Content-Type: application/pdf; name="r.pdf"'], "r.pdf"),
        (['Content-Type: application/pdf; name="a.pdf"', "Content-Disposition: inline; filename=b.pdf"], "b.pdf"),
        (["Content-Disposition: attachment; filename*=utf-8''r%C3%A9union.pdf"], "réunion.pdf"),
        (["Content-Disposition: attachment; filename*=koi8-r'ru'%F0%D2.pdf"], "Пр.pdf"),
        (["Content-Disposition: attachment; filename*0*=utf-8''r%C3%A9;\r\n filename*1=union.pdf"], "réunion.pdf"),
        (['Content-Disposition: attachment; filename="=?utf-8?B?csOpdW5pb24=?=.pdf"'], "réunion.pdf"),
        (['Content-Disposition: attachment; filename="réunion; à.pdf"'], "réunion; à.pdf"),
        ([b'Content-Disposition: attachment; filename="r\xe9union.pdf"'], "réunion.pdf"),
        (["Content-Disposition: attachment; filename*=no-such'en'r%C3%A9.pdf"], "ré.pdf"),
        (["Content-Disposition: attachment; filename*=unicode_escape''a%5Cud800.pdf"], "ud800.pdf"),
        ([r'Content-Disposition: attachment; filename="C:\docs\a b.pdf"'], "a b.pdf"),
        (["Content-Disposition: attachment; filename=../docs/a.pdf"], "a.pdf"),
        (["Content-Disposition: attachment; filename*=utf-8''a%00%1Bb%E2%80%AEfdp.exe"], "abfdp.exe"),
        ([f"Content-Disposition: attachment; filename*{'9' * 5000}*=x"], None),
        (["Content-Disposition: attachment; filename*"], None),
        (["Content-Disposition: attachment; filename*=utf-8''a.pdf; filename*0=b.pdf"], None),
        (["Content-Disposition: attachment"], ""),
    ],
)
def test_the_name_of_an_attachment_is_read_in_every_notation(headers: list[str | bytes], name: str | None) -> None:
    (attachment,) = with_headers(*headers).attachments
    assert name is None or attachment.name == name


@pytest.mark.parametrize(
    ("content_type", "read_as"),
    [
        ("text/plain; name*", "text"),
        ("text/plain; charset", "text"),
        ("text/plain charset=utf-8", "text"),
        (";", "text"),
        ("nonsense", "text"),
        ("", "text"),
        ("text/plain; " + "(" * 10_000, "text"),
        ("text/plain; " + 'a="b";' * 10_000, "text"),
        ("text/plain; " + '";' * 10_000, "text"),
        ('"text/html"', "text"),
        ("multipart/mixed", "text"),
        ("multipart/mixed; boundary=", "text"),
        ("multipart/mixed; boundary=absent", "text"),
        ("application/x-thing", "attachment"),
        ("message/rfc822", "attachment"),
        ("text/calendar", "attachment"),
    ],
)
@pytest.mark.timeout(60)
def test_a_content_type_is_read_however_malformed(content_type: str, read_as: str) -> None:
    read = with_headers(f"Content-Type: {content_type}")
    assert (read.body, len(read.attachments)) == (("Bonjour", 0) if read_as == "text" else ("", 1))


def parts(*each: str, boundary: str = "x", kind: str = "mixed", closed: bool = True) -> bytes:
    lines = [line for part in each for line in (f"--{boundary}", part)]
    end = [f"--{boundary}--"] if closed else []
    return raw("From: a@example.org", f"Content-Type: multipart/{kind}; boundary={boundary}", "", *lines, *end)


PLAIN, HTML = "Content-Type: text/plain\r\n\r\nBonjour", "Content-Type: text/html\r\n\r\n<p>Bonjour</p>"


@pytest.mark.parametrize(
    ("message", "html", "plain"),
    [
        (parts(PLAIN, HTML, kind="alternative"), "<p>Bonjour</p>", "Bonjour"),
        (parts(HTML, PLAIN, kind="alternative"), "<p>Bonjour</p>", "Bonjour"),
        (parts(HTML), "<p>Bonjour</p>", ""),
        (parts(PLAIN), "", "Bonjour"),
        (parts("\r\nBonjour"), "", "Bonjour"),
        (parts(PLAIN, "Content-Type: text/html\r\n\r\n \r\n"), "", "Bonjour"),
        (parts("Content-Type: text/plain\r\n\r\n", PLAIN), "", "Bonjour"),
        (parts("Content-Type: text/plain\r\nContent-Disposition: attachment\r\n\r\nfile", PLAIN), "", "Bonjour"),
        (parts("Content-Type: text/html; name=a.html\r\n\r\n<p>file</p>", PLAIN), "", "Bonjour"),
        (parts("Content-Type: message/rfc822\r\n\r\nSubject: x\r\n\r\nforwarded", PLAIN), "", "Bonjour"),
        (parts(PLAIN, closed=False), "", "Bonjour"),
        (parts(PLAIN, boundary="a:b"), "", "Bonjour"),
        (parts(PLAIN, boundary="a--"), "", "Bonjour"),
        (parts("Content-Type: image/png", PLAIN, boundary="a:b"), "", "Bonjour"),
        (parts(PLAIN).replace(b"boundary=x", b'boundary="x "').replace(b"--x\r", b"--x \r"), "", "Bonjour"),
        (parts("Content-Type: multipart/mixed; boundary=absent\r\n\r\nBonjour"), "", "Bonjour"),
        (parts("", PLAIN), "", "Bonjour"),
        (parts(PLAIN).replace(b"\r\n", b"\n"), "", "Bonjour"),
        (parts(PLAIN).replace(b"\r\n", b"\r"), "", "Bonjour"),
        (parts(PLAIN).replace(b"\r\n", b"\r\r\n"), "", "Bonjour\r"),
        (parts(PLAIN).replace(b"--x\r", b"--x \t\r"), "", "Bonjour"),
        (parts(PLAIN).replace(b"Bonjour", b"Bonjour\r\n--xy\r\n--"), "", "Bonjour\r\n--xy\r\n--"),
        (parts("Content-Type: text/plain"), "", ""),
    ],
)
def test_the_body_is_found_among_the_parts(message: bytes, html: str, plain: str) -> None:
    read = parse_mime(message)
    assert (read.html, read.plain) == (html, plain)


def test_what_is_not_the_body_is_listed_however_it_came() -> None:
    forwarded = "Content-Type: message/rfc822\r\n\r\nSubject: x\r\n\r\nforwarded"
    read = parse_mime(parts(PLAIN, forwarded, "Content-Type: text/plain; name=footer\r\n\r\nfooter"))
    assert [(each.content_type, each.size_bytes) for each in read.attachments] == [
        ("message/rfc822", len("Subject: x\r\n\r\nforwarded")),
        ("text/plain", len("footer")),
    ]


FILE = "Content-Type: application/pdf; name=a.pdf\r\n\r\n%PDF"


def inner(kind: str, *each: str) -> str:
    boundary = f"in-{kind}"
    lines = [line for part in each for line in (f"--{boundary}", part)]
    return raw(f"Content-Type: multipart/{kind}; boundary={boundary}", "", *lines, f"--{boundary}--").decode()


def text(content: str, kind: str = "plain") -> str:
    return f"Content-Type: text/{kind}\r\n\r\n{content}"


@pytest.mark.parametrize(
    ("message", "html", "plain"),
    [
        (parts(text("un"), FILE, text("deux")), "", "un\ndeux"),
        (parts(text("<p>un</p>", "html"), FILE, text("<p>deux</p>", "html")), "<p>un</p>\n<p>deux</p>", ""),
        (parts(text("<p>un</p>", "html"), FILE, text("<2>")), "<p>un</p>\n<pre>&lt;2&gt;</pre>", "<2>"),
        (parts(text("un"), text("<p>2</p>", "html"), text("3")), "<pre>un</pre>\n<p>2</p>\n<pre>3</pre>", "un\n3"),
        (parts(inner("alternative", PLAIN, HTML), text("pied")), "<p>Bonjour</p>\n<pre>pied</pre>", "Bonjour\npied"),
        (parts(inner("alternative", PLAIN, inner("related", HTML, FILE)), FILE), "<p>Bonjour</p>", "Bonjour"),
        (
            parts(PLAIN, inner("mixed", HTML, FILE, text("<p>deux</p>", "html")), kind="alternative"),
            "<p>Bonjour</p>\n<p>deux</p>",
            "Bonjour",
        ),
        (
            parts(text("all"), inner("mixed", HTML, FILE, text("pied")), kind="alternative"),
            "<p>Bonjour</p>\n<pre>pied</pre>",
            "all\npied",
        ),
        (parts(inner("mixed", text("un"), FILE, text("deux")), HTML, kind="alternative"), "<p>Bonjour</p>", "un\ndeux"),
        (parts(text("un"), text("deux"), kind="alternative"), "", "un\ndeux"),
    ],
)
def test_all_texts_that_a_reader_sees_are_joined_in_their_order(message: bytes, html: str, plain: str) -> None:
    read = parse_mime(message)
    assert (read.html, read.plain) == (html, plain)
    assert {each.content_type for each in read.attachments} <= {"application/pdf"}


@pytest.mark.parametrize("disposition", ["", "\r\nContent-Disposition: inline; filename=note.txt"])
def test_a_text_with_a_file_name_is_the_body_if_there_is_no_other(disposition: str) -> None:
    note = f"Content-Type: text/plain; name=note.txt{disposition}\r\n\r\nVoilà"
    for alone in (parts(FILE, note), parts(" \r\n", note, FILE), parts("\r\n\r\n", FILE, note)):
        read = parse_mime(alone)
        assert (read.plain, [each.name for each in read.attachments]) == ("Voilà", ["a.pdf"])
    beside = parse_mime(parts(note, PLAIN))
    assert (beside.plain, [each.name for each in beside.attachments]) == ("Bonjour", ["note.txt"])


def test_a_text_that_is_attached_is_no_body_even_alone() -> None:
    read = parse_mime(parts("Content-Type: text/plain\r\nContent-Disposition: attachment\r\n\r\nVoilà"))
    assert (read.body, len(read.attachments)) == ("", 1)


@pytest.mark.parametrize(
    "content_type",
    [
        "multipart/*; boundary=x",
        'multipart/mixed boundary="x"',
        "multipart/mixed\r\n\tboundary=x",
        "multipart/mixed; charset=utf-8 boundary=x",
        "multipart/mixed; charset=utf-8\r\n BOUNDARY = x; type=a",
    ],
)
def test_a_multipart_is_read_though_its_header_is_not_as_it_should_be(content_type: str) -> None:
    message = parts(PLAIN, FILE).replace(b"multipart/mixed; boundary=x", content_type.encode())
    read = parse_mime(message)
    assert (read.plain, [each.name for each in read.attachments]) == ("Bonjour", ["a.pdf"])


def test_a_missing_semicolon_before_the_charset_or_the_file_name_does_not_hide_it() -> None:
    read = with_headers("Content-Type: text/plain charset=koi8-r", body="Привет".encode("koi8-r"))
    assert read.body == "Привет"
    (attachment,) = with_headers('Content-Disposition: attachment filename="a b=c.pdf"').attachments
    assert attachment.name == "a b=c.pdf"


def test_an_inner_multipart_that_is_never_closed_ends_with_the_outer_one() -> None:
    inner = raw("Content-Type: multipart/alternative; boundary=y", "", "--y", PLAIN, "--y", HTML)
    read = parse_mime(parts(inner.decode(), "Content-Type: image/png\r\n\r\npng"))
    assert (read.body, read.plain) == ("<p>Bonjour</p>", "Bonjour")
    assert [each.content_type for each in read.attachments] == ["image/png"]


def test_a_boundary_counts_only_within_its_multipart() -> None:
    inner = raw("Content-Type: multipart/alternative; boundary=y", "", "--y", HTML)
    read = parse_mime(parts(inner.decode(), "Content-Type: text/plain\r\n\r\nBonjour\r\n--y\r\nAda"))
    assert read.plain == "Bonjour\r\n--y\r\nAda"
    assert read.html == "<p>Bonjour</p>\n<pre>Bonjour\r\n--y\r\nAda</pre>"


def test_a_text_with_a_boundary_is_still_one_text() -> None:
    assert with_headers("Content-Type: text/plain; boundary=x", body="a\r\n--x\r\nb").body == "a\r\n--x\r\nb"


def test_a_boundary_used_twice_hides_nothing() -> None:
    inner = raw("Content-Type: multipart/alternative; boundary=x", "", "--x", PLAIN, "--x", HTML)
    read = parse_mime(parts(inner.decode()))
    assert (read.body, read.plain) == ("<p>Bonjour</p>", "Bonjour")


def nested(depth: int, innermost: str) -> bytes:
    opened = [
        f"Content-Type: multipart/mixed; boundary=b{level}\r\n\r\npreamble\r\n--b{level}" for level in range(depth)
    ]
    closed = [f"--b{level}--\r\nepilogue" for level in reversed(range(depth))]
    return raw("From: a@example.org", *opened, innermost, *closed)


@pytest.mark.parametrize("depth", [1, 100, MAX_PARTS - 1])
def test_the_text_is_found_however_deep_it_is_nested(depth: int) -> None:
    read = parse_mime(nested(depth, PLAIN))
    assert (read.body, read.attachments) == ("Bonjour", ())


def test_beyond_so_many_parts_the_rest_is_one_attachment() -> None:
    read = parse_mime(parts(PLAIN, *["Content-Type: image/png\r\n\r\npng"] * (MAX_PARTS + 50)))
    *images, rest = read.attachments
    assert {each.content_type for each in images} == {"image/png"}
    assert (rest.content_type, rest.size_bytes > 1000) == ("application/octet-stream", True)
    assert read.body == "Bonjour"


def test_every_header_is_found_among_ten_thousand() -> None:
    many = [f"X-Header-{number}: value" for number in range(10_000)]
    read = with_headers(*many, "Subject: Weekly report", "From: a@example.org", *many)
    assert (read.subject, read.sender, read.body) == ("Weekly report", "a@example.org", "Bonjour")


@pytest.mark.parametrize("newline", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"\n", b"From ada Wed Oct 11 18:31:04 2017\n"])
def test_headers_are_read_whatever_ends_the_lines_and_comes_before(newline: bytes, before: bytes) -> None:
    message = raw("From: a@example.org", "Subject: Weekly", " report", "", "Bonjour", newline=newline)
    read = parse_mime(before.replace(b"\n", newline) + message)
    assert (read.sender, read.subject, read.body) == ("a@example.org", "Weekly report", "Bonjour")


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("before", [b"   \n", b" \t\n\n", b" ", b"\xef\xbb\xbf ", b"From ada Wed Oct 11\n "])
def test_spaces_before_the_first_header_do_not_hide_it(newline: bytes, before: bytes) -> None:
    message = raw("From: a@example.org", "Subject: Weekly", " report", "", "Bonjour", newline=newline)
    read = parse_mime(before.replace(b"\n", newline) + message)
    assert (read.sender, read.subject, read.body) == ("a@example.org", "Weekly report", "Bonjour")


@pytest.mark.parametrize("start", ["From : ", "From\t: ", "From  :", ">From x\r\nFrom : "])
def test_a_header_with_a_space_before_its_colon_is_no_line_of_a_mailbox_file(start: str) -> None:
    read = parse_mime(raw(f"{start}a@example.org", "Subject : Weekly report", "", "Bonjour"))
    assert (read.sender, read.subject, read.body) == ("a@example.org", "Weekly report", "Bonjour")


def test_a_stray_cr_ends_no_header() -> None:
    read = with_headers("Subject: Weekly\rreport", "From: a@example.org\r", "Date: x")
    assert (read.subject, read.sender, read.date, read.body) == ("Weekly report", "a@example.org", "x", "Bonjour")


def test_a_line_that_is_no_header_begins_the_body() -> None:
    read = parse_mime(raw("From: a@example.org", "Bonjour", "Subject: not one"))
    assert (read.sender, read.subject, read.body) == ("a@example.org", "", "Bonjour\r\nSubject: not one")


def test_a_message_id_is_taken_as_it_is() -> None:
    assert with_headers("Message-Id:\r\n <[b378@example.org]>").message_id == "<[b378@example.org]>"


def test_verdicts_of_spam_filters_are_kept_by_their_names() -> None:
    read = with_headers("X-Spam-Status: No, score=-1.2\r\n\ttests=NONE", "X-SES-Virus-Verdict: PASS", "X-Spam-Flag:")
    assert read.spam == {"X-Spam-Status": "No, score=-1.2 tests=NONE", "X-SES-Virus-Verdict": "PASS"}


def test_the_thread_and_the_list_of_a_message_are_kept() -> None:
    read = with_headers("In-Reply-To: <1@a>", "References: <0@a>\r\n <1@a>", "List-ID: News <news.example.org>")
    assert read.extra == {"in_reply_to": "<1@a>", "references": "<0@a> <1@a>", "list_id": "News <news.example.org>"}


@pytest.mark.parametrize("message", [b"", b"\r\n", b"\n\n\n", b"\x00" * 100, b":\n:\n", b"--\n--\n", b"\xff" * 100])
def test_what_is_no_email_at_all_has_no_sender(message: bytes) -> None:
    read = parse_mime(message)
    assert (read.sender, read.subject, read.date, read.attachments) == ("", "", "", ())


def test_no_half_surrogate_pair_gets_into_any_part_of_it() -> None:
    half = b"\xff +2AA-"
    message = raw(
        b"To: a@b" + half,
        b"References: " + half,
        b"X-Spam-Flag: " + half,
        "Content-Type: text/plain; charset=utf-7",
        "",
        half,
    )
    read = parse_mime(message, recipients=["half \ud83c"])
    for text in (*read.recipients, *read.extra.values(), *read.spam.values(), read.body):
        text.encode()
    assert read.recipients[0] == "half \ufffd"


_WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=12)
_FILE_NAMES = _WORDS.filter(lambda name: not set(name) & set("/\\"))
_TEXTS = st.lists(_WORDS, min_size=1, max_size=8).map(" ".join)


@given(_TEXTS, _TEXTS, st.lists(st.tuples(_FILE_NAMES, st.binary(max_size=200)), max_size=3))
def test_what_the_standard_library_writes_is_read_back(subject: str, text: str, files: list[tuple[str, bytes]]) -> None:
    message = email.message.EmailMessage(policy=email.policy.SMTP.clone(max_line_length=998))
    message["Subject"] = subject
    message.set_content(text)
    message.add_alternative(f"<p>{text}</p>", subtype="html")
    for name, content in files:
        message.add_attachment(content, maintype="application", subtype="x-thing", filename=name)
    read = parse_mime(bytes(message))
    assert read.subject == decode_subject(subject)
    assert (read.plain.strip(), read.body.strip()) == (text, f"<p>{text}</p>")
    assert [(each.name, each.sha256) for each in read.attachments] == [
        (decode_subject(name), hashlib.sha256(content).hexdigest()) for name, content in files
    ]
