"""Whatever an email holds, it is read in memory proportional to its length; hostile.py prints the time as well."""

from __future__ import annotations

import sys

import pytest

from tests.support import programs_loaded
from tests.support.hostile import EMAILS, SIZES_BYTES
from tests.support.surroundings import ROOT, clean_environment

MAX_BASE_BYTES = 8 * 1024 * 1024
MAX_FACTOR = 20


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", EMAILS)
def test_reading_an_email_takes_memory_in_proportion_to_its_length(name: str) -> None:
    command = [sys.executable, "-c", "import sys; from tests.support import hostile; hostile.main(sys.argv[1])", name]
    run = programs_loaded.run(command, ROOT, clean_environment())
    assert run.returncode == 0, run.stdout
    peaks = {int(size): int(peak) for size, peak, _ in map(str.split, run.stdout.splitlines())}
    assert len(peaks) == len(SIZES_BYTES)
    assert {size: peak for size, peak in peaks.items() if peak > MAX_BASE_BYTES + MAX_FACTOR * size} == {}
