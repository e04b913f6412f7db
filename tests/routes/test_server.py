"""Starting it: a wrong setting stops the start in one line, before anything listens."""

from __future__ import annotations

import json
import os
import platform
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deduplication.subject_group import generate_subject_group_id
from tests.support.programs_loaded import MAILONCE
from tests.support.redis_server import RedisServer, free_port
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, Server, email
from tests.support.sink import Sink
from tests.support.surroundings import ROOT

CANNOT_BOOT = """
import os
import platform
from deduplication.errors import StoreUnavailable
from orchestrator.config.settings import SettingsError
from orchestrator import build
master, build_journal = os.getpid(), build.build_journal

def fails_in_workers(settings):
    if os.getpid() != master:
        raise {error}
    return build_journal(settings)

build.build_journal = fails_in_workers
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
    """A start that ends by itself."""
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


@pytest.fixture
def without_the_extra(tmp_path: Path) -> str:
    """A PYTHONPATH on which dramatiq is not installed."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path/dramatiq.py").write_text("raise ModuleNotFoundError(\"No module named 'dramatiq'\")")
    return str(tmp_path / "path")


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_a_queue_without_its_extra_stops_the_start(tmp_path: Path, without_the_extra: str, command: str) -> None:
    line = refusal(tmp_path, MAILONCE, command, QUEUE_URL="redis://127.0.0.1:1/0", PYTHONPATH=without_the_extra)
    assert "QUEUE_URL needs the extra queue (No module named 'dramatiq')" in line


@pytest.mark.parametrize("command", ["serve", "worker"])
@pytest.mark.parametrize("setting", ["REDIS_URL", "QUEUE_URL"])
def test_a_wrong_password_stops_the_start(
    tmp_path: Path, redis_server: RedisServer, command: str, setting: str
) -> None:
    given = {"QUEUE_URL": redis_server.url, setting: redis_server.url.replace("://", "://nobody:secret@")}
    line = refusal(tmp_path, MAILONCE, command, **given)
    assert re.search(f"{setting} must be a .* that Mailonce can use; Redis refused the credentials", line)
    assert "secret" not in line


@pytest.mark.parametrize("setting", ["REDIS_URL", "QUEUE_URL"])
def test_a_database_that_redis_does_not_have_stops_the_start_and_is_named(
    tmp_path: Path, redis_server: RedisServer, setting: str
) -> None:
    line = refusal(tmp_path, **{setting: redis_server.url.rpartition("/")[0] + "/99"})
    assert re.search(f"{setting} must be a .* that Mailonce can use; .*DB index is out of range$", line)


def test_a_port_in_use_stops_the_start_and_is_named(tmp_path: Path) -> None:
    with Server(tmp_path / "first") as server:
        line = refusal(tmp_path, PORT=str(server.port))
    assert f"PORT must be a free port; 127.0.0.1:{server.port} is in use" in line
    assert not (tmp_path / "data").exists(), "nothing was begun"


def test_a_host_that_is_not_of_this_machine_stops_the_start(tmp_path: Path) -> None:
    assert "HOST must be an address of this machine, got 'nowhere.invalid'" in refusal(tmp_path, HOST="nowhere.invalid")


def test_a_cluster_out_of_reach_stops_the_start_in_one_line(tmp_path: Path) -> None:
    line = refusal(tmp_path, REDIS_URL=f"redis+cluster://127.0.0.1:{free_port()}")
    assert "Redis Cluster cannot be connected" in line


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_queue_out_of_reach_is_said_loudly_and_on_health_and_the_service_works(tmp_path: Path, scheme: str) -> None:
    queue = f"{scheme}://127.0.0.1:1/"
    with Sink() as sink, Server(tmp_path, QUEUE_URL=queue, WEBHOOK_URL=sink.url) as server:
        log = server.log.read_text()
        assert log.index("WARNING: QUEUE_URL: the queue is away") < log.index("Mailonce listens")
        assert "Traceback" not in log
        health = server.health()
        assert (health["status"], health["checks"]["queue"]["status"]) == ("degraded", "down")
        assert server.post(email()).json()["status"] == "processed"


@pytest.mark.parametrize("has_queue", [True, False])
def test_whoever_starts_with_a_queue_is_told_that_a_worker_has_to_run(
    tmp_path: Path, redis_server: RedisServer, has_queue: bool
) -> None:
    with Server(tmp_path, QUEUE_URL=redis_server.url if has_queue else "") as server:
        log = server.log.read_text()
    assert ("until `.venv/bin/mailonce worker`" in log) == has_queue


@pytest.mark.parametrize("error", ["SettingsError('REDIS_URL')", "StoreUnavailable('sqlite')", "OSError('disk')"])
@pytest.mark.parametrize("run", [SERVE, GUNICORN], ids=["mailonce serve", "gunicorn"])
def test_a_worker_that_cannot_boot_ends_the_server_and_is_not_started_for_ever(
    tmp_path: Path, run: str, error: str
) -> None:
    ended = start(tmp_path, sys.executable, "-c", CANNOT_BOOT.format(error=error, run=run))
    assert ended.returncode != 0
    assert ended.stderr.count("Booting worker") <= 2, "each of the two was tried once"


