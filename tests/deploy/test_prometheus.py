"""Alerts and dashboard, by promtool and by a Prometheus that scrapes a real server and a worker."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import program
from tests.support.prometheus_server import PACKAGE, PrometheusServer
from tests.support.redis_server import RedisServer
from tests.support.server import Server, WorkerProcess, email
from tests.support.sink import Sink
from tests.support.surroundings import ROOT, output_of
from tests.support.waiting import wait_for

ALERTS = ROOT / "deploy/prometheus/alerts.yml"
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/mailonce.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
CHOSEN = {"type": "prometheus", "uid": "${datasource}"}
OF_GRAFANA = {"$__rate_interval", "$__range"}
UNIT_TESTS = (ROOT / "tests/deploy/alerts_test.yml", ROOT / "tests/deploy/alerts_of_a_day_test.yml")
METRICS_TOKEN = "metrics-token-for-tests"


def alert_names() -> list[str]:
    return re.findall(r"^ *- alert: (\w+)$", ALERTS.read_text(), re.MULTILINE)


def queries() -> list[str]:
    """Everything that the dashboard asks for, over the last minute."""
    asked = [target["expr"] for panel in PANELS for target in panel["targets"]]
    return [re.sub(r"\$__(rate_interval|range)", "1m", expression) for expression in asked]


def test_the_shipped_configuration_is_sound(tmp_path: Path) -> None:
    for name in ("prometheus.yml", "alerts.yml"):
        (tmp_path / name).write_text((ALERTS.parent / name).read_text())
    (tmp_path / "metrics_token").write_text(METRICS_TOKEN)
    output_of([program("promtool", PACKAGE), "check", "config", str(tmp_path / "prometheus.yml")])


def test_each_alert_fires_when_it_should_and_not_before() -> None:
    output_of([program("promtool", PACKAGE), "test", "rules", *map(str, UNIT_TESTS)])
    tests = "".join(path.read_text() for path in UNIT_TESTS)
    silent = [name for name in alert_names() if not re.search(rf"alertname: {name}\n *exp_alerts:\n", tests)]
    assert silent == [], "no test makes them fire"


@contextmanager
def scraping(folder: Path, redis: RedisServer) -> Iterator[PrometheusServer]:
    """A server with Redis and a worker that got three emails, two of which are the same."""
    settings = {"REDIS_URL": redis.url, "DELIVER_BY": "workers"}
    own = {"METRICS_TOKEN": METRICS_TOKEN}
    with Sink() as sink, Server(folder / "data", **settings, **own, WEBHOOK_URL=sink.url) as server:
        target = server.url.removeprefix("http://")
        prometheus = PrometheusServer(folder / "prometheus", target, METRICS_TOKEN, ALERTS)
        with WorkerProcess(folder / "data", **settings, WEBHOOK_URL=sink.url), prometheus:
            for subject in ("Lot 1", "Lot 1", "Lot 2"):
                while server.post(email(subject=subject)).status_code != 200:
                    time.sleep(0.2)  # a new Redis grants nothing at first (rule 13)
            prometheus.wait_for_scrapes(5)
            yield prometheus


def test_prometheus_finds_every_metric_of_the_rules_and_the_dashboard(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    program("prometheus", PACKAGE)
    with scraping(tmp_path, redis_server) as prometheus:
        (target,) = prometheus.get("targets")["activeTargets"]
        assert (target["health"], target["lastError"]) == ("up", "")
        received = 'sum(mailonce_emails_total{status!="retry_later"})'
        wait_for(lambda: [each["value"][1] for each in prometheus.query(received)] == ["3"])
        (group,) = prometheus.get("rules")["groups"]
        assert sorted(rule["name"] for rule in group["rules"]) == sorted(alert_names())
        assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}, "unknown: not asked yet"
        # There are no errors of Redis before the first.
        asked = set(re.findall(r"mailonce_\w+", ALERTS.read_text())) - {"mailonce_redis_errors_total"}
        exposed = {each["metric"]["__name__"] for each in prometheus.query('{__name__=~"mailonce_.+"}')}
        assert asked <= exposed
        missing = queries()

        def is_all_found() -> bool:
            missing[:] = [query for query in missing if not prometheus.query(query)]
            return not missing

        try:
            wait_for(is_all_found)
        except AssertionError:
            pytest.fail(f"nothing is found by {missing}")


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_asks_that_prometheus_with_what_grafana_knows(panel: dict[str, Any]) -> None:
    targets = panel["targets"]
    assert all(each["datasource"] == CHOSEN for each in (panel, *targets))
    assert len({target["refId"] for target in targets}) == len(targets) > 0
    for target in targets:
        assert set(re.findall(r"\$\w+", target["expr"])) <= OF_GRAFANA
        kept = {label for by in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in by.split(", ")}
        assert set(re.findall(r"{{ ?(\w+) ?}}", target["legendFormat"])) <= kept, "a label that is summed away is empty"
