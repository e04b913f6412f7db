"""The Grafana dashboard, as far as that can be seen without a Grafana: its panels, its variable, and what it asks for.

That Prometheus finds something by each of its queries is shown in test_prometheus.py.
"""

from __future__ import annotations

import json
import re
from itertools import product
from typing import Any

import pytest

from tests.support.surroundings import ROOT

DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/mailonce.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
COLUMNS = 24
CHOSEN = {"type": "prometheus", "uid": "${datasource}"}
OF_GRAFANA = {"$__rate_interval", "$__range"}


def test_panels_have_ids_and_descriptions_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS) > 0
    assert all(panel["title"] and panel["description"] and panel["type"] in ("stat", "timeseries") for panel in PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        x, y, width, height = (panel["gridPos"][key] for key in "xywh")
        cells = set(product(range(x, x + width), range(y, y + height)))
        assert cells and not cells & taken and 0 <= x <= x + width <= COLUMNS, panel["title"]
        taken |= cells


def test_the_prometheus_is_chosen_once_when_it_is_imported() -> None:
    (variable,) = DASHBOARD["templating"]["list"]
    assert (variable["name"], variable["type"], variable["query"]) == ("datasource", "datasource", "prometheus")
    assert DASHBOARD["uid"] == "mailonce" and DASHBOARD.get("id") is None, "the importing Grafana sets the id"


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_asks_that_prometheus_with_what_grafana_knows(panel: dict[str, Any]) -> None:
    targets = panel["targets"]
    assert all(each["datasource"] == CHOSEN for each in (panel, *targets))
    assert len({target["refId"] for target in targets}) == len(targets) > 0
    for target in targets:
        assert set(re.findall(r"\$\w+", target["expr"])) <= OF_GRAFANA
        kept = {label for by in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in by.split(", ")}
        assert set(re.findall(r"{{ ?(\w+) ?}}", target["legendFormat"])) <= kept, "a label that is summed away is empty"
