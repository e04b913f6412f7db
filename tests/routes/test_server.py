"""Starting it: a wrong setting stops the start in one line, before anything listens."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deduplication.subject_group import generate_subject_group_id
from orchestrator.config.settings import load_settings
from orchestrator.data_dir import ensure_tokens, show_new
from tests.support.programs_loaded import MAILONCE
from tests.support.redis_server import RedisServer, free_port
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, Server, email
from tests.support.sink import Sink
from tests.support.surroundings import ROOT

CANNOT_BOOT = """
import os
from deduplication.errors import StoreUnavailable
from orchestrator.config.settings import SettingsError
from orchestrator import build
master, open_machine = os.getpid(), build.open_machine

def fails_in_workers(*args, **options):
    if os.getpid() != master:
        raise {error}
    return open_machine(*args, **options)

build.open_machine = fails_in_workers
{run}
"""
SERVE = "from routes.command_line import main; main(['serve'])"
GUNICORN = f"""
import sys
sys.argv = ["gunicorn", "-c", {str(ROOT / "deploy/gunicorn.conf.py")!r}, "wsgi:app"]
from gunicorn.app.wsgiapp import run
run()
"""


def start(folder: Path, *command: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A start that fails."""
    return subprocess.run(
        command or [MAILONCE, "serve"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PORT": str(free_port()), **settings},
        capture_output=True,
        text=True,
        timeout=60,
    )


def refusal(folder: Path, *command: str, **settings: str) -> str:
    """The one line with which the start ends."""
    ended = start(folder, *command, **settings)
    assert ended.returncode != 0
    (line,) = (ended.stdout + ended.stderr).splitlines()
    return line


@pytest.mark.parametrize(
    ("command", "settings", "error"),
    [
        ("serve", {"PORT": "no"}, "PORT must be "),
        ("worker", {}, "DELIVER_BY must be workers for mailonce worker, got 'requests'$"),
        ("stats", {"TIMEZONE": "Mars"}, "TIMEZONE must be "),
        ("serve", {"HOST": "nowhere.invalid"}, "HOST and PORT must be a free address of this machine"),
        ("serve", {"REDIS_URL": "{cluster}"}, "REDIS_URL must be a .*cluster support disabled$"),
        ("serve", {"REDIS_URL": "{cluster_login}"}, "REDIS_URL must be a .*; Redis refused the credentials"),
        ("serve", {"REDIS_URL": "{redis}/99"}, "REDIS_URL must be a .*DB index is out of range$"),
        ("serve", {"REDIS_URL": "{login}/0"}, "REDIS_URL must be a .*; Redis refused the credentials"),
        ("worker", {"REDIS_URL": "{login}/0", "DELIVER_BY": "workers"}, "REDIS_URL must be .*refused the credentials"),
    ],
)
def test_a_wrong_setting_stops_the_start_in_one_line(
    tmp_path: Path, redis_server: RedisServer, command: str, settings: dict[str, str], error: str
) -> None:
    redis = redis_server.url.rpartition("/")[0]
    urls = {"redis": redis, "login": redis.replace("://", "://nobody:secret@")}
    urls |= {
        f"cluster{end}": url.replace("redis://", "redis+cluster://")
        for end, url in zip(("", "_login"), urls.values(), strict=True)
    }
    line = refusal(tmp_path, MAILONCE, command, **{name: value.format(**urls) for name, value in settings.items()})
    assert re.search(error, line)
    assert "secret" not in line


def test_a_port_in_use_stops_the_start_and_is_named(tmp_path: Path) -> None:
    with Server(tmp_path / "first") as server:
        line = refusal(tmp_path, PORT=str(server.port))
    assert f"HOST and PORT must be a free address of this machine, got 127.0.0.1:{server.port} (Address already" in line
    assert not (tmp_path / "data").exists(), "nothing was created"


@pytest.mark.parametrize("error", ["SettingsError('REDIS_URL')", "StoreUnavailable('sqlite')", "OSError('disk')"])
@pytest.mark.parametrize("run", [SERVE, GUNICORN], ids=["mailonce serve", "gunicorn"])
def test_a_worker_that_cannot_boot_ends_the_server(tmp_path: Path, run: str, error: str) -> None:
    ended = start(tmp_path, sys.executable, "-c", CANNOT_BOOT.format(error=error, run=run))
    assert ended.returncode != 0
    assert error.partition("'")[2].strip("')") in ended.stderr
    assert 1 <= ended.stderr.count("Booting worker") <= 2, "each of the two was tried once"


def test_a_later_destination_gets_printed_emails(tmp_path: Path, redis_url: str, redis_process: RedisServer) -> None:
    """The first hour: try it, and then say where webhooks go."""
    settings = {"REDIS_URL": redis_url} if redis_url else {}
    with Server(tmp_path, **settings) as server:
        assert [decided(server) for _ in range(2)] == ["processed", "already_processed"]
    visible = ("processed_ids:*", "post:*", "subject_groups:*")
    marks = [key for glob in visible for key in redis_process.client.scan_iter(glob)]
    assert not redis_url or not marks, "it marks nothing"
    with Sink() as sink, Server(tmp_path, WEBHOOK_URL=sink.url, **settings) as server:
        assert [decided(server) for _ in range(2)] == ["processed", "already_processed"]
        assert len(sink.accepted) == 1


def decided(server: Server) -> str:
    """Retried as a provider does: a new era of Redis grants nothing at first."""
    while (status := server.post(email()).json()["status"]) == "retry_later":
        pass
    return str(status)


def test_a_start_prints_a_new_email_each_time_and_names_misspelt_settings(tmp_path: Path) -> None:
    for _ in range(2):
        with Server(tmp_path, WEBHOOK_ULR="http://127.0.0.1:9/") as server:
            log = server.log.read_text()
    subjects = re.findall(r'"subject": "(.*?)"', log)
    assert len(set(subjects)) == len(set(re.findall(r'"date": "(.*?)"', log))) == 2
    assert not any(map(generate_subject_group_id, subjects)), "with another body it is another email"
    assert "until `.venv/bin/mailonce worker`" not in log
    warning = "WARNING: WEBHOOK_ULR is not a setting; did you mean WEBHOOK_URL?"
    assert log.index(warning) < log.index("Mailonce listens")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_new_tokens_are_shown_on_a_terminal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_terminal: bool
) -> None:
    """systemd and Docker keep what is printed."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    show_new(ensure_tokens(load_settings(data_dir=tmp_path)))
    assert ((tmp_path / "ingress_token").read_text().strip() in capsys.readouterr().out) == is_terminal


HEAVY = ("boto3", "cryptography.hazmat", "routes.openapi")
LOADED = f"import sys, wsgi; print(*sorted(sys.modules.keys() & {set(HEAVY)}))"


def test_what_only_some_providers_and_the_document_need_is_no_burden_to_others(tmp_path: Path) -> None:
    tokens = {"INGRESS_TOKEN": INGRESS_TOKEN, "ADMIN_TOKEN": ADMIN_TOKEN}
    ended = start(tmp_path, sys.executable, "-c", LOADED, PYTHONPATH=str(ROOT), DATA_DIR=str(tmp_path), **tokens)
    assert (ended.returncode, ended.stdout.split()) == (0, []), ended.stderr


FORKED = """
import os, signal, time
from orchestrator.config.settings import load_settings
from routes.server import check_before_start
check_before_start(load_settings())
signal.signal(signal.SIGTERM, lambda *_: None)
child = os.fork()
if child == 0:
    time.sleep(60)
os.kill(child, signal.SIGTERM)
print(os.WTERMSIG(os.waitpid(child, 0)[1]))
"""


def test_a_worker_that_has_just_been_forked_ends_by_sigterm(tmp_path: Path) -> None:
    """With the handler of the master it would ignore the signal, and run until the grace period is over."""
    ended = start(tmp_path, sys.executable, "-c", FORKED, PYTHONPATH=str(ROOT))
    assert ended.stdout.splitlines()[-1] == "15", ended.stderr


def test_as_json_every_line_is_an_object_and_operators_are_audited(tmp_path: Path) -> None:
    with Sink() as sink, Server(tmp_path, WEBHOOK_URL=sink.url, LOG_FORMAT="json") as server:
        assert server.post(email()).json()["status"] == "processed"
        server.reset(scope="month", value="2026-11")
    assert "service: AUDIT reset scope=month" in (tmp_path / "audit.log").read_text()
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert {"gunicorn.error", "orchestrator.delivery.sender"} <= {line["logger"] for line in lines}
    (decision,) = (line for line in lines if line["logger"] == "orchestrator.pipeline")
    assert (decision["status"], decision["provider"]) == ("processed", "gmail")
    assert decision["request_id"]
