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
    with open("tried", "a") as tried:
        print(number, file=tried)
"""


def run(folder: Path, *options: str) -> tuple[str, str]:
    """The seed that was printed, and the examples that were tried."""
    folder.mkdir()
    (folder / "test_property.py").write_text(PROPERTY.replace('"tried"', repr(str(folder / "tried"))))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-p", "tests.conftest", folder, *options],
        env=clean_environment(CI="true"),
        capture_output=True,
        text=True,
        check=True,
    )
    (seed,) = re.findall(r"^seed (\d+); make test SEED=\1 ", ran.stdout, re.MULTILINE)
    return seed, (folder / "tried").read_text()


def test_the_printed_seed_repeats_the_examples(tmp_path: Path) -> None:
    first = run(tmp_path / "first")
    assert run(tmp_path / "again", f"--hypothesis-seed={first[0]}", "-n1") == first


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


def test_files_and_variables_of_the_user_do_not_change_the_tests(tmp_path: Path) -> None:
    """In a copy in which Mailonce is configured, and broken."""
    checkout = tmp_path / "checkout"
    ignored = shutil.ignore_patterns(".git", ".venv*", "data", "mailonce.toml", ".env", ".*_cache", "__pycache__")
    shutil.copytree(ROOT, checkout, ignore=ignored)
    (checkout / "mailonce.toml").write_text("this is not TOML")
    (checkout / ".env").write_text("".join(f"{name}={value}\n" for name, value in HOSTILE_VARIABLES.items()))
    (checkout / "data").mkdir()
    (checkout / "data/journal.db").write_text("broken")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *SAMPLE],
        cwd=checkout,
        env=clean_environment(PYTHONPATH="") | HOSTILE_VARIABLES,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (checkout / "data/journal.db").read_text() == "broken"
