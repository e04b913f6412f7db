"""Alarms as an operator gets them: from a real server with two processes, as signed webhooks, once each."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from tests.support.redis_server import RedisServer
from tests.support.server import Server
from tests.support.sink import Reply, Sink
from tests.support.waiting import wait_for
from tests.support.worker import WorkerProcess

SECRET = f"whsec_{base64.b64encode(b'k' * 24).decode()}"


@pytest.mark.real_redis
def test_the_begin_and_the_end_of_an_alarm_are_sent_once_and_signed(tmp_path: Path, redis_server: RedisServer) -> None:
    with Sink(Reply(500)) as ops, Sink() as crm:
        config = tmp_path / "mailonce.toml"
        config.write_text(
            f'[alerts]\nurl = "{ops.url}"\nsecret = "{SECRET}"\nafter_s = 0\n[destinations.crm]\nurl = "{crm.url}"\n'
        )
        addresses = {
            "REDIS_URL": redis_server.url,
            "QUEUE_URL": redis_server.url,
            "MAILONCE_CONFIG": str(config),
        }
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
