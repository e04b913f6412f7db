"""mailonce check explains the configuration, and what would happen to an email."""

import json
import shutil
from pathlib import Path

import pytest

from orchestrator.item import email_item
from routes.providers import gmail
from tests.routes.conftest import Run, StartApp
from tests.support.redis_server import RedisServer
from tests.support.server import email
from tests.support.sink import Reply, Sink
from tests.support.surroundings import ROOT
from tests.support.waiting import wait_for

SECRET = "s3cr3t-that-must-not-be-shown"
FILE = ROOT / "tests/fixtures/check.toml"  # all kinds of keys, with SECRET wherever one may be
SHOWN = (
    'crm: url = https://crm.example, signed with 2 secrets, format = "json", fallback_form = false',
    'headers = ["X-Team", "Authorization"], connect_timeout_s = 0.5, read_timeout_s = 15.0, max_attempts = 11, enabled',
    "archive: url = http://::1, not signed, ",
    '1. "opt out": subject regex "^stop\\\\b" or recipient equals "out@ours.example"\n     to crm, identity_by',
    '2. "nowhere": sender contains "@x" and provider equals "ses" exactly\n     to archive, media = "off", stop = true',
    '3. "both": every email\n     to crm, archive, stop = false\n  4. "all": every email\n     to crm, stop = true\n',
    'name = "ticket", phrases = ["our ref"], regex = "(\\\\d+)"\n',
    'hosts = ["files.example"]\nProviders\n  mailgun\n  ses\n',
    'url = https://ops.example, signed with 2 secrets, after_s = 60.0, off = ["low_hit_rate"]',
)
EML = """\
Subject: Lot 456
From: Ada <ada@example.org>
To: sales@example.org
Date: Mon, 16 Nov 2026 09:00:00 +0000
Message-ID: <m1@example.org>

See https://we.tl/t-abc for the files
"""


def test_everything_in_the_file_is_shown_but_secrets(run: Run) -> None:
    shutil.copy(FILE, "mailonce.toml")
    shown = run("check")
    assert (shown.exit_code, [each for each in SHOWN if each not in shown.output]) == (0, [])
    assert SECRET not in shown.output and "whsec_" not in shown.output


def test_without_a_file_what_ships_is_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    text = run("check").output
    assert "Files\n  links to http://127.0.0.1:8000, 7 days, up to 1024 MB in" in text
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    assert "Files\n  inline up to 1 MB of each email, metadata beyond" in run("check").output
    assert "  default: printed, sent nowhere" in text
    assert '1. "unsubscribe": subject contains "desabo"\n     to default, subject_groups = "off"' in text
    assert '2. "everything else": every email\n     to default, realtime_only = false' in text


@pytest.mark.parametrize(
    ("config", "error"),
    [("[media]\nhost = []\n", "toml, line 2: media.host"), ("[providers.mailgun]\n", "signing_key")],
)
def test_a_mistake_is_named(run: Run, tmp_path: Path, config: str, error: str) -> None:
    (tmp_path / "mailonce.toml").write_text(config)
    shown = run("check")
    assert (shown.exit_code, error in shown.output) == (1, True)


def test_the_route_and_the_names_of_an_email_are_shown_and_nothing_is_recorded(run: Run, tmp_path: Path) -> None:
    Path("mailonce.toml").write_text(
        "[destinations.crm]\nurl = 'https://crm.example/'\ncontent_window_s = 60\n"
        "[[routes]]\nname = 'paid'\nmatch = [{field='subject', contains='lot'}, {field='cc', contains='pay@'}]\n"
        "[[routes]]\nname = 'for sales'\nmatch = [{ field = 'recipient', contains = 'sales@' }]\nmedia = 'listed'\n"
        "[[routes]]\nname = 'rest'\n"
    )
    Path("one.eml").write_text(EML)
    Path("one.json").write_text(json.dumps(email()))
    shown = run("check", "--email", "one.eml").output
    assert (
        '"paid" does not match\n  yes: subject contains "lot" (it is "Lot 456")\n  no: cc contains "pay@" (it is "")\n'
        '"for sales" matches\n  yes: recipient contains "sales@" (it is "sales@example.org")\n'
        '"rest" matches, but is not evaluated: an earlier route stopped\n'
        "takes the route 'for sales', to crm\n"
    ) in shown
    for part in ("post::m1@example.org", "media::https://we.tl/t-abc", "content: "):
        assert part in shown
    assert "'rest', to crm" in run("check", "--json", "one.json").output
    assert not (tmp_path / "data").exists()


