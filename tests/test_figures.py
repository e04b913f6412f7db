from __future__ import annotations

from pathlib import Path

import pytest

from tests.figures import run


@pytest.mark.real_redis
def test_all_sources_of_figures_agree_with_the_clients_and_the_sink(tmp_path: Path) -> None:
    """Two servers, a queue, a worker next to a server and one on its own machine. make figures: with 1,000."""
    truth, found, hours = run(120, tmp_path)
    assert (truth["received"], truth["delivered"] > 60, truth["dead"]) == (120, True, 12)
    assert (truth["duplicates"], truth["suppressed"] > 0) == (24, True)
    assert found == dict.fromkeys(found, truth)
    assert set(hours) == {(120, truth["duplicates"] + truth["suppressed"], truth["delivered"])}
