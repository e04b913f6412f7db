"""``mailonce worker`` as users run it, in processes of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil

from tests.support import programs_loaded
from tests.support.programs_loaded import MAILONCE
from tests.support.server import PATIENT_MS
from tests.support.surroundings import clean_environment


class WorkerProcess:
    def __init__(self, data_dir: Path, **settings: str) -> None:
        data_dir.mkdir(parents=True, exist_ok=True)
        self.log = data_dir / "worker.log"
        self._data_dir = data_dir
        self._env = clean_environment(DATA_DIR=str(data_dir), REDIS_TIMEOUT_MS=PATIENT_MS) | settings
        self.process: subprocess.Popen[bytes] | programs_loaded.Forked | None = None

    def __enter__(self) -> WorkerProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> WorkerProcess:
        self.process = programs_loaded.start([MAILONCE, "worker"], self._data_dir, self._env, self.log)
        self.wait_for_children()
        return self

    def stop(self) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait(timeout=60)
            self.process = None

    def children(self) -> list[int]:
        """The processes that deliver; the other one is Python's own helper for spawning."""
        assert self.process is not None
        found = psutil.Process(self.process.pid).children()
        return [child.pid for child in found if "spawn_main" in " ".join(child.cmdline())]

    def kill_a_child(self) -> None:
        os.kill(self.children()[0], signal.SIGKILL)

    def wait_for_children(self, within_s: float = 90) -> None:
        deadline = time.monotonic() + within_s
        while not self.children():
            assert self.process is not None
            ended = self.process.poll() is not None
            assert not ended and time.monotonic() < deadline, f"the worker did not start:\n{self.log.read_text()}"
            time.sleep(0.05)
