"""Raw emails, well-formed and not, and what is read of them."""

import base64
import email.message
import email.policy
import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduplication.email import Email, decode_header
from deduplication.identity import compute_canonical_id, compute_fingerprint
from deduplication.spool import LARGE_BYTES, Spool, spooled
from routes.mime import MAX_DEPTH, MAX_PARTS, parse_mime

PDF = b"%PDF-1.7\n\x00\xff not really\r\n"


def raw(*lines: str | bytes, newline: bytes = b"\r\n") -> bytes:
    return newline.join(line.encode() if isinstance(line, str) else line for line in lines)


def with_headers(*lines: str | bytes, body: str | bytes = "Bonjour") -> Email:
    return parse_mime(raw(*lines, "", body))


def base64_lines(content: bytes) -> bytes:
    return base64.encodebytes(content).strip()


def text(content: str, kind: str = "plain") -> str:
    return f"Content-Type: text/{kind}\r\n\r\n{content}"


def file(content: bytes, headers: str) -> str:
    return f"{headers}\r\nContent-Transfer-Encoding: base64\r\n\r\n{base64_lines(content).decode()}"


def multipart(*each: str, kind: str = "mixed", boundary: str = "", closed: bool = True) -> str:
    boundary = boundary or f"in-{kind}"
    lines = [line for part in each for line in (f"--{boundary}", part)]
    end = [f"--{boundary}--"] if closed else []
    return raw(f"Content-Type: multipart/{kind}; boundary={boundary}", "", *lines, *end).decode()


def parts(*each: str, boundary: str = "x", kind: str = "mixed", closed: bool = True) -> bytes:
    return raw("From: a@example.org", multipart(*each, kind=kind, boundary=boundary, closed=closed))


LOGO = file(b"\x89PNG", "Content-Type: image/png; name=logo.png\r\nContent-Disposition: inline")
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
    multipart(
        multipart(
            text("The engine runs.\r\n"),
            multipart(text("<p>The engine <b>runs</b>.</p>", "html"), LOGO, kind="related", boundary="related"),
            kind="alternative",
            boundary="inner",
        ),
        file(PDF, 'Content-Type: application/pdf\r\nContent-Disposition: attachment; filename="report 41.pdf"'),
        boundary="outer",
    ),
    "An epilogue.",
)


def test_a_message_is_read() -> None:
    read = parse_mime(REPORT, recipients=["Inbox+Tag@Mail.Example", "DESK@example.com", ""])
    logo, report = read.attachments
    assert [name for name, _ in read.headers][:4] == ["Return-Path", "Delivered-To", "Received", "From"]
    assert replace(read, attachments=(), headers=()) == Email(
        subject="Weekly report",
        sender="Ada Lovelace <Ada@Example.org>",
        date="Wed, 11 Oct 2017 18:31:04 -0700",
        html="<p>The engine <b>runs</b>.</p>",
        plain="The engine runs.\r\n",
        message_id="<report-41@example.org>",
        provider="mime",
        first_html="",
        recipients=("inbox+tag@mail.example", "desk@example.com"),
        to=("charles@example.com", "desk@example.com"),
        cc=("charles@example.com",),
        return_path="bounces@example.org",
    )
    assert (logo.name, logo.content_type, logo.size_bytes) == ("logo.png", "image/png", 4)
    assert (report.name, report.content_type, report.size_bytes) == ("report 41.pdf", "application/pdf", len(PDF))
    assert report.sha256 == hashlib.sha256(PDF).hexdigest()


@pytest.mark.parametrize(
    ("files", "inline_bytes", "inline"),
    [
        ((b"png!", PDF), 0, [False, False]),
        ((b"png!", PDF), 3, [False, False]),
        ((b"png!", PDF), 4, [True, False]),
        ((b"png!", PDF), 3 + len(PDF), [True, False]),
        ((b"png!", PDF), 4 + len(PDF), [True, True]),
        ((PDF, b"ok"), 4, [False, True]),
        ((b"",), 0, [False]),
        ((b"",), 1, [True]),
    ],
)
def test_attachments_are_inline_while_they_fit_into_the_total(
    files: tuple[bytes, ...], inline_bytes: int, inline: list[bool]
) -> None:
    message = parts(*(file(content, "Content-Type: image/png") for content in files))
    found = [each.content for each in parse_mime(message, inline_bytes=inline_bytes).attachments]
    contents = [base64.b64encode(content).decode() for content in files]
    assert found == [content if is_inline else None for content, is_inline in zip(contents, inline, strict=True)]


