"""mailonce import: with and without Redis, next to a service, stopped and repeated."""

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from orchestrator.importing.sources import open_source
from routes.commands import import_mail
from tests.routes.conftest import App, Run, StartApp, bearer
from tests.support.server import INGRESS_TOKEN
from tests.support.sink import Sink

SEPARATOR = b"From - Mon Nov 16 09:00:00 2026\n"
SENT = datetime.now(UTC)  # the same for all: an email with another date is another email


def message(number: int, subject: str = "", *, sent: datetime | None = None, text: str = "") -> EmailMessage:
    made = EmailMessage()
    made["Subject"], made["From"] = subject or f"Mail {number}", f"Ada <ada{number}@example.org>"
    made["Date"] = format_datetime(sent or SENT)
    made["To"], made["Message-ID"] = "in@example.com", f"<m{number}@example.org>"
    made.set_content(text or f"Hello number {number}")
    return made


def write_mbox(*messages: EmailMessage) -> str:
    Path("box").write_bytes(b"".join(SEPARATOR + message.as_bytes() + b"\n" for message in messages))
    return "box"


def post_mime(app: App, message: EmailMessage) -> str:
    headers = bearer(INGRESS_TOKEN) | {"Content-Type": "message/rfc822"}
    answer = app.http.post("/api/ingress/mime", data=message.as_bytes(), headers=headers)
    return str(answer.get_json()["status"])


def summary(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    printed: dict[str, Any] = json.loads(result.stdout)
    return printed


def counts(run: Run, *words: str, names: Sequence[str] = ("imported", "known", "unreadable")) -> list[int]:
    found = summary(run("import", "--json", *words))
    return [found[name] for name in names]


def test_a_running_service_recognises_what_is_imported(
    run: Run, start_app: StartApp, sink: Sink, redis_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REDIS_URL", redis_url)
    app = start_app(webhook_url=sink.url, redis_url=redis_url)
    messages = [message(1), message(2, "Lot 456"), message(3, "Again lot 456")]
    path = write_mbox(*messages)
    assert counts(run, path, names=("imported", "groups", "known", "left", "unreadable")) == [3, 1, 0, 0, 0]
    assert [post_mime(app, message) for message in messages] == ["already_processed"] * 3
    assert post_mime(app, message(4, "lot-456")) == "skipped_subject_group"
    assert post_mime(app, message(9)) == "processed"
    assert counts(run, path) == [0, 3, 0], "importing twice changes nothing"
    assert [webhook.payload["subject"] for webhook in sink.accepted] == ["Mail 9"], "imported emails are never sent"
    assert "AUDIT import ends: 3 imported" in (tmp_path / "data/audit.log").read_text()


def test_without_a_service_nothing_is_created_unless_asked_for(
    run: Run, start_app: StartApp, sink: Sink, tmp_path: Path
) -> None:
    path = write_mbox(message(1))
    refused = run("import", path)
    assert refused.exit_code == 1
    assert f"no service has run with its data in {tmp_path / 'data'}" in refused.output
    assert not (tmp_path / "data").exists()
    assert counts(run, "--yes", path) == [1, 0, 0]
    app = start_app(webhook_url=sink.url)
    assert [post_mime(app, message(number)) for number in (1, 2)] == ["already_processed", "processed"]


def test_an_import_during_a_trial_counts_once_there_is_a_destination(run: Run, start_app: StartApp, sink: Sink) -> None:
    start_app()
    assert counts(run, write_mbox(message(1))) == [1, 0, 0]
    assert post_mime(start_app(webhook_url=sink.url), message(1)) == "already_processed"


def test_the_same_email_is_known_from_every_kind_of_source(run: Run) -> None:
    Path("eml").mkdir()
    Path("eml/a.eml").write_bytes(message(1).as_bytes())
    assert counts(run, "--yes", "eml") == [1, 0, 0]
    assert counts(run, "--yes", write_mbox(message(1))) == [0, 1, 0]
    Path("ids.csv").write_text("message_id\n<m1@example.org>\n<m2@example.org>\nnothing,here\n")
    assert counts(run, "--yes", "ids.csv") == [1, 1, 1]


def test_a_hostile_mbox_is_read_to_its_end(run: Run) -> None:
    """Unreadable messages are counted and named by their place; nothing in them reaches the terminal."""
    bad = [
        b"",
        b"\x00\xff\x1b[2J",
        b"Subject: nobody\n\nx\n",
        b"Content-Type: multipart/mixed; boundary=x\n\n" + b"--x\n" * 5000,
        b"From: \x1b]0;owned\x07\n",
    ]
    odd = [
        b"From: a@example.org\nDate: Mon, 99 Nov 99999 99:99:99 +9999\nSubject: =?utf-8?b?//8=?=\n\n\xff\n",
        b"From: a@example.org\nDate: Fri, 31 Dec 9999 23:59:59 -2359\nSubject: \xf0\x9f\x92\xa9 lot 5\n\nx\n",
        b"From: a@example.org\nDate: Thu, 1 Jan 1900 00:00:00 +0000\nSubject: Lot 6\n\nx\n",
        b"From: a@example.org\nMessage-ID: <" + b"m" * 100_000 + b"@x>\nSubject: " + b"Lot 7 " * 20_000 + b"\n\nx\n",
        b"From: a@example.org\nContent-Type: text/html\n\n" + b"<div>" * 20_000 + b"https://we.tl/" * 1000 + b"\n",
    ]
    Path("box").write_bytes(b"".join(SEPARATOR + raw + b"\n\n" for raw in (*bad, *odd)) + SEPARATOR + b"From: a@b\n")
    for options in ((), ("--dry-run",)):
        shown = run("import", "--yes", *options, "box")
        assert shown.exit_code == 0, shown.output
        assert [char for char in shown.output if not char.isprintable() and char != "\n"] == []
        assert "message at byte 0: empty" in shown.output
    again = summary(run("import", "--json", "--yes", "box"))
    assert again["unreadable"] >= 3
    assert again["known"] + again["left"] + again["unreadable"] == len(bad) + len(odd) + 1


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["note.txt"], "is not an mbox"),
        (["--provider", "posmark", "box"], "--provider must be one of brevo"),
    ],
)
def test_a_wrong_argument_is_refused_with_one_line(run: Run, words: list[str], error: str) -> None:
    write_mbox(message(1))
    Path("note.txt").write_text("no mail")
    shown = run("import", "--yes", *words)
    assert (shown.exit_code, error in shown.output, shown.output.count("\n")) == (1, True, 1)


