"""The Apps Script of deploy/gmail, run by V8, as Google runs it, with small fakes of its services."""

import base64
import hashlib
import json
from typing import Any

import pytest
from py_mini_racer import MiniRacer

from deduplication.email import Email
from deduplication.identity import compute_canonical_id, compute_fingerprint
from deduplication.names import conflicts
from routes.mime import parse_mime
from routes.providers.samples import SampleRequest
from tests.routes.providers.conftest import email_in, provider_of
from tests.support.server import INGRESS_TOKEN
from tests.support.surroundings import ROOT

PROPERTIES = {"MAILONCE_URL": "https://mailonce.example.org/", "MAILONCE_TOKEN": "ingress-token"}
FAKES = (ROOT / "tests/deploy/google_services.js").read_text()
# What Google's Utilities make of these bytes, which are signed there.
CSV, CSV_WITH_LF, PDF, NOTHING = b"lot;456\r\n789", b"lot;456\n789\n", b"%PDF\0\r\n\xff", b""
CONTENTS = (CSV, CSV_WITH_LF, PDF, NOTHING)


def signed(content: bytes) -> list[int]:
    return [byte - 256 if byte > 127 else byte for byte in content]


def written(content: bytes) -> str:
    return ",".join(map(str, signed(content)))


DIGESTS = {f"SHA-256 {written(content)}": signed(hashlib.sha256(content).digest()) for content in CONTENTS}
BASE64 = {written(content): base64.b64encode(content).decode() for content in CONTENTS}


def run(name: str = "pushLabelledMessages", **world: Any) -> dict[str, Any]:
    """Runs the function; what it did to the world, and with which error it ended, if it did."""
    given = {"properties": PROPERTIES, "threads": [], "digests": DIGESTS, "base64": BASE64} | world
    with MiniRacer() as v8:
        v8.eval(f"const world = {json.dumps(given)}, seen = {{}};{FAKES}")
        v8.eval((ROOT / "deploy/gmail/Code.gs").read_text())
        v8.eval(f"try {{ {name}(); }} catch (error) {{ seen.error = error.message; }}")
        seen: dict[str, Any] = json.loads(str(v8.eval("JSON.stringify({ ...seen, threads: world.threads })")))
    return seen


def message(number: int = 1, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"gmail-{number}",
        "subject": "Réunion du 15",
        "from": "Ada Lovelace <Ada@Example.org>",
        "date": "2026-11-16T10:00:00+01:00",
        "html": f"<p>Bonjour {number}</p>",
        "text": f"Bonjour {number}",
        "to": "Charles <charles@example.com>, desk@example.com",
        "cc": "Legal <legal@example.com>",
        "head": f"Message-ID: <{number}@example.org>",
    } | fields


def thread(*messages: dict[str, Any], labels: tuple[str, ...] = ("mailonce", "other")) -> dict[str, Any]:
    return {"labels": list(labels), "messages": list(messages)}


def labels_after(seen: dict[str, Any]) -> list[list[str]]:
    return [each["labels"] for each in seen["threads"]]


def test_every_message_of_a_thread_is_pushed_as_the_ingress_takes_it() -> None:
    seen = run(threads=[thread(message(1), message(2))])
    first, second = seen["requests"]
    assert first["url"] == "https://mailonce.example.org/api/ingress/gmail"
    assert (first["method"], first["contentType"]) == ("post", "application/json")
    assert first["headers"] == {"Authorization": "Bearer ingress-token"}
    assert (first["muteHttpExceptions"], first["followRedirects"]) == (True, False)
    assert first["payload"] == {
        "subject": "Réunion du 15",
        "sender": "Ada Lovelace <Ada@Example.org>",
        "date": "2026-11-16T09:00:00.000Z",
        "html": "<p>Bonjour 1</p>",
        "plain": "Bonjour 1",
        "message_id": "<1@example.org>",
        "to": "Charles <charles@example.com>, desk@example.com",
        "cc": "Legal <legal@example.com>",
        "headers": [["Message-ID", "<1@example.org>"]],
        "thread_id": "thread-1",
        "attachments": [],
    }
    assert second["payload"]["message_id"] == "<2@example.org>"


def test_the_label_is_removed_after_200_for_all_and_no_other_label_is() -> None:
    seen = run(threads=[thread(message(1), message(2)), thread(message(3))])
    assert labels_after(seen) == [["other"], ["other"]]
    assert len(seen["requests"]) == 3


@pytest.mark.parametrize("refused", [1, 2])
@pytest.mark.parametrize("answer", [503, 429, 500, 400, 401, 413, 302, 201, 202, 204, "unreachable"])
def test_the_label_stays_after_any_other_answer_and_other_messages_are_pushed(answer: int | str, refused: int) -> None:
    seen = run(threads=[thread(message(1), message(2))], answers={f"<{refused}@example.org>": answer})
    assert labels_after(seen) == [["mailonce", "other"]]
    assert len(seen["requests"]) == 2
    assert (seen["error"], seen["released"]) == (None, 1)


