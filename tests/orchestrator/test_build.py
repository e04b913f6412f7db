"""Which journal is built from which settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from deduplication.claims import Kind, Name
from deduplication.journal.base import Claim, Claimed
from deduplication.journal.redis import RedisJournal
from deduplication.journal.sqlite import SqliteJournal
from orchestrator.build import build, build_journal
from orchestrator.config.settings import SettingsError, load_settings
from tests.support.redis_server import RedisServer

TOKENS = {"ingress_token": ("x" * 20,), "admin_token": ("y" * 20,)}
CLAIM = Claim("entry", "owner", (Name(Kind.EMAIL_ID, "2026-11-16", "e1"),))


def test_without_redis_the_journal_is_a_file(tmp_path: Path) -> None:
    journal = build_journal(load_settings(data_dir=tmp_path))
    assert isinstance(journal, SqliteJournal)
    journal.close()


def test_with_a_folder_that_cannot_be_written_redis_decides_alone_and_it_says_so(
    tmp_path: Path, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    settings = load_settings(data_dir=tmp_path / "file" / "data", redis_url=redis_server.url, **TOKENS)
    service = build(settings)
    assert isinstance(service.journal, RedisJournal)
    assert "DATA_DIR cannot be written" in caplog.text
    assert isinstance(service.journal.claim(CLAIM), Claimed)
    service.close()


def test_a_folder_that_cannot_be_written_stops_the_start_without_redis(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="DATA_DIR takes a folder"):
        build(load_settings(data_dir=tmp_path / "file" / "data", **TOKENS))


@pytest.mark.real_redis
def test_a_redis_that_does_not_let_us_in_stops_the_start_without_showing_the_password(tmp_path: Path) -> None:
    server = RedisServer("--requirepass", "right").start()
    try:
        with pytest.raises(SettingsError, match="REDIS_URL takes a Redis that we can use") as raised:
            build_journal(load_settings(data_dir=tmp_path, redis_url=f"redis://:wrong-one@127.0.0.1:{server.port}/0"))
        assert "wrong-one" not in str(raised.value)
    finally:
        server.stop()


@pytest.mark.real_redis
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_redis_that_asks_for_a_password_says_so(tmp_path: Path, protocol: int) -> None:
    server = RedisServer("--requirepass", "right").start()
    try:
        with pytest.raises(SettingsError, match="REDIS_URL takes a Redis that we can use; redis: it asks for a pass"):
            build_journal(load_settings(data_dir=tmp_path, redis_url=f"{server.url}?protocol={protocol}"))
    finally:
        server.stop()


def test_a_redis_that_is_away_does_not_stop_the_start(tmp_path: Path) -> None:
    journal = build_journal(load_settings(data_dir=tmp_path, redis_url="redis://127.0.0.1:1/0"))
    assert isinstance(journal.claim(CLAIM), Claimed)
    journal.close()
