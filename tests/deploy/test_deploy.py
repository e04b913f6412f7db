"""The files of deploy/: they start, report errors, and agree with the settings."""

import json
import re
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from deduplication.redis_client import connect
from orchestrator.config.settings import DELIVERY_BUDGET_S, Settings, load_settings
from orchestrator.worker import GRACE_S
from routes.connections import UNPROVEN_BYTES
from tests.support import programs_loaded
from tests.support.curl import read_curl
from tests.support.redis_server import RedisServer
from tests.support.server import Server
from tests.support.surroundings import ROOT, clean_environment

DEPLOY = ROOT / "deploy"
COMPOSED = ("deploy", "examples/compose")
PINNED = re.compile(r"[\w/.-]+:v?\d+\.\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?")
SETTING_LINE = re.compile(r"^#([A-Z_]+)=(.*)$", re.MULTILINE)


def gunicorn(option: str, folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    start = "from gunicorn.app.wsgiapp import run; run()"
    command = [sys.executable, "-c", start, option, "-c", str(DEPLOY / "gunicorn.conf.py"), "wsgi:app"]
    return programs_loaded.run(command, folder, clean_environment(**{"DATA_DIR": str(folder)} | settings))


def dockerfile_command(instruction: str) -> list[str]:
    """The exec form of the CMD that follows on ``instruction``."""
    found = re.search(rf"^{instruction}\s(?:[^\[]*CMD )?(\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert found, f"{instruction} is not there, or not in the exec form"
    command: list[str] = json.loads(found.group(1))
    return command


def composed(folder: str) -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / folder / "compose.yaml").read_text())["services"]
    return services


def without_comments(path: Path) -> str:
    return re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE)


def first(pattern: str, path: Path) -> str:
    found = re.search(pattern, without_comments(path), re.MULTILINE)
    assert found, f"{path.name} has no {pattern}"
    return found.group(1)


@pytest.mark.parametrize(("setting", "value"), [("REDIS_URL", "http://:secret@cache"), ("DATA_DIR", "/dev/null")])
def test_a_wrong_setting_stops_the_start_with_one_line(tmp_path: Path, setting: str, value: str) -> None:
    refused = gunicorn("--check-config", tmp_path, **{setting: value})
    assert refused.returncode != 0
    (line,) = refused.stdout.splitlines()
    assert line.startswith(f"mailonce: {setting} must be ")
    assert "secret" not in line


def test_env_example_changes_nothing_even_if_uncommented(monkeypatch: pytest.MonkeyPatch) -> None:
    assert without_comments(DEPLOY / "env.example").strip() == "", "copied as it is, it sets nothing"
    defaults = load_settings()
    for name, value in SETTING_LINE.findall((DEPLOY / "env.example").read_text()):
        monkeypatch.setenv(name, value)
    assert load_settings() == defaults


def stop_period_s(folder: str, service: str) -> int:
    return int(composed(folder)[service]["stop_grace_period"].removesuffix("s"))


def test_a_delivery_under_way_may_finish_before_anything_is_killed(tmp_path: Path) -> None:
    """By the configuration that is shipped, which gunicorn accepts."""
    shown = gunicorn("--print-config", tmp_path)
    assert shown.returncode == 0
    assert not re.search(" (WARNING|ERROR) ", shown.stdout), shown.stdout
    (graceful_s,) = map(int, re.findall(r"^graceful_timeout\s*= (\d+)$", shown.stdout, re.MULTILINE))
    assert graceful_s > DELIVERY_BUDGET_S
    assert int(first(r"^TimeoutStopSec=(\d+)$", DEPLOY / "mailonce.service")) > graceful_s
    assert stop_period_s("deploy", "web") > graceful_s
    assert int(first(r"proxy_read_timeout (\d+)s;", DEPLOY / "nginx.conf")) > DELIVERY_BUDGET_S
    assert int(first(r"^TimeoutStopSec=(\d+)$", DEPLOY / "mailonce-worker.service")) > GRACE_S + 5
    assert all(stop_period_s(folder, "worker") > GRACE_S + 5 for folder in COMPOSED)


@pytest.mark.parametrize(("unit", "action"), [("mailonce", "serve"), ("mailonce-worker", "worker")])
def test_the_units_write_where_they_may_whatever_the_env_file_says_and_are_bounded(unit: str, action: str) -> None:
    """EnvironmentFile takes precedence over Environment=, so that DATA_DIR=data of env.example would win."""
    path = DEPLOY / f"{unit}.service"
    folder = first(r"^StateDirectory=(\S+)$", path)
    command = f"/usr/bin/env DATA_DIR=/var/lib/{folder} /opt/mailonce/.venv/bin/mailonce {action}"
    assert first(r"^ExecStart=(.*)$", path) == command
    assert "DATA_DIR" not in first(r"^Environment=(.*)$", path)
    assert first(r"^User=(\S+)$", path) == "mailonce", "one user for both, and for what they share"
    assert first(r"^Type=(\w+)$", path) == ("exec" if action == "worker" else "notify"), "a worker does not notify"
    bound_mb = int(first(r"^MemoryMax=(\d+)G$", path)) * 1024
    processes = Settings.model_fields["web_concurrency"].default
    assert bound_mb > processes * Settings.model_fields["memory_limit_mb"].default, "/health tells of it before"
    assert first(r"^OOMPolicy=(\w+)$", path) == "continue", "a process that is killed ends no other"