def test_threads_that_are_refused_do_not_hold_up_those_behind_them() -> None:
    refused = {f"<{number}@example.org>": 503 for number in range(60)}
    seen = run(threads=[thread(message(number)) for number in range(130)], answers=refused)
    assert [("mailonce" in labels) for labels in labels_after(seen)] == [True] * 60 + [False] * 70
    assert len(seen["requests"]) == 130


def test_a_message_that_arrives_meanwhile_keeps_its_label() -> None:
    seen = run(threads=[thread(message(1))], arriving=[message(2)])
    assert "mailonce" in labels_after(seen)[0]
    assert len(seen["requests"]) == 1


def test_drafts_are_skipped_and_a_message_id_is_found_in_its_other_spelling() -> None:
    seen = run(threads=[thread(message(1, head="Message-Id: <ses@example.org>"), message(2, draft=True))])
    assert [each["payload"]["message_id"] for each in seen["requests"]] == ["<ses@example.org>"]
    assert labels_after(seen) == [["other"]]


def test_a_run_ends_in_time_and_leaves_the_rest_for_the_next() -> None:
    long_thread = thread(*(message(number) for number in range(4)))
    seen = run(threads=[long_thread, *(thread(message(number)) for number in range(4, 9))], fetch_ms=59_000)
    assert len(seen["requests"]) == 5
    assert ["mailonce" in labels for labels in labels_after(seen)] == [False, False, True, True, True, True]
    assert seen["logs"][-1] == "out of time; the next run goes on"

    halfway = run(threads=[thread(*(message(number) for number in range(9)))], fetch_ms=59_000)
    assert len(halfway["requests"]) == 5
    assert labels_after(halfway) == [["mailonce", "other"]]


def test_another_run_under_way_is_left_alone() -> None:
    seen = run(threads=[thread(message(1))], busy=True)
    assert (seen["requests"], seen["locked"], seen["released"]) == ([], 1, 0)
    assert labels_after(seen) == [["mailonce", "other"]]


@pytest.mark.parametrize("function", ["pushLabelledMessages", "setup"])
@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({}, "MAILONCE_URL"),
        ({"MAILONCE_URL": "http://mailonce.example.org", "MAILONCE_TOKEN": "t"}, "MAILONCE_URL"),
        ({"MAILONCE_URL": "https://mailonce.example.org"}, "MAILONCE_TOKEN"),
        (PROPERTIES | {"MAILONCE_ATTACHMENTS_MB": "some"}, "MAILONCE_ATTACHMENTS_MB"),
    ],
)
def test_a_missing_property_is_named(function: str, properties: dict[str, str], named: str) -> None:
    seen = run(function, threads=[thread(message(1))], properties=properties)
    assert f"script property {named} must be" in seen["error"]
    assert (seen["requests"], seen["triggers"]) == ([], [])


def test_the_label_may_be_another_and_a_missing_one_is_named() -> None:
    properties = PROPERTIES | {"MAILONCE_LABEL": "other"}
    seen = run(threads=[thread(message(1))], labels=["mailonce", "other"], properties=properties)
    assert labels_after(seen) == [["mailonce"]]
    missing = run(labels=[])
    assert "run setup()" in missing["error"] and missing["released"] == 1


def test_setup_makes_the_label_and_one_trigger() -> None:
    seen = run("setup", labels=[], triggers=["pushLabelledMessages", "somethingElse"])
    assert seen["created"] == ["mailonce"]
    assert seen["triggers"] == ["somethingElse", "pushLabelledMessages/5"]
    assert run("setup")["created"] == []


def test_the_log_has_ids_and_statuses_and_no_contents() -> None:
    answers = {"<2@example.org>": 503, "<3@example.org>": "unreachable"}
    seen = run(threads=[thread(message(1), message(2), message(3))], answers=answers)
    assert seen["logs"] == ["gmail-1 200", "gmail-2 503", "gmail-3 could not be pushed: Error"]


