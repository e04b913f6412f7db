"""What holds for all tests: settings and files of the user have no effect, and a seed repeats the examples of a run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.surroundings import ROOT, clean_environment

PROPERTY = """
from hypothesis import given, strategies

@given(strategies.integers())
def test_of_a_property(number):
    with open({tried!r}, "a") as tried:
        print(number, file=tried)
"""
HOSTILE_VARIABLES = {
    "WEBHOOK_URL": "http://127.0.0.1:9/",
    "REDIS_URL": "redis://127.0.0.1:9/0",
    "MAILONCE_CONFIG": "/no/such/file.toml",
    "INGRESS_TOKEN": "too-short",
    "PORT": "no port",
    "DATA_DIR": "/dev/null",
    "http_proxy": "http://127.0.0.1:9",
}
# In this process, and through a server.
SAMPLE = (
    "tests/orchestrator/config/test_settings.py::test_settings_that_contradict_each_other_are_refused",
    "tests/deploy/test_deploy.py::test_the_healthcheck_of_the_image_tells_a_ready_server_from_none",
)


def run(checkout: Path, *options: str) -> tuple[str, str]:
    """The seed that was printed, and the examples that were tried."""
    tried = checkout / "tried"
    (checkout / "tests/test_property.py").write_text(PROPERTY.format(tried=str(tried)))
    tried.unlink(missing_ok=True)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/test_property.py", *options],
        cwd=checkout,
        env=clean_environment(PYTHONPATH="", CI="true") | HOSTILE_VARIABLES,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (seed,) = re.findall(r"^seed (\d+); make test SEED=\1 ", ran.stdout, re.MULTILINE)
    return seed, tried.read_text()


def test_what_the_user_has_changes_no_test_and_the_printed_seed_repeats_the_examples(tmp_path: Path) -> None:
    """In a copy in which Mailonce is configured, and broken."""
    checkout = tmp_path / "checkout"
    ignored = shutil.ignore_patterns(".git", ".venv*", "data", "mailonce.toml", ".env", ".*_cache", "__pycache__")
    shutil.copytree(ROOT, checkout, ignore=ignored)
    (checkout / "mailonce.toml").write_text("this is not TOML")
    (checkout / ".env").write_text("".join(f"{name}={value}\n" for name, value in HOSTILE_VARIABLES.items()))
    (checkout / "data").mkdir()
    (checkout / "data/journal.db").write_text("broken")
    first = run(checkout, *SAMPLE)
    assert run(checkout, f"--hypothesis-seed={first[0]}", "-n1") == first
    assert (checkout / "data/journal.db").read_text() == "broken"
