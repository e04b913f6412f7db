"""A real Prometheus for the tests, and promtool: both are in Debian's package prometheus."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import requests

from tests.support.programs import program
from tests.support.redis_server import free_port

PACKAGE = "prometheus"


class PrometheusServer:
    """Scrapes every second, with a token, and has the rules in force. Its files are in ``folder``."""

    def __init__(self, folder: Path, targets: Sequence[str], token: str, rules: Path) -> None:
        folder.mkdir()
        self._config = folder / "prometheus.yml"
        self._config.write_text(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
            f"rule_files: ['{rules}']\n"
            "scrape_configs:\n"
            "  - job_name: mailonce\n"
            f"    authorization: {{credentials: '{token}'}}\n"
            f"    static_configs: [{{targets: {list(targets)}}}]\n"
        )
        self._folder = folder
        self._targets = len(targets)
        self._address = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PrometheusServer:
        options = {
            "config.file": self._config,
            "storage.tsdb.path": self._folder / "data",
            "web.listen-address": self._address,
        }
        command = [program("prometheus", PACKAGE), *(f"--{name}={value}" for name, value in options.items())]
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(timeout=60)

    def wait_for_scrapes(self, count: int, within_s: float = 90) -> None:
        """Of each target."""
        deadline = time.monotonic() + within_s
        enough = f"count(count_over_time(up[5m]) >= {count} and on (instance) up == 1) == {self._targets}"
        while True:
            try:
                if self.query(enough):
                    return
            except requests.RequestException:  # it has still to open its port, or to read its files
                assert self._process is not None
                assert self._process.poll() is None, (self._folder / "prometheus.log").read_text()
            assert time.monotonic() < deadline, (self._folder / "prometheus.log").read_text()
            time.sleep(0.1)

    def query(self, expression: str) -> list[dict[str, Any]]:
        return list(self.get("query", query=expression)["result"])

    def get(self, what: str, **asked: str) -> dict[str, Any]:
        answer = requests.get(f"http://{self._address}/api/v1/{what}", params=asked, timeout=30).json()
        assert answer["status"] == "success", answer
        found: dict[str, Any] = answer["data"]
        return found
