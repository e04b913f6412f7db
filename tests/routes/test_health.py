"""/livez, /readyz and /health: what a supervisor and an operator read; and alarms, as signed webhooks."""

import base64
from importlib import metadata
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from tests.routes.conftest import StartApp
from tests.support.proxy import Fault, Proxy
from tests.support.redis_server import RedisServer
from tests.support.server import Server, WorkerProcess, email
from tests.support.sink import Reply, Sink
from tests.support.waiting import wait_for

SECRET = f"whsec_{base64.b64encode(b'k' * 24).decode()}"


def test_without_redis_all_is_well(start_app: StartApp) -> None:
    http = start_app().http
    for path in ("/livez", "/readyz"):
        answer = http.get(path)
        assert (answer.status_code, answer.content_type) == (200, "application/json")
        assert (answer.get_json(), http.post(path).status_code) == ({"status": "ok"}, 405)
    answer = http.get("/health")
    report, checks = answer.get_json(), answer.get_json()["checks"]
    assert (answer.status_code, report["status"], report["warnings"]) == (200, "ok", [])
    assert report["version"] == metadata.version("mailonce")
    assert checks["redis"] == {"status": "not configured", "problem": None}
    assert (checks["database"]["status"], checks["memory"]["status"]) == ("up", "up")
    assert 1 < checks["memory"]["rss_mb"] < checks["memory"]["limit_mb"] == 100_000


@pytest.mark.parametrize(("setting", "status", "ready"), [("closed", "down", 503), ("open", "degraded", 200)])
def test_while_redis_is_gone_the_process_lives_and_is_ready_if_its_journal_may_decide(
    start_app: StartApp, redis_server: RedisServer, setting: str, status: str, ready: int
) -> None:
    with Proxy(redis_server.port) as line:
        app = start_app(redis_url=line.url, on_store_failure=setting, redis_timeout_ms=500)
        wait_for(lambda: app.http.get("/health").get_json()["status"] == "ok")
        line.set(Fault.REFUSE)
        wait_for(lambda: app.http.get("/health").get_json()["checks"]["redis"].get("state") == "gone")
        assert app.http.get("/livez").status_code == 200
        assert app.http.get("/readyz").status_code == ready
        report = app.http.get("/health").get_json()
        assert (report["status"], report["checks"]["database"]["status"]) == (status, "up")
        assert report["checks"]["redis"]["status"] == "down"
        wait_for(lambda: app.http.get("/health").get_json()["checks"]["redis"]["since"] is not None)


@pytest.mark.parametrize(
    ("path", "peer", "headers", "is_warned"),
    [
        ("/api/ingress/gmail", "192.0.2.7", {"X-Forwarded-For": "203.0.113.9"}, True),
        ("/sign-in", "192.0.2.7", {"X-Forwarded-For": "203.0.113.9"}, True),
        ("/readyz", "192.0.2.7", {"X-Forwarded-For": "203.0.113.9"}, True),
        ("/readyz", "192.0.2.7", {}, False),
        ("/readyz", "10.0.0.1", {"X-Forwarded-For": "203.0.113.9"}, False),
        ("/readyz", "::ffff:10.0.0.1", {"X-Forwarded-For": "203.0.113.9"}, False),
    ],
)
def test_a_proxy_that_is_not_trusted_is_warned_about(
    start_app: StartApp,
    caplog: pytest.LogCaptureFixture,
    path: str,
    peer: str,
    headers: dict[str, str],
    is_warned: bool,
) -> None:
    http = start_app(trusted_proxies="10.0.0.0/8").http
    http.get(path, headers=headers, environ_base={"REMOTE_ADDR": peer})
    answer = http.get("/health")
    assert ["TRUSTED_PROXIES" in warning for warning in answer.get_json()["warnings"]] == [True] * is_warned
    assert (answer.status_code, peer in answer.text) == (200, False), "/health reveals no address"
    logged = [record.message for record in caplog.records if "TRUSTED_PROXIES" in record.message]
    assert [peer in line for line in logged] == [True] * is_warned


def test_a_destination_that_keeps_failing_is_degraded_but_ready(start_app: StartApp) -> None:
    with Sink(otherwise=Reply(503)) as sink:
        toml = f'[destinations.crm]\nurl = "{sink.url}?key=s3cr3t"\nbreaker_failures = 1\n'
        app = start_app(toml=toml)
        app.post(email())
    answer = app.http.get("/health")
    assert (answer.status_code, answer.get_json()["status"]) == (503, "degraded")
    assert answer.get_json()["checks"]["destinations"]["breakers"] == {"crm": "open"}
    assert "s3cr3t" not in answer.text
    assert app.http.get("/readyz").status_code == 200
    again = start_app(toml=f"{toml}enabled = false\n")
    assert again.http.get("/health").get_json()["status"] == "ok", "disabled on purpose"


def test_the_begin_and_the_end_of_an_alarm_are_sent_once_and_signed(tmp_path: Path, redis_server: RedisServer) -> None:
    with Sink(Reply(500)) as ops, Sink() as crm:
        config = tmp_path / "mailonce.toml"
        config.write_text(
            f'[alerts]\nurl = "{ops.url}"\nsecret = "{SECRET}"\nafter_s = 0\n[destinations.crm]\nurl = "{crm.url}"\n'
        )
        addresses = {"REDIS_URL": redis_server.url, "DELIVER_BY": "workers", "MAILONCE_CONFIG": str(config)}
        with Server(tmp_path / "a", WEB_CONCURRENCY="2", **addresses) as server:
            wait_for(lambda: len(ops.accepted) == 1)
            (alarm,) = server.health()["alarms"]
            assert alarm["condition"] == "no_worker"
            with WorkerProcess(tmp_path / "b", **addresses):
                wait_for(lambda: len(ops.accepted) == 2)
                wait_for(lambda: server.health()["alarms"] == [])
        failed, begun, ended = ops.received
        assert failed.webhook_id == begun.webhook_id, "tried again, it is the same"
        for each in (begun, ended):
            payload = Webhook(SECRET).verify(each.body, dict(each.headers))
            assert (payload["type"], payload["data"]["condition"]) == ("mailonce.alert", "no_worker")
        assert begun.payload["data"]["status"] == "begun"
        assert ended.payload["data"]["status"] == "ended"
        assert crm.received == []
