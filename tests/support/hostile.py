"""Raw emails that are meant to cost more than their length, and what reading one costs.

python -m tests.support.hostile NAME prints a line for each of SIZES_BYTES: the length of the email, the peak of the
memory that reading it took, and its CPU time. Each name needs a process of its own: memory that has grown stays so.
"""

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from deduplication.content import normalize_text
from deduplication.identity import compute_fingerprint, own_names
from deduplication.media import MediaMode, delivery_links
from deduplication.subject_group import DEFAULT_PATTERNS, GroupMode, group_of, normalize_no_accents_lower_trim
from routes.mime import parse_mime

SIZES_BYTES = (1000, 16 * 1024, 256 * 1024, 4 * 1024 * 1024)

Hostile = Callable[[int], bytes]


def filled(piece: str, size_bytes: int) -> str:
    """The piece as often as it fits; with {0} in it, another each time."""
    if "{0}" not in piece:
        return piece * (size_bytes // len(piece.encode()))
    return "".join(map(piece.format, range(size_bytes // len(piece.format(0)))))[:size_bytes]


def mime(head: str, *pieces: str, end: str = "") -> Hostile:
    """An email whose last header and body are ``head``, then each piece as often as it fits into its share."""

    def email(size_bytes: int) -> bytes:
        share_bytes = (size_bytes - len(head) - len(end)) // len(pieces)
        filling = "".join(filled(piece, share_bytes) for piece in pieces)
        return f"From: ada@example.org\r\n{head}{filling}{end}".encode()

    return email


def html(start: str, *pieces: str, end: str = "") -> Hostile:
    return mime(f"Content-Type: text/html\r\n\r\n{start}", *pieces, end=end)


def text(headers: str, piece: bytes) -> Hostile:
    return lambda size: b"From: ada@example.org\r\n%b\r\n%b" % (headers.encode(), piece * (size // len(piece)))


_ATTRIBUTES = " ".join(f"a{number}_{{0}}" for number in range(20))
_MIXED = "Content-Type: multipart/mixed; boundary=x\r\n\r\n"
# HTML that is nothing but one piece, again and again: tags, comments, entities and attributes, some never closed.
_HTML = (
    "<p><font size={0}>x", "<a href='https://files.example/{0}'><div>", '<a href="https://files.example/{0}">x</a>',
    "<div>", "<p>x</p>", "<table><tr><td>", "<ul><li>", "<dl><dt><b a{0}>", "<h1><i a{0}>", "<html a{0} lang=en>",
    '<a href="', "<", "<a ", "&eacute;", "&", "<!-- x -->", "<!-- ", "<!--[if mso]><table><![endif]-->",
    "<![CDATA[x]]>", "<math><mi><b a{0}>", "<form action=/{0}><input>", "<template><b a{0}>", "<textarea><b a{0}>",
    "<object><b a{0}><p>x", "<script>x</script>", "<script>", "<style/>", "<title>x",
    '<img src="https://i.example/{0}.png">', "<img src='data:image/png;base64,aGVsbG8{0}'>", "<img src ",
    "<p style='background: url(https://i.example/{0})'>x",
)  # fmt: skip
EMAILS: Mapping[str, Hostile] = {
    **{f"HTML of {piece}": html("", piece) for piece in _HTML},
    "formatting in blocks": html("<p>", "<b {0}>", "<p>x"),
    "links in blocks": html("<p>", "<a href='https://files.example/{0}'>", "<p>x"),
    "one long link in blocks": html("<p><a href='https://files.example/", "y", end="'>" + "<p>x" * 2000),
    "one long attribute in blocks": html("<p><b title='", "y", end="'>" + "<p>x" * 2000),
    "ends of other tags": html("", "<x>", "</y>"),
    "text between cells": html("<table>", "<b a{0}>x<p>"),
    "attributes of one tag": html("<a ", 'a{0}="x" ', end=">"),
    "attributes with > in quotes": html("<a ", f"{_ATTRIBUTES} b='>' ", end=">"),
    "attributes with < in quotes": html("<a ", f"{_ATTRIBUTES} b='<' ", end=">"),
    "attributes of the body": html("", f"<body {_ATTRIBUTES}>"),
    "an entity of digits": html("<" * 10_001 + "&#", "9", end=";"),
    "dashes in a comment": html("<!--", "-"),
    "SVG": html("", "<svg><desc><nobr a{0}>", "<p>x"),
    "options": html("<select>", "<option><b a{0}>"),
    "malformed UTF-8": text("Content-Type: text/html; charset=utf-8\r\n", b"<p>\xc3\xff"),
    "malformed UTF-7": text("Content-Type: text/plain; charset=utf-7\r\n", b"+AGE"),
    "malformed ISO-2022-JP": text("Content-Type: text/plain; charset=iso-2022-jp\r\n", b"\x1b$B\xff"),
    "an unknown charset": text("Content-Type: text/html; charset=nonsense\r\n", b"<b>\xe9"),
    "damaged Base64": text("Content-Transfer-Encoding: base64\r\n", b"=!YQ"),
    "quoted-printable": mime("Content-Transfer-Encoding: quoted-printable\r\n\r\n", "=C3=A9"),
    "one line": mime("\r\n", "x"),
    "one line of 8-bit text": text("", b"\xe9"),
    "short lines": mime("\r\n", "ab\n"),
    "text with one emoji": mime("\r\n", "x", end="🎉"),
    "damaged text with emoji": lambda size: b"\r\n" + b"x" * size + "🎉".encode() * 9 + b"\xff",
    "letters with marks": mime("\r\n", "e\u0301", "\u0301\u0316", "\ufdfa"),
    "brackets behind a link": mime("\r\nhttps://files.example/x", ")."),
    "a link": mime("\r\nhttps://files.example/", "logo/.%20-"),
    "one attachment": text("Content-Type: application/pdf\r\nContent-Transfer-Encoding: base64\r\n", b"YWJj"),
    "carriage returns": lambda size: b"From: ada@example.org\rSubject: x\r\r" + b"x\r" * (size // 2),
    "zeros": bytes,
    "headers": mime("", "X-A: b\r\n"),
    "empty headers": mime("", "a:\n"),
    "one header": mime("X-Long: ", "x"),
    "a header folded into nothing": mime("X-Folded:", "\n "),
    "quotes that are not closed in an address": mime("To: ", '"\\'),
    "brackets that are not closed in an address": mime("To: ", "<("),
    "brackets that are not closed in a date": mime("Date: ", "("),
    "replies": mime("Subject: ", "re: ", "re "),
    "recipients in headers": mime("", "To: a{0}@b.example\r\n"),
    "a folded header": mime("Subject: x", "\r\n x"),
    "encoded words": mime("Subject: x", "\r\n =?utf-8?B?w6k=?="),
    "halves of encoded words": mime("Subject: ", "=?utf-8?B?"),
    "a Content-Type of parameters": mime("Content-Type: text/plain", "; a{0}=b"),
    "parts": mime(_MIXED, "--x\r\n\r\nx\r\n"),
    "parts of HTML": mime(_MIXED, "--x\r\nContent-Type: text/html\r\n\r\n<p><b a{0}>\r\n"),
    "attachments": mime(_MIXED, '--x\r\nContent-Disposition: attachment; filename="{0}"\r\n\r\nx\r\n'),
    "lines like boundaries": mime(_MIXED, "--y\r\n"),
    "boundaries": mime(_MIXED, "--x\r\n"),
    "long parameters": mime(_MIXED, f'--x\r\nContent-Type: text/plain; a="{";" * 400}\r\n\r\nhi\r\n'),
    "parts in parts": mime(_MIXED, "--x\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n"),
    "parts in other parts": mime(_MIXED, "--x\r\nContent-Type: multipart/mixed; boundary={0}\r\n\r\n--{0}\r\n"),
}


def memory_bytes(line: str) -> int:
    """A line of /proc: VmHWM is the most memory that the process has had, VmRSS what it has now."""
    found = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith(line))
    return int(found.split()[1]) * 1024


def main(name: str) -> None:
    for size_bytes in SIZES_BYTES:
        raw = EMAILS[name](size_bytes)
        before_bytes, before_s = memory_bytes("VmRSS"), time.process_time()
        email = parse_mime(raw)
        own_names(email, None)
        compute_fingerprint(email)
        delivery_links(email.links, MediaMode.ALL)
        group_of(normalize_no_accents_lower_trim(email.clean_subject), DEFAULT_PATTERNS, GroupMode.ALL)
        normalize_text(email.text)
        print(len(raw), memory_bytes("VmHWM") - before_bytes, f"{time.process_time() - before_s:.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
