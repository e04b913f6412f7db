"""mailonce import, as an operator types it: with and without Redis, beside a service, interrupted and resumed."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
import requests
from click.testing import CliRunner, Result

from deduplication.journal.sqlite import Journal
from deduplication.mime import parse_mime
from orchestrator.importing.sources import Source
from orchestrator.item import email_item
from routes.command_line import main
from routes.commands import import_mail
from tests.support.programs_loaded import MAILONCE
from tests.support.redis_server import RedisServer
from tests.support.server import INGRESS_TOKEN, Server
from tests.support.sink import Sink
from tests.support.surroundings import clean_environment

SEPARATOR = b"From - Mon Nov 16 09:00:00 2026\n"
Run = Callable[..., Result]


def message(number: int, subject: str = "", *, sent: datetime | None = None, text: str = "") -> EmailMessage:
    made = EmailMessage()
    made["Subject"], made["From"] = subject or f"Mail {number}", f"Ada <ada{number}@example.org>"
    made["Date"] = format_datetime(sent or datetime.now(UTC))
    made["To"], made["Message-ID"] = "in@example.com", f"<m{number}@example.org>"
    made.set_content(text or f"Hello number {number}")
    return made


def write_mbox(path: Path, messages: list[EmailMessage]) -> Path:
    path.write_bytes(b"".join(SEPARATOR + each.as_bytes() + b"\n" for each in messages))
    return path


def write_many(path: Path, count: int) -> Path:
    """As ``message`` makes them, which takes two milliseconds for each."""
    shape = message(1234567).as_bytes()
    path.write_bytes(b"".join(SEPARATOR + shape.replace(b"1234567", b"%d" % number) + b"\n" for number in range(count)))
    return path


def post_mime(server: Server, message: EmailMessage) -> str:
    """Retried as a provider does: a new era of Redis grants nothing at first."""
    headers = {"Authorization": f"Bearer {INGRESS_TOKEN}", "Content-Type": "message/rfc822"}
    status = "retry_later"
    while status == "retry_later":
        answer = requests.post(f"{server.url}/api/ingress/mime", data=message.as_bytes(), headers=headers, timeout=60)
        status = str(answer.json()["status"])
    return status


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """--yes, as no service has run with this DATA_DIR."""
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))

    def call(*words: str, yes: bool = True) -> Result:
        result = CliRunner().invoke(main, ["import", *(["--yes"] if yes else []), *words])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return result

    return call


def summary(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    told: dict[str, Any] = json.loads(result.stdout)
    return told


@pytest.fixture(params=["embedded", "redis"])
def server(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    settings = {}
    if request.param == "redis":
        redis: RedisServer = request.getfixturevalue("redis_server")
        settings["REDIS_URL"] = redis.url
        monkeypatch.setenv("REDIS_URL", redis.url)
    with Sink() as sink, Server(tmp_path / "data", WEBHOOK_URL=sink.url, **settings) as server:
        monkeypatch.setenv("WEBHOOK_URL", sink.url)
        yield server
        assert [each.payload["subject"] for each in sink.accepted] == ["Mail 9"], "imported emails are never sent"


@pytest.mark.real_redis
def test_a_running_service_recognises_what_is_imported(server: Server, run: Run, tmp_path: Path) -> None:
    messages = [message(1), message(2, "Lot 456"), message(3, "Re: Lot 456")]
    told = summary(run("--json", str(write_mbox(tmp_path / "box", messages)), yes=False))
    counted = {name: told[name] for name in ("imported", "groups", "known", "left", "unreadable")}
    assert counted == {"imported": 3, "groups": 1, "known": 0, "left": 0, "unreadable": 0}
    assert [post_mime(server, each) for each in messages] == ["already_processed"] * 3
    assert post_mime(server, message(4, "lot-456")) == "skipped_subject_group"
    assert post_mime(server, message(9)) == "processed"
    again = summary(run("--json", str(tmp_path / "box"), yes=False))
    assert (again["imported"], again["known"]) == (0, 3)
    assert "AUDIT import ends: 3 imported" in (tmp_path / "data" / "audit.log").read_text()


def test_without_a_service_nothing_is_created_unless_asked_for(run: Run, tmp_path: Path) -> None:
    path = str(write_mbox(tmp_path / "box", [message(1)]))
    refused = run(path, yes=False)
    assert refused.exit_code == 1
    assert f"no service has run with its data in {tmp_path / 'data'}" in refused.output
    assert not (tmp_path / "data").exists()
    assert summary(run("--json", path))["imported"] == 1
    with Sink() as sink, Server(tmp_path / "data", WEBHOOK_URL=sink.url) as server:
        assert [post_mime(server, message(number)) for number in (1, 2)] == ["already_processed", "processed"]


def test_what_is_imported_during_a_trial_counts_once_there_is_a_destination(run: Run, tmp_path: Path) -> None:
    with Server(tmp_path / "data"):
        assert summary(run("--json", str(write_mbox(tmp_path / "box", [message(1)])), yes=False))["imported"] == 1
    with Sink() as sink, Server(tmp_path / "data", WEBHOOK_URL=sink.url) as server:
        assert post_mime(server, message(1)) == "already_processed"


def test_the_same_email_is_known_from_every_kind_of_source(run: Run, tmp_path: Path) -> None:
    (tmp_path / "eml").mkdir()
    (tmp_path / "eml" / "a.eml").write_bytes(message(1).as_bytes())
    assert summary(run("--json", str(tmp_path / "eml")))["imported"] == 1
    assert summary(run("--json", str(write_mbox(tmp_path / "box", [message(1)]))))["known"] == 1
    (tmp_path / "ids.csv").write_text("message_id\n<m1@example.org>\n<m2@example.org>\nnothing,here\n")
    told = summary(run("--json", str(tmp_path / "ids.csv")))
    assert (told["imported"], told["known"], told["unreadable"]) == (1, 1, 1)
    assert told["unreadable_examples"] == ["row 4: more fields than the first line"]


def test_a_hostile_mbox_is_read_to_its_end(run: Run, tmp_path: Path) -> None:
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
    path = tmp_path / "box"
    path.write_bytes(b"".join(SEPARATOR + each + b"\n\n" for each in (*bad, *odd)) + SEPARATOR + bytes(message(1)))
    for options in ((), ("--dry-run",)):
        shown = run(*options, str(path))
        assert shown.exit_code == 0, shown.output
        assert [each for each in shown.output if not each.isprintable() and each != "\n"] == []
        assert "message at byte 0: empty" in shown.output
    told = summary(run("--json", "--from-start", str(path)))
    assert told["unreadable"] >= 3
    assert told["known"] + told["left"] + told["unreadable"] == len(bad) + len(odd) + 1


def test_a_bug_in_one_message_stops_no_other(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(raw: bytes, provider: str) -> Any:
        if b"Mail 1" in raw:
            raise KeyError("a bug")
        return parse_mime(raw, provider=provider)

    monkeypatch.setattr(import_mail, "parse_mime", parse)
    told = summary(run("--json", str(write_mbox(tmp_path / "box", [message(n) for n in range(3)]))))
    assert (told["imported"], told["unreadable"]) == (2, 1)
    assert "KeyError while parsing it" in told["unreadable_examples"][0]


# Interrupted and resumed


def position(data_dir: Path, path: Path) -> str:
    if not (data_dir / "journal.db").exists():
        return ""
    journal = Journal(data_dir / "journal.db")
    with journal.reading() as step:
        found = step.meta(f"import:{Source(path, 'mbox', 0).key}")
    journal.close()
    return found


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_run_resumes_and_loses_nothing(tmp_path: Path, run: Run, stop: signal.Signals) -> None:
    path, data_dir = write_many(tmp_path / "box", 3000), tmp_path / "data"
    process = subprocess.Popen(
        [MAILONCE, "import", "--yes", "--json", str(path)],
        cwd=tmp_path,
        env=clean_environment(DATA_DIR=str(data_dir)),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not position(data_dir, path):
        time.sleep(0.005)
    process.send_signal(stop)
    out, errors = process.communicate(timeout=60)
    if stop == signal.SIGINT:
        assert process.returncode == 130, errors
        assert "run the same command again to resume" in errors
        assert "Traceback" not in errors
        assert json.loads(out)["is_whole"] is False
    seen = int(position(data_dir, path).rpartition(" ")[2])
    assert 0 < seen < 3000
    result = run("--json", str(path))
    assert f"resuming an interrupted run after {seen:,} emails" in result.stderr
    assert summary(result)["read"] == 3000 - seen
    whole = summary(run("--json", str(path)))
    assert (whole["read"], whole["imported"], whole["known"]) == (3000, 0, 3000)


def test_another_file_at_the_same_path_and_from_start_begin_at_the_beginning(run: Run, tmp_path: Path) -> None:
    path = write_mbox(tmp_path / "box", [message(number) for number in range(3)])
    summary(run("--json", str(path)))
    for content, options in ((range(5, 9), ()), (range(5, 9), ("--from-start",))):
        journal = Journal(tmp_path / "data" / "journal.db")
        with journal.step() as step:  # as a run leaves it that was interrupted after the first message
            first = next(Source(path, "mbox", 10**6).pieces())
            step.set_meta(f"import:{Source(path, 'mbox', 0).key}", f"{first.after} 1")
        journal.close()
        write_mbox(path, [message(number) for number in content])
        assert summary(run("--json", *options, str(path)))["read"] == 4


def test_an_unavailable_redis_stops_it_with_one_line(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    shown = run(str(write_mbox(tmp_path / "box", [message(1)])))
    assert shown.exit_code == 1
    assert "run the same command again to resume" in shown.stderr


# A dry run


def test_a_dry_run_shows_what_the_service_would_have_done_and_records_nothing(run: Run, tmp_path: Path) -> None:
    day = datetime.now(UTC).replace(day=15) - timedelta(days=40)  # its month is over
    month = [
        message(1, "Lot 456", sent=day),
        message(2, "Re: Lot 456", sent=day + timedelta(hours=1)),
        message(1, "Lot 456", sent=day),
        message(3, "Lot 456", sent=day + timedelta(days=31)),
        message(4, "Files", sent=day, text="https://we.tl/t-abc"),
        message(5, "More files", sent=day + timedelta(days=1), text="See https://we.tl/t-abc"),
        message(6, "Much later", sent=day + timedelta(days=20), text="Again https://we.tl/t-abc"),
    ]
    (tmp_path / "mailonce.toml").write_text(
        "[destinations.crm]\nurl = 'https://crm.example/'\ncontent_window_s = 3600\n[[routes]]\nname = 'all'\n"
    )
    path = write_mbox(tmp_path / "box", month)
    path.write_bytes(path.read_bytes() + SEPARATOR + b"\n")
    told = summary(run("--dry-run", "--json", str(path)))
    assert (told["emails"], told["new"], told["duplicates"], told["groups"]) == (7, 4, 1, 2)
    assert told["stopped"] == {"subject_group": 1, "media": 1, "content": 0}
    assert told["unreadable"] == 1
    (example,) = told["examples"]["subject_group"]
    assert (example["email"]["subject"], example["first"]["subject"]) == ("Re: Lot 456", "Lot 456")
    assert example["name"] == "lot_456"
    shown = run("--dry-run", str(path)).output
    assert '"More files" from ada5@example.org' in shown
    assert "Nothing was sent or remembered." in shown
    assert not (tmp_path / "data").exists()


def test_a_dry_run_follows_the_routes(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mailonce.toml").write_text(
        "[destinations.crm]\nurl = 'https://crm.example/'\n"
        "[[routes]]\nname = 'ours'\nmatch = [{ field = 'provider', equals = 'postmark' }]\nsubject_groups = 'off'\n"
        "[[routes]]\nname = 'all'\n"
    )
    path = str(write_mbox(tmp_path / "box", [message(1, "Lot 1"), message(2, "Lot 1")]))
    assert summary(run("--dry-run", "--json", path))["new"] == 1
    assert summary(run("--dry-run", "--json", "--provider", "postmark", path))["new"] == 2
    refused = run("--provider", "posmark", path)
    assert refused.exit_code == 1
    assert "--provider must be one of brevo" in refused.output


def test_strict_privacy_shows_no_subject(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVACY", "strict")
    path = write_mbox(tmp_path / "box", [message(1, "Lot 1 of Ada"), message(2, "Lot 1 of Bob")])
    shown = run("--dry-run", str(path)).output
    assert "stopped by subject_group" in shown
    assert "Ada" not in shown
    assert "ada" not in shown


def test_a_file_without_emails_is_refused_with_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("no mail")
    shown = run(str(tmp_path / "note.txt"))
    assert shown.exit_code == 1
    assert "is not an mbox" in shown.output


def test_a_terminal_shows_progress(tmp_path: Path) -> None:
    path = write_many(tmp_path / "box", 2000)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [MAILONCE, "import", "--yes", str(path)],
        cwd=tmp_path,
        env=clean_environment(DATA_DIR=str(tmp_path / "data"), LOG_LEVEL="ERROR"),
        stderr=theirs,
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    seen = b""
    try:
        while piece := os.read(ours, 4096):
            seen += piece
    except OSError:  # the other end of the terminal is closed
        pass
    os.close(ours)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"Reading" in seen
    assert b"%" in seen
    assert out.startswith("2,000 imported")


def test_many_large_emails_are_not_in_memory_at_once(tmp_path: Path) -> None:
    path = tmp_path / "box"
    with path.open("wb") as file:
        for number in range(40):
            file.write(SEPARATOR + f"From: a{number}@example.org\nSubject: Large\n\n".encode())
            file.write((b"words of it " * 8 + b"\n") * 20_000 + b"\n")
    source = Source(path, "mbox", 25 * 1024 * 1024)
    reader = import_mail.Reader(source, lambda piece: email_item(parse_mime(piece.raw), None))
    batches = [len(items) for items, _ in reader.batches()]
    assert sum(batches) == 40
    assert max(batches) <= 6, "about eight megabytes"
