"""A program that was not loaded anew sees what it was started with, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.programs_loaded import MAILONCE, Forked, start
from tests.support.surroundings import clean_environment

# Where the locale is C, Python sets LC_CTYPE for itself.
TELL = "import os, sys; print(sorted({*os.environ} - {'LC_CTYPE'}), os.getcwd(), sys.argv); sys.exit(3)"


def test_it_has_the_variables_the_folder_the_words_and_the_end_that_it_should_have(tmp_path: Path) -> None:
    log = tmp_path / "log"
    env = clean_environment(SOME_SETTING="x")
    process = start([sys.executable, "-c", TELL, "serve"], tmp_path, env, log)
    assert isinstance(process, Forked)
    assert process.wait(timeout=60) == 3
    loaded_anew = subprocess.run([sys.executable, "-c", TELL, "serve"], cwd=tmp_path, env=env, capture_output=True)
    assert log.read_bytes() == loaded_anew.stdout


def test_the_command_is_the_command(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert start([MAILONCE, "no-such-command"], tmp_path, clean_environment(), log).wait(timeout=60) == 2
    assert "No such command 'no-such-command'" in log.read_text()


def test_two_that_are_started_at_once_draw_other_numbers(tmp_path: Path) -> None:
    code = "import random, uuid; print(random.random(), uuid.uuid4())"
    processes = [
        start([sys.executable, "-c", code], tmp_path, clean_environment(), tmp_path / f"log{number}")
        for number in range(2)
    ]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    drawn = {word for number in range(2) for word in (tmp_path / f"log{number}").read_text().split()}
    assert len(drawn) == 4


def test_it_is_ended_and_awaited_like_any_process(tmp_path: Path) -> None:
    asleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    process = start(asleep, tmp_path, clean_environment(), tmp_path / "log")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.05)
    process.terminate()
    assert process.wait(timeout=60) == -signal.SIGTERM
    assert not psutil.pid_exists(process.pid)
    other = start(asleep, tmp_path, clean_environment(), tmp_path / "log")
    os.kill(other.pid, signal.SIGKILL)
    assert other.wait(timeout=60) == -signal.SIGKILL


def test_what_python_reads_while_it_starts_is_read_anew(tmp_path: Path) -> None:
    env = clean_environment(PYTHONDONTWRITEBYTECODE="1")
    code = "import sys; assert sys.dont_write_bytecode"
    process = start([sys.executable, "-c", code], tmp_path, env, tmp_path / "log")
    assert isinstance(process, subprocess.Popen)
    assert process.wait(timeout=60) == 0
