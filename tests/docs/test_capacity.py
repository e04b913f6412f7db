"""examples/capacity.py does the sum that docs/capacity.md tells, with the figures that make bench measured."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.capacity_page import PAGE, capacity_page, simulator
from tests.support.surroundings import ROOT, output_of

capacity = simulator()
# Round ones, so that the sums below can be made by hand.
COSTS = capacity.Costs(
    redis_bytes=1_200,
    redis_bytes_id=200,
    redis_bytes_destination=100,
    redis_new_us=200,
    redis_duplicate_us=50,
    web_new_us=2_200,
    web_queued_us=4_200,
    web_duplicate_us=1_050,
    worker_a_second=100,
    disk_bytes=2_000,
    process_mb=80,
)
# 10 a second on average, half of them new: 5 and 5, at the peak 50 and 50.
TEN_A_SECOND = 864_000


def needs(**figures: Any) -> Any:
    given = {"emails": TEN_A_SECOND, "duplicates": 0.5, "peak": 10, "waiting": 0, "stream_mb": 0, **figures}
    return capacity.needs(capacity.Load(**given), COSTS)


NEW_A_DAY = 432_000
BASE = {"kept_days": 7, "id_days": 30}
MANY = {"emails": 100 * TEN_A_SECOND, "receiver_ms": 1}


@pytest.mark.parametrize(
    ("figures", "name", "expected"),
    [
        # Memory: entries for the days kept, ids for theirs, the stream, further destinations, and waiting payloads.
        (BASE, "redis_ids_bytes", NEW_A_DAY * 30 * 200),
        (BASE, "redis_bytes", NEW_A_DAY * (7 * 1_000 + 30 * 200)),
        (BASE, "redis_maxmemory_bytes", 1.5 * NEW_A_DAY * (7 * 1_000 + 30 * 200)),
        (BASE | {"stream_mb": 256}, "redis_bytes", NEW_A_DAY * (7 * 1_000 + 30 * 200) + 256_000_000),
        (BASE | {"destinations": 3}, "redis_bytes", NEW_A_DAY * (7 * (1_000 + 2 * 100) + 30 * 200)),
        ({"waiting": 0.1, "waiting_hours": 12, "body_kb": 20}, "redis_payload_bytes", NEW_A_DAY * 0.1 / 2 * 20_000),
        # Redis, at the peak: 50 x 200 us + 50 x 50 us; with workers, a new email takes twice as many steps.
        ({}, "redis_core", 0.0125),
        ({"workers": True}, "redis_core", 0.0225),
        ({}, "redis_shards", 1),
        (MANY, "redis_shards", 3),  # 1.25 cores, each half full
        # Web processes: 50 x 2,000 us + 50 x 1,000 us of a core that is half busy, or 8 threads that wait.
        ({"receiver_ms": 1}, "web_processes", 2),
        ({"receiver_ms": 1, "emails": 10 * TEN_A_SECOND}, "web_processes", 3),
        ({"receiver_ms": 1_000}, "web_processes", 13),
        ({"receiver_ms": 1_000, "workers": True}, "web_processes", 2),
        ({}, "worker_processes", 0),
        ({"workers": True, "destinations": 2, "receiver_ms": 1}, "worker_processes", 2),
        ({"workers": True, "destinations": 2, "receiver_ms": 1_000}, "worker_processes", 13),
        # Servers of two cores, half full; each has the journal of the whole fleet.
        (MANY, "servers", 15),
        ({}, "servers", 1),
        ({}, "disk_bytes", NEW_A_DAY * 7 * 2_000),
        (MANY, "disk_bytes", 100 * NEW_A_DAY * 7 * 2_000),
        ({"waiting": 0.1, "waiting_hours": 12, "body_kb": 20}, "disk_bytes", NEW_A_DAY * (14_000 + 0.1 / 2 * 20_000)),
        ({"receiver_ms": 1}, "memory_mb", 2 * 80),
    ],
)
def test_the_sums_are_those_that_the_page_explains(figures: dict[str, Any], name: str, expected: float) -> None:
    assert getattr(needs(**figures), name) == pytest.approx(expected)


def test_the_page_has_the_figures_of_the_bench() -> None:
    assert PAGE.read_text() == capacity_page(PAGE.read_text()), "stale: run make docs-reference"


def test_it_runs_anywhere_with_any_python_and_says_what_is_missing(tmp_path: Path) -> None:
    script = [sys.executable, "-I", "-S", str(ROOT / "examples/capacity.py")]  # no package can be imported
    for line in output_of([*script, "--emails", "1000000"], tmp_path).splitlines():
        assert f"| {line[:18].strip()} | {line[18:].strip()} |" in PAGE.read_text(), "as the page shows it"
    half = tmp_path / "half.json"
    half.write_text(json.dumps({"rows": []}))
    refused = subprocess.run([*script, "--emails", "1", "--bench", str(half)], capture_output=True, text=True)
    assert refused.returncode == 2
    assert "redis: bytes of an email within 7 days" in refused.stderr
    wrong = subprocess.run([*script, "--emails", "1", "--duplicates", "30"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "must be a share from 0 to 1" in wrong.stderr
