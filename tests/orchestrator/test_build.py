"""What is built from which settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.build import build, check_start
from orchestrator.config.model import load_config
from orchestrator.config.settings import Settings, SettingsError, load_settings
from tests.support.redis_server import RedisServer

TOKENS = {"ingress_token": "ingress-token-of-tests", "admin_token": "admin-token-of-tests"}


def check(settings: Settings) -> None:
    check_start(settings, load_config(settings))


def test_without_destinations_the_journal_is_one_that_no_real_delivery_will_meet(tmp_path: Path) -> None:
    build(load_settings(data_dir=tmp_path, **TOKENS)).close()
    assert (tmp_path / "trial.db").exists() and not (tmp_path / "journal.db").exists()
    build(load_settings(data_dir=tmp_path, webhook_url="http://127.0.0.1:1", **TOKENS)).close()
    assert (tmp_path / "journal.db").exists()


def test_a_folder_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="DATA_DIR must be a folder that can be written"):
        build(load_settings(data_dir=tmp_path / "file" / "data", **TOKENS))


@pytest.mark.real_redis
@pytest.mark.parametrize("given", ["redis://:wrong-one@127.0.0.1:{}/0", "redis://127.0.0.1:{}/0"])
def test_a_redis_that_refuses_the_password_stops_the_start_without_showing_it(tmp_path: Path, given: str) -> None:
    server = RedisServer("--requirepass", "right").start()
    try:
        with pytest.raises(SettingsError, match="REDIS_URL must be a Redis that Mailonce can use") as raised:
            check(load_settings(data_dir=tmp_path, redis_url=given.format(server.port), **TOKENS))
        assert "wrong-one" not in str(raised.value)
    finally:
        server.stop()


def test_a_redis_that_is_away_does_not_stop_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    check(load_settings(data_dir=tmp_path, redis_url="redis://127.0.0.1:1/0", **TOKENS))
    assert "REDIS_URL" in caplog.text