def test_a_setting_that_is_misspelt_is_warned_about(tmp_path: Path) -> None:
    with Server(tmp_path, WEBHOOK_ULR="http://127.0.0.1:9/", MAILONCE_QUEUE_URL="redis://x") as server:
        log = server.log.read_text()
    assert "WARNING: WEBHOOK_ULR is not a setting; did you mean WEBHOOK_URL?" in log
    assert "WARNING: MAILONCE_QUEUE_URL is not a setting; did you mean QUEUE_URL?" in log
    assert log.index("did you mean") < log.index("Mailonce listens")


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_what_was_only_printed_is_delivered_once_there_is_a_destination(
    tmp_path: Path, store: str, request: pytest.FixtureRequest
) -> None:
    """The first hour: try it, and then say where webhooks go."""
    redis: RedisServer | None = request.getfixturevalue("redis_server") if store == "redis" else None
    settings = {"REDIS_URL": redis.url} if redis else {}
    with Server(tmp_path, **settings) as server:
        assert [decided(server) for _ in range(2)] == ["processed", "already_processed"]
    visible = ("processed_ids:*", "post:*", "subject_groups:*")
    assert not redis or not [key for glob in visible for key in redis.client.scan_iter(glob)], "it marks nothing"
    with Sink() as sink, Server(tmp_path, WEBHOOK_URL=sink.url, **settings) as server:
        assert [decided(server) for _ in range(2)] == ["processed", "already_processed"]
        assert len(sink.accepted) == 1


def decided(server: Server) -> str:
    """Retried as a provider does: a new era of Redis grants nothing at first."""
    while (status := server.post(email()).json()["status"]) == "retry_later":
        pass
    return str(status)


def test_the_printed_curl_line_is_a_new_email_at_every_start(tmp_path: Path) -> None:
    for _ in range(2):
        with Server(tmp_path) as server:
            log = server.log.read_text()
    subjects = re.findall(r'"subject": "(.*?)"', log)
    dates = re.findall(r'"date": "(.*?)"', log)
    assert len(set(subjects)) == len(set(dates)) == 2
    assert not any(map(generate_subject_group_id, subjects)), "with another body it is another email"


def test_new_tokens_are_shown_to_a_terminal_and_only_named_elsewhere(tmp_path: Path) -> None:
    """systemd and Docker keep what is printed, for whoever may read their logs."""
    with Server(tmp_path / "unseen", INGRESS_TOKEN="", ADMIN_TOKEN="") as server:
        log = server.log.read_text()
    for name in ("ingress_token", "admin_token"):
        kept = tmp_path / "unseen" / name
        assert log.count(f"{name}: generated, stored in {kept}\n") == 1
        assert kept.read_text().strip() not in log
    shown = _on_a_terminal(tmp_path)
    assert f"ingress_token: {(tmp_path / 'data/ingress_token').read_text().strip()} " in shown


def _on_a_terminal(folder: Path) -> str:
    ours, theirs = pty.openpty()
    show = (
        "from orchestrator import tokens, build; from orchestrator.config import settings; "
        "given = settings.load_settings(); "
        "build.make_data_dir(given); tokens.show_new(tokens.ensure_tokens(given))"
    )
    env = {"PATH": os.environ["PATH"]}
    subprocess.run([sys.executable, "-c", show], cwd=folder, env=env, stdout=theirs, check=True, timeout=60)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    os.close(theirs)
    return shown


HEAVY = ("boto3", "cryptography.hazmat", "dramatiq")
LOADED = f"import sys, wsgi; print(*sorted(sys.modules.keys() & {set(HEAVY)}))"


def test_what_only_some_providers_and_a_queue_need_is_no_burden_to_others(tmp_path: Path) -> None:
    tokens = {"INGRESS_TOKEN": INGRESS_TOKEN, "ADMIN_TOKEN": ADMIN_TOKEN}
    ended = start(tmp_path, sys.executable, "-c", LOADED, PYTHONPATH=str(ROOT), DATA_DIR=str(tmp_path), **tokens)
    assert (ended.returncode, ended.stdout.split()) == (0, []), ended.stderr


HEAPS_OF_THREADS = """
import ctypes, threading
from routes.server import gunicorn_options
from orchestrator.config.settings import Settings
libc = ctypes.CDLL(None)
libc.fopen.restype = libc.malloc.restype = ctypes.c_void_p
gunicorn_options(Settings())["post_fork"](None, None)
everybody = threading.Barrier(12)

def take_memory():
    libc.malloc(5000)
    everybody.wait()

threads = [threading.Thread(target=take_memory) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
told = ctypes.c_void_p(libc.fopen(b"heaps.xml", b"w"))
libc.malloc_info(0, told)
libc.fclose(told)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has no heaps of threads")
def test_the_threads_of_a_worker_share_two_heaps(tmp_path: Path) -> None:
    ended = start(tmp_path, sys.executable, "-c", HEAPS_OF_THREADS, PYTHONPATH=str(ROOT))
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "heaps.xml").read_text().count("<heap nr=") <= 2


FROZEN = """
import gc
from routes.server import gunicorn_options
from orchestrator.config.settings import Settings
gunicorn_options(Settings())["pre_fork"](None, None)
print(len(gc.get_objects()), gc.get_freeze_count())
"""


def test_the_collector_of_a_worker_leaves_alone_what_the_master_has_loaded(tmp_path: Path) -> None:
    ended = start(tmp_path, sys.executable, "-c", FROZEN, PYTHONPATH=str(ROOT))
    collected, shared = map(int, ended.stdout.split())
    assert collected < shared / 100


def test_as_json_every_line_is_an_object_gunicorns_too(tmp_path: Path) -> None:
    with Sink() as sink, Server(tmp_path, WEBHOOK_URL=sink.url, LOG_FORMAT="json", ADMIN_TOKEN="") as server:
        assert server.post(email()).json()["status"] == "processed"
    said = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert {"gunicorn.error", "orchestrator.pipeline", "orchestrator.delivery.sender"} <= {
        each["logger"] for each in said
    }
    (decision,) = (each for each in said if each["logger"] == "orchestrator.pipeline")
    assert (decision["status"], decision["provider"]) == ("processed", "gmail")
    assert decision["request_id"]
