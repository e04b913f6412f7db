"""mailonce worker, as far as it is not seen from outside (tests/routes/test_command_line.py)."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support import programs_loaded
from tests.support.surroundings import clean_environment

SUPERVISOR = """
import sys
from orchestrator import worker
from orchestrator.config.settings import SettingsError, load_settings

worker.LOOK_EVERY_S = 0.05
try:
    worker.supervise(load_settings(queue_url="redis://127.0.0.1:1/0", redis_url="redis://127.0.0.1:1/0"))
except SettingsError as error:
    sys.exit(str(error))
"""


def test_a_process_that_cannot_start_ends_the_worker_and_is_not_started_for_ever(tmp_path: Path) -> None:
    """DATA_DIR is lost between the check and the start of the processes."""
    (tmp_path / "data").write_text("in the way")
    ended = programs_loaded.run([sys.executable, "-c", SUPERVISOR], tmp_path, clean_environment())
    assert ended.returncode == 1
    assert ended.stdout.count("this process cannot start") == 1
    assert "the worker cannot start; the lines above say why" in ended.stdout
