"""make bench ARGS=sizes: what one hostile request costs, in three sizes up to the largest that is accepted.

A request that costs four times as much for four times the size is one that a sender cannot make expensive. Each is a
new email or message, through its endpoint and the whole service, to a destination on this machine; nothing is asserted
here: tests/deduplication/test_linear_cost.py does.
"""

from __future__ import annotations

import json
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from flask.testing import FlaskClient

from orchestrator.build import build
from orchestrator.config.settings import load_settings
from routes.app import create_app
from tests.support.hostile import EMAILS, filled, memory_bytes
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, email
from tests.support.sink import Sink

LARGEST_BYTES = 25 * 1024 * 1024
SIZES_BYTES = (LARGEST_BYTES // 16, LARGEST_BYTES // 4, LARGEST_BYTES)
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

Hostile = Callable[[int], tuple[str, bytes]]  # of so many bytes: the provider, and the body


def document(provider: str, field: str, piece: str, share: float = 1.0) -> Hostile:
    """A field with the piece as often as it fits; with {0} in it, another each time. ``share``: of the size, as quotes
    take room in JSON."""

    def request(size: int) -> tuple[str, bytes]:
        text, unique = filled(piece, int(size * share)), secrets.token_hex(8)
        given = email(**{"date": unique, "body": ""}) if provider == "gmail" else {"id": unique}
        value = text.split() if field == "media" else text
        return provider, json.dumps({**given, field: value}, ensure_ascii=False).encode()

    return request


gmail, message = partial(document, "gmail"), partial(document, "message")


def mime(email: Callable[[int], bytes]) -> Hostile:
    return lambda size: ("mime", b"Message-ID: <%b@example.org>\r\n" % secrets.token_hex(8).encode() + email(size))


FORMS: Mapping[str, Hostile] = {
    "one word": gmail("body", "x"),
    "é": gmail("body", "é"),
    "e and an accent": gmail("body", "e\u0301"),
    "accents on one letter": gmail("body", "\u0301\u0316"),
    "U+FDFA": gmail("body", "\ufdfa"),
    "spaces": gmail("body", " "),
    "links in a text": gmail("plain", "https://files.example/{0} "),
    "brackets after a link": gmail("plain", "https://a.example/(((((((((("),
    "http:// alone": gmail("plain", "http://"),
    "a subject of U+FDFA": gmail("subject", "\ufdfa"),
    "a subject of é": gmail("subject", "é"),
    "a subject of encoded words": gmail("subject", "=?utf-8?B?w6k=?= "),
    "a subject of halves of encoded words": gmail("subject", "=?utf-8?B?"),
    "a subject of Re:": gmail("subject", "Re: "),
    "a subject of lots": gmail("subject", "lot {0} "),
    "a sender of brackets": gmail("sender", "<a@"),
    "a sender of quotes": gmail("sender", '"a@b.example, ', 0.9),
    "a sender of comments": gmail("sender", "a@b.example ("),
    "a date of digits": gmail("date", "1"),
    "a date of brackets": gmail("date", "("),
    "recipients": gmail("to", "a{0}@b.example, "),
    "a Message-ID": gmail("message_id", "<x"),
    "a message of one word": message("text", "x"),
    "a message of é": message("text", "é"),
    "a message of marks": message("text", "! "),
    "a message of links": message("text", "https://files.example/{0} "),
    "a message's title": message("title", "\ufdfa"),
    "a message's media": message("media", "https://files.example/{0} ", 0.8),
    "JSON of numbers": lambda size: ("message", b"[" + b"1," * (size // 2) + b"1]"),
    "JSON of lists": lambda size: ("message", b"[" + b"[]," * (size // 3) + b"1]"),
    "JSON of escapes": gmail("body", "\\\n", 0.5),
    **{name: mime(email) for name, email in EMAILS.items()},
}


def measure(client: FlaskClient, hostile: Hostile) -> Iterator[tuple[float, float, int]]:
    """Seconds, megabytes and status of each size."""
    for size in SIZES_BYTES:
        provider, body = hostile(size - 1024)
        headers = {"Authorization": f"Bearer {INGRESS_TOKEN}"}
        content_type = "message/rfc822" if provider == "mime" else "application/json"
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before_bytes, began = memory_bytes("VmRSS"), time.thread_time()
        answer = client.post(f"/api/ingress/{provider}", data=body, content_type=content_type, headers=headers)
        yield time.thread_time() - began, (memory_bytes("VmHWM") - before_bytes) / 1024 / 1024, answer.status_code


def print_sizes(only: str = "") -> None:
    """``only``: the forms with that in their name."""
    print(f"{'':38}" + "".join(f"{f'{size / 1024 / 1024:.1f} MB':>25}" for size in SIZES_BYTES))
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
            before_s = 0.0
            for took_s, peak_mb, status in measure(client, hostile):
                ratio = f"x{took_s / before_s:.1f}" if before_s else ""
                print(
                    f"{took_s:8.2f} s {ratio:>5}{peak_mb:5.0f} MB {' ' if status == 200 else '*'}", end="", flush=True
                )
                before_s = took_s
                sink.received.clear()
            print(flush=True)
        service.close()
    print("\nCPU of one request, its ratio to a quarter of the size, and the peak of its memory; * not accepted")
