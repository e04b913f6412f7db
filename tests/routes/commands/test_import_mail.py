"""mailonce import, as an operator types it: embedded and on Redis, beside a service, stopped and gone on with."""

from __future__ import annotations

import io
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

from deduplication.mime import parse_mime
from orchestrator.config.model import load_config
from orchestrator.config.settings import load_settings
from orchestrator.importing.note import Notes
from orchestrator.importing.sources import Mbox, Piece
from orchestrator.item import Item, email_item
from routes.command_line import main
from routes.commands import import_mail
from routes.commands.progress import Progress
from tests.support.programs_loaded import MAILONCE
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, Server
from tests.support.sink import Sink
from tests.support.surroundings import clean_environment

SEPARATOR = b"From - Mon Nov 16 09:00:00 2026\n"
Run = Callable[..., Result]
Eventually = Callable[[Callable[[], bool]], None]


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
    """As if of ``message``, which takes two milliseconds for each."""
    shape = message(1234567).as_bytes()
    path.write_bytes(b"".join(SEPARATOR + shape.replace(b"1234567", b"%d" % number) + b"\n" for number in range(count)))
    return path


def post_mime(server: Server, message: EmailMessage) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {INGRESS_TOKEN}", "Content-Type": "message/rfc822"}
    answer = requests.post(f"{server.url}/api/ingress/mime", data=message.as_bytes(), headers=headers, timeout=60)
    shown: dict[str, Any] = answer.json()
    return shown


def decisions(server: Server, **query: str) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    answer = requests.get(f"{server.url}/api/admin/decisions", params=query, headers=headers, timeout=60)
    found: list[dict[str, Any]] = answer.json()["decisions"]
    return found


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))

    def call(*words: str) -> Result:
        result = CliRunner().invoke(main, words)
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
        request.applymarker(pytest.mark.real_redis)
        redis: RedisServer = request.getfixturevalue("redis_server")
        settings["REDIS_URL"] = redis.url
        monkeypatch.setenv("REDIS_URL", redis.url)
        monkeypatch.setenv("REDIS_TIMEOUT_MS", "5000")
    with Sink() as sink, Server(tmp_path / "data", WEBHOOK_URL=sink.url, **settings) as server:
        monkeypatch.setenv("WEBHOOK_URL", sink.url)
        server.sink = sink  # type: ignore[attr-defined]
        yield server


@pytest.mark.real_redis
def test_a_running_service_recognises_what_is_imported(server: Server, run: Run, tmp_path: Path) -> None:
    messages = [message(1), message(2, "Lot 456"), message(3, "Re: Lot 456"), message(4)]
    told = summary(run("import", "--json", str(write_mbox(tmp_path / "box", messages))))
    assert {name: told[name] for name in ("imported", "groups", "known", "left", "unreadable")} == {
        "imported": 4,
        "groups": 1,
        "known": 0,
        "left": 0,
        "unreadable": 0,
    }
    answers = [post_mime(server, each) for each in messages]
    assert [each["status"] for each in answers] == ["already_processed"] * 4
    stopped = post_mime(server, message(9, "LOT-456 - Documents"))
    assert stopped["status"] == "skipped_subject_group"
    assert post_mime(server, message(5))["status"] == "processed"
    assert len(server.sink.received) == 1, "nothing of what was imported was sent"  # type: ignore[attr-defined]

    imported = decisions(server, status="imported")
    assert {each["subject"] for each in imported} == {"Mail 1", "Lot 456", "Re: Lot 456", "Mail 4"}
    assert all(each["deliveries"] == [] and each["releasable_until"] is None for each in imported)
    (skipped,) = decisions(server, gate="subject_group")
    assert skipped["reason"].endswith("from ada2@example.org, which was imported")
    shown = run("why", "<m1@example.org>")
    assert shown.output.startswith("Imported at ")
    assert "came again once" in shown.output
    assert "not asked, it was imported: email_id:" in shown.output
    assert "would be already_processed" in run("check", "--email", str(_eml(tmp_path, messages[0]))).output
    again = summary(run("import", "--json", str(tmp_path / "box")))
    assert (again["imported"], again["known"]) == (0, 4)
    page = requests.get(f"{server.url}/api/admin/stats", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}, timeout=60)
    assert page.json()["totals"]["received"] == 6, "what is imported was not received"


def _eml(folder: Path, message: EmailMessage) -> Path:
    path = folder / "one.eml"
    path.write_bytes(message.as_bytes())
    return path


def test_it_can_be_imported_before_the_first_start(run: Run, tmp_path: Path) -> None:
    assert summary(run("import", "--json", str(write_mbox(tmp_path / "box", [message(1)]))))["imported"] == 1
    assert "AUDIT import ends: 1 imported" in (tmp_path / "data" / "audit.log").read_text()
    with Sink() as sink, Server(tmp_path / "data", WEBHOOK_URL=sink.url) as server:
        assert post_mime(server, message(1))["status"] == "already_processed"
        assert post_mime(server, message(2))["status"] == "processed"


