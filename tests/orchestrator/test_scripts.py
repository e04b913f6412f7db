"""Scripts beside the service work on its journal, wherever they are started."""

from __future__ import annotations

from pathlib import Path

import pytest

from deduplication.content import ContentGate
from deduplication.journal.failover import FailoverJournal
from orchestrator.config.settings import SettingsError
from orchestrator.scripts import new_token, open_journal
from tests.support.redis_server import RedisServer
from tests.support.server import Server


@pytest.fixture
def service(tmp_path: Path) -> Path:
    """The folder of a service that has run. It only printed its webhooks."""
    folder = tmp_path / "service"
    folder.mkdir()
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder


def has_run(folder: Path) -> None:
    server = Server(folder / "data", HOME=str(folder.parent))
    server.folder = folder
    with server:
        pass


def mark_and_ask(text: str) -> bool:
    """Whether it was there before."""
    journal = open_journal()
    gate = ContentGate(journal, new_token)
    was_there = gate.is_duplicate("telegram", text)
    gate.mark_as_forwarded("telegram", text)
    journal.close()
    return was_there


def test_from_another_folder_a_script_is_on_the_store_of_the_service(
    service: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (service / "own.toml").write_text("")
    (service / ".env").write_text("MAILONCE_CONFIG=own.toml\n")
    has_run(service)
    assert not mark_and_ask("Hello from elsewhere")
    assert list(elsewhere.iterdir()) == []
    assert (service / "data/journal.db").exists()
    monkeypatch.chdir(service)
    assert mark_and_ask("Hello from elsewhere")


def test_where_no_service_has_run_a_script_has_a_store_of_its_own(elsewhere: Path) -> None:
    assert not mark_and_ask("Hello")
    assert mark_and_ask("Hello")
    assert (elsewhere / "data/journal.db").exists()


def test_a_script_is_on_the_redis_of_the_service_and_on_no_other(
    service: Path, elsewhere: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (service / ".env").write_text(f"REDIS_URL={redis_server.url}\n")
    has_run(service)
    journal = open_journal()
    assert isinstance(journal, FailoverJournal)
    journal.close()
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    with pytest.raises(SettingsError, match="REDIS_URL and KEY_PREFIX take what the service in"):
        open_journal()
    assert list(elsewhere.iterdir()) == []


def test_a_service_that_cannot_be_read_is_not_taken_for_none(elsewhere: Path) -> None:
    (elsewhere / "data").mkdir()
    (elsewhere / "data/service.json").write_text("{")
    with pytest.raises(SettingsError, match="service.json cannot be read"):
        open_journal()
    assert not (elsewhere / "data/journal.db").exists()
