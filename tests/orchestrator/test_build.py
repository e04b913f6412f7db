"""What is built from which settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.build import check_start
from orchestrator.config.model import load_config
from orchestrator.config.settings import Settings, SettingsError, load_settings
from tests.support.redis_server import RedisServer

TOKENS = {"ingress_token": "ingress-token-of-tests", "admin_token": "admin-token-of-tests"}


def check(settings: Settings) -> None:
    check_start(settings, load_config(settings))


def test_a_redis_that_is_away_does_not_stop_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    check(load_settings(data_dir=tmp_path, redis_url="redis://127.0.0.1:1/0", **TOKENS))
    assert "REDIS_URL" in caplog.text


@pytest.mark.real_redis
def test_a_redis_with_data_of_version_0_2_stops_the_start(redis_server: RedisServer, tmp_path: Path) -> None:
    redis_server.client.set("trial:shared_key", "of 0.2")
    with pytest.raises(SettingsError, match="version 0.2"):
        check(load_settings(data_dir=tmp_path, redis_url=redis_server.url, **TOKENS))
