"""What the processes of a machine wrote down for each other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deduplication.errors import StoreUnavailable
from deduplication.journal.spool import PIECE_BYTES, ROTATE_AT_BYTES, Spool, read_spools, remove_drained


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path)


def read(folder: Path, positions: dict[str, int]) -> list[object]:
    """The values of all lines beyond the positions, which move along."""
    values = []
    for piece in read_spools(folder, positions):
        values += [line.value for line in piece.lines]
        positions[piece.file] = piece.end
    return values


def nothing() -> None:
    pass


def test_lines_are_read_in_order_and_once(spool: Spool, tmp_path: Path) -> None:
    positions: dict[str, int] = {}
    spool.append("settled", 1)
    spool.append("settled", 2)
    assert read(tmp_path, positions) == [1, 2]
    spool.append("settled", 3)
    assert read(tmp_path, positions) == [3]
    assert read(tmp_path, positions) == []


def test_several_lines_are_one_write_and_what_was_confirmed_goes_with_the_first(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = os.write, []

    def counting(fd: int, data: bytes) -> int:
        written.append(data)
        return write(fd, data)

    monkeypatch.setattr(os, "write", counting)
    spool.confirm("e0")
    spool.append("granted", 1, 2, 3)
    ((lines,), count) = [piece.lines for piece in read_spools(tmp_path, {})], len(written)
    assert [(line.value, list(line.told)) for line in lines] == [(1, ["e0"]), (2, []), (3, [])]
    assert count == 1


def test_a_line_that_a_full_disk_cut_off_spoils_no_other(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, positions = os.write, dict[str, int]()
    spool.append("settled", 1)
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda fd, data: write(fd, data[:10]))
        with pytest.raises(StoreUnavailable, match="no space left"):
            spool.append("settled", 2)
    spool.append("settled", 3)
    assert sorted(read(tmp_path, positions), key=repr) == [1, 3]
    assert len(remove_drained(tmp_path, positions, nothing)) == 1, "the file with the cut off line is over"
    spool.append("settled", 4)
    assert read(tmp_path, positions) == [4]


def test_a_file_with_lines_that_nobody_has_read_is_kept(spool: Spool, tmp_path: Path) -> None:
    positions: dict[str, int] = {}
    spool.append("settled", 1)
    read(tmp_path, positions)
    spool.append("settled", 2)
    spool.close()
    assert remove_drained(tmp_path, positions, nothing) == []
    assert read(tmp_path, positions) == [2]
    assert len(remove_drained(tmp_path, positions, nothing)) == 1


def test_before_a_file_goes_what_it_held_is_kept_for_sure(spool: Spool, tmp_path: Path) -> None:
    positions: dict[str, int] = {}
    spool.append("stored", 1)
    read(tmp_path, positions)
    there: list[int] = []

    def fail() -> None:
        there.append(len(list(tmp_path.glob("*.spool"))))
        raise StoreUnavailable("this disk: full")

    assert remove_drained(tmp_path, positions, fail) == [], "somebody still writes to it"
    spool.close()
    with pytest.raises(StoreUnavailable):
        remove_drained(tmp_path, positions, fail)
    assert there == [1] and len(list(tmp_path.glob("*.spool"))) == 1


def test_one_fsync_is_for_all_lines_appended_by_then(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []

    def fsync(fd: int) -> None:
        """While the first is at it, another thread appends, and comes for its own."""
        synced.append(fd)
        if len(synced) == 1:
            spool.append("stored", 2)

    file = spool.append("stored", 1)
    monkeypatch.setattr(os, "fsync", fsync)
    file.sync()
    assert len(synced) == 2 and len(set(synced)) == 2, "the file, and once the folder that it is in"
    file.sync()
    assert len(synced) == 3, "what was appended during the first fsync may not be in it"
    file.sync()
    assert len(synced) == 3, "nothing was appended since"


def test_a_line_that_cannot_be_synced_does_not_count(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_fd: int) -> None:
        raise OSError("no space left on device")

    file = spool.append("stored", 1)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="cannot be written"):
                file.sync()
    file.sync()


def test_who_waits_for_a_line_waits_for_the_file_that_it_is_in(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another thread may have gone on to the next file meanwhile."""
    synced, fsync = list[int](), os.fsync

    def inode(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", inode)
    file = spool.append("stored", "x" * ROTATE_AT_BYTES)
    (first,) = tmp_path.glob("*.spool")
    assert spool.append("stored", 2) is not file
    file.sync()
    assert first.stat().st_ino in synced


def test_of_many_lines_a_piece_is_held_at_a_time(spool: Spool, tmp_path: Path) -> None:
    written = [f"{number} {'é' * 1000}" for number in range(300)]
    for value in written:
        spool.append("settled", value)
    pieces = list(read_spools(tmp_path, {}))
    assert len(pieces) > 5
    assert max(sum(len(str(line.value).encode()) for line in piece.lines) for piece in pieces) < 2 * PIECE_BYTES
    assert [line.value for piece in pieces for line in piece.lines] == written


def test_a_line_longer_than_a_piece_is_read_whole(spool: Spool, tmp_path: Path) -> None:
    spool.append("settled", "x" * 3 * PIECE_BYTES)
    spool.append("settled", "y")
    assert read(tmp_path, {}) == ["x" * 3 * PIECE_BYTES, "y"]


@pytest.mark.parametrize("before", [0, 1, 300])
def test_a_line_that_is_still_being_written_is_left_for_later(spool: Spool, tmp_path: Path, before: int) -> None:
    positions: dict[str, int] = {}
    for number in range(before):
        spool.append("settled", f"{number} {'x' * 1000}")
    (file,) = tmp_path.glob("*.spool")
    with file.open("ab", buffering=0) as half:
        half.write(b'["settled", "la')
        assert len(read(tmp_path, positions)) == before
        half.write(b'st", []]\n')
        assert read(tmp_path, positions) == ["last"]


def test_a_line_that_is_finished_between_two_pieces_is_not_torn(spool: Spool, tmp_path: Path) -> None:
    spool.append("settled", "first")
    (file,) = tmp_path.glob("*.spool")
    with file.open("ab", buffering=0) as half:
        half.write(b'["settled", "la')
        values = []
        for piece in read_spools(tmp_path, {}):
            values += [line.value for line in piece.lines]
            if values == ["first"]:
                half.write(b'st", []]\n')
    assert values == ["first", "last"]
