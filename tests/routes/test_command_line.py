"""The command mailonce, as an operator types it: real processes for serve and worker, the rest through click."""

import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from click.testing import CliRunner

from orchestrator.delivery.signing import check_secret, public_keys
from routes.command_line import main
from routes.providers.registry import TYPES
from tests.routes.conftest import Run, StartApp, write_toml
from tests.support import programs_loaded
from tests.support.redis_server import RedisServer
from tests.support.server import Server, WorkerProcess, email
from tests.support.sink import Reply, Sink
from tests.support.surroundings import clean_environment
from tests.support.waiting import wait_for


@pytest.mark.parametrize(
    "words",
    [("stats",), ("locks",), ("deliveries",), ("replay", "--all"), ("reset", "all", "--yes"), ("sample", "gmail")],
    ids=lambda w: w[0],
)
def test_without_a_service_a_command_names_the_folder_and_creates_nothing(
    run: Run, tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for data_dir in (tmp_path / "data", None):
        if data_dir is None:
            monkeypatch.delenv("DATA_DIR")
        refused = run(*words)
        assert refused.exit_code == 1
        assert f"no service has run with its data in {tmp_path / 'data'}" in refused.output
    assert list(tmp_path.iterdir()) == []


def test_a_command_finds_the_service_by_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service, elsewhere = tmp_path / "service", tmp_path / "elsewhere"
    service.mkdir()
    elsewhere.mkdir()
    (service / "mailonce.toml").write_text("[destinations.crm]\nurl = 'log:'\n")
    monkeypatch.setenv("DATA_DIR", str(service / "data"))
    monkeypatch.setenv("MAILONCE_CONFIG", str(service / "mailonce.toml"))
    with Server(service / "data", INGRESS_TOKEN="", MAILONCE_CONFIG=str(service / "mailonce.toml")) as server:
        token = (service / "data/ingress_token").read_text().strip()
        sent = server.post(email(), token=token).json()
        monkeypatch.chdir(elsewhere)
        shown = json.loads(CliRunner().invoke(main, ["deliveries", "--json"]).stdout)
        assert [each["destination"] for each in shown["deliveries"]] == ["crm"]
        assert "3 names forgotten" in CliRunner().invoke(main, ["reset", "email_id", sent["email_id"]]).output
        assert server.post(email(), token=token).json()["status"] == "processed"
        assert token in CliRunner().invoke(main, ["sample", "gmail"]).output
    assert list(elsewhere.iterdir()) == []


def test_a_command_beside_a_service_on_redis_refuses_to_work_on_another_store(
    run: Run, start_app: StartApp, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = start_app(redis_url=redis_server.url)
    email_id = app.post(email()).get_json()["email_id"]
    for url in ("", "redis://127.0.0.1:1/0"):
        monkeypatch.setenv("REDIS_URL", url)
        refused = run("reset", "email_id", email_id)
        assert refused.exit_code == 1
        assert (
            f"must be those of the service in {app.service.settings.data_dir}: 127.0.0.1:{redis_server.port}/0"
            in refused.output
        )
    monkeypatch.setenv("REDIS_URL", redis_server.url)
    assert "3 names forgotten" in run("reset", "email_id", email_id).output


def test_sample_without_a_provider_lists_them(run: Run) -> None:
    refused = run("sample")
    assert (refused.exit_code, f"PROVIDER must be one of {', '.join(TYPES)}, or" in refused.output) == (2, True)


# Processes


def test_sighup_reloads_the_file_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    with Sink() as first, Sink() as second:
        path = write_toml(tmp_path, crm=f"url = '{first.url}'\nread_timeout_s = 100")
        with Server(tmp_path / "data", MAILONCE_CONFIG=str(path)) as server:
            assert server.process is not None
            path.write_text("[destinations.crm]\nurl = 'nowhere'\n")
            os.kill(server.process.pid, signal.SIGHUP)
            wait_for(lambda: "the previous mailonce.toml stays in force" in server.log.read_text())
            server.wait_until_up()
            assert server.post(email(subject="one")).json()["status"] == "processed"
            assert (len(first.accepted), len(second.accepted)) == (1, 0)
            wait_for(lambda: "mailonce.toml was refused" in str(server.health()["warnings"]))
            assert "nowhere" not in str(server.health()), "/health is public"
            write_toml(tmp_path, crm=second)
            os.kill(server.process.pid, signal.SIGHUP)
            numbers = iter(range(1000))
            wait_for(lambda: bool(server.post(email(subject=f"n {next(numbers)}"))) and len(second.accepted) > 0)
            wait_for(lambda: server.health()["warnings"] == [])


def test_a_deploy_in_the_middle_of_traffic_loses_and_doubles_nothing(tmp_path: Path, redis_server: RedisServer) -> None:
    """Two servers behind one Redis are replaced, one after the other, while providers send and try again."""
    with Sink(otherwise=Reply(delay_s=0.05)) as sink:
        settings = {"REDIS_URL": redis_server.url, "WEBHOOK_URL": sink.url, "SUBJECT_GROUPS": "off"}
        servers = [Server(tmp_path / str(number), **settings).start() for number in range(2)]
        try:
            with ThreadPoolExecutor(8) as clients:
                sending = [clients.submit(_send_until_taken, servers, number) for number in range(150)]
                for server in servers:
                    server.stop()
                    server.start()
                for each in sending:
                    each.result()
            counts = sink.counts(lambda received: received.payload["subject"])
        finally:
            for server in servers:
                server.stop()
    assert len(counts) == 150
    assert set(counts.values()) == {1}


def _send_until_taken(servers: list[Server], number: int) -> None:
    for attempt in range(200):
        try:
            answer = servers[(number + attempt) % 2].post(email(subject=f"email {number}", body=f"This is {number}"))
        except requests.RequestException:
            continue
        if answer.status_code == 200:
            return
    raise AssertionError("never taken")


def test_a_worker_finishes_and_reloads(tmp_path: Path, redis_server: RedisServer) -> None:
    go_on = threading.Event()
    with Sink(Reply(after=go_on)) as first, Sink() as second:
        path = write_toml(tmp_path, crm=f"url = '{first.url}'\nread_timeout_s = 100")
        settings = {"REDIS_URL": redis_server.url, "DELIVER_BY": "workers", "MAILONCE_CONFIG": str(path)}
        with Server(tmp_path / "web", **settings) as server, WorkerProcess(tmp_path / "worker", **settings) as worker:
            assert server.post(email()).json()["status"] == "queued"
            assert first.arrived.wait(60)
            path.write_text("[destinations.crm]\nurl = 'nowhere'\n")
            assert worker.process is not None
            os.kill(worker.process.pid, signal.SIGHUP)
            wait_for(lambda: "the previous mailonce.toml stays in force" in worker.log.read_text())
            write_toml(tmp_path, crm=second)
            os.kill(worker.process.pid, signal.SIGHUP)
            go_on.set()
            wait_for(lambda: ": reloaded" in worker.log.read_text())
            server.post(email(subject="another"))
            wait_for(lambda: len(second.accepted) == 1)
            worker.stop()
        assert len(first.accepted) == 1, "what was under way was finished, and not sent again"


def test_a_killed_workers_deliveries_return(tmp_path: Path, redis_server: RedisServer) -> None:
    never = threading.Event()
    with Sink(Reply(after=never)) as sink:
        path = write_toml(tmp_path, crm=f"url = '{sink.url}'\nread_timeout_s = 1")
        settings = {"REDIS_URL": redis_server.url, "DELIVER_BY": "workers", "MAILONCE_CONFIG": str(path)}
        settings["LEASE_SECONDS"] = "5"
        with Server(tmp_path / "web", **settings) as server, WorkerProcess(tmp_path / "worker", **settings) as worker:
            server.post(email())
            assert sink.arrived.wait(60)
            worker.kill_a_child()
            wait_for(lambda: len(sink.accepted) == 1)
            never.set()
            worker.stop()
        wait_for(lambda: len(sink.received) == 2)
        assert len({each.webhook_id for each in sink.received}) == 1


def test_a_new_secret_is_printed_alone_and_its_public_key_beside(run: Run) -> None:
    shared, private = run("new-secret"), run("new-secret", "--private")
    assert check_secret(shared.stdout.strip()).startswith("whsec_")
    assert shared.stderr == ""
    assert private.stderr.split()[0] == public_keys([private.stdout.strip()])[0]


SUPERVISOR = """
import sys
from orchestrator import worker
from orchestrator.config.settings import SettingsError, load_settings

worker.LOOK_EVERY_S = 0.05
try:
    worker.supervise(load_settings(redis_url="redis://127.0.0.1:1/0"))
except SettingsError as error:
    sys.exit(str(error))
"""


def test_a_process_that_cannot_start_ends_the_worker_and_is_not_started_for_ever(tmp_path: Path) -> None:
    """DATA_DIR is lost between the check and the start of the processes."""
    (tmp_path / "data").write_text("in the way")
    ended = programs_loaded.run([sys.executable, "-c", SUPERVISOR], tmp_path, clean_environment())
    assert ended.returncode == 1
    assert ended.stdout.count("this process cannot start") == 1
    assert "the worker cannot start; the lines above say why" in ended.stdout
