"""Scripts use the journal and the Redis of the service in DATA_DIR."""

import time
from pathlib import Path

import pytest

from deduplication.content import ContentGate
from deduplication.errors import StoreUnavailable
from deduplication.locks import PublicationLocks
from deduplication.reservations import Reservations, Reserved, Skipped
from orchestrator.config.settings import SettingsError
from orchestrator.data_dir import NoService
from orchestrator.scripts import open_coordinator
from tests.support.redis_server import RedisServer
from tests.support.server import Server


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a service, in which scripts are started."""
    folder = tmp_path / "service"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def run_service(folder: Path) -> None:
    """It only printed its webhooks."""
    server = Server(folder / "data")
    server.folder = folder
    with server:
        pass


def mark_and_ask(text: str) -> bool:
    """Whether it was there before."""
    coordinator = open_coordinator()
    gate = ContentGate(coordinator)
    was_there = gate.is_duplicate("telegram", text)
    gate.mark_as_forwarded("telegram", text)
    coordinator.close()
    return was_there


def test_a_script_uses_the_journal_of_the_service_in_its_folder(service: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_service(service)
    assert not mark_and_ask("Hello")
    monkeypatch.chdir(service.parent)
    monkeypatch.setenv("DATA_DIR", str(service / "data"))
    assert mark_and_ask("Hello")


@pytest.mark.parametrize(
    "settings", [{}, {"DATA_DIR": "elsewhere"}, {"DATA_DIR": "elsewhere", "REDIS_URL": "redis://x"}]
)
def test_scripts_need_a_service(service: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(NoService, match=str(service / settings.get("DATA_DIR", "data"))):
        open_coordinator()
    assert list(service.iterdir()) == []


def test_a_script_uses_redis_too(service: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    (service / ".env").write_text(f"REDIS_URL={redis_server.url}\n")
    run_service(service)
    coordinator = open_coordinator()
    assert coordinator.registry and coordinator.redis.status == "up"
    coordinator.close()
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    with pytest.raises(SettingsError, match="REDIS_URL and KEY_PREFIX must be those of the service"):
        open_coordinator()


def test_a_damaged_note_is_not_taken_for_none_and_fields_of_a_newer_version_are_ignored(service: Path) -> None:
    (service / "data").mkdir()
    for written in ("{", "{}", "[]", "null", '"text"', "1"):
        (service / "data/service.json").write_text(written)
        with pytest.raises(SettingsError, match="service.json cannot be read"):
            open_coordinator()
    assert not (service / "data/journal.db").exists()
    (service / "data/service.json").write_text('{"redis": "", "is_trial": false, "colour": "blue"}')
    assert not mark_and_ask("Hello")


def test_scripts_without_a_folder(service: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", redis_server.url)
    monkeypatch.setenv("REDIS_TIMEOUT_MS", "500")
    one, other = open_coordinator(), open_coordinator()
    while one.registry and one.registry.probe().closed_ms:  # a new era grants nothing for 2 x 0.5 + 2 s
        time.sleep(0.1)
    reservations = [Reservations(coordinator, lease_ms=60_000) for coordinator in (one, other)]
    mine = reservations[0].reserve("p1", ["https://a.example/1"])
    assert isinstance(mine, Reserved) and isinstance(reservations[1].reserve("p1"), Skipped)
    assert reservations[0].published(mine)
    assert [own.state_of("p1") for own in reservations] == ["0", "0"]
    redis_server.client.flushall()
    assert [own.state_of("p1") for own in reservations] == [None, None], "nothing is remembered here"
    with pytest.raises(StoreUnavailable):  # an emptied Redis grants nothing for a while
        PublicationLocks(one, "a").acquire_lock("e1", "crm")
    assert redis_server.client.hgetall("members") == {} and list(service.iterdir()) == []
    one.close()
    other.close()
