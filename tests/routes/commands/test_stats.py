"""mailonce stats and mailonce locks."""

import json
import os
import pty
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.operations.stats import Stats
from routes.commands.service import open_console
from routes.commands.stats import BARS, SPARK_WIDTH, sparkline, stats_view
from tests.routes.conftest import Run, StartApp
from tests.support.programs_loaded import MAILONCE
from tests.support.server import email
from tests.support.sink import Sink
from tests.support.surroundings import clean_environment


def test_stats_and_locks(run: Run, start_app: StartApp, sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    app = start_app(webhook_url=sink.url)
    app.post(email())
    app.service.meter.flush()
    monkeypatch.setenv("WEBHOOK_URL", sink.url)
    figures = json.loads(run("stats", "--json").output)
    default = figures["destinations"]["default"]
    assert (default["breaker"], default["deliveries"]["delivered"]) == ("closed", 1)
    assert (figures["totals"]["received"], figures["totals"]["delivered"]) == (1, 1)
    lines = run("stats", "--span", "week").output.splitlines()
    assert [line.split()[:3] for line in lines if line.startswith("received")] == [["received", "1", "1"]]
    assert any(line.split()[:3] == ["default", "ok", "0"] for line in lines)
    lock = app.service.locks.acquire_lock("post-1", "telegram")
    assert lock is not None
    assert lock.id in run("locks").output


@pytest.mark.parametrize(("options", "shown"), [(["--json"], b'"received":0'), ([], b"OVER TIME")])
def test_stats_are_refreshed_until_ctrl_c(
    start_app: StartApp, tmp_path: Path, options: list[str], shown: bytes
) -> None:
    start_app()
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [MAILONCE, "stats", "--watch", *options],
        env=clean_environment(DATA_DIR=str(tmp_path / "data"), TERM="xterm"),
        cwd=tmp_path,
        stdout=theirs,
    )
    os.close(theirs)
    seen = b""
    while seen.count(shown) < 2:
        seen += os.read(ours, 10_000)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0
    os.close(ours)


# The table


def shown(**totals: Any) -> list[str]:
    """Lines of the table, for some figures with these changes."""
    point = {"start_s": 0, "received": 5, "delivered": 3, "stopped": 1, "failed": 0, "duplicates": 1, "suppressed": 0}
    ever: dict[str, Any] = {"statuses": {"processed": 1_000}, "waiting": 2, "oldest_waiting_s": 600, "hit_rate": 0.1896}
    ever |= {"received": 1_234, "delivered": 1_000, "failed": 7, "duplicates": 200, "suppressed": 34, "dead": 1}
    times: dict[str, Any] = {"success_rate": 1, "whole_p50_ms": 12.4, "whole_p95_ms": None}
    times |= {"delivered": 3, "failed": 0, "delivered_by_point": [], "failed_by_point": []}
    recent = {"span": "day", "step_s": 600, "points": [point], "total": point}
    crm = {"enabled": True, "breaker": "closed", "paused": None, "deliveries": {"waiting": 2, "dead": 1}}
    figures = {
        "totals": ever | {"workers_alive": None, "is_whole": True} | totals,
        "over_time": recent | {"is_whole": True, "destinations": {"crm": times}},
        "destinations": {"crm": crm},
    }
    console = open_console()
    with console.capture() as capture:
        console.print(stats_view(Stats.model_validate(figures)))
    return [" ".join(line.split()) for line in capture.get().splitlines()]


def test_the_table_has_totals_a_plot_and_destinations() -> None:
    lines = shown()
    assert (lines[1], lines[3]) == ("received 1,234 5 █", "stopped 234 1 █")
    assert "duplicates 200, suppressed 34 (19.0% stopped)" in lines
    assert "waiting 2, the oldest for 10 min; dead letters 1" in lines
    assert "crm ok 2 1 3 0 12 ms -" in lines
    for totals, line in (({"workers_alive": 0}, "workers alive: 0"), ({"is_whole": False}, "Redis does not answer")):
        assert line in "\n".join(shown(**totals)) and line not in "\n".join(lines), "only if there are any"


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([0, 1, 4, 8], " ▁▄█"),
        ([1, 1_000_000], "▁█"),
        ([0, 0], "  "),
        ([], ""),
        ([0.0] * 143 + [5.0], " " * (SPARK_WIDTH - 1) + BARS[-1]),
    ],
)
def test_a_sparkline_shows_everything_above_zero_and_ends_now(values: list[float], bars: str) -> None:
    assert sparkline(values) == bars
    assert all(len(sparkline([1.0] * count)) <= SPARK_WIDTH for count in range(200))
