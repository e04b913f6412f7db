"""The service as users run it: ``mailonce serve`` and ``mailonce worker``, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import requests

from tests.support import programs_loaded
from tests.support.programs_loaded import MAILONCE
from tests.support.redis_server import free_port
from tests.support.surroundings import ROOT, clean_environment

INGRESS_TOKEN = "ingress-token-for-tests"
ADMIN_TOKEN = "admin-token-for-tests-only"
PATIENT_MS = "5000"  # for Redis, so that a busy machine does not pass for one that is away


def email(**fields: Any) -> dict[str, Any]:
    """A gmail payload; give what matters to the test."""
    return {
        "subject": "Rapport hebdomadaire",
        "sender": "Ada Lovelace <Ada@Example.org>",
        "date": "2026-11-16T09:00:00.000Z",
        "body": "<p>Bonjour</p>",
    } | fields


class Server:
    """``app``: another application than ours, by the shipped gunicorn.conf.py; ``first`` is imported before that.

    ``folder``: where it is started.
    """

    def __init__(self, data_dir: Path, app: str | None = None, first: str = "sys", **settings: str) -> None:
        self._app = app
        self._first = first
        self.folder = data_dir
        self.data_dir = data_dir
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = data_dir / "server.log"
        own = {"PORT": str(self.port), "INGRESS_TOKEN": INGRESS_TOKEN, "ADMIN_TOKEN": ADMIN_TOKEN}
        self._env = clean_environment(DATA_DIR=str(data_dir), REDIS_TIMEOUT_MS=PATIENT_MS) | own | settings
        data_dir.mkdir(parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] | programs_loaded.Forked | None = None

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Server:
        self.launch()
        self.wait_until_up()
        return self

    def launch(self) -> None:
        self.process = programs_loaded.start(self._command(), self.folder, self._env, self.log)

    def _command(self) -> list[str]:
        if self._app is None:
            return [MAILONCE, "serve"]
        start = f"import {self._first}; from gunicorn.app.wsgiapp import run; run()"
        return [sys.executable, "-c", start, "-c", str(ROOT / "deploy/gunicorn.conf.py"), self._app]

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + 90
        while True:
            try:
                requests.get(f"{self.url}/livez", timeout=5)
                return
            except requests.RequestException:
                assert self.process is not None
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"the server did not start:\n{self.log.read_text()}") from None
                time.sleep(0.05)

    def stop(self) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait(timeout=90)
            self.process = None

    def kill(self) -> None:
        """kill -9 of everything, as a power cut would."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)  # it must not start another worker meanwhile
        workers = self.worker_pids()
        for pid in [self.process.pid, *workers]:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        while any(_is_running(pid) for pid in workers):  # until then they have the port
            time.sleep(0.01)
        self.process = None

    def health(self) -> dict[str, Any]:
        answer: dict[str, Any] = requests.get(f"{self.url}/health", timeout=10).json()
        return answer

    def worker_pids(self) -> list[int]:
        assert self.process is not None
        return [child.pid for child in psutil.Process(self.process.pid).children()]

    def post(self, payload: dict[str, Any], timeout_s: float = 60, token: str = INGRESS_TOKEN) -> requests.Response:
        return requests.post(
            f"{self.url}/api/ingress/gmail",
            json=payload,
            headers={"Authorization": f"Bearer {token}"},
            timeout=timeout_s,
        )

    def locks(self) -> list[dict[str, Any]]:
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        answer: dict[str, Any] = requests.get(f"{self.url}/api/admin/locks", headers=headers, timeout=60).json()
        return list(answer["locks"])

    def reset(self, **request: Any) -> requests.Response:
        return requests.post(
            f"{self.url}/api/admin/reset",
            json=request,
            headers={"Authorization": f"Bearer {ADMIN_TOKEN}"},
            timeout=60,
        )


def _is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
