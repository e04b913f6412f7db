"""Whoever runs the tests has settings, files and data of their own; no test sees them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support import surroundings
from tests.support.surroundings import ROOT, clean_environment, keep_files_in_memory

HOSTILE_VARIABLES = {
    "WEBHOOK_URL": "http://127.0.0.1:9/",
    "REDIS_URL": "redis://127.0.0.1:9/0",
    "QUEUE_URL": "redis://127.0.0.1:9/0",
    "MAILONCE_CONFIG": "/no/such/file.toml",
    "INGRESS_TOKEN": "too-short",
    "SUBJECT_GROUPS": "off",
    "PORT": "no port",
    "DATA_DIR": "/dev/null",
    "http_proxy": "http://127.0.0.1:9",
}
# In this process, through the command line, through a server, a worker, and the demo.
SAMPLE = (
    "tests/orchestrator/config/test_settings.py",
    "tests/routes/test_health.py",
    "tests/routes/test_command_line.py::test_stats_and_locks",
    "tests/routes/test_command_line.py::test_a_worker_finishes_what_it_delivers_and_reloads_its_file",
    "tests/docs/test_configuration_page.py",
    "tests/deploy/test_deploy.py::test_the_shipped_configuration_passes_gunicorns_check",
    "tests/deploy/test_deploy.py::test_the_printed_curl_line_can_be_pasted",
    "tests/test_demo.py",
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of ours in which somebody has configured Mailonce, and broken it."""
    copy = tmp_path / "checkout"
    shutil.copytree(
        ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv*", "data", "mailonce.toml", ".env", ".*_cache")
    )
    (copy / "mailonce.toml").write_text("this is not TOML")
    (copy / ".env").write_text("".join(f"{name}={value}\n" for name, value in HOSTILE_VARIABLES.items()))
    (copy / "data").mkdir()
    for name in ("mailonce.db", "deliveries.db", "counters.db", "ingress_token", "admin_token"):
        (copy / "data" / name).write_text("broken")
    return copy


@pytest.mark.real_redis
def test_neither_files_beside_the_tests_nor_variables_change_what_they_see(checkout: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *SAMPLE],
        cwd=checkout,
        env=clean_environment(PYTHONPATH="") | HOSTILE_VARIABLES,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (checkout / "data/mailonce.db").read_text() == "broken"


def test_files_are_kept_in_memory_where_it_has_room_unless_somebody_says_where(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(surroundings, "MEMORY", tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", None)
    for given, room_bytes, used in (("", 0, str(tmp_path)), ("", 2**80, None), ("/else", 0, "/else")):
        monkeypatch.setenv("TMPDIR", given)
        if not given:
            monkeypatch.delenv("TMPDIR")
        monkeypatch.setattr(surroundings, "ROOM_BYTES", room_bytes)
        keep_files_in_memory()
        assert os.environ.get("TMPDIR") == used
