"""The Grafana dashboard, as far as that can be seen without a Grafana: its panels, its variable, and what it asks for.

That Prometheus finds something by each of its queries is shown in test_prometheus.py.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, Server, email
from tests.support.surroundings import ROOT

DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/mailonce.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
COLUMNS = 24
CHOSEN = {"type": "prometheus", "uid": "${datasource}"}
OF_GRAFANA = {"$__rate_interval", "$__range"}


def titled(panel: dict[str, Any]) -> str:
    return f"{panel['id']} {panel['title']}"


def test_each_panel_has_an_id_of_its_own_and_says_what_it_shows() -> None:
    assert Counter(panel["id"] for panel in PANELS).most_common(1)[0][1] == 1
    assert all(panel["title"] and panel["description"] and panel["type"] in ("stat", "timeseries") for panel in PANELS)


def test_no_panel_lies_over_another_or_outside() -> None:
    places = {titled(panel): panel["gridPos"] for panel in PANELS}
    for name, place in places.items():
        assert place["x"] >= 0 and place["y"] >= 0 and place["w"] > 0 and place["h"] > 0, name
        assert place["x"] + place["w"] <= COLUMNS, name
    for (one, a), (other, b) in combinations(places.items(), 2):
        is_beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        is_below = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert is_beside or is_below, (one, other)


def test_whoever_imports_it_chooses_the_prometheus_once() -> None:
    (variable,) = DASHBOARD["templating"]["list"]
    assert (variable["name"], variable["type"], variable["query"]) == ("datasource", "datasource", "prometheus")
    assert DASHBOARD["uid"] == "mailonce" and DASHBOARD.get("id") is None, "the id is the Grafana's that takes it"


@pytest.mark.parametrize("panel", PANELS, ids=titled)
def test_a_panel_asks_that_prometheus_with_what_grafana_knows(panel: dict[str, Any]) -> None:
    targets = panel["targets"]
    assert all(each["datasource"] == CHOSEN for each in (panel, *targets))
    assert len({target["refId"] for target in targets}) == len(targets) > 0
    for target in targets:
        assert set(re.findall(r"\$\w+", target["expr"])) <= OF_GRAFANA
        kept = {label for by in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in by.split(", ")}
        assert set(re.findall(r"{{ ?(\w+) ?}}", target["legendFormat"])) <= kept, "a label that is summed away is empty"


def test_every_metric_that_it_names_is_on_metrics(
    tmp_path: Path, redis_server: RedisServer, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    with Server(tmp_path, REDIS_URL=redis_server.url, QUEUE_URL=redis_server.url) as server:
        eventually(lambda: server.post(email()).status_code == 200)
        expressions = " ".join(target["expr"] for panel in PANELS for target in panel["targets"])
        named = set(re.findall(r"mailonce_\w+", expressions))
        eventually(lambda: named <= shown_metrics(server))  # Redis is asked for its policy every five seconds


def shown_metrics(server: Server) -> set[str]:
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    shown = requests.get(f"{server.url}/metrics", headers=headers, timeout=30).text
    known = set()
    for family in text_string_to_metric_families(shown):
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        known |= {family.name + suffix for suffix in suffixes}
    return known
