"""/livez, /readyz and /health: what a supervisor and an operator read."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.routes.conftest import StartApp
from tests.support.redis_server import RedisServer, free_port


@pytest.fixture
def evicting(redis_server: RedisServer) -> Iterator[RedisServer]:
    """A Redis that forgets the least recently used keys when it is full."""
    before = redis_server.client.config_get("maxmemory-policy")["maxmemory-policy"] or "noeviction"
    redis_server.client.config_set("maxmemory-policy", "allkeys-lru")
    yield redis_server
    redis_server.client.config_set("maxmemory-policy", before)


def test_on_the_embedded_store_all_is_well(start_app: StartApp) -> None:
    http = start_app(memory_limit_mb=100_000).http
    for path in ("/livez", "/readyz"):
        answer = http.get(path)
        assert (answer.status_code, answer.get_json()) == (200, {"status": "ok"})
    answer = http.get("/health")
    assert answer.status_code == 200
    report = answer.get_json()
    assert (report["status"], report["warnings"]) == ("ok", [])
    assert report["checks"]["redis"] == {"status": "not configured"}
    assert report["checks"]["database"]["status"] == "up"
    memory = report["checks"]["memory"]
    assert (memory["status"], memory["limit_mb"]) == ("up", 100_000)
    assert 1 < memory["rss_mb"] < 100_000


def test_on_redis_all_is_well(start_app: StartApp, redis_server: RedisServer) -> None:
    http = start_app(redis_url=redis_server.url, memory_limit_mb=100_000).http
    assert http.get("/readyz").status_code == 200
    answer = http.get("/health")
    assert (answer.status_code, answer.get_json()["status"]) == (200, "ok")
    assert answer.get_json()["checks"]["redis"]["status"] == "up"
    assert answer.get_json()["warnings"] == []


def test_while_redis_is_down_and_nothing_may_stand_in_for_it_the_process_lives_but_is_not_ready(
    start_app: StartApp,
) -> None:
    http = start_app(redis_url=f"redis://:s3cr3t@127.0.0.1:{free_port()}/0", on_store_failure="closed").http
    assert http.get("/livez").status_code == 200
    assert (http.get("/readyz").status_code, http.get("/readyz").get_json()) == (503, {"status": "down"})
    answer = http.get("/health")
    report = answer.get_json()
    assert (answer.status_code, report["status"]) == (503, "down")
    assert report["checks"]["redis"]["status"] == "down"
    assert "s3cr3t" not in answer.text


def test_while_redis_is_down_and_the_local_store_stands_in_it_is_degraded_but_ready(start_app: StartApp) -> None:
    http = start_app(redis_url=f"redis://127.0.0.1:{free_port()}/0", memory_limit_mb=100_000).http
    assert http.get("/readyz").status_code == 200
    report = http.get("/health").get_json()
    assert report["status"] == "degraded"
    assert (report["checks"]["redis"]["status"], report["checks"]["database"]["status"]) == ("down", "up")


def test_a_redis_that_evicts_is_warned_about_at_the_start_and_in_health(
    start_app: StartApp, evicting: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    http = start_app(redis_url=evicting.url, memory_limit_mb=100_000).http
    assert [r.levelno for r in caplog.records if "allkeys-lru" in r.message] == [logging.WARNING]
    report = http.get("/health").get_json()
    (warning,) = report["warnings"]
    assert "allkeys-lru" in warning
    assert "noeviction" in warning
    assert report["status"] == "ok", "it works for now"


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