def test_a_route_that_drops_the_email_is_shown(run: Run, start_app: StartApp) -> None:
    Path("mailonce.toml").write_text(
        "[destinations.crm]\nurl = 'https://crm.example/'\n[[routes]]\nname = 'small'\ndrop = true\n"
        "match = [{ field = 'size', under = 10000 }]\n[[routes]]\nname = 'rest'\notherwise = true\n"
    )
    start_app(webhook_url="", mailonce_config=Path("mailonce.toml"))
    Path("one.eml").write_text(EML)
    shown = run("check", "--email", "one.eml").output
    assert '1. "small": size under 10000\n     dropped' in shown
    assert '2. "rest": every email that no earlier route sends anywhere\n     to crm' in shown
    assert "takes the route 'small', which drops it; a release would send it to crm\n" in shown
    assert shown.endswith("has no name taken\nwould be skipped_route\n")


@pytest.mark.parametrize(
    ("option", "text", "error"),
    [
        ("--email", "X-Note: of nobody\n\nHello", "the request has no email"),
        ("--json", "{}", "sender is required"),
    ],
)
def test_a_file_that_the_endpoint_would_refuse_is_refused(run: Run, option: str, text: str, error: str) -> None:
    Path("one").write_text(text)
    refused = run("check", option, "one")
    assert refused.exit_code == 1
    assert f"Error: one would be refused: {error}" in refused.output


def test_an_unreadable_note_is_not_taken_for_no_service(run: Run, start_app: StartApp) -> None:
    data_dir = start_app(webhook_url="http://127.0.0.1:1/").service.settings.data_dir
    (data_dir / "service.json").write_text("{")
    Path("one.json").write_text(json.dumps(email()))
    shown = run("check", "--json", "one.json")
    assert (shown.exit_code, "service.json cannot be read" in shown.output) == (1, True)


def test_the_journal_decides_what_would_happen_to_the_email_now(
    run: Run, start_app: StartApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    lot = email(subject="Lot 456")

    def check(**changes: str) -> str:
        Path("one.json").write_text(json.dumps(lot | changes))
        shown = run("check", "--json", "one.json")
        assert shown.exit_code == 0
        return shown.output

    assert "Nothing is known yet: no service has run" in check()
    with Sink(Reply(500), Reply(500)) as sink:
        monkeypatch.setenv("WEBHOOK_URL", sink.url)
        app = start_app(webhook_url=sink.url)
        for _ in range(2):
            assert check().endswith("has no name taken\nwould be new, and delivered\n"), "asking takes no name"
        answer = app.post(lot).get_json()
        assert answer["status"] == "queued"
        name, entry = f"email_id:2026-11-16:{answer['email_id']}", answer["id"]
        assert f"  {name}: held by {entry} since 20" in check()
        assert f"would be queued: it repeats {entry} ({name})" in check()
        with app.service.journal.step() as step:
            step.query("UPDATE deliveries SET next_try_ms = 0")
        wait_for(lambda: app.status_of(lot) == "already_processed")
        assert f"  {name}: done, by {entry} since 20" in check()
        assert f"would be already_processed: it repeats {entry} ({name})" in check()
        other = check(body="Something else", date="2026-11-17T09:00:00Z")
        assert "would be skipped_subject_group: subject_group:" in other
        item = email_item(gmail.parse(email(subject="in progress")), None)
        pipeline = app.service.pipeline
        pipeline.coordinator.claim(pipeline.prepare(item, pipeline.router.pick(item)).claim)
        held = check(subject="in progress")
        assert f"would be already_processing: email_id:2026-11-16:{item.id} is held" in held


def test_check_refuses_what_a_start_would_refuse_and_leaves_no_data(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, redis_server: RedisServer
) -> None:
    (tmp_path / "file").touch()
    address = redis_server.url.removeprefix("redis://")
    for name, value in (("DATA_DIR", str(tmp_path / "file")), ("REDIS_URL", f"redis://:wrong@{address}")):
        with monkeypatch.context() as patched:
            patched.setenv(name, value)
            shown = run("check")
            assert (shown.exit_code, name in shown.stderr, "would accept" in shown.output) == (1, True, False)
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "new"))
    assert "A start or reload would accept this." in run("check").output
    assert not (tmp_path / "new").exists()
