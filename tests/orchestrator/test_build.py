"""What is built from which settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.build import check_start
from orchestrator.config.model import load_config
from orchestrator.config.settings import Settings, load_settings

TOKENS = {"ingress_token": "ingress-token-of-tests", "admin_token": "admin-token-of-tests"}


def check(settings: Settings) -> None:
    check_start(settings, load_config(settings))


def test_a_redis_that_is_away_does_not_stop_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    check(load_settings(data_dir=tmp_path, redis_url="redis://127.0.0.1:1/0", **TOKENS))
    assert "REDIS_URL" in caplog.text
