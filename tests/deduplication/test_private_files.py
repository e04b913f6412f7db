"""What holds subjects and senders is readable by its owner alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from deduplication.private_files import open_private
from orchestrator.settings import load_settings
from orchestrator.tokens import ensure_tokens
from orchestrator.wiring import build


@pytest.fixture(autouse=True)
def lax_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def test_every_file_of_the_data_folder_is_for_its_owner_only_and_so_is_the_folder(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    settings = load_settings(data_dir=data_dir)
    service = build(settings)
    ensure_tokens(settings)
    found = modes(data_dir)
    service.close()
    names = ("mailonce.db", "deliveries.db", "counters.db")
    assert {"ingress_token", "admin_token", *names, *(f"{name}-wal" for name in names)} <= found.keys()
    assert set(found.values()) == {0o600}
    assert modes(tmp_path) == {"data": 0o700}


def test_files_that_others_could_read_are_tightened_at_the_start(tmp_path: Path) -> None:
    service = build(load_settings(data_dir=tmp_path))
    for path in tmp_path.iterdir():
        path.chmod(0o644)
    beside = build(load_settings(data_dir=tmp_path))
    found = modes(tmp_path)
    beside.close()
    service.close()
    assert set(found.values()) == {0o600}


def test_memory_needs_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_private(Path(":memory:"), 1).close()
    assert modes(tmp_path) == {}
