"""Which store is built from which settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from deduplication.claims import Claim, Claimed, Kind, Name
from deduplication.stores.failover import FailoverStore
from deduplication.stores.memory import MemoryStore
from deduplication.stores.sqlite import SqliteStore
from orchestrator.parts import build_store
from orchestrator.settings import SettingsError, load_settings
from orchestrator.wiring import build
from tests.support.redis_server import RedisServer

TOKENS = {"ingress_token": ("x" * 20,), "admin_token": ("y" * 20,)}
CLAIM = Claim("e1", (Name(Kind.EMAIL_ID, "2026-11-16", "e1"),), "f", "a", 1000)


def test_without_redis_the_store_is_a_file(tmp_path: Path) -> None:
    store = build_store(load_settings(data_dir=tmp_path))
    assert isinstance(store, SqliteStore)
    store.close()


def test_a_folder_that_cannot_be_written_leaves_memory_behind_redis_and_says_so(
    tmp_path: Path, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    settings = load_settings(data_dir=tmp_path / "file" / "data", redis_url=redis_server.url, **TOKENS)
    service = build(settings)
    assert isinstance(service.store, FailoverStore)
    assert isinstance(service.store.local, MemoryStore)
    assert "DATA_DIR cannot be written" in caplog.text
    assert isinstance(service.store.claim(CLAIM), Claimed)
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
            build_store(load_settings(data_dir=tmp_path, redis_url=f"redis://:wrong-one@127.0.0.1:{server.port}/0"))
        assert "wrong-one" not in str(raised.value)
    finally:
        server.stop()


@pytest.mark.real_redis
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_redis_that_asks_for_a_password_says_so(tmp_path: Path, protocol: int) -> None:
    server = RedisServer("--requirepass", "right").start()
    try:
        with pytest.raises(SettingsError, match="REDIS_URL takes a Redis that we can use; redis: it asks for a pass"):
            build_store(load_settings(data_dir=tmp_path, redis_url=f"{server.url}?protocol={protocol}"))
    finally:
        server.stop()


def test_a_redis_that_is_away_does_not_stop_the_start(tmp_path: Path) -> None:
    store = build_store(load_settings(data_dir=tmp_path, redis_url="redis://127.0.0.1:1/0"))
    assert isinstance(store.claim(CLAIM), Claimed)
    store.close()
