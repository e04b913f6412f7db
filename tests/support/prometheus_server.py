"""A real Prometheus for the tests, and promtool: both are in Debian's package prometheus. And prometheus-client's own
parser for what a server tells it."""

from pathlib import Path
from typing import Any

import requests
from prometheus_client.parser import text_string_to_metric_families

from tests.support.programs import Program, program
from tests.support.redis_server import free_port
from tests.support.waiting import wait_for

PACKAGE = "prometheus"


class PrometheusServer(Program):
    """Scrapes four times a second, with a token, and has the rules in force. Its files are in ``folder``."""

    def __init__(self, folder: Path, target: str, token: str, rules: Path) -> None:
        folder.mkdir()
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 1s}\n"
            f"rule_files: ['{rules}']\n"
            "scrape_configs:\n"
            "  - job_name: mailonce\n"
            f"    authorization: {{credentials: '{token}'}}\n"
            f"    static_configs: [{{targets: ['{target}']}}]\n"
        )
        self._address = f"127.0.0.1:{free_port()}"
        options = {
            "config.file": folder / "prometheus.yml",
            "storage.tsdb.path": folder / "data",
            "web.listen-address": self._address,
        }
        command = [program("prometheus", PACKAGE), *(f"--{name}={value}" for name, value in options.items())]
        super().__init__(command, folder, folder / "prometheus.log")

    def ask(self) -> list[dict[str, Any]]:
        return self.query("up")

    def wait_for_scrapes(self, count: int) -> None:
        wait_for(lambda: self.query(f"count_over_time(up[5m]) >= {count} and on (instance) up == 1"), "scrapes")

    def query(self, expression: str) -> list[dict[str, Any]]:
        return list(self.get("query", query=expression)["result"])

    def get(self, what: str, **asked: str) -> dict[str, Any]:
        answer = requests.get(f"http://{self._address}/api/v1/{what}", params=asked, timeout=30).json()
        assert answer["status"] == "success", answer
        found: dict[str, Any] = answer["data"]
        return found


def samples(text: str) -> dict[str, float]:
    """By name and labels, in order: ``mailonce_emails_total{provider=gmail,status=queued}``."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found
