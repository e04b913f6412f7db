"""``mailonce worker`` as users run it, in processes of its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil

from tests.support.programs_loaded import MAILONCE
from tests.support.server import OurProgram


class WorkerProcess(OurProgram):
    def __init__(self, data_dir: Path, **settings: str) -> None:
        super().__init__([MAILONCE, "worker"], data_dir, "worker.log", settings)

    def ask(self) -> None:
        if not self.children():
            raise OSError("no process delivers yet")

    def children(self) -> list[int]:
        """The processes that deliver; the other one is Python's own helper for spawning."""
        found = psutil.Process(self.pid).children()
        return [child.pid for child in found if "spawn_main" in " ".join(child.cmdline())]

    def kill_a_child(self) -> None:
        os.kill(self.children()[0], signal.SIGKILL)