def read(pushed: dict[str, Any]) -> Email:
    """What Mailonce reads out of the request."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {INGRESS_TOKEN}"}
    return email_in(provider_of("", "gmail"), SampleRequest("", headers, json.dumps(pushed["payload"]).encode()))


def attached(name: str, content: bytes, inline: bool = False) -> dict[str, Any]:
    return {"name": name, "content_type": "text/csv", "bytes": signed(content), "inline": inline}


FILES = [attached("b.png", PDF, inline=True), attached("a.csv", CSV), attached("c.txt", NOTHING)]


@pytest.mark.parametrize(
    ("megabytes", "sent"),
    [
        (None, [CSV, NOTHING, PDF]),
        ("0", [None, NOTHING, None]),
        (str(len(CSV) / 1024 / 1024), [CSV, NOTHING, None]),
        (str(len(PDF) / 1024 / 1024), [None, NOTHING, PDF]),
    ],
)
def test_attachments_are_sent_while_they_fit_and_described_beyond(
    megabytes: str | None, sent: list[bytes | None]
) -> None:
    properties = PROPERTIES | {"MAILONCE_ATTACHMENTS_MB": megabytes}
    (request,) = run(threads=[thread(message(files=FILES))], properties=properties)["requests"]
    contents = [each.get("content") for each in request["payload"]["attachments"]]
    assert contents == [None if content is None else BASE64[written(content)] for content in sent]
    found = [(each.name, each.size_bytes, each.inline, each.sha256) for each in read(request).attachments]
    described = (("a.csv", CSV, False), ("c.txt", NOTHING, False), ("b.png", PDF, True))
    assert found == [(name, len(file), inline, hashlib.sha256(file).hexdigest()) for name, file, inline in described]


@pytest.mark.parametrize(("files", "requests"), [(FILES, 2), ([], 1), ([attached("c.txt", NOTHING)], 1)])
def test_a_message_that_is_too_large_is_pushed_again_without_the_contents(files: list[Any], requests: int) -> None:
    seen = run(threads=[thread(message(files=files))], answers={"<1@example.org>": 413})
    assert len(seen["requests"]) == requests
    assert not any(file.get("content") for file in seen["requests"][-1]["payload"]["attachments"])


def test_everything_that_the_headers_say_is_read() -> None:
    head = """\
Delivered-To: inbox@gmail.example
Received: by one
Received: by two
Return-Path: <bounce@mail.example.org>
Message-Id: <2@example.org>
References: <root@example.org>
 <1@example.org>
in-reply-to: <1@example.org>
Reply-To: Desk <desk@example.org>
Auto-Submitted: auto-replied
X-Note: a:b""".replace("\n", "\r\n")
    (request,) = run(threads=[thread(message(head=head, text="X-Body: no header"))])["requests"]
    email = read(request)
    assert [value for name, value in email.headers if name == "Received"] == ["by one", "by two"]
    assert (len(email.headers), email.header("X-Note"), email.header("X-Body")) == (10, "a:b", "")
    assert (email.recipients, email.tells_recipients) == (("inbox@gmail.example",), False)
    assert (email.return_path, email.reply_to) == ("bounce@mail.example.org", ("desk@example.org",))
    assert (email.message_id, email.in_reply_to) == ("<2@example.org>", "1@example.org")
    assert (email.references, email.thread) == (("root@example.org", "1@example.org"), "root@example.org")
    assert email.automated and email.automated.kind == "auto_reply"
    assert (email.provider_thread, email.subject, email.date) == (
        "thread-1",
        "Réunion du 15",
        "2026-11-16T09:00:00.000Z",
    )
    assert email.extra == {"message_id": "<2@example.org>"}


@pytest.mark.parametrize(
    ("content", "is_same"), [(CSV, True), (CSV_WITH_LF, True), (b"lot;456\n789", True), (PDF, False), (None, False)]
)
def test_a_pushed_email_is_the_same_as_its_raw_message(content: bytes | None, is_same: bool) -> None:
    (request,) = run(threads=[thread(message(1, files=[attached("a.csv", CSV)]))])["requests"]
    head = (
        b"From: Ada Lovelace <ada@example.org>\r\nSubject: =?utf-8?Q?R=C3=A9union?= du 15\r\n"
        b"Date: Mon, 16 Nov 2026 10:00:00 +0100\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n"
    )
    file = b"--x\r\nContent-Type: text/csv; name=a.csv\r\nContent-Transfer-Encoding: base64\r\n\r\n%s\r\n"
    parts = [b"--x\r\n\r\nBonjour 1\r\n", *([] if content is None else [file % base64.b64encode(content)]), b"--x--"]
    pushed, raw = read(request), parse_mime(head + b"".join(parts))
    assert compute_canonical_id(pushed) == compute_canonical_id(raw)
    assert conflicts(compute_fingerprint(pushed), compute_fingerprint(raw)) is not is_same


@pytest.mark.parametrize(
    ("header", "date"),
    [
        ("Wed, 11 Oct 2017 18:31:04 -0700 (PDT)", "2017-10-12T01:31:04.000Z"),
        ("some day", "2026-11-16T09:00:00.000Z"),
        ("", "2026-11-16T09:00:00.000Z"),
    ],
)
def test_the_date_is_that_of_the_header_as_with_other_providers(header: str, date: str) -> None:
    (pushed,) = run(threads=[thread(message(head=f"Message-ID: <1@example.org>\r\nDate: {header}"))])["requests"]
    assert pushed["payload"]["date"] == date
