"""The service as users run it: ``mailonce serve`` and ``mailonce worker``, in processes of their own."""

import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import requests

from tests.support import programs_loaded
from tests.support.programs import Program
from tests.support.programs_loaded import MAILONCE
from tests.support.redis_server import free_port
from tests.support.surroundings import ROOT, clean_environment

INGRESS_TOKEN = "ingress-token-for-tests"
ADMIN_TOKEN = "admin-token-for-tests-only"
ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
PATIENT_MS = "5000"  # for Redis, so that a busy machine does not pass for one that is away


def email(**fields: Any) -> dict[str, Any]:
    """A gmail payload; give what matters to the test."""
    return {
        "subject": "Rapport hebdomadaire",
        "sender": "Ada Lovelace <Ada@Example.org>",
        "date": "2026-11-16T09:00:00.000Z",
        "body": "<p>Bonjour</p>",
    } | fields


class OurProgram(Program):
    """A command of ours, with its data in ``data_dir`` and started in ``folder``."""

    def __init__(self, command: Sequence[str], data_dir: Path, log: str, settings: dict[str, str]) -> None:
        data_dir.mkdir(parents=True, exist_ok=True)
        self.data_dir = data_dir
        self._env = clean_environment(DATA_DIR=str(data_dir), REDIS_TIMEOUT_MS=PATIENT_MS) | settings
        super().__init__(command, data_dir, data_dir / log, self._env)

    def launch(self, *options: str) -> None:
        self.process = programs_loaded.start([*self.command, *options], self.folder, self._env, self.log)


class Server(OurProgram):
    """``app``: another application than ours, by the shipped gunicorn.conf.py; ``first`` is imported before that."""

    def __init__(self, data_dir: Path, app: str | None = None, first: str = "sys", **settings: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        own = {"PORT": str(self.port), "INGRESS_TOKEN": INGRESS_TOKEN, "ADMIN_TOKEN": ADMIN_TOKEN}
        start = f"import {first}; from gunicorn.app.wsgiapp import run; run()"
        by_gunicorn = [sys.executable, "-c", start, "-c", str(ROOT / "deploy/gunicorn.conf.py"), str(app)]
        super().__init__(by_gunicorn if app else [MAILONCE, "serve"], data_dir, "server.log", own | settings)

    def ask(self) -> requests.Response:
        return requests.get(f"{self.url}/livez", timeout=5)

    def kill(self) -> None:
        """kill -9 of everything, as a power cut would."""
        assert self.process is not None
        os.kill(self.pid, signal.SIGSTOP)  # it must not start another worker meanwhile
        for pid in [*self.worker_pids(), self.pid]:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        while not self._is_port_free():  # threads of a killed worker may have it for a moment longer
            time.sleep(0.01)
        self.process = None

    def _is_port_free(self) -> bool:
        try:
            socket.create_server(("127.0.0.1", self.port)).close()
        except OSError:
            return False
        return True

    def health(self) -> dict[str, Any]:
        answer: dict[str, Any] = requests.get(f"{self.url}/health", timeout=10).json()
        return answer

    def worker_pids(self) -> list[int]:
        return [child.pid for child in psutil.Process(self.pid).children()]

    def post(self, payload: dict[str, Any], timeout_s: float = 60, token: str = INGRESS_TOKEN) -> requests.Response:
        headers = {"Authorization": f"Bearer {token}"}
        return requests.post(f"{self.url}/api/ingress/gmail", json=payload, headers=headers, timeout=timeout_s)

    def reset(self, **request: Any) -> requests.Response:
        return requests.post(f"{self.url}/api/admin/reset", json=request, headers=ADMIN, timeout=60)


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