# A dry run


def test_a_dry_run_shows_what_the_service_would_have_done_and_records_nothing(run: Run, tmp_path: Path) -> None:
    day = datetime.now(UTC).replace(day=15) - timedelta(days=40)  # its month is over
    month = [
        message(1, "Lot 456", sent=day),
        message(2, "Again lot 456", sent=day + timedelta(hours=1)),
        message(1, "Lot 456", sent=day),
        message(3, "Lot 456", sent=day + timedelta(days=31)),
        message(7, "Re: Lot 456", sent=day + timedelta(hours=2)),
        message(4, "Files", sent=day, text="https://we.tl/t-abc"),
        message(5, "More files", sent=day + timedelta(days=1), text="See https://we.tl/t-abc"),
        message(6, "Much later", sent=day + timedelta(days=20), text="Again https://we.tl/t-abc"),
    ]
    Path("mailonce.toml").write_text(
        "[destinations.crm]\nurl = 'https://crm.example/'\ncontent_window_s = 3600\n"
        "[[routes]]\nname = 'all'\nmedia = 'listed'\n"
    )
    path = write_mbox(*month)
    with Path(path).open("ab") as file:
        file.write(SEPARATOR + b"\n")
    found = summary(run("import", "--dry-run", "--json", path))
    wanted = {"new": 5, "identity": 1, "subject_group": 1, "media": 1, "content": 0, "groups": 2, "unreadable": 1}
    assert {name: found[name] for name in wanted} == wanted
    (example,) = (text for text in found["examples"] if text.startswith("subject_group"))
    assert re.fullmatch(
        '.*"Again lot 456" from ada2@.*, after "Lot 456" from ada1@.* [(]lot_456@example.org[)]', example
    )
    shown = run("import", "--dry-run", path).output
    assert '"More files" from ada5@example.org' in shown
    assert "Nothing was sent or remembered." in shown
    assert not (tmp_path / "data").exists()


def test_a_dry_run_follows_the_routes(run: Run) -> None:
    Path("mailonce.toml").write_text(
        "[destinations.crm]\nurl = 'https://crm.example/'\n"
        "[[routes]]\nname = 'ours'\nmatch = [{ field = 'provider', equals = 'postmark' }]\nsubject_groups = 'off'\n"
        "[[routes]]\nname = 'junk'\nmatch = [{ field = 'subject', equals = 'junk' }]\ndrop = true\n"
        "[[routes]]\nname = 'all'\n"
    )
    path = write_mbox(message(1, "Lot 1"), message(2, "Lot 1"), message(3, "junk"), message(4, "junk"))
    assert counts(run, "--dry-run", path, names=["new", "route"]) == [1, 2]
    assert counts(run, "--dry-run", "--provider", "postmark", path, names=["new", "route"]) == [4, 0]


def test_strict_privacy_shows_no_subject(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVACY", "strict")
    shown = run("import", "--dry-run", write_mbox(message(1, "Lot 1 of Ada"), message(2, "Lot 1 of Bob"))).output
    assert "1 stopped by subject_group" in shown
    assert "Ada" not in shown and "ada1@" not in shown


def test_many_large_emails_are_not_in_memory_at_once() -> None:
    large = (b"words of it " * 8 + b"\n") * 20_000 + b"\n"
    Path("box").write_bytes(b"".join(SEPARATOR + b"From: a%d@example.org\n\n" % n + large for n in range(10)))
    reader = import_mail.Reader(open_source(Path("box"), 25 * 1024 * 1024), "mime", None)
    sizes = [len(items) for items in reader.batches()]
    assert sum(sizes) == 10
    assert max(sizes) <= 5, "about eight megabytes"
