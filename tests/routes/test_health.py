"""/livez, /readyz and /health: what a supervisor and an operator read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.model import load_config
from orchestrator.worker import start_worker
from tests.routes.conftest import StartApp
from tests.support.proxy import Fault, Proxy
from tests.support.redis_server import RedisServer
from tests.support.server import email
from tests.support.sink import Reply, Sink

Eventually = Callable[[Callable[[], bool]], None]


@pytest.fixture
def evicting(redis_server: RedisServer) -> Iterator[RedisServer]:
    """A Redis that forgets the least recently used keys when it is full."""
    before = redis_server.client.config_get("maxmemory-policy")["maxmemory-policy"] or "noeviction"
    redis_server.client.config_set("maxmemory-policy", "allkeys-lru")
    yield redis_server
    redis_server.client.config_set("maxmemory-policy", before)


def test_on_the_embedded_store_all_is_well(start_app: StartApp) -> None:
    http = start_app().http
    for path in ("/livez", "/readyz"):
        answer = http.get(path)
        assert (answer.status_code, answer.get_json()) == (200, {"status": "ok"})
    answer = http.get("/health")
    assert answer.status_code == 200
    report = answer.get_json()
    assert (report["status"], report["warnings"]) == ("ok", [])
    assert report["checks"]["redis"] == {"status": "not configured", "problem": None}
    assert report["checks"]["database"]["status"] == "up"
    memory = report["checks"]["memory"]
    assert (memory["status"], memory["limit_mb"]) == ("up", 100_000)
    assert 1 < memory["rss_mb"] < 100_000


def test_on_redis_all_is_well_and_the_fleet_is_shown(
    start_app: StartApp, redis_server: RedisServer, eventually: Eventually
) -> None:
    app = start_app(redis_url=redis_server.url)
    assert app.http.get("/readyz").status_code == 200
    eventually(lambda: app.service.fleet is not None and len(app.service.fleet.members) == 1)
    eventually(lambda: app.http.get("/health").get_json()["checks"]["fleet"]["status"] == "up")
    app.service.observer.observe()
    answer = app.http.get("/health")
    assert (answer.status_code, answer.get_json()["status"], answer.get_json()["warnings"]) == (200, "ok", [])
    checks = answer.get_json()["checks"]
    assert (checks["redis"]["status"], checks["redis"]["maxmemory_policy"]) == ("up", "noeviction")
    (member,) = checks["fleet"]["members"].values()
    assert member["version"] == metadata.version("mailonce")


@pytest.mark.parametrize(("setting", "status", "ready"), [("closed", "down", 503), ("open", "degraded", 200)])
def test_while_redis_is_gone_the_process_lives_and_is_ready_if_its_journal_may_decide(
    start_app: StartApp, redis_server: RedisServer, eventually: Eventually, setting: str, status: str, ready: int
) -> None:
    with Proxy(redis_server.port) as line:
        app = start_app(redis_url=line.url, on_store_failure=setting, redis_timeout_ms=500)
        eventually(lambda: app.http.get("/health").get_json()["status"] == "ok")
        line.set(Fault.REFUSE)
        eventually(lambda: app.http.get("/health").get_json()["checks"]["redis"].get("state") == "gone")
        assert app.http.get("/livez").status_code == 200
        assert app.http.get("/readyz").status_code == ready
        report = app.http.get("/health").get_json()
        assert (report["status"], report["checks"]["database"]["status"]) == (status, "up")
        assert report["checks"]["redis"]["status"] == "down"
        eventually(lambda: app.http.get("/health").get_json()["checks"]["redis"]["since"] is not None)


def test_a_redis_that_evicts_is_warned_about(
    start_app: StartApp, evicting: RedisServer, eventually: Eventually
) -> None:
    http = start_app(redis_url=evicting.url).http
    eventually(lambda: bool(http.get("/health").get_json()["warnings"]))
    report = http.get("/health").get_json()
    (warning,) = report["warnings"]
    assert "allkeys-lru" in warning and "noeviction" in warning
    assert report["status"] == "ok", "it works for now"


@pytest.mark.parametrize(
    ("peer", "headers", "is_warned"),
    [
        ("192.0.2.7", {"X-Forwarded-For": "203.0.113.9"}, True),
        ("192.0.2.7", {}, False),
        ("10.0.0.1", {"X-Forwarded-For": "203.0.113.9"}, False),
        ("::ffff:10.0.0.1", {"X-Forwarded-For": "203.0.113.9"}, False),
    ],
)
@pytest.mark.parametrize("path", ["/api/ingress/gmail", "/api/admin/stats", "/readyz", "/sign-in"])
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
    assert ["TRUSTED_PROXIES" in each for each in answer.get_json()["warnings"]] == [True] * is_warned
    assert (answer.status_code, peer in answer.text) == (200, False), "whoever may read /health learns no address"
    logged = [each.message for each in caplog.records if "TRUSTED_PROXIES" in each.message]
    assert [peer in each for each in logged] == [True] * is_warned


def test_memory_over_the_limit_is_degraded_but_ready(start_app: StartApp) -> None:
    http = start_app(memory_limit_mb=1).http
    report = http.get("/health").get_json()
    assert report["status"] == "degraded"
    assert report["checks"]["memory"]["status"] == "over the limit"
    assert report["checks"]["database"]["status"] == "up"
    assert http.get("/readyz").status_code == 200


def test_health_needs_no_token_and_changes_nothing(start_app: StartApp) -> None:
    http = start_app().http
    for path in ("/livez", "/readyz", "/health"):
        assert http.get(path).content_type == "application/json"
        assert http.post(path).status_code == 405


def test_it_says_which_version_it_is(start_app: StartApp) -> None:
    assert start_app().http.get("/health").get_json()["version"] == metadata.version("mailonce")


def test_a_destination_that_keeps_failing_is_degraded_but_ready(start_app: StartApp, tmp_path: Path) -> None:
    config = tmp_path / "m.toml"
    with Sink(otherwise=Reply(503)) as sink:
        config.write_text(f'[destinations.crm]\nurl = "{sink.url}?key=s3cr3t"\nbreaker_failures = 1\n')
        app = start_app(mailonce_config=config)
        assert app.http.get("/health").get_json()["status"] == "ok"
        app.post(email())
    answer = app.http.get("/health")
    assert (answer.status_code, answer.get_json()["status"]) == (503, "degraded")
    assert answer.get_json()["checks"]["destinations"]["breakers"] == {"crm": "open"}
    assert "s3cr3t" not in answer.text
    assert app.http.get("/readyz").status_code == 200


def test_a_destination_that_is_disabled_is_so_on_purpose(start_app: StartApp, tmp_path: Path) -> None:
    config = tmp_path / "m.toml"
    with Sink(otherwise=Reply(503)) as sink:
        crm = f'[destinations.crm]\nurl = "{sink.url}"\nbreaker_failures = 1\n'
        config.write_text(crm)
        start_app(mailonce_config=config).post(email())
        config.write_text(f"{crm}enabled = false\n")
        app = start_app(mailonce_config=config)
        app.post(email(subject="another"))
        assert app.http.get("/health").get_json()["status"] == "ok"


def test_a_queue_without_a_worker_is_degraded_until_there_is_one(
    start_app: StartApp, redis_server: RedisServer, sink: Sink, eventually: Eventually
) -> None:
    addresses = {"redis_url": redis_server.url, "queue_url": redis_server.url}
    app = start_app(**addresses, webhook_url=sink.url)

    def queue() -> tuple[str, dict[str, Any]]:
        app.service.observer.observe()
        report = app.http.get("/health").get_json()
        return report["status"], {name: report["checks"]["queue"][name] for name in ("status", "workers")}

    eventually(lambda: queue() == ("degraded", {"status": "no worker", "workers": 0}))
    assert app.http.get("/readyz").status_code == 200
    worker = start_worker(app.service.settings, load_config(app.service.settings))
    eventually(lambda: queue() == ("ok", {"status": "up", "workers": 1}))
    worker.stop()
    eventually(lambda: queue()[0] == "degraded")