@pytest.mark.parametrize(
    ("header", "part", "addresses"),
    [
        ("To: john@example.org,\r\n\tjane@example.org", "to", ("john@", "jane@")),
        ("To: john@example.org\r\nTo: jane@example.org", "to", ("john@", "jane@")),
        ("To: =?utf-8?q?x=40spoof=2Eexample?= <john@example.org>,", "to", ("john@",)),
        ("Cc: john@example.org", "cc", ("john@",)),
        ("Cc: john@example.org", "to", ()),
        ("X-Original-To: john@example.org\r\nEnvelope-To: jane@example.org", "recipients", ("john@", "jane@")),
        ("To: john@example.org", "recipients", ()),
        ("To: undisclosed-recipients:;", "to", ()),
    ],
)
def test_recipients_are_found_in_every_header(header: str, part: str, addresses: tuple[str, ...]) -> None:
    email = with_headers(header)
    assert getattr(email, part) == tuple(f"{name}example.org" for name in addresses)
    assert not email.tells_recipients, "a header is no envelope"


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
        ("From: =?utf-8?Q?J=C3=B6rg?= <j@example.org>", "Jörg <j@example.org>", "j@example.org"),
        ("From: Jörg\r\n <j@example.org>", "Jörg <j@example.org>", "j@example.org"),
        ("From: j@example.org (Jörg)", "j@example.org (Jörg)", "j@example.org"),
        ("From: =?utf-8?q?=3Cspoof=40evil=2Eexample=3E?= <j@example.org>", None, "j@example.org"),
        ("From: j@example.org =?utf-8?q?=3Cspoof=40evil=2Eexample=3E?=", None, "j@example.org"),
        ("Sender: j@example.org\r\nReturn-Path: <j@example.org>", "", ""),
    ],
)
def test_the_sender_is_the_header_with_its_name_decoded(header: str, sender: str | None, address: str) -> None:
    read = with_headers(header)
    assert read.sender_email == address
    assert sender is None or read.sender == sender


def test_a_redelivery_has_the_same_id_and_fingerprint() -> None:
    first = parse_mime(REPORT)
    again = parse_mime(
        b"Received: from elsewhere.example; Thu, 12 Oct 2017 09:00:00 +0000\r\n"
        + REPORT.replace(b"Wed, 11 Oct 2017 18:31:04 -0700\r\nM", b"Thu, 12 Oct 2017\r\n 03:31:04 +02 (comment)\r\nM")
    )
    assert again.date == "Thu, 12 Oct 2017 03:31:04 +02 (comment)"
    assert compute_canonical_id(again) == compute_canonical_id(first)
    assert compute_fingerprint(again) == compute_fingerprint(first)


