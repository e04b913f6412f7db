"""examples/capacity.py does the sum that docs/capacity.md tells, with the figures that make bench measured."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.capacity_page import PAGE, capacity_page, simulator
from tests.support.surroundings import ROOT

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


def test_memory_is_entries_for_the_days_kept_and_ids_for_theirs() -> None:
    found = needs(kept_days=7, id_days=30)
    assert found.redis_ids_bytes == 432_000 * 30 * 200
    assert found.redis_bytes == 432_000 * (7 * 1_000 + 30 * 200)
    assert found.redis_maxmemory_bytes == 1.5 * found.redis_bytes
    assert needs(kept_days=7, id_days=30, stream_mb=256).redis_bytes == found.redis_bytes + 256_000_000


def test_each_further_destination_takes_memory_for_the_days_kept() -> None:
    more = needs(destinations=3).redis_bytes - needs(destinations=1).redis_bytes
    assert more == 432_000 * 7 * 2 * 100


def test_what_waits_takes_its_size_for_the_time_it_waits() -> None:
    """A tenth of 432,000 new ones a day, for half a day, of 20 KB each: on Redis, and on the disk as a copy."""
    waits, none = needs(waiting=0.1, waiting_hours=12, body_kb=20), needs()
    assert waits.redis_payload_bytes == 432_000 * 0.1 / 2 * 20_000
    assert waits.redis_bytes - none.redis_bytes == waits.redis_payload_bytes
    assert waits.disk_bytes - none.disk_bytes == waits.redis_payload_bytes


def test_redis_is_busy_with_new_ones_and_duplicates_at_the_peak() -> None:
    """50 × 200 µs + 50 × 50 µs; with a queue a new one takes twice as many steps."""
    assert needs().redis_core == pytest.approx(0.0125)
    assert needs(queue=True).redis_core == pytest.approx(0.0225)
    assert needs().redis_shards == 1
    assert needs(emails=100 * TEN_A_SECOND).redis_shards == 3, "1.25 cores, each half full"


def test_web_processes_are_cores_that_are_half_busy_or_threads_that_wait() -> None:
    """50 × 2,000 µs + 50 × 1,000 µs are 0.15 cores; 50 a second that wait for a second are 50 of 8 threads each."""
    assert needs(receiver_ms=1).web_processes == 2, "never less"
    assert needs(receiver_ms=1, emails=10 * TEN_A_SECOND).web_processes == 3
    assert needs(receiver_ms=1_000).web_processes == 13
    assert needs(receiver_ms=1_000, queue=True).web_processes == 2, "the workers wait"


def test_worker_processes_deliver_to_every_destination_half_busy() -> None:
    """50 a second to two destinations, by 100 a second and process; a receiver of a second leaves 16 threads."""
    assert needs().worker_processes == 0
    assert needs(queue=True, destinations=2, receiver_ms=1).worker_processes == 2
    assert needs(queue=True, destinations=2, receiver_ms=1_000).worker_processes == 13


def test_servers_have_cores_for_all_of_it_and_each_has_the_whole_journal() -> None:
    """15 cores' work at a hundred times: 30 half full, 15 servers of two."""
    many = needs(emails=100 * TEN_A_SECOND, receiver_ms=1)
    assert (many.servers, needs().servers) == (15, 1)
    assert needs().disk_bytes == 432_000 * 7 * 2_000
    assert many.disk_bytes == pytest.approx(100 * 432_000 * 7 * 2_000), "each journal has all emails of the fleet"
    assert needs().memory_mb == needs().web_processes * 80


def test_the_page_has_the_figures_of_the_bench() -> None:
    assert PAGE.read_text() == capacity_page(PAGE.read_text()), "stale: run make docs-reference"


def test_every_cost_is_a_row_of_the_bench() -> None:
    """By the names that its code gives them."""
    named = "\n".join(path.read_text() for path in (ROOT / "tests/bench").glob("*.py"))
    made = {f"http: CPU of {each}, servers and Redis" for each in ("delivered new", "queue new", "redis duplicate")}
    assert capacity.ROWS.keys() == {field.name for field in fields(capacity.Costs)}
    for row in capacity.ROWS.values():
        assert row in made or f'"{row}"' in named, row
    assert '"delivered new": ' in named
    assert 'f"http: CPU of {name}, servers and Redis"' in named


def test_it_runs_anywhere_with_any_python_and_says_what_is_missing(tmp_path: Path) -> None:
    script = [sys.executable, "-I", "-S", str(ROOT / "examples/capacity.py")]  # no package can be imported
    ran = subprocess.run(
        [*script, "--emails", "1000000"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    for line in ran.stdout.splitlines():
        assert f"| {line[:18].strip()} | {line[18:].strip()} |" in PAGE.read_text(), "as the page shows it"
    half = tmp_path / "half.json"
    half.write_text(json.dumps({"rows": []}))
    refused = subprocess.run([*script, "--emails", "1", "--bench", str(half)], capture_output=True, text=True)
    assert refused.returncode == 2
    assert "redis: bytes of an email within 7 days" in refused.stderr
    wrong = subprocess.run([*script, "--emails", "1", "--duplicates", "30"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "must be a share from 0 to 1" in wrong.stderr