@pytest.mark.parametrize("folder", COMPOSED)
def test_redis_in_compose_asks_for_its_password_and_is_asked_with_it(folder: str) -> None:
    password = "0123456789abcdef"
    redis, web = (composed(folder)[name] for name in ("redis", "web"))
    _, *options = redis["command"].replace("${REDIS_PASSWORD}", password).split()
    given = dict(zip(options[::2], options[1::2], strict=True))
    assert (given["--appendonly"], given["--maxmemory-policy"]) == ("yes", "noeviction")
    assert redis["volumes"] == ["redis:/data"]
    (_, healthcheck) = redis["healthcheck"]["test"]
    assert list(redis["environment"]) == ["REDISCLI_AUTH"], "redis-cli reads it"
    url = re.search(r"redis://:[^}]+\}@redis:6379/\d", web["environment"]["REDIS_URL"])
    assert url
    with RedisServer(*options) as server:
        for auth, status in (({"REDISCLI_AUTH": password}, 0), ({}, 1)):
            asked = healthcheck.replace("redis-cli", f"redis-cli -p {server.port}")
            assert subprocess.run(["sh", "-c", asked], env=clean_environment(**auth), timeout=60).returncode == status
        reached = url[0].replace("${REDIS_PASSWORD}", password).replace("redis:6379", f"127.0.0.1:{server.port}")
        with closing(connect(reached, 10)) as client:
            assert client.ping()


@pytest.mark.parametrize("folder", COMPOSED)
def test_whatever_compose_starts_is_pinned_and_bounded_and_may_do_little(folder: str) -> None:
    for name, service in composed(folder).items():
        is_ours = service["image"].partition(":")[0] == "mailonce"
        assert is_ours or PINNED.fullmatch(service["image"]), name
        assert re.fullmatch(r"\d+g", service["mem_limit"]), name
        assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"]), name
        assert service.get("read_only") or name == "grafana", "which writes to more than its volume"
    options = composed(folder)["redis"]["command"].split()
    assert options[options.index("--maxmemory") + 1] == "1gb", "half of its mem_limit: it is never killed for it"


def test_strangers_cannot_fill_the_temporary_files_of_the_container() -> None:
    (temporary,) = composed("deploy")["web"]["tmpfs"]
    _, _, size = temporary.partition(":size=")
    assert int(size.removesuffix("m")) >= 2 * UNPROVEN_BYTES / 2**20 * Settings.model_fields["web_concurrency"].default


@pytest.mark.parametrize("secret", ["INGRESS_TOKEN", "ADMIN_TOKEN", "REDIS_PASSWORD"])
def test_compose_does_not_start_without_secrets(secret: str) -> None:
    assert first(rf"^ {{6}}\w+: \$\{{({secret}):\?.+\}}$", DEPLOY / "compose.yaml") == secret


def test_the_image_is_built_from_pinned_ones_and_runs_the_shipped_configuration_as_an_ordinary_user() -> None:
    images = re.findall(r"^FROM (\S+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert len(images) == 2 and all(map(PINNED.fullmatch, images))
    assert dockerfile_command("CMD") == ["mailonce", "serve"]
    assert first(r"^USER (\S+)$", DEPLOY / "Dockerfile") not in ("root", "0")
    assert first(r"^VOLUME (\S+)$", DEPLOY / "Dockerfile") == first(r"DATA_DIR=(\S+)", DEPLOY / "Dockerfile")


def test_everything_the_image_copies_is_there_and_sent_to_the_builder() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    assert sources >= {"wsgi.py", "routes", "orchestrator", "deduplication", "constraints.txt"}
    assert [source for source in sources if not (ROOT / source).exists()] == []
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert sent == sources


def test_the_healthcheck_of_the_image_tells_a_ready_server_from_none(tmp_path: Path) -> None:
    _, *arguments = dockerfile_command("HEALTHCHECK")
    with Server(tmp_path) as server:
        up = _healthcheck(arguments, server.port)
    down = _healthcheck(arguments, server.port)
    assert (up, down) == (0, 1)


def _healthcheck(arguments: list[str], port: int) -> int:
    environment = clean_environment(PORT=str(port), http_proxy="http://127.0.0.1:9")  # a proxy must not come between
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, timeout=30).returncode


def test_tokens_are_generated_at_the_first_start_only_and_the_printed_curl_line_can_be_pasted(tmp_path: Path) -> None:
    with Server(tmp_path, INGRESS_TOKEN="", ADMIN_TOKEN="") as server:
        (curl,) = re.findall(r"^ *(curl .*?})'$", server.log.read_text(), re.MULTILINE | re.DOTALL)
        answers = [read_curl(f"{curl}'").send().json() for _ in range(2)]
        assert [answer["status"] for answer in answers] == ["processed", "already_processed"]
        assert "would be sent" in server.log.read_text(), "the first email shows something"
    with server:
        log = server.log.read_text()
    for name in ("ingress_token", "admin_token"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        assert log.count(f"{name}: generated, stored in {tmp_path / name}") == 1
    assert log.count("Mailonce listens on") == 2


def test_gunicorn_with_the_shipped_configuration_closes_the_service(tmp_path: Path) -> None:
    """As mailonce serve does: what a closed journal leaves behind is one file."""
    for app in (None, "wsgi:app"):
        folder = tmp_path / str(app)
        with Server(folder, app=app, WEBHOOK_URL="http://127.0.0.1:9/") as server:
            assert server.health()["status"]
            assert (folder / "journal.db-wal").exists()
        assert not (folder / "journal.db-wal").exists(), app
        assert "Traceback" not in server.log.read_text()
