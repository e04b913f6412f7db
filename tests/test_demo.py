"""make demo, whatever settings and files are around it."""

import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import requests

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
LINES = (
    r"a new email +\| 200 +\| processed +\| new, as \w+, first of lot_456 +\| 1",
    r"exactly the same again +\| 200 +\| already_processed +\| repeats \w+: same email_id \w+ +\| 1",
    r"a colleague about the same lot +\| 200 +\| skipped_subject_group +\| repeats .* lot_456@example.org +\| 1",
    r"DESABO from Bob +\| 200 +\| processed +\| new, as \w+, no subject group +\| 3",
    r"an email without a sender +\| 400 +\| invalid +\| field sender: .* +\| 5",
    r"while the destination is down +\| 200 +\| queued +\| new, as \w+, stored and tried again +\| 5",
    r"once it is up, seconds later +\| 200 +\| already_processed +\| repeats .* +\| 6",
)
SAVED = (
    "  emails delivered +183",
    "  duplicates stopped +[67]\\d",
    "  suppressed by their subject group +1",
    "  deliveries retried +[4-9]\\d",
    "  lost +0",
    "  double +0",
)


def test_the_demo_shows_a_page_and_what_was_saved_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Run among settings and a configuration that are not its own. The page stays up until Ctrl+C."""
    (tmp_path / "mailonce.toml").write_text("this is not TOML")
    (tmp_path / "tmp").mkdir()
    demo = subprocess.Popen(
        [sys.executable, "-m", "tests.demo", "--seconds", "3", "--stay"],
        cwd=tmp_path,
        env=HOSTILE_SETTINGS | clean_environment(TMPDIR=str(tmp_path / "tmp")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert demo.stdout is not None
    shown = ""
    while "Ctrl+C ends it" not in shown:
        line = demo.stdout.readline()
        assert line, f"{shown}\n{demo.stderr and demo.stderr.read()}"
        shown += line
    page = re.search(r"^Page: (http://\S+)", shown, re.MULTILINE)
    assert page and requests.get(f"{page[1]}livez", timeout=30).status_code == 200
    demo.send_signal(signal.SIGINT)
    assert (demo.communicate(timeout=60)[1], demo.returncode) == ("", 0), shown
    for line in (*LINES, "All as expected: each email fired once.", *SAVED):
        assert re.search(f"^{line}$", shown, re.MULTILINE), shown
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mailonce.toml", "tmp"]


def test_the_demo_fails_if_an_email_goes_another_way(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third, *others = demo.STEPS[:5]
    wrong = [replace(first, http_status=500), replace(second, status="queued"), replace(third, webhooks=2)]
    assert demo.explain([*wrong, *others]) == 3
    complaints = capsys.readouterr().out.partition("NOT as expected:\n")[2].splitlines()
    assert [complaint.split(":")[0] for complaint in complaints] == [step.what.split(":")[0] for step in wrong]
