"""docs/tools.md: its commands work as printed, and what it shows of their output is what they print."""

from __future__ import annotations

import mailbox
import re
import shlex
import subprocess
from email.message import EmailMessage
from pathlib import Path

import pytest

from orchestrator.importing.rows import TAKES
from routes.command_line import main
from tests.support.server import MAILONCE, Server
from tests.support.surroundings import ROOT, clean_environment

PAGE = (ROOT / "docs/tools.md").read_text()
COMMANDS = re.findall(r"^```sh\n(mailonce .*)\n```$", PAGE, re.MULTILINE)
EMAILS = (
    ("Lot 456 - Documents", "bob@example.org", "Mon, 02 Nov 2026 09:00:00 +0000"),
    ("Re: Lot 456", "carla@example.org", "Tue, 03 Nov 2026 10:30:00 +0000"),
)
PRINTED = """2 emails, of 2026-11-02 to 2026-11-03
        1 new: their webhooks would have been sent
        0 duplicates, each the same as an email before it
        1 stopped by subject_group
        1 subject groups, each of one month
For example, stopped by subject_group:
  "Re: Lot 456" from carla@example.org, 2026-11-03T10:30:00+00:00
    after "Lot 456 - Documents" from bob@example.org, 2026-11-02T09:00:00+00:00 (lot_456)
"""


def start(command: str, folder: Path) -> subprocess.Popen[str]:
    _, *words = shlex.split(command)
    env = clean_environment(DATA_DIR=str(folder / "data"))
    return subprocess.Popen(
        [MAILONCE, *words], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_the_page_has_these_commands() -> None:
    assert [shlex.split(command)[1] for command in COMMANDS] == ["listen", "listen", "send-test", "import", "import"]
    assert PAGE.count("```sh\n") == len(COMMANDS)


@pytest.mark.parametrize("command", [each for each in COMMANDS if " listen" in each])
def test_listen_starts_as_printed(tmp_path: Path, command: str) -> None:
    with start(f"{command} --port 0", tmp_path) as process:  # 9000 may be somebody's
        assert process.stderr
        assert process.stderr.readline().startswith("mailonce listens on http://127.0.0.1:")
        process.terminate()


def test_the_port_that_the_page_names_is_the_default() -> None:
    (port,) = (each for each in main.commands["listen"].params if each.name == "port")
    assert f"http://127.0.0.1:{port.default}/" in PAGE


def test_the_other_commands_work_beside_a_service_as_printed(tmp_path: Path) -> None:
    box = mailbox.mbox(tmp_path / "inbox.mbox")
    for subject, sender, date in EMAILS:
        made = EmailMessage()
        made["Subject"], made["From"], made["Date"] = subject, sender, date
        made.set_content("Hello")
        box.add(made)
    box.close()
    shown = {}
    with Server(tmp_path / "data"):
        for command in COMMANDS:
            if " listen" not in command:
                with start(command, tmp_path) as process:
                    out, errors = process.communicate(timeout=300)
                assert process.returncode == 0, errors
                shown[command] = out
    printed = shown["mailonce import --dry-run inbox.mbox"]
    assert without_numbers(printed).startswith(without_numbers(PRINTED))
    (sample,) = re.findall(r"^```text\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL)
    for line in without_numbers(sample).splitlines():
        assert line in without_numbers(printed), line


def without_numbers(text: str) -> str:
    """And without dates: none of these emails comes in later than now, whenever that is."""
    return re.sub(r" *\d[\d,:T+-]*", " #", text)


def test_the_columns_are_those_that_are_read() -> None:
    assert TAKES in re.sub("`", "", PAGE)


def test_every_option_that_the_page_names_is_there() -> None:
    options = {name for command in main.commands.values() for each in command.params for name in each.opts}
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) <= options
