"""Files of DATA_DIR are readable by their owner only, and on a local disk."""

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from deduplication import files
from deduplication.errors import StoreMisconfigured
from deduplication.journal.sqlite import Journal
from orchestrator.audit import audit, keep_audit
from orchestrator.build import build
from orchestrator.config.settings import load_settings
from orchestrator.data_dir import ensure_tokens


@pytest.fixture(autouse=True)
def lax_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


SETTINGS = {
    "a trial": {},
    "a destination": {"webhook_url": "http://127.0.0.1:1/"},
    "redis": {"redis_url": "redis://127.0.0.1:1/0"},
}


@pytest.mark.parametrize("given", SETTINGS.values(), ids=SETTINGS)
def test_the_data_folder_and_its_files_are_for_their_owner_only(tmp_path: Path, given: dict[str, str]) -> None:
    """From the first start on; files that others could read are tightened at the next one."""
    data = tmp_path / "data"
    settings = load_settings(data_dir=data, **given)
    for _ in range(2):
        service, handler = build(settings), keep_audit(data, "test")
        ensure_tokens(settings)
        found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
        service.close()
        audit.removeHandler(handler)
        handler.close()
        journal = "journal.db" if "webhook_url" in given else "trial.db"
        expected = {"ingress_token", "admin_token", "service.json", "audit.log", journal, f"{journal}-wal"}
        assert expected <= found.keys()
        assert {name: mode for name, mode in found.items() if mode != 0o600} == {"data": 0o700}
        for path in data.iterdir():
            path.chmod(0o644)


MOUNTS = """\
/dev/vda1 / ext4 rw 0 0
server:/export {folder} {kind} rw 0 0
tmpfs {folder}/local tmpfs rw 0 0
"""


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "9p", "ext4"])
def test_a_journal_on_a_network_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    mounts = tmp_path / "mounts"
    monkeypatch.setattr(files, "MOUNTS", mounts)
    data, local = tmp_path / "data", tmp_path / "data" / "local"
    local.mkdir(parents=True)
    mounts.write_text(MOUNTS.format(folder=data, kind=kind))
    Journal(local / "journal.db").close()
    if kind == "ext4":
        Journal(data / "journal.db").close()
        return
    with pytest.raises(StoreMisconfigured, match=f"DATA_DIR must be on a disk of this machine, not on {kind}"):
        Journal(data / "journal.db")
    assert not (data / "journal.db").exists()


def test_data_of_version_0_2_is_refused(tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / "journal.db")
    old.execute("CREATE TABLE entries (id TEXT)")
    old.close()
    with pytest.raises(StoreMisconfigured, match="another version of Mailonce; set DATA_DIR to a new folder"):
        Journal(tmp_path / "journal.db")