@pytest.mark.parametrize("charset", ["utf-8", "KOI8-R", "utf-16", "iso-2022-jp"])
@pytest.mark.parametrize("separator", ["; format=flowed; ", " "])
@pytest.mark.parametrize("transfer", ["8bit", "base64", "quoted-printable"])
def test_a_text_is_read_in_its_charset_and_transfer_encoding(charset: str, separator: str, transfer: str) -> None:
    content = "Привет".encode(charset)
    encoded = {
        "8bit": content,
        "base64": base64_lines(content),
        "quoted-printable": "".join(f"={byte:02X}" for byte in content).encode(),
    }
    read = with_headers(
        f'Content-Type: TEXT/plain{separator}CHARSET="{charset}"',
        f"Content-Transfer-Encoding: {transfer}",
        body=encoded[transfer],
    )
    assert read.body == "Привет"


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
    ("headers", "name"),
    [
        (['Content-Disposition: attachment; filename="r.pdf"'], "r.pdf"),
        (["Content-Disposition: attachment; FILENAME=r.pdf"], "r.pdf"),
        (['Content-Disposition: attachment filename="a b=c.pdf"'], "a b=c.pdf"),
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


PLAIN, HTML = text("Bonjour"), text("<p>Bonjour</p>", "html")
FILE = "Content-Type: application/pdf; name=a.pdf\r\n\r\n%PDF"
UNCLOSED = f"Content-Type: multipart/alternative; boundary=y\r\n\r\n--y\r\n{PLAIN}\r\n--y\r\n{HTML}"


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
        (parts("Content-Type: text/plain\r\nContent-Disposition: attachment\r\n\r\nVoilà"), "", ""),
        (raw("From: a@example.org", "Bonjour", "Subject: not one"), "", "Bonjour\r\nSubject: not one"),
        (raw("Subject: x", "Bonjour", "Subject: not one", "", "x"), "", "Bonjour\r\nSubject: not one\r\n\r\nx"),
        (raw("Subject: x", "Bonjour", "", "From: quoted@example.org"), "", "Bonjour\r\n\r\nFrom: quoted@example.org"),
        (raw("Content-Type: text/plain; boundary=x", "", "a\r\n--x\r\nb"), "", "a\r\n--x\r\nb"),
        (
            raw("Content-Transfer-Encoding: quoted-printable", "", "caf=C3=A9 =\r\nnoir, 50 =% =XY="),
            "",
            "café noir, 50 =% =XY",
        ),
        (parts(UNCLOSED, "Content-Type: image/png\r\n\r\npng"), "<p>Bonjour</p>", "Bonjour"),
        (parts(UNCLOSED, text("--y\r\nAda")), "<p>Bonjour</p>\n<pre>--y\r\nAda</pre>", "Bonjour\n--y\r\nAda"),
        # All texts that a reader sees are joined in their order.
        (parts(text("un"), FILE, text("deux")), "", "un\ndeux"),
        (parts(text("<p>un</p>", "html"), FILE, text("<p>deux</p>", "html")), "<p>un</p>\n<p>deux</p>", ""),
        (parts(text("<p>un</p>", "html"), FILE, text("<2>")), "<p>un</p>\n<pre>&lt;2&gt;</pre>", "<2>"),
        (parts(text("un"), text("<p>2</p>", "html"), text("3")), "<pre>un</pre>\n<p>2</p>\n<pre>3</pre>", "un\n3"),
        (
            parts(multipart(PLAIN, HTML, kind="alternative"), text("pied")),
            "<p>Bonjour</p>\n<pre>pied</pre>",
            "Bonjour\npied",
        ),
        (
            parts(multipart(PLAIN, multipart(HTML, FILE, kind="related"), kind="alternative"), FILE),
            "<p>Bonjour</p>",
            "Bonjour",
        ),
        (
            parts(PLAIN, multipart(HTML, FILE, text("<p>deux</p>", "html")), kind="alternative"),
            "<p>Bonjour</p>\n<p>deux</p>",
            "Bonjour",
        ),
        (
            parts(text("all"), multipart(HTML, FILE, text("pied")), kind="alternative"),
            "<p>Bonjour</p>\n<pre>pied</pre>",
            "all\npied",
        ),
        (parts(multipart(text("un"), FILE, text("deux")), HTML, kind="alternative"), "<p>Bonjour</p>", "un\ndeux"),
        (parts(text("un"), text("deux"), kind="alternative"), "", "un\ndeux"),
    ],
)
def test_the_body_is_found_among_the_parts(message: bytes, html: str, plain: str) -> None:
    read = parse_mime(message)
    assert (read.html, read.plain) == (html, plain)
    shown = {*html.split("\n"), *plain.split("\n")} - {""}
    assert not {hashlib.sha256(text.encode()).hexdigest() for text in shown} & {
        each.sha256 for each in read.attachments
    }


def test_what_is_not_the_body_is_listed_however_it_came() -> None:
    forwarded = "Content-Type: message/rfc822\r\n\r\nSubject: x\r\n\r\nforwarded"
    read = parse_mime(parts(PLAIN, forwarded, "Content-Type: text/plain; name=footer\r\n\r\nfooter"))
    found = [(each.content_type, each.size_bytes) for each in read.attachments]
    assert found == [("message/rfc822", len("Subject: x\r\n\r\nforwarded")), ("text/plain", len("footer"))]


@pytest.mark.parametrize("disposition", ["", "\r\nContent-Disposition: inline; filename=note.txt"])
def test_a_text_with_a_file_name_is_the_body_if_there_is_no_other(disposition: str) -> None:
    note = f"Content-Type: text/plain; name=note.txt{disposition}\r\n\r\nVoilà"
    for alone in (parts(FILE, note), parts(" \r\n", note, FILE), parts("\r\n\r\n", FILE, note)):
        read = parse_mime(alone)
        assert (read.plain, [each.name for each in read.attachments]) == ("Voilà", ["a.pdf"])
    beside = parse_mime(parts(note, PLAIN))
    assert (beside.plain, [each.name for each in beside.attachments]) == ("Bonjour", ["note.txt"])


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


