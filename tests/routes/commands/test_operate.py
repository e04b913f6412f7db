"""The commands on emails and destinations, beside a service that runs on the same data."""

import getpass
import json
import stat
from pathlib import Path

import pytest

from tests.routes.conftest import Run, StartApp, impatient
from tests.support.server import email
from tests.support.sink import Reply, Sink
from tests.support.waiting import wait_for


def test_reset_forgets_an_email_and_leaves_a_line_in_the_audit_log(
    run: Run, start_app: StartApp, sink: Sink, tmp_path: Path
) -> None:
    app = start_app(webhook_url=sink.url)
    email_id = app.post(email(subject="Lot 456")).get_json()["email_id"]
    assert "4 names would be forgotten" in run("reset", "email_id", email_id, "--dry-run").output
    assert app.status_of(email(subject="Lot 456")) == "already_processed"
    assert "4 names forgotten" in run("reset", "email_id", email_id).output
    assert app.status_of(email(subject="Lot 456")) == "processed"
    assert len({each.webhook_id for each in sink.accepted}) == 1, "as the README says"
    assert run("reset", "month", "November").exit_code == 1
    assert run("reset", "all").exit_code == 1, "it was not confirmed"
    assert run("reset", "all", "--yes").exit_code == 0
    audit = tmp_path / "data/audit.log"
    assert f"mailonce, by {getpass.getuser()}: AUDIT reset scope=email_id" in audit.read_text()
    assert stat.S_IMODE(audit.stat().st_mode) == 0o600


def test_erase_removes_a_person_and_the_audit_log_does_not_say_whom(
    run: Run, start_app: StartApp, tmp_path: Path
) -> None:
    app = start_app()
    app.post(email(sender="Grace <grace@person.example>"))
    assert "1 emails would be erased" in run("erase", "grace@person.example", "--dry-run").output
    assert run("erase", "grace@person.example").exit_code == 1, "it was not confirmed"
    assert "1 emails erased" in run("erase", "Grace@Person.example", "--yes").output
    assert app.entries == []
    audit = (tmp_path / "data/audit.log").read_text()
    assert "AUDIT erase emails=1 kept=0 dry_run=False" in audit and "grace" not in audit.lower()


def test_deliveries_are_listed_and_dead_and_waiting_ones_replayed(run: Run, start_app: StartApp) -> None:
    with Sink(Reply(422), otherwise=Reply(503, headers={"Retry-After": "600"})) as sink:
        before = start_app(toml=impatient(sink), delivered_payload_days=1)
        dead = before.post(email(subject="a")).get_json()["deliveries"]["default"]["id"]
        before.service.close()
        app = start_app(webhook_url=sink.url, delivered_payload_days=1)
        waiting = [app.post(email(subject=subject)).get_json()["deliveries"]["default"]["id"] for subject in "bc"]
        ids = [dead, *waiting]
        head, *rows = run("deliveries", "--status", "waiting").stdout.splitlines()
        assert head.split()[:5] == ["ID", "DESTINATION", "STATUS", "TRIES", "AGE"]
        assert {tuple(row.split()[:4]) for row in rows} == {(id_, "default", "waiting", "1/11") for id_ in waiting}
        assert all(row.endswith("default: answered 503") for row in rows)
        limited = run("deliveries", "--limit", "1")
        assert "1 delivery; there are more" in limited.stderr and len(limited.stdout.splitlines()) == 2
        listed = json.loads(run("deliveries", "--json").stdout)["deliveries"]
        assert [each["id"] for each in listed] == ids[::-1], "newest email first"
        assert (listed[0]["storage"], listed[0]["provider"], listed[0]["max_attempts"]) == ("journal", "gmail", 11)
        assert run("deliveries", "--until", "2020-01-01").stderr == "0 deliveries\n"
        assert run("deliveries", "--since", "2020-01-01").stderr == "3 deliveries\n"

        for words in ([], ["--all", "--status", "dead"], ["--all", dead], ["--since", "soon"]):
            assert run("replay", *words).exit_code == 2, "nothing is done to everything because a filter was forgotten"
        assert run("replay", "--dry-run").stdout == "would replay: 1\n", "dead ones are the default"
        assert run("replay", dead, "--dry-run").exit_code == 0
        assert run("replay", "--destination", "other").stdout == "nothing to replay\n"
        assert run("replay", "--status", "waiting", "--dry-run").stdout == "would replay: 2\n"
        assert len(sink.received) == 3
        sink.otherwise = Reply()
        assert run("replay", "--status", "waiting").stdout == "replayed: 2\n"
        assert run("replay", "--all").stdout == "replayed: 1\n"
        wait_for(lambda: sorted(sink.counts().values()) == [1, 1, 1])
        wait_for(lambda: run("replay", dead).stdout == "already delivered: 1\n")
        assert run("replay", dead, "--force", "--new-id").exit_code == 0
        wait_for(lambda: len({each.webhook_id for each in sink.accepted}) == 4)
        assert run("replay", "msg_unknown").exit_code == 1


