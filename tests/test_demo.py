"""make demo shows what it says, whatever the surroundings."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests import demo
from tests.support.surroundings import clean_environment

HOSTILE_SETTINGS = {
    "PORT": "no port",
    "SUBJECT_GROUPS": "off",
    "INGRESS_TOKEN": "short",
    "WEBHOOK_URL": "http://127.0.0.1:9/",
    "REDIS_URL": "redis://127.0.0.1:9/0",
    "http_proxy": "http://127.0.0.1:9",
}


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("surroundings")
    (folder / "mailonce.toml").write_text("this is not TOML")
    (folder / "tmp").mkdir()
    return folder


@pytest.fixture(scope="module")
def shown(surroundings: Path) -> subprocess.CompletedProcess[str]:
    """The demo, run where settings and a configuration lie around that are not its own."""
    own = clean_environment(TMPDIR=str(surroundings / "tmp"))
    return subprocess.run(
        [sys.executable, "-m", "tests.demo"],
        cwd=surroundings,
        env=HOSTILE_SETTINGS | own,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_demo_ends_well_and_shows_nothing_but_its_table(shown: subprocess.CompletedProcess[str]) -> None:
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines()[-1] == "All as expected: each email fired once."


@pytest.mark.parametrize(
    "line",
    [
        r"a new email +\| 200 +\| processed +\| new, as \w+, first of lot_456 +\| 1",
        r"exactly the same again +\| 200 +\| already_processed +\| repeats \w+: same email_id \w+ +\| 1",
        r'"Re:" of the same lot +\| 200 +\| skipped_subject_group +\| repeats \w+: same subject_group lot_456 +\| 1',
        r"the same subject, a month later +\| 200 +\| processed +\| new, .* +\| 2",
        r"DESABO from Bob +\| 200 +\| processed +\| new, as \w+, no subject group +\| 3",
        r"DESABO from Carla +\| 200 +\| processed +\| new, as \w+, no subject group +\| 4",
        r"DESABO from Bob again +\| 200 +\| already_processed +\| .* +\| 4",
        r"Bob, same second, another text +\| 200 +\| processed +\| .* +\| 5",
        r"an email without a sender +\| 400 +\| invalid +\| field sender: .* +\| 5",
        r"while the destination is down +\| 200 +\| queued +\| new, as \w+, stored and tried again +\| 5",
        r"a retry that was not needed +\| 200 +\| queued +\| repeats .* +\| 5",
        r"once it is up, seconds later +\| 200 +\| already_processed +\| repeats .* +\| 6",
    ],
)
def test_the_table_says_what_happened_and_why(shown: subprocess.CompletedProcess[str], line: str) -> None:
    assert re.search(f"^{line}$", shown.stdout, re.MULTILINE), shown.stdout


def test_the_demo_leaves_nothing_behind(shown: subprocess.CompletedProcess[str], surroundings: Path) -> None:
    assert shown.returncode == 0
    assert sorted(path.name for path in surroundings.rglob("*")) == ["mailonce.toml", "tmp"]


@pytest.mark.parametrize("wrong", [{"http_status": 500}, {"status": "queued"}, {"webhooks": 2}])
def test_the_demo_fails_if_an_email_goes_another_way(
    wrong: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [replace(demo.STEPS[0], **wrong), demo.STEPS[1]]  # type: ignore[arg-type]
    assert demo.main(steps) == 1
    complaints = capsys.readouterr().out.partition("NOT as expected:\n")[2].splitlines()
    assert [complaint.split(":")[0] for complaint in complaints] == ["a new email"]
