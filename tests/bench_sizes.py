"""make bench ARGS=sizes: what one hostile request costs, in sizes that double up to the largest that is taken.

A request that costs twice as much for twice the size is one that a sender cannot make expensive. Each is a new email
or message, through its door and the whole service, to a destination on this machine; nothing is asserted.
"""

from __future__ import annotations

import itertools
import json
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flask.testing import FlaskClient

from orchestrator.build import build
from orchestrator.config.settings import load_settings
from routes.app import create_app
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, email
from tests.support.sink import Sink

LARGEST_BYTES = 25 * 1024 * 1024
SMALLEST_BYTES = LARGEST_BYTES // 16
CONFIG = """
[destinations.default]
url = "{url}"
read_timeout_s = 60
connect_timeout_s = 60

[[routes]]
name = "by words and by a regex"
match = [{{ field = "body", contains = "no such word" }}, {{ field = "body", regex = "(a|a)*b" }}]
any = true

[[routes]]
name = "everything else"
media = "all"
subject_groups = "all"
"""

Hostile = Callable[[int], tuple[str, bytes]]


def filled(piece: str, size_bytes: int) -> str:
    """The piece as often as it fits; with {} in it, another each time."""
    if "{}" not in piece:
        return piece * (size_bytes // len(json.dumps(piece, ensure_ascii=False).encode()[1:-1]))
    widest = len(piece) + 6
    return "".join(map(piece.format, range(size_bytes // widest)))


def gmail(field: str, piece: str, **others: Any) -> Hostile:
    def request(size_bytes: int) -> tuple[str, bytes]:
        given = {"date": secrets.token_hex(8), "body": "", **others, field: filled(piece, size_bytes)}
        document = email(**given)
        return "gmail", json.dumps(document, ensure_ascii=False).encode()

    return request


def message(field: str, piece: str, *, is_list: bool = False) -> Hostile:
    def request(size_bytes: int) -> tuple[str, bytes]:
        text = filled(piece, size_bytes)
        document = {"id": secrets.token_hex(8), field: text.split() if is_list else text}
        return "message", json.dumps(document, ensure_ascii=False).encode()

    return request


def mime(head: str, piece: str, end: str = "") -> Hostile:
    def request(size_bytes: int) -> tuple[str, bytes]:
        start = f"From: ada@example.org\r\nMessage-ID: <{secrets.token_hex(8)}@example.org>\r\n{head}"
        return "mime", (start + filled(piece, size_bytes) + end).encode()

    return request


HTML = "Content-Type: text/html\r\n\r\n"
MIXED = "Content-Type: multipart/mixed; boundary=x\r\n\r\n"
FORMS: Mapping[str, Hostile] = {
    "one word": gmail("body", "x"),
    "é": gmail("body", "é"),
    "e and an accent": gmail("body", "e\u0301"),
    "accents on one letter": gmail("body", "\u0301\u0316"),
    "U+FDFA": gmail("body", "\ufdfa"),
    "spaces": gmail("body", " "),
    "links in a text": gmail("plain", "https://files.example/{} "),
    "brackets after a link": gmail("plain", "https://a.example/(((((((((("),
    "http:// alone": gmail("plain", "http://"),
    "links in HTML": mime(HTML, '<a href="https://files.example/{}">x</a>'),
    "tags in tags": mime(HTML, "<div>"),
    "tags side by side": mime(HTML, "<p>x</p>"),
    "open brackets": mime(HTML, "<"),
    "open tags": mime(HTML, "<a "),
    "one tag of many attributes": mime(HTML + "<a ", 'a{}="x" '),
    "images": mime(HTML, '<img src="https://i.example/{}.png">'),
    "image tags without an end": mime(HTML, "<img src "),
    "entities": mime(HTML, "&eacute;"),
    "scripts": mime(HTML, "<script>x</script>"),
    "comments": mime(HTML, "<!-- "),
    "a subject of U+FDFA": gmail("subject", "\ufdfa"),
    "a subject of é": gmail("subject", "é"),
    "a subject of encoded words": gmail("subject", "=?utf-8?B?w6k=?= "),
    "a subject of halves of encoded words": gmail("subject", "=?utf-8?B?"),
    "a subject of Re:": gmail("subject", "Re: "),
    "a subject of lots": gmail("subject", "lot {} "),
    "a sender of brackets": gmail("sender", "<a@", sender="<a@b.example>"),
    "a sender of quotes": gmail("sender", '"a@b.example, '),
    "a sender of comments": gmail("sender", "a@b.example ("),
    "a date of digits": gmail("date", "1"),
    "a date of brackets": gmail("date", "("),
    "recipients": gmail("to", "a{}@b.example, "),
    "a Message-ID": gmail("message_id", "<x"),
    "headers": mime("", "X-A: b\r\n"),
    "recipients in headers": mime("", "To: a{}@b.example\r\n"),
    "a folded header": mime("Subject: x", "\r\n x"),
    "a Content-Type of parameters": mime("Content-Type: text/plain", "; a{}=b"),
    "parts": mime(MIXED, "--x\r\n\r\nx\r\n"),
    "attachments": mime(MIXED, '--x\r\nContent-Disposition: attachment; filename="{}"\r\n\r\nx\r\n'),
    "parts in parts": mime(MIXED, "--x\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n"),
    "quoted-printable": mime("Content-Transfer-Encoding: quoted-printable\r\n\r\n", "=C3=A9"),
    "a message of one word": message("text", "x"),
    "a message of é": message("text", "é"),
    "a message of marks": message("text", "! "),
    "a message of links": message("text", "https://files.example/{} "),
    "a message's title": message("title", "\ufdfa"),
    "a message's media": message("media", "https://files.example/{} ", is_list=True),
    "JSON of numbers": lambda size: ("message", b"[" + b"1," * (size // 2) + b"1]"),
    "JSON of lists": lambda size: ("message", b"[" + b"[]," * (size // 3) + b"1]"),
    "JSON of escapes": gmail("body", "\\\n"),
}


def sizes() -> Iterator[int]:
    return itertools.takewhile(
        lambda size: size <= LARGEST_BYTES, (SMALLEST_BYTES << step for step in itertools.count())
    )


def measure(client: FlaskClient, hostile: Hostile) -> Iterator[tuple[float, int]]:
    """Seconds and status of each size."""
    for size in sizes():
        door, body = hostile(size - 1024)
        headers = {"Authorization": f"Bearer {INGRESS_TOKEN}"}
        content_type = "message/rfc822" if door == "mime" else "application/json"
        began = time.thread_time()
        answer = client.post(f"/api/ingress/{door}", data=body, content_type=content_type, headers=headers)
        yield time.thread_time() - began, answer.status_code


def print_sizes(only: str = "") -> None:
    """``only``: the forms with that in their name."""
    columns = [f"{size / 1024 / 1024:.1f} MB" for size in sizes()]
    print(f"{'':38}" + "".join(f"{column:>16}" for column in columns))
    with tempfile.TemporaryDirectory(prefix="mailonce-bench-") as folder, Sink() as sink:
        config = Path(folder) / "mailonce.toml"
        config.write_text(CONFIG.format(url=sink.url))
        tokens = {"ingress_token": INGRESS_TOKEN, "admin_token": ADMIN_TOKEN}
        service = build(load_settings(data_dir=Path(folder), mailonce_config=config, **tokens))
        client = create_app(service).test_client()
        for name, hostile in FORMS.items():
            if only not in name:
                continue
            print(f"{name:38}", end="", flush=True)
            before_s = None
            for took_s, status in measure(client, hostile):
                ratio = f"x{took_s / before_s:.1f}" if before_s else ""
                print(f"{took_s:8.2f} s {ratio:>5}{'' if status == 200 else '*'}", end="", flush=True)
                before_s = took_s
                sink.received.clear()
            print(flush=True)
        service.close()
    print("\nseconds of CPU of one request, and the ratio to half its size; * not taken")