@pytest.fixture
def stopped(start_app: StartApp, sink: Sink) -> dict[str, str]:
    """The answers to a delivered email, and to one of the same group that was not sent."""
    app = start_app(webhook_url=sink.url)
    app.post(email(subject="Lot 456", sender="first@a.example"))
    answer: dict[str, str] = app.post(
        email(subject="Again lot 456", sender="second@a.example", message_id="<m@b.example>")
    ).get_json()
    return answer


@pytest.mark.parametrize("by", ["id", "email_id", "<m@b.example>", "m@b.example"])
def test_why_explains_what_happened_to_an_email(run: Run, stopped: dict[str, str], by: str) -> None:
    shown = run("why", stopped.get(by, by)).output
    assert shown.startswith("Suppressed: same subject group lot_456@a.example as the email of ")
    assert " from first@a.example, delivered to default.\n" in shown
    assert stopped["id"] in shown
    assert "  subject group stopped: " in shown and "  to default   skipped, attempts: 0\n" in shown
    assert f": mailonce release {stopped['id']}\n" in shown
    whole = json.loads(run("why", stopped.get(by, by), "--json").stdout)
    assert whole["payload"]["subject"] == "Again lot 456"
    unknown = run("why", "nobody")
    assert (unknown.exit_code, "no stored email has this id" in unknown.output) == (1, True)


def test_decisions_are_listed_by_filter_as_a_table_or_json(run: Run, stopped: dict[str, str]) -> None:
    for words in (["--gate", "subject_group"], ["--stopped", "--since", "7d"], ["--stopped", "--until", "2099-01-01"]):
        found = run("decisions", *words)
        head, *lines = found.stdout.splitlines()
        assert (head.split("  ")[0], len(lines), found.stderr) == ("RECEIVED (UTC)", 1, "1 decision\n")
        assert f"{stopped['id']}  suppressed  second@a.example  Again lot 456  Suppressed: " in lines[0]
    assert run("decisions", "--stopped", "--until", "1h").stderr == "0 decisions\n"
    refused = run("decisions", "--since", "soon").output
    assert "--since must be a time such as 2026-11-16T09:00:00Z, or an age such as 30min" in refused
    assert "2 decisions" in run("decisions").output
    assert "1 decision; there are more" in run("decisions", "--limit", "1").output
    page = json.loads(run("decisions", "-q", "SECOND@", "--json").stdout)
    assert [each["id"] for each in page["decisions"]] == [stopped["id"]]
    assert "0 decisions" in run("decisions", "--status", "dead_lettered").output


def test_no_sender_can_control_the_terminal(run: Run, start_app: StartApp, sink: Sink) -> None:
    answer = start_app(webhook_url=sink.url).post(email(subject="a\x1b[2Jb")).get_json()
    for words in (("decisions",), ("why", answer["id"])):
        assert "\x1b" not in run(*words).output


def test_release_sends_what_was_stopped_once_and_is_audited(
    run: Run, stopped: dict[str, str], sink: Sink, tmp_path: Path
) -> None:
    for words in ([], ["--force"], ["--all", "--gate", "media"], ["--all", stopped["id"]]):
        assert run("release", *words).exit_code == 2, "everything needs --all"
    assert run("release", "--gate", "media", "--dry-run").stdout == "nothing to release\n"
    assert run("release", "--dry-run").stdout == "would release: 1\n"
    assert len(sink.accepted) == 1
    assert run("release", "--all").stdout == "released: 1\n"
    wait_for(lambda: len(sink.accepted) == 2)
    again = run("release", stopped["id"])
    assert (again.exit_code, again.stdout) == (1, "already released: 1\n")
    audit = (tmp_path / "data/audit.log").read_text()
    assert f"mailonce, by {getpass.getuser()}: AUDIT release entry={stopped['id']} force=False" in audit


def test_a_command_pauses_and_resumes_the_running_service_and_is_audited(
    run: Run, start_with: StartApp, sink: Sink, tmp_path: Path
) -> None:
    app = start_with(crm=sink)
    assert run("pause", "crm", "--reason", "moves").exit_code == 0
    paused = app.ask("destinations")["destinations"]["crm"]["paused"]
    assert (paused["reason"], paused["by"]) == ("moves", getpass.getuser())
    assert [("was not" in run("resume", "crm").output) for _ in range(2)] == [False, True]
    refused = run("pause", "crn")
    assert (refused.exit_code, "destination must be one of crm" in refused.output) == (1, True)
    pause, resume = (tmp_path / "data/audit.log").read_text().splitlines()
    assert f"mailonce, by {getpass.getuser()}: AUDIT pause destination=crm" in pause and "reason=moves" in pause
    assert "AUDIT resume destination=crm" in resume


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ("decisions", "decisions"),
        ("deliveries", "deliveries"),
        ("why ID", "reason"),
        ("stats", "totals"),
        ("locks", "locks"),
        ("release ID --dry-run", "would_release"),
        ("replay ID:default --dry-run", "already_delivered"),
        ("reset month 2026-11 --dry-run", "names"),
        ("pause default", "status"),
        ("resume default", "status"),
    ],
)
def test_every_command_that_shows_something_has_json(run: Run, stopped: dict[str, str], words: str, field: str) -> None:
    shown = run(*words.replace("ID", stopped["id"]).split(), "--json")
    assert field in json.loads(shown.stdout)
