"""One side for all processes of a machine, and a process that is stopped while it holds the lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deduplication.errors import StoreUnavailable
from deduplication.journal import side
from deduplication.journal.side import MachineSide, Side

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux tells who holds a lock")

HOLDER = """
import os, signal, sys
from pathlib import Path
from deduplication.journal.side import MachineSide
with getattr(MachineSide(Path(sys.argv[1])), sys.argv[2])():
    print("inside", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(folder: Path, how: str, *, is_stopped: bool) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER, str(folder), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "inside\n"
        if is_stopped:
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side, "LOCK_PATIENCE_S", 0.2)


def test_one_that_is_stopped_in_a_claim_does_not_keep_its_machine_from_changing_sides(tmp_path: Path) -> None:
    machine = MachineSide(tmp_path)
    with holder(tmp_path, "shared", is_stopped=True) as stopped:
        with machine.alone():
            machine.change_to(Side.REDIS)
        assert stopped.wait() == -signal.SIGKILL
    assert machine.read().side is Side.REDIS


def test_one_that_is_stopped_while_it_changes_sides_does_not_keep_the_others_from_claiming(tmp_path: Path) -> None:
    with holder(tmp_path, "alone", is_stopped=True) as stopped:
        with MachineSide(tmp_path).shared() as standing:
            assert standing.side is Side.LOCAL
        assert stopped.wait() == -signal.SIGKILL


def test_one_that_only_takes_its_time_is_left_alone(tmp_path: Path) -> None:
    with holder(tmp_path, "shared", is_stopped=False) as slow:
        with pytest.raises(StoreUnavailable), MachineSide(tmp_path).alone():
            pass
        assert slow.poll() is None


def test_one_that_is_stopped_without_the_lock_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with holder(other, "shared", is_stopped=True) as stopped, holder(tmp_path, "shared", is_stopped=False):
        with pytest.raises(StoreUnavailable), MachineSide(tmp_path).alone():
            pass
        assert stopped.poll() is None
