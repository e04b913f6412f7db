"""mailonce stats and mailonce locks."""

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from routes.commands.stats import BARS, SPARK_WIDTH, sparkline
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