def nested(depth: int, innermost: str) -> bytes:
    opened = [
        f"Content-Type: multipart/mixed; boundary=b{level}\r\n\r\npreamble\r\n--b{level}" for level in range(depth)
    ]
    closed = [f"--b{level}--\r\nepilogue" for level in reversed(range(depth))]
    return raw("From: a@example.org", *opened, innermost, *closed)


def test_the_text_is_found_in_nested_multiparts_and_those_nested_too_deep_are_an_attachment() -> None:
    for depth in (1, MAX_DEPTH):
        read = parse_mime(nested(depth, PLAIN))
        assert (read.body, read.attachments) == ("Bonjour", ())
    (rest,) = parse_mime(nested(MAX_DEPTH + 1, PLAIN)).attachments
    assert (rest.content_type, rest.size_bytes > len(PLAIN)) == ("application/octet-stream", True)


def test_beyond_so_many_parts_the_rest_is_one_attachment() -> None:
    read = parse_mime(parts(PLAIN, *["Content-Type: image/png\r\n\r\npng"] * (MAX_PARTS + 50)))
    *images, rest = read.attachments
    assert {each.content_type for each in images} == {"image/png"}
    assert (rest.content_type, rest.size_bytes > 1000) == ("application/octet-stream", True)
    assert read.body == "Bonjour"


@pytest.mark.parametrize("newline", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize(
    "before",
    [b"", b"\xef\xbb\xbf", b"\n", b" \t\n\n", b" ", b"\xef\xbb\xbf ", b"From ada Wed Oct 11\n", b"From ada Wed\n "],
)
def test_headers_are_read_whatever_ends_the_lines_and_comes_before(newline: bytes, before: bytes) -> None:
    message = raw("From: a@example.org", "Subject: Weekly", " report", "", "Bonjour", newline=newline)
    read = parse_mime(before.replace(b"\n", newline) + message)
    assert (read.sender, read.subject, read.body) == ("a@example.org", "Weekly report", "Bonjour")


def test_empty_lines_before_the_headers_of_a_large_message_are_skipped() -> None:
    message = spooled([b"\n\n\n", raw("From: a@example.org", "", "Bonjour " * LARGE_BYTES)], Spool())
    assert parse_mime(message).sender == "a@example.org"


@pytest.mark.parametrize("start", ["From : ", "From\t: ", "From  :", ">From x\r\nFrom : "])
def test_a_header_with_a_space_before_its_colon_is_no_line_of_a_mailbox_file(start: str) -> None:
    read = parse_mime(raw(f"{start}a@example.org", "Subject : Weekly report", "", "Bonjour"))
    assert (read.sender, read.subject, read.body) == ("a@example.org", "Weekly report", "Bonjour")


def test_a_stray_cr_ends_no_header() -> None:
    read = with_headers("Subject: Weekly\rreport", "From: a@example.org\r", "Date: x")
    assert (read.subject, read.sender, read.date, read.body) == ("Weekly report", "a@example.org", "x", "Bonjour")


def test_ids_verdicts_of_spam_filters_the_thread_and_the_list_are_kept() -> None:
    read = with_headers(
        "Message-Id:\r\n <[b378@example.org]>",
        "X-Spam-Status: No, score=-1.2\r\n\ttests=NONE",
        "X-SES-Virus-Verdict: PASS",
        "X-Spam-Flag:",
        "In-Reply-To: <1@a>",
        "References: <0@a>\r\n <1@a>",
        "List-ID: News <news.example.org>",
    )
    assert read.message_id == "<[b378@example.org]>"
    assert read.spam == {"X-Spam-Status": "No, score=-1.2 tests=NONE", "X-SES-Virus-Verdict": "PASS"}
    assert (read.in_reply_to, read.references, read.thread) == ("1@a", ("0@a", "1@a"), "0@a")
    assert read.header("list-id") == "News <news.example.org>"


@pytest.mark.parametrize("message", [b"", b"\r\n", b"\n\n\n", b"\x00" * 100, b":\n:\n", b"--\n--\n", b"\xff" * 100])
def test_what_is_no_email_at_all_has_no_sender(message: bytes) -> None:
    read = parse_mime(message)
    assert (read.sender, read.subject, read.date, read.attachments) == ("", "", "", ())


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
    assert read.subject == decode_header(subject)
    assert (read.plain.strip(), read.html.strip()) == (text, f"<p>{text}</p>")
    assert [(each.name, each.sha256) for each in read.attachments] == [
        (decode_header(name), hashlib.sha256(content).hexdigest()) for name, content in files
    ]
