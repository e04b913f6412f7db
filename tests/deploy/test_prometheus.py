"""Alerts and dashboard, by promtool and by a Prometheus that scrapes a real server and a worker."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import program
from tests.support.prometheus_server import PACKAGE, PrometheusServer
from tests.support.redis_server import RedisServer
from tests.support.server import Server, email
from tests.support.sink import Sink
from tests.support.surroundings import ROOT
from tests.support.worker import WorkerProcess

ALERTS = ROOT / "deploy/prometheus/alerts.yml"
DASHBOARD = ROOT / "deploy/grafana/mailonce.json"
UNIT_TESTS = (ROOT / "tests/deploy/alerts_test.yml", ROOT / "tests/deploy/alerts_of_a_day_test.yml")
METRICS_TOKEN = "metrics-token-for-tests"


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program("promtool", PACKAGE), *arguments], capture_output=True, text=True, timeout=120)


def alert_names() -> list[str]:
    return re.findall(r"^ *- alert: (\w+)$", ALERTS.read_text(), re.MULTILINE)


def queries() -> list[tuple[str, str]]:
    """Title and expression of everything that the dashboard shows, over the last minute."""
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    spans = {"$__rate_interval": "1m", "$__range": "1m"}
    found = []
    for panel in panels:
        for target in panel["targets"]:
            expression = target["expr"]
            for name, span in spans.items():
                expression = expression.replace(name, span)
            found.append((panel["title"], expression))
    return found


def test_the_rules_are_sound() -> None:
    checked = promtool("check", "rules", str(ALERTS))
    assert checked.returncode == 0, checked.stderr


def test_the_shipped_configuration_is_sound(tmp_path: Path) -> None:
    for name in ("prometheus.yml", "alerts.yml"):
        (tmp_path / name).write_text((ALERTS.parent / name).read_text())
    (tmp_path / "metrics_token").write_text(METRICS_TOKEN)
    checked = promtool("check", "config", str(tmp_path / "prometheus.yml"))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_each_alert_fires_when_it_should_and_not_before() -> None:
    tested = promtool("test", "rules", *map(str, UNIT_TESTS))
    assert tested.returncode == 0, tested.stdout + tested.stderr
    tests = "".join(path.read_text() for path in UNIT_TESTS)
    for name in alert_names():
        fires = re.search(rf"alertname: {name}\n *exp_alerts:\n", tests)
        assert fires, f"no test makes {name} fire"


@pytest.mark.parametrize(
    ("rule", "mutant"),
    [
        ("> 0.05", "> 0.07"),
        ("> 0.1", "> 0.3"),
        ("< 0.01", "< 0.001"),
        ("offset 15m) > 0", "offset 15m) > 1"),
        ("> 900", "> 3600"),
        ('state=~"open|half-open"', 'state="open"'),
        ("max(mailonce_workers_alive) < 1", "absent(mailonce_workers_alive) == 1"),
        ('policy!="noeviction"', 'policy="noeviction"'),
        ("already_processing|retry_later|invalid|unauthorized|no_email", "nothing"),
        ("and sum(increase(mailonce_emails_total[1d])) >= 1000", ""),
    ],
)
def test_a_rule_that_is_wrong_fails_its_test(tmp_path: Path, rule: str, mutant: str) -> None:
    rules = ALERTS.read_text()
    assert rule in rules
    (tmp_path / "alerts.yml").write_text(rules.replace(rule, mutant))
    for path in UNIT_TESTS:
        (tmp_path / path.name).write_text(path.read_text().replace("../../deploy/prometheus/alerts.yml", "alerts.yml"))
    assert promtool("check", "rules", str(tmp_path / "alerts.yml")).returncode == 0
    assert promtool("test", "rules", *(str(tmp_path / path.name) for path in UNIT_TESTS)).returncode != 0


@contextmanager
def scraping(folder: Path, redis: RedisServer) -> Iterator[PrometheusServer]:
    """A server with Redis, a queue and a worker that got three emails, two of which are the same."""
    settings = {"REDIS_URL": redis.url, "QUEUE_URL": redis.url}
    own = {"METRICS_TOKEN": METRICS_TOKEN}
    with Sink() as sink, Server(folder / "data", **settings, **own, WEBHOOK_URL=sink.url) as server:
        target = server.url.removeprefix("http://")
        prometheus = PrometheusServer(folder / "prometheus", [target], METRICS_TOKEN, ALERTS)
        with WorkerProcess(folder / "data", **settings, WEBHOOK_URL=sink.url), prometheus:
            for subject in ("Lot 1", "Lot 1", "Lot 2"):
                while server.post(email(subject=subject)).status_code != 200:
                    time.sleep(0.2)  # a new Redis grants nothing at first (rule 13)
            prometheus.wait_for_scrapes(5)
            yield prometheus


def test_a_prometheus_that_scrapes_a_server_finds_all_that_rules_and_dashboard_ask_for(
    tmp_path: Path, redis_server: RedisServer, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    program("prometheus", PACKAGE)
    with scraping(tmp_path, redis_server) as prometheus:
        (target,) = prometheus.get("targets")["activeTargets"]
        assert (target["health"], target["lastError"]) == ("up", "")
        received = 'sum(mailonce_emails_total{status!="retry_later"})'
        eventually(lambda: [each["value"][1] for each in prometheus.query(received)] == ["3"])
        (group,) = prometheus.get("rules")["groups"]
        assert sorted(rule["name"] for rule in group["rules"]) == sorted(alert_names())
        assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}, "unknown: not asked yet"
        # There are no errors of Redis before the first.
        asked = set(re.findall(r"mailonce_\w+", ALERTS.read_text())) - {"mailonce_redis_errors_total"}
        told = {each["metric"]["__name__"] for each in prometheus.query('{__name__=~"mailonce_.+"}')}
        assert asked <= told
        missing = queries()
        assert len(missing) > 20

        def is_all_found() -> bool:
            missing[:] = [each for each in missing if not prometheus.query(each[1])]
            return not missing

        try:
            eventually(is_all_found)
        except AssertionError:
            pytest.fail(f"nothing is found by {missing}")
