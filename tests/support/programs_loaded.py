"""Starts our programs without importing their modules each time, which was a sixth of the time of all tests.

The fork server of multiprocessing has imported everything, and forks a process for each program. Tests of how a program
is loaded start the command itself, and so do make faults and make bench.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.surroundings import clean_environment

MAILONCE = str(Path(sys.executable).with_name("mailonce"))
is_used = False
_CONTEXT = multiprocessing.get_context("forkserver")
# All but the settings of gunicorn, which read the environment while they are loaded.
_CONTEXT.set_forkserver_preload([__name__, "routes.command_line", "routes.app"])


def start(command: list[str], folder: Path, env: dict[str, str], log: Path) -> subprocess.Popen[bytes] | Forked:
    """``command`` is mailonce or python -c, with arguments. Its output is appended to ``log``."""
    if is_used and _read_by_python(env) == _read_by_python(clean_environment()):
        return Forked(command, folder, env, log)
    with log.open("ab") as output:
        return subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT)


def run(command: list[str], folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Waits for its end. As subprocess.run, but for the output: errors are in stdout too."""
    with tempfile.NamedTemporaryFile("r+") as output:
        code = start(command, folder, env, Path(output.name)).wait(timeout=120)
        return subprocess.CompletedProcess(command, code, output.read(), "")


def run_at_once(count: int, function: Callable[..., Any], *given: object) -> list[Any]:
    """What the function returns in so many processes. Its last argument is a barrier that lets them begin at once."""
    with _CONTEXT.Manager() as manager, ProcessPoolExecutor(count, _CONTEXT) as processes:
        barrier = manager.Barrier(count)
        running = [processes.submit(function, *given, barrier) for _ in range(count)]
        return [each.result(timeout=120) for each in running]


def _read_by_python(env: dict[str, str]) -> dict[str, str]:
    """What the fork server has read already, so that it cannot be given to its processes."""
    return {name: value for name, value in env.items() if name.startswith("PYTHON")}


class Forked:
    """A forked process, with the methods of subprocess.Popen."""

    def __init__(self, command: list[str], folder: Path, env: dict[str, str], log: Path) -> None:
        self._process = _CONTEXT.Process(target=_become, args=(command, folder, env, log))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("mailonce", timeout or 0)
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()


def _become(command: list[str], folder: Path, env: dict[str, str], log: Path) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    with log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    program, *arguments = command
    if program == MAILONCE:
        from routes.start import main as run_mailonce

        sys.argv = command
        run_mailonce()
    else:
        option, code, *arguments = arguments
        assert option == "-c"
        sys.argv = [option, *arguments]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
