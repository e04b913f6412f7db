"""Programs that tests start, each in a process of its own."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

import pytest


class Process(Protocol):
    pid: int

    def poll(self) -> int | None: ...
    def terminate(self) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


def program(name: str, package: str) -> str:
    """The path of a program. If it is missing, the test fails in CI and is skipped elsewhere."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found:
        return found
    how = f"{name} is not on PATH; apt-get install {package} brings it"
    if os.environ.get("CI"):
        pytest.fail(how)
    pytest.skip(how)


class Program:
    """Started and stopped by ``with``; its output is appended to ``log``."""

    port: int

    def __init__(self, command: Sequence[str], folder: Path, log: Path, env: Mapping[str, str] | None = None) -> None:
        self.command, self.folder, self.log, self.env = command, folder, log, env
        self.process: Process | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *options: str) -> Self:
        """``options`` are for this run only."""
        self.launch(*options)
        self.wait_until_up()
        return self

    def launch(self, *options: str) -> None:
        with self.log.open("ab") as log:
            command = [*self.command, *options]
            self.process = subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=log, stderr=log)

    def ask(self) -> object:
        """Raises an OSError, as requests does too, while it is not up."""
        socket.create_connection(("127.0.0.1", self.port), 5).close()
        return None

    def wait_until_up(self) -> None:
        """Fails with the log if it ends, or takes long."""
        assert self.process is not None
        deadline = time.monotonic() + 90
        while True:
            try:
                self.ask()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"it did not start:\n{self.log.read_text()}") from None
                time.sleep(0.02)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def stop(self) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait(timeout=90)
            self.process = None
