"""A destination that is down fills what may be stored, stage by stage, and harms nobody else."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, Server, email
from tests.support.sink import Reply, Sink

pytestmark = pytest.mark.real_redis
Eventually = Callable[[Callable[[], bool]], None]

DOWN = Reply(503)
CONFIG = """
[destinations.crm]
url = "{crm}"
breaker_failures = 3
breaker_pause_s = 1

[destinations.news]
url = "{news}"

[[routes]]
name = "news"
match = [{{ field = "subject", contains = "news" }}]
destinations = ["news"]

[[routes]]
name = "others"
destinations = ["crm"]
"""


def large(number: int, subject: str = "order") -> dict[str, Any]:
    """40 KB that cannot be compressed much."""
    return email(subject=f"{subject} {number}", body=base64.b64encode(os.urandom(40_000)).decode())


@pytest.fixture
def small_redis() -> Iterator[RedisServer]:
    server = RedisServer("--maxmemory", "20mb", "--maxmemory-policy", "noeviction")
    try:
        yield server.start()
    finally:
        server.stop()


def storage(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.health()["checks"]["storage"]
    return found


def replay_what_waits(server: Server) -> None:
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    url = f"{server.url}/api/admin/deliveries/replay"
    requests.post(url, json={"status": "waiting"}, headers=headers, timeout=60).raise_for_status()


def test_one_that_is_down_fills_redis_then_the_disk_then_its_providers_keep_its_emails(
    small_redis: RedisServer, tmp_path: Path, eventually: Eventually
) -> None:
    with Sink(otherwise=DOWN) as crm, Sink() as news:
        config = tmp_path / "mailonce.toml"
        config.write_text(CONFIG.format(crm=crm.url, news=news.url))
        limits = {"PAYLOAD_MB": "0.3", "PAYLOAD_DISK_MB": "0.8", "DISK_FREE_MB": "1"}
        with Server(tmp_path / "data", REDIS_URL=small_redis.url, MAILONCE_CONFIG=str(config), **limits) as server:
            stages = [storage(server)["stage"]]
            sent: list[dict[str, Any]] = []
            kept_by_provider: list[dict[str, Any]] = []
            for number in range(40):
                payload = large(number)
                told = server.post(payload)
                (sent if told.status_code == 200 else kept_by_provider).append(payload)
                assert told.json()["status"] in ("queued", "retry_later"), told.text
                if (found := storage(server))["stage"] != stages[-1]:
                    stages.append(found["stage"])
                assert found["redis_bytes"] <= found["redis_limit_bytes"]
                assert found["disk_bytes"] <= found["disk_limit_bytes"]
            assert stages == ["redis", "disk", "full"]
            assert server.health()["status"] == "degraded"
            assert sent and kept_by_provider

            assert {server.post(each).json()["status"] for each in sent} == {"queued"}, "it knows what it has"
            others = [large(number, "news") for number in range(5)]
            assert [server.post(each).json()["status"] for each in others] == ["processed"] * 5
            assert [server.post(each).json()["status"] for each in others] == ["already_processed"] * 5

            crm.otherwise = Reply()
            replay_what_waits(server)
            eventually(lambda: len(crm.accepted) == len(sent))
            eventually(lambda: storage(server)["stage"] == "redis")
            eventually(lambda: storage(server)["redis_bytes"] == storage(server)["disk_bytes"] == 0)
            assert {server.post(each).json()["status"] for each in kept_by_provider} == {"processed"}
            expected = {each["subject"] for each in (*sent, *kept_by_provider)}
            assert {each.payload["subject"] for each in crm.accepted} == expected
            assert set(crm.counts().values()) == set(news.counts().values()) == {1}
            assert small_redis.client.info("stats")["evicted_keys"] == 0
        lines = server.log.read_text().splitlines()
        for said in ("payloads go to this machine's disk", "no room for payloads", "payloads go to Redis again"):
            assert sum(said in line for line in lines) >= 1, said
        entered = [line for line in lines if "go to this machine's disk" in line]
        assert len(entered) <= 2, "once when it is entered, and once on the way back"


def test_what_lies_on_this_disk_is_delivered_by_the_next_start(
    small_redis: RedisServer, tmp_path: Path, eventually: Eventually
) -> None:
    with Sink(otherwise=DOWN) as crm, Sink() as news:
        config = tmp_path / "mailonce.toml"
        config.write_text(CONFIG.format(crm=crm.url, news=news.url))
        settings = {"REDIS_URL": small_redis.url, "MAILONCE_CONFIG": str(config), "PAYLOAD_MB": "0.1"}
        with Server(tmp_path / "data", **settings) as server:
            sent = [large(number) for number in range(6)]
            assert {server.post(each).json()["status"] for each in sent} == {"queued"}
            assert storage(server)["stage"] == "disk"
            server.kill()
            crm.otherwise = Reply()
            server.start()
            eventually(lambda: server.health()["checks"]["redis"]["status"] == "up")
            replay_what_waits(server)
            eventually(lambda: len(crm.accepted) == len(sent))
            assert set(crm.counts().values()) == {1}


def test_where_there_is_no_redis_the_disk_is_the_only_stage(tmp_path: Path) -> None:
    with Sink(otherwise=DOWN) as crm, Sink() as news:
        config = tmp_path / "mailonce.toml"
        config.write_text(CONFIG.format(crm=crm.url, news=news.url))
        with Server(tmp_path / "data", MAILONCE_CONFIG=str(config), PAYLOAD_DISK_MB="0.3") as server:
            assert (storage(server)["stage"], server.health()["status"]) == ("disk", "ok")
            told = [server.post(large(number)).json()["status"] for number in range(10)]
            assert told == sorted(told), "first all are taken, then none"
            assert set(told) == {"queued", "retry_later"}
            assert (storage(server)["stage"], server.health()["status"]) == ("full", "degraded")
            assert server.post(large(1, "news")).json()["status"] == "processed"


@pytest.mark.timeout(300)
def test_a_large_email_over_a_slow_line_is_delivered_by_its_stored_attempt(
    small_redis: RedisServer, tmp_path: Path, eventually: Eventually
) -> None:
    """It takes longer than its provider waits, and than a destination's timeouts."""
    small_redis.client.config_set("maxmemory", 0)
    with Sink() as crm, Proxy(int(crm.url.split(":")[2].split("/")[0])) as line:
        line.bytes_per_s = 1_500_000
        url = line.url.replace("redis:", "http:")
        settings = {"REDIS_URL": small_redis.url, "WEBHOOK_URL": url, "LEASE_SECONDS": "3"}
        with Server(tmp_path / "data", **settings) as server:
            body = base64.b64encode(os.urandom(12_000_000)).decode()
            assert server.post(email(body=body)).json()["status"] == "queued"
            (key,) = small_redis.client.keys("payload:*")
            assert small_redis.client.strlen(key) == storage(server)["redis_bytes"] > 10_000_000
            eventually(lambda: len(crm.accepted) == 1)
            eventually(lambda: storage(server)["redis_bytes"] == 0)
            assert crm.accepted[0].payload["body"] == body
