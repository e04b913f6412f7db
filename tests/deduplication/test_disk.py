"""What kind of disk a folder is on."""

from __future__ import annotations

from pathlib import Path

import pytest

from deduplication import disk
from deduplication.errors import StoreMisconfigured
from deduplication.journal.sqlite import Journal

MOUNTS = """\
/dev/vda1 / ext4 rw 0 0
server:/export {folder} {kind} rw 0 0
tmpfs {folder}/local tmpfs rw 0 0
"""


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "9p", "ext4"])
def test_a_journal_on_a_network_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    mounts = tmp_path / "mounts"
    monkeypatch.setattr(disk, "MOUNTS", mounts)
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
    import sqlite3

    old = sqlite3.connect(tmp_path / "journal.db")
    old.execute("CREATE TABLE entries (id TEXT)")
    old.close()
    with pytest.raises(StoreMisconfigured, match="another version of Mailonce; set DATA_DIR to a new folder"):
        Journal(tmp_path / "journal.db")
