"""The commands on emails, beside a service that runs on the same data."""

from __future__ import annotations

import getpass
import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from routes.command_line import main
from tests.routes.conftest import StartApp
from tests.support.server import Server, email
from tests.support.sink import Reply, Sink

Eventually = Callable[[Callable[[], bool]], None]
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """On the data that ``start_app`` uses."""
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))

    def call(*words: str) -> Result:
        result = CliRunner().invoke(main, words)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return result

    return call


def test_reset_and_replay_leave_their_lines_in_the_audit_log_of_the_service(
    run: Run, start_app: StartApp, tmp_path: Path
) -> None:
    with Sink(Reply(422)) as sink:
        answer = start_app(webhook_url=sink.url).post(email()).get_json()
        delivery_id = answer["deliveries"]["default"]["id"]
        run("replay", delivery_id)
        run("reset", "email_id", answer["email_id"])
    audit = tmp_path / "data/audit.log"
    replayed, reset = audit.read_text().splitlines()
    assert f"mailonce, by {getpass.getuser()}: AUDIT replay delivery={delivery_id}" in replayed
    assert "AUDIT reset scope=email_id" in reset
    assert stat.S_IMODE(audit.stat().st_mode) == 0o600


def test_what_an_operator_does_over_http_stands_in_the_same_audit_log(tmp_path: Path) -> None:
    with Server(tmp_path, LOG_LEVEL="ERROR") as server:
        server.reset(scope="month", value="2026-11")
    assert "service: AUDIT reset scope=month" in (tmp_path / "audit.log").read_text()


def test_reset_releases_an_email(run: Run, start_app: StartApp, sink: Sink) -> None:
    app = start_app(webhook_url=sink.url)
    email_id = app.post(email(subject="Lot 456")).get_json()["email_id"]
    assert "4 names would be forgotten" in run("reset", "email_id", email_id, "--dry-run").output
    assert app.status_of(email(subject="Lot 456")) == "already_processed"
    assert "4 names forgotten" in run("reset", "email_id", email_id).output
    assert app.status_of(email(subject="Lot 456")) == "processed"
    assert len(sink.accepted) == 2
    assert len({each.webhook_id for each in sink.accepted}) == 1, "as the README says"
    assert run("reset", "month", "November").exit_code == 1
    assert run("reset", "all").exit_code == 1, "nobody said yes"
    assert run("reset", "all", "--yes").exit_code == 0


def test_replay_sends_dead_letters_again(run: Run, start_app: StartApp, eventually: Eventually) -> None:
    with Sink(Reply(422), Reply(422)) as sink:
        app = start_app(webhook_url=sink.url)
        ids = [app.post(email(subject=subject)).get_json()["deliveries"]["default"]["id"] for subject in "ab"]
        assert run("replay", "--dry-run").output.splitlines()[-1] == "would replay: 2"
        assert run("replay", ids[0], "--dry-run").exit_code == 0
        assert "nothing to replay" in run("replay", "--destination", "other").output
        assert len(sink.received) == 2
        assert "replayed: 1" in run("replay", ids[0]).output
        eventually(lambda: len(sink.accepted) == 1)
        assert run("replay").exit_code == 2, "nothing is done to everything because a filter was forgotten"
        assert run("replay", "--all", "--status", "dead").exit_code == 2
        assert "replayed: 1" in run("replay", "--all").output
        eventually(lambda: len(sink.accepted) == 2)
        eventually(lambda: "already delivered: 1" in run("replay", ids[0]).output)
        assert run("replay", "msg_unknown").exit_code == 1
        assert run("replay", "--since", "soon").exit_code == 2


def test_deliveries_shows_what_waits_and_why_and_replay_tries_it_now(
    run: Run, start_app: StartApp, eventually: Eventually
) -> None:
    with Sink(otherwise=Reply(503, headers={"Retry-After": "600"})) as sink:
        app = start_app(webhook_url=sink.url)
        ids = [app.post(email(subject=subject)).get_json()["deliveries"]["default"]["id"] for subject in "ab"]
        head, *rows = run("deliveries", "--status", "waiting").stdout.splitlines()
        assert head.split()[:5] == ["ID", "DESTINATION", "STATUS", "TRIES", "AGE"]
        assert sorted(row.split()[:4] for row in rows) == [[id_, "default", "waiting", "1/10"] for id_ in sorted(ids)]
        assert all(row.endswith("default: answered 503") for row in rows)
        limited = run("deliveries", "--limit", "1")
        assert "1 deliveries; there are more" in limited.stderr and len(limited.stdout.splitlines()) == 2
        (first, second) = json.loads(run("deliveries", "--json").stdout)["deliveries"]
        assert [first["id"], second["id"]] == ids[::-1], "newest email first"
        assert (first["storage"], first["provider"], first["max_attempts"]) == ("journal", "gmail", 10)
        assert run("deliveries", "--status", "dead").stdout == ""
        assert run("deliveries", "--until", "2026-01-01").stdout == ""
        assert run("deliveries", "--limit", "0").exit_code == 2

        assert "nothing to replay" in run("replay", "--all").output, "dead ones are the default"
        assert "would replay: 2" in run("replay", "--status", "waiting", "--dry-run").output
        sink.otherwise = Reply()
        assert "replayed: 2" in run("replay", "--status", "waiting").output
        eventually(lambda: sorted(sink.counts().values()) == [1, 1])
        eventually(lambda: run("deliveries", "--status", "waiting").stdout == "")


