from __future__ import annotations

from pathlib import Path

import pytest

from tests.figures import run


@pytest.mark.real_redis
def test_whoever_tells_figures_agrees_with_the_clients_and_the_sink_to_the_last_one(tmp_path: Path) -> None:
    """Two servers, a queue, a worker beside a server and one on a machine of its own. make figures: with 1,000."""
    truth, said, hours = run(120, tmp_path)
    assert (truth.received, truth.delivered > 60, truth.dead) == (120, True, 12)
    assert (truth.duplicates, truth.suppressed > 0) == (24, True)
    for name, figures in said.items():
        assert figures == truth, name
    assert set(hours) == {(120, truth.duplicates + truth.suppressed, truth.delivered)}