def test_a_service_that_was_started_elsewhere_has_to_be_meant(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found by the address it leaves at home, as for every command."""
    monkeypatch.delenv("DATA_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = str(write_mbox(tmp_path / "box", [message(1)]))
    (tmp_path / "here").mkdir()
    with Server(tmp_path / "there", HOME=str(tmp_path / "home")):
        monkeypatch.chdir(tmp_path / "here")
        refused = run("import", path)
        assert refused.exit_code == 1
        assert f"the service was started in {tmp_path / 'there'}, not here; DATA_DIR=" in refused.output
        assert summary(run("import", "--dry-run", "--json", path))["new"] == 1
        assert not any((tmp_path / "here").iterdir())
        assert summary(run("import", "--json", "--yes", path))["data_dir"] == str(tmp_path / "there")
        monkeypatch.setenv("DATA_DIR", str(tmp_path / "there"))
        assert summary(run("import", "--json", path))["known"] == 1


def test_the_same_mail_is_known_from_every_kind_of_source(run: Run, tmp_path: Path) -> None:
    (tmp_path / "eml").mkdir()
    (tmp_path / "eml" / "a.eml").write_bytes(message(1).as_bytes())
    assert summary(run("import", "--json", str(tmp_path / "eml")))["imported"] == 1
    assert summary(run("import", "--json", str(write_mbox(tmp_path / "box", [message(1)]))))["known"] == 1
    (tmp_path / "ids.csv").write_text("message_id\n<m1@example.org>\n<m2@example.org>\nnothing,here\n")
    told = summary(run("import", "--json", str(tmp_path / "ids.csv")))
    assert (told["imported"], told["known"], told["unreadable"]) == (1, 1, 1)
    assert told["unreadable_examples"] == ["row 4: it has more fields than the first line"]


def test_a_hostile_mbox_is_read_to_its_end(run: Run, tmp_path: Path) -> None:
    """Bad ones are counted and named by their place; what they say reaches no terminal."""
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
        shown = run("import", *options, str(path))
        assert shown.exit_code == 0, shown.output
        assert [each for each in shown.output if not each.isprintable() and each != "\n"] == []
        assert "the message at byte 0: it is empty" in shown.output
    told = summary(run("import", "--json", "--from-start", str(path)))
    assert told["unreadable"] >= 3
    assert told["known"] + told["unreadable"] == len(bad) + len(odd) + 1


def test_a_bug_of_ours_in_one_message_stops_no_other(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(raw: bytes, provider: str) -> Any:
        if b"Mail 1" in raw:
            raise KeyError("a bug")
        return parse_mime(raw, provider=provider)

    monkeypatch.setattr(import_mail, "parse_mime", parse)
    told = summary(run("import", "--json", str(write_mbox(tmp_path / "box", [message(n) for n in range(3)]))))
    assert (told["imported"], told["unreadable"]) == (2, 1)
    assert "KeyError while it was read" in told["unreadable_examples"][0]


# Stopped, and gone on with


def test_a_run_that_was_killed_goes_on_and_loses_nothing(tmp_path: Path, run: Run) -> None:
    path = write_many(tmp_path / "box", 3000)
    notes = tmp_path / "data" / "imports"
    process = subprocess.Popen(
        [MAILONCE, "import", str(path)],
        cwd=tmp_path,
        env=clean_environment(DATA_DIR=str(tmp_path / "data")),
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    while process.poll() is None and not (notes.exists() and any(notes.glob("*.json"))):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was killed in the middle"
    (note,) = notes.glob("*.json")
    seen = json.loads(note.read_text())["seen"]
    assert 0 < seen < 3000
    result = run("import", "--json", str(path))
    assert f"a run before was stopped after {seen:,}; going on there" in result.stderr
    told = summary(result)
    assert told["read"] == 3000 - seen
    assert told["left"] == 0, "what the killed run had reserved is taken over"
    assert not any(notes.iterdir()), "the next run begins anew"
    whole = summary(run("import", "--json", str(path)))
    assert (whole["imported"], whole["known"]) == (0, 3000)


def test_ctrl_c_tells_what_was_done_and_how_to_go_on(tmp_path: Path) -> None:
    path = write_many(tmp_path / "box", 3000)
    process = subprocess.Popen(
        [MAILONCE, "import", "--json", str(path)],
        cwd=tmp_path,
        env=clean_environment(DATA_DIR=str(tmp_path / "data")),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not any((tmp_path / "data").glob("imports/*.json")):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "run the same again to go on" in errors
    assert "Traceback" not in errors
    told = json.loads(out)
    assert told["is_whole"] is False
    assert 0 < told["imported"] < 3000


def test_another_file_of_the_same_name_begins_anew(run: Run, tmp_path: Path) -> None:
    path = write_mbox(tmp_path / "box", [message(number) for number in range(3)])
    note = tmp_path / "data" / "imports"
    summary(run("import", "--json", str(path)))
    written = _note_of(path, note)
    write_mbox(path, [message(number) for number in range(5, 9)])
    assert summary(run("import", "--json", str(path)))["imported"] == 4
    assert written


def _note_of(path: Path, folder: Path) -> Path:
    """As a run leaves it that was stopped behind the first message."""
    source = Mbox(path, 1024 * 1024)
    Notes(folder.parent, source).write(next(source.pieces("")).after, 1)
    (written,) = folder.glob("*.json")
    assert written.stat().st_mode & 0o777 == 0o600
    return written


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"source": 1}', "\x00"])
def test_a_damaged_note_only_costs_time(run: Run, tmp_path: Path, damage: str) -> None:
    path = write_mbox(tmp_path / "box", [message(number) for number in range(3)])
    summary(run("import", "--json", str(path)))
    _note_of(path, tmp_path / "data" / "imports").write_text(damage)
    assert summary(run("import", "--json", str(path)))["known"] == 3


def test_from_start_does_not_go_on(run: Run, tmp_path: Path) -> None:
    path = write_mbox(tmp_path / "box", [message(number) for number in range(3)])
    summary(run("import", "--json", str(path)))
    _note_of(path, tmp_path / "data" / "imports")
    assert summary(run("import", "--json", "--from-start", str(path)))["read"] == 3


def test_a_store_that_is_away_stops_it_with_one_line(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("ON_STORE_FAILURE", "closed")
    shown = run("import", str(write_mbox(tmp_path / "box", [message(1)])))
    assert shown.exit_code == 1
    assert "run the same again to go on" in shown.stderr


# What it would have done


def test_a_dry_run_says_what_the_service_would_have_done_and_records_nothing(run: Run, tmp_path: Path) -> None:
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
    told = summary(run("import", "--dry-run", "--json", str(path)))
    assert (told["emails"], told["new"], told["duplicates"], told["groups"]) == (7, 4, 1, 2)
    assert told["stopped"] == {"subject_group": 1, "media": 1, "content": 0}
    assert told["unreadable"] == 1
    (example,) = told["examples"]["subject_group"]
    assert (example["email"]["subject"], example["first"]["subject"]) == ("Re: Lot 456", "Lot 456")
    assert example["name"] == "lot_456"
    shown = run("import", "--dry-run", str(path)).output
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
    assert summary(run("import", "--dry-run", "--json", path))["new"] == 1
    assert summary(run("import", "--dry-run", "--json", "--provider", "postmark", path))["new"] == 2
    refused = run("import", "--provider", "posmark", path)
    assert refused.exit_code == 1
    assert "--provider takes one of brevo" in refused.output


def test_strict_privacy_shows_no_subject(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVACY", "strict")
    path = write_mbox(tmp_path / "box", [message(1, "Lot 1 of Ada"), message(2, "Lot 1 of Bob")])
    shown = run("import", "--dry-run", str(path)).output
    assert "stopped by subject_group" in shown
    assert "Ada" not in shown
    assert "ada" not in shown


def test_what_is_no_mail_is_refused_with_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("no mail")
    shown = run("import", str(tmp_path / "note.txt"))
    assert shown.exit_code == 1
    assert "is no mbox" in shown.output


# Progress


def test_progress_tells_rate_and_time_left_now_and_then() -> None:
    now = [100.0]
    out = io.StringIO()
    progress = Progress(out, 0, 1000, 100.0, lambda: now[0])
    for second in range(1, 31):
        now[0] = 100.0 + second
        progress.tell(second * 10, second * 200)
    assert out.getvalue().splitlines() == [
        "2,000 emails, 200/s, 10 %, 90 s left",
        "4,000 emails, 200/s, 20 %, 80 s left",
        "6,000 emails, 200/s, 30 %, 70 s left",
    ]


def test_on_a_terminal_progress_is_one_line_written_over(tmp_path: Path) -> None:
    path = write_many(tmp_path / "box", 2000)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [MAILONCE, "import", str(path)],
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
    except OSError:  # its end of the terminal is closed
        pass
    os.close(ours)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"\r\x1b[K" in seen
    assert b" emails, " in seen
    assert out.startswith("2,000 imported")


def test_many_large_emails_are_not_in_memory_at_once(tmp_path: Path) -> None:
    """As many as one step takes, of two megabytes each."""
    path = tmp_path / "box"
    with path.open("wb") as file:
        for number in range(40):
            file.write(SEPARATOR + f"From: a{number}@example.org\nSubject: Large\n\n".encode())
            file.write((b"words of it " * 8 + b"\n") * 20_000 + b"\n")
    batches = []
    run = import_mail.Run(load_settings(), load_config(load_settings()), Mbox(path, 25 * 1024 * 1024), read_large)
    while batch := run.next_batch(""):
        batches.append(len(batch))
    assert sum(batches) == 40
    assert max(batches) <= 6, "about eight megabytes"


def read_large(piece: Piece) -> Item:
    return email_item(parse_mime(piece.raw), None)