def test_what_a_receiver_remembers_goes_out_again_under_a_new_id(
    run: Run, start_app: StartApp, sink: Sink, eventually: Eventually
) -> None:
    app = start_app(webhook_url=sink.url, delivered_payload_days=1)
    delivery_id = app.post(email()).get_json()["deliveries"]["default"]["id"]
    assert "replayed: 1" in run("replay", delivery_id, "--force", "--new-id").output
    eventually(lambda: len({each.webhook_id for each in sink.accepted}) == 2)


@pytest.fixture
def stopped(start_app: StartApp, sink: Sink) -> dict[str, str]:
    """The answers to a delivered email, and to one of the same group that was not sent."""
    app = start_app(webhook_url=sink.url)
    app.post(email(subject="Lot 456", sender="first@a.example"))
    told: dict[str, str] = app.post(
        email(subject="Again lot 456", sender="second@b.example", message_id="<m@b.example>")
    ).get_json()
    return told


@pytest.mark.parametrize("by", ["id", "email_id", "<m@b.example>", "m@b.example"])
def test_why_says_what_became_of_an_email_in_a_sentence(run: Run, stopped: dict[str, str], by: str) -> None:
    said = run("why", stopped.get(by, by)).output
    assert said.startswith("Not sent: same subject group lot_456 as the email of ")
    assert " from first@a.example, delivered to default.\n" in said
    assert stopped["id"] in said
    assert "gate subject_group stopped: " in said
    whole = json.loads(run("why", stopped.get(by, by), "--json").stdout)
    assert whole["payload"]["subject"] == "Again lot 456"


def test_why_does_not_know_what_never_came(run: Run, stopped: dict[str, str]) -> None:
    answer = run("why", "nobody")
    assert (answer.exit_code, "no email is known by that id" in answer.output) == (1, True)


def test_decisions_are_listed_by_filter_as_a_table_or_json(run: Run, stopped: dict[str, str]) -> None:
    lines = run("decisions", "--gate", "subject_group").stdout.splitlines()
    assert [line.split("  ")[0] for line in lines][0] == "RECEIVED (UTC)"
    assert len(lines) == 2
    assert f"{stopped['id']}  skipped_subject_group  second@b.example  Not sent: " in lines[1]
    assert "2 decisions" in run("decisions").output
    assert "1 decisions; there are more" in run("decisions", "--limit", "1").output
    found = json.loads(run("decisions", "-q", "SECOND@", "--json").stdout)
    assert [each["id"] for each in found["decisions"]] == [stopped["id"]]
    assert "0 decisions" in run("decisions", "--status", "dead_lettered").output


def test_no_sender_can_write_on_the_terminal(run: Run, start_app: StartApp, sink: Sink) -> None:
    told = start_app(webhook_url=sink.url).post(email(subject="a\x1b[2Jb")).get_json()
    for words in (("decisions",), ("why", told["id"])):
        assert "\x1b" not in run(*words).output


def test_release_sends_what_was_stopped_once_and_stands_in_the_audit_log(
    run: Run,
    stopped: dict[str, str],
    sink: Sink,
    tmp_path: Path,
    eventually: Callable[[Callable[[], bool]], None],
) -> None:
    assert run("release", "--gate", "media", "--dry-run").stdout == "nothing to release\n"
    assert run("release", "--gate", "subject_group", "--dry-run").stdout == "would release: 1\n"
    assert run("release", stopped["id"]).stdout == "released: 1\n"
    eventually(lambda: len(sink.accepted) == 2)
    again = run("release", stopped["id"])
    assert (again.exit_code, again.stdout) == (1, "already released: 1\n")
    assert run("release", "-q", "second@b").stdout == "nothing to release\n"
    audit = (tmp_path / "data/audit.log").read_text()
    assert f"AUDIT release entry={stopped['id']} force=False by={getpass.getuser()}" in audit


def test_release_of_everything_has_to_be_said(run: Run, stopped: dict[str, str], sink: Sink) -> None:
    for words in ([], ["--force"], ["--all", "--gate", "media"], ["--all", stopped["id"]]):
        assert run("release", *words).exit_code == 2
    assert len(sink.accepted) == 1
    assert run("release", "--dry-run").stdout == "would release: 1\n"
    assert run("release", "--all").stdout == "released: 1\n"
