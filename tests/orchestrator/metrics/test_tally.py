from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from orchestrator.metrics import tally
from orchestrator.metrics.tally import BEAT, Slot, open_tally, read_slots, sum_slots
from tests.support.surroundings import clean_environment

COUNT_AND_WAIT = """
import sys, time
from pathlib import Path
from orchestrator.metrics.tally import Slot
slot = Slot(Path(sys.argv[1]), "web")
for _ in range(1000):
    slot.tally.add("emails|gmail|processed")
print(slot.path.name, flush=True)
time.sleep(600)
"""


def counting_process(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """It has counted to 1000, in the slot of that name."""
    process = subprocess.Popen(
        [sys.executable, "-c", COUNT_AND_WAIT, str(folder)], env=clean_environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_what_was_counted_survives_kill_9_and_the_next_process_goes_on(tmp_path: Path) -> None:
    for started in (1, 2):
        process, slot = counting_process(tmp_path)
        kill(process)
        assert slot == "web-0.db"
        assert sum_slots(tmp_path) == {"emails|gmail|processed": 1000 * started}
    assert [path.name for path in tmp_path.iterdir()] == ["web-0.db"], "restarts add no files"


def test_processes_that_live_at_the_same_time_have_files_of_their_own(tmp_path: Path) -> None:
    processes = [counting_process(tmp_path) for _ in range(2)]
    try:
        assert sorted(slot for _, slot in processes) == ["web-0.db", "web-1.db"]
        assert sum_slots(tmp_path) == {"emails|gmail|processed": 2000}, "also while they run"
    finally:
        for process, _ in processes:
            kill(process)


def test_each_kind_of_process_has_slots_of_its_own(tmp_path: Path) -> None:
    slots = [Slot(tmp_path, kind) for kind in ("web", "worker", "web")]
    assert [slot.path.stem for slot in slots] == ["web-0", "worker-0", "web-1"]
    slots[0].close()
    again = Slot(tmp_path, "web")
    assert again.path.stem == "web-0"
    for slot in (again, *slots[1:]):
        slot.close()


def test_threads_count_together(tmp_path: Path) -> None:
    slot = Slot(tmp_path, "web")

    def count() -> None:
        for _ in range(5000):
            slot.tally.add("n")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum_slots(tmp_path) == {"n": 20_000}
    slot.close()


def test_the_files_are_for_this_user_alone_whoever_made_them(tmp_path: Path) -> None:
    (tmp_path / "web-0.db").touch(mode=0o644)
    slots = [Slot(tmp_path, "web"), Slot(tmp_path, "web")]
    assert [stat.S_IMODE(slot.path.stat().st_mode) for slot in slots] == [0o600, 0o600]
    for slot in slots:
        slot.close()


def test_a_damaged_file_begins_anew_and_takes_no_other_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sound, other = Slot(tmp_path, "worker"), Slot(tmp_path, "web")
    sound.tally.add("n", 3)
    other.close()
    (tmp_path / "web-0.db").write_bytes(b"\x00\x10\x00\x00\x00\x00\x00\x00\xff\xff\xff\x7f")
    assert sum_slots(tmp_path) == {"n": 3}
    slot = Slot(tmp_path, "web")
    slot.tally.add("n")
    assert "begin anew" in caplog.text
    assert sum_slots(tmp_path) == {"n": 4}
    slot.close()
    sound.close()


def test_a_beat_is_no_number_to_be_summed(tmp_path: Path) -> None:
    slots = [Slot(tmp_path, "worker") for _ in range(2)]
    for slot in slots:
        slot.tally.put(BEAT, 1_000.0)
        slot.tally.add("n")
    assert sum_slots(tmp_path) == {"n": 2}
    assert [numbers[BEAT] for numbers in read_slots(tmp_path).values()] == [1_000.0, 1_000.0]
    for slot in slots:
        slot.close()


def test_what_is_counted_after_the_end_is_no_error(tmp_path: Path) -> None:
    slot = Slot(tmp_path, "web")
    slot.close()
    slot.tally.add("n")
    assert sum_slots(tmp_path) == {}


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    assert open_tally(tmp_path / "file", "web") is None
    assert "each process counts alone" in caplog.text


def test_slots_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MOST_SLOTS", 1)
    slot = Slot(tmp_path, "web")
    assert open_tally(tmp_path, "web") is None
    slot.close()
