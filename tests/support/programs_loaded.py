"""Starts our programs without loading them each time, which was a sixth of the time of all tests.

A process that has loaded everything forks one for each program that is asked for. It ends with whoever started it. A
test of how a program is loaded starts the command itself, and so do make faults and make bench.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support.surroundings import ROOT, clean_environment

MAILONCE = str(Path(sys.executable).with_name("mailonce"))
LOOKS_EVERY_S = 0.01
is_used = False
_loaded: dict[int, _Loaded] = {}


def start(command: list[str], folder: Path, env: dict[str, str], log: Path) -> subprocess.Popen[bytes] | Forked:
    """``command``: mailonce, or python -c, with what follows."""
    if is_used and _ours().can_start(env):
        return _ours().start(command, folder, env, log)
    with log.open("ab") as output:
        return subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT)


class Forked:
    """A process of the one that forks, in the words of subprocess.Popen."""

    def __init__(self, parent: _Loaded, pid: int) -> None:
        self._parent = parent
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._parent.ask({"ended": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("mailonce", timeout or 0)
            time.sleep(LOOKS_EVERY_S)
        return code

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


class _Loaded:
    def __init__(self) -> None:
        ours, its = socket.socketpair()
        self._env = clean_environment()
        with its:
            command = [sys.executable, "-m", "tests.support.programs_loaded", str(its.fileno())]
            self._process = subprocess.Popen(command, cwd=ROOT, env=self._env, pass_fds=[its.fileno()])
        self._socket = ours
        self._answers = ours.makefile("rb")
        self._lock = threading.Lock()

    def can_start(self, env: dict[str, str]) -> bool:
        """What Python itself reads from its environment, it has read."""
        return {name: value for name, value in env.items() if name.startswith("PYTHON")} == {
            name: value for name, value in self._env.items() if name.startswith("PYTHON")
        }

    def start(self, command: list[str], folder: Path, env: dict[str, str], log: Path) -> Forked:
        asked = {"command": command, "folder": str(folder), "env": env, "log": str(log)}
        return Forked(self, self.ask(asked))

    def end(self) -> None:
        self._answers.close()
        self._socket.close()
        self._process.terminate()
        self._process.wait()

    def ask(self, question: dict[str, Any]) -> Any:
        with self._lock:
            self._socket.sendall(json.dumps(question).encode() + b"\n")
            return json.loads(self._answers.readline())


def _ours() -> _Loaded:
    """Of this process: one that was forked from the tests has none yet."""
    if os.getpid() not in _loaded:
        _loaded[os.getpid()] = _Loaded()
    return _loaded[os.getpid()]


def end() -> None:
    if loaded := _loaded.pop(os.getpid(), None):
        loaded.end()


# The process that forks


def main(descriptor: int) -> None:
    """Loads all but the settings of gunicorn, which read the environment while they are loaded."""
    for module in ("routes.command_line", "routes.app", "orchestrator.delivery.dramatiq_queue", "orchestrator.worker"):
        import_module(module)
    with socket.socket(fileno=descriptor) as asking:
        asked = _hand_out(asking)
    if asked:
        _become(asked)


def _hand_out(asking: socket.socket) -> dict[str, Any] | None:
    """Returns in each process that was forked, with what that is to be; None at the end."""
    with asking.makefile("rb") as questions:
        for line in questions:
            asked: dict[str, Any] = json.loads(line)
            answer: int | None
            if "ended" in asked:
                pid, status = os.waitpid(asked["ended"], os.WNOHANG)
                answer = os.waitstatus_to_exitcode(status) if pid else None
            else:
                answer = os.fork()
                if answer == 0:
                    return asked
            asking.sendall(json.dumps(answer).encode() + b"\n")
    return None


def _become(asked: dict[str, Any]) -> None:
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["env"])
    log = os.open(asked["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    program, *arguments = asked["command"]
    if program == MAILONCE:
        from routes.start import main as run_mailonce

        sys.argv = [program, *arguments]
        run_mailonce()
    else:
        option, code, *arguments = arguments
        assert option == "-c"
        sys.argv = [option, *arguments]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102


if __name__ == "__main__":
    main(int(sys.argv[1]))
