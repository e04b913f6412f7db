"""mailonce check and mailonce stats; pause and resume are tested with /api/admin/destinations."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path

import pytest

from orchestrator.item import email_item
from routes.providers import gmail
from tests.routes.conftest import StartApp
from tests.routes.test_command_line import Run, config, run
from tests.support.programs_loaded import MAILONCE
from tests.support.server import INGRESS_TOKEN, email
from tests.support.sink import Reply, Sink
from tests.support.surroundings import clean_environment

__all__ = ["run"]  # a fixture

Eventually = Callable[[Callable[[], bool]], None]


def test_check_says_what_the_file_means_and_keeps_its_secrets(run: Run, tmp_path: Path) -> None:
    secret = "whsec_" + "A" * 32
    config(
        tmp_path, f"[destinations.crm]\nurl = 'https://crm.example/secret/path'\nsecret = '{secret}'\nrate = '10/s'\n"
    )
    shown = run("check")
    assert shown.exit_code == 0
    assert "crm: to crm.example by https, signed" in shown.output
    assert "at most 10/s" in shown.output
    for hidden in (secret, "secret/path"):
        assert hidden not in shown.output


def test_check_names_the_line_that_is_wrong(run: Run, tmp_path: Path) -> None:
    config(tmp_path, "[destinations.crm]\nurl = 'https://crm.example/'\nmax_attempts = 0\n")
    shown = run("check")
    assert shown.exit_code == 1
    assert "mailonce.toml, line 3: destinations.crm.max_attempts takes 1 to 50" in shown.output


def test_check_also_looks_at_the_providers(run: Run, tmp_path: Path) -> None:
    config(tmp_path, "[providers.mailgun]\n")
    shown = run("check")
    assert shown.exit_code == 1
    assert "signing_key" in shown.output


def test_check_says_what_an_email_would_meet_and_records_nothing(run: Run, tmp_path: Path) -> None:
    config(
        tmp_path,
        "[destinations.crm]\nurl = 'https://crm.example/'\ncontent_window_s = 60\n"
        "[[routes]]\nname = 'for sales'\nmatch = [{ field = 'recipient', contains = 'sales@' }]\n"
        "[[routes]]\nname = 'rest'\n",
    )
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = "Lot 456", "Ada <ada@example.org>", "sales@example.org"
    message["Date"], message["Message-ID"] = "Mon, 16 Nov 2026 09:00:00 +0000", "<m1@example.org>"
    message.set_content("See https://we.tl/t-abc for the files")
    (tmp_path / "one.eml").write_bytes(message.as_bytes())
    shown = run("check", "--email", str(tmp_path / "one.eml")).output
    assert "takes the route 'for sales', to crm" in shown
    for name in (
        "identity: post::m1@example.org",
        "subject_group: subject_group:",
        "media: media::https://we.tl/t-abc",
    ):
        assert name in shown
    assert "at crm: content " in shown
    (tmp_path / "one.json").write_text(json.dumps(email(subject="Désabonnement")))
    assert "takes the route 'rest', to crm" in run("check", "--json", str(tmp_path / "one.json")).output
    (tmp_path / "bad.json").write_text("{}")
    assert "sender takes an email address" in run("check", "--json", str(tmp_path / "bad.json")).output
    assert not (tmp_path / "data").exists()


def test_check_refuses_the_file_that_the_door_refuses(run: Run, start_app: StartApp, tmp_path: Path) -> None:
    (tmp_path / "none.eml").write_text("Subject: of nobody\n\nHello")
    refused = run("check", "--email", str(tmp_path / "none.eml"))
    assert refused.exit_code == 1
    assert refused.output.splitlines()[-1] == (
        f"Error: {tmp_path / 'none.eml'} would be refused: "
        "the request holds no email: neither a sender nor a date nor a Message-ID"
    )
    answer = start_app().http.post(
        "/api/ingress/mime",
        data=(tmp_path / "none.eml").read_bytes(),
        headers={"Authorization": f"Bearer {INGRESS_TOKEN}", "Content-Type": "message/rfc822"},
    )
    assert answer.status_code == 400


def test_check_does_not_take_an_unreadable_note_for_no_service(run: Run, start_app: StartApp, tmp_path: Path) -> None:
    data_dir = start_app(webhook_url="http://127.0.0.1:1/").service.settings.data_dir
    (data_dir / "service.json").write_text("{")
    (tmp_path / "one.json").write_text(json.dumps(email()))
    shown = run("check", "--json", str(tmp_path / "one.json"))
    assert shown.exit_code == 1
    assert "service.json cannot be read" in shown.output


def test_check_asks_the_store_what_would_become_of_the_email_now(
    run: Run, start_app: StartApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    lot = email(subject="Lot 456")
    (tmp_path / "one.json").write_text(json.dumps(lot))

    def judged() -> str:
        shown = run("check", "--json", str(tmp_path / "one.json"))
        assert shown.exit_code == 0
        return shown.output

    assert "would be new: no service has run" in judged()
    with Sink(Reply(500), Reply(500)) as sink:
        monkeypatch.setenv("WEBHOOK_URL", sink.url)
        app = start_app(webhook_url=sink.url)
        for _ in range(2):
            assert judged().endswith("has no name taken\nwould be new, and delivered\n"), "asking takes no name"
        told = app.post(lot).get_json()
        assert told["status"] == "queued"
        name, entry = f"email_id:2026-11-16:{told['email_id']}", told["id"]
        shown = judged()
        assert f"  {name}: held by {entry}, which waits for its next try" in shown
        assert f"would be queued: it repeats {entry} ({name})" in shown
        with app.service.journal.step() as step:
            step.query("UPDATE deliveries SET next_try_ms = 0")
        eventually(lambda: app.status_of(lot) == "already_processed")
        assert f"  {name}: done, by {entry} since 20" in judged()
        assert f"would be already_processed: it repeats {entry} ({name})" in judged()
        (tmp_path / "one.json").write_text(json.dumps(lot | {"body": "Something else", "date": "2026-11-17T09:00:00Z"}))
        assert "would be skipped_subject_group: subject_group:" in judged()
        (tmp_path / "one.json").write_text(json.dumps(email(subject="under way")))
        item = email_item(gmail.parse(email(subject="under way")), None)
        pipeline = app.service.pipeline
        app.service.coordinator.claim(pipeline.prepare(item, pipeline.router.pick(item)).claim)
        assert f"would be already_processing: email_id:2026-11-16:{item.id} is held for another" in judged()


def test_stats_as_json_and_as_a_table_and_locks(
    run: Run, start_app: StartApp, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = start_app(webhook_url=sink.url)
    app.post(email())
    app.service.counts.flush()
    monkeypatch.setenv("WEBHOOK_URL", sink.url)
    figures = json.loads(run("stats", "--json").output)
    shown = figures["destinations"]["default"]
    assert (shown["breaker"], shown["deliveries"]["delivered"]) == ("closed", 1)
    assert (figures["totals"]["received"], figures["totals"]["delivered"]) == (1, 1)
    lines = run("stats", "--span", "week").output.splitlines()
    assert [line.split()[:3] for line in lines if line.startswith("received")] == [["received", "1", "1"]]
    assert any(line.split()[:3] == ["default", "well", "0"] for line in lines)
    lock = app.service.locks.acquire_lock("post-1", "telegram")
    assert lock is not None
    assert lock.id in run("locks").output


def test_stats_can_be_watched_until_ctrl_c(start_app: StartApp, tmp_path: Path) -> None:
    start_app()
    watching = subprocess.Popen(
        [MAILONCE, "stats", "--watch", "--json"],
        env=clean_environment(DATA_DIR=str(tmp_path / "data")),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    with watching.stdout as shown:
        assert [json.loads(shown.readline())["totals"]["received"] for _ in range(2)] == [0, 0]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(timeout=60) == 0
