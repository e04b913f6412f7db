"""Actions of operators: in DATA_DIR/audit.log, whatever LOG_LEVEL is, and in the log.

With Redis, each machine shares its newest actions with the fleet, as a note.
"""

import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import astuple
from datetime import datetime
from pathlib import Path

from deduplication import members
from deduplication.files import PRIVATE, make_private
from deduplication.journal.entry import encode
from deduplication.journal.sqlite import Journal
from deduplication.values import frozen
from orchestrator.logs import LineFormatter

audit = logging.getLogger("mailonce.audit")

FILE = "audit.log"
LINE_BYTES = 500  # a line is shorter, as a rule
SHARED = 50  # actions of each machine
SHARED_MS = 30 * 86_400_000
_NOTE = "audit:"

_acting: ContextVar[str] = ContextVar("_acting", default="")
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) (.*?): AUDIT (\S+) ?(.*)")


@contextmanager
def acting_as(by: str) -> Iterator[None]:
    """Names the person behind the actions inside; otherwise the lines name the process."""
    token = _acting.set(by)
    try:
        yield
    finally:
        _acting.reset(token)


def keep_audit(data_dir: Path, by: str) -> logging.Handler:
    """Writes audit.log from now on. The handler is returned for callers that remove it before the process ends."""
    handler: logging.Handler
    try:
        os.close(os.open(data_dir / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE))
        make_private(data_dir / FILE)
        handler = logging.FileHandler(data_dir / FILE, encoding="utf-8")
    except OSError as error:
        audit.error("%s cannot be written (%s): actions of operators are only in the log", data_dir / FILE, error)
        handler = logging.NullHandler()

    def add_actor(record: logging.LogRecord) -> bool:
        record.by = _acting.get() or by
        return True

    handler.addFilter(add_actor)
    handler.setFormatter(LineFormatter("%(asctime)s %(by)s: %(message)s"))
    audit.addHandler(handler)
    audit.setLevel(logging.INFO)
    return handler


@frozen
class Action:
    """``machine``: where it was done."""

    at_ms: int
    by: str
    what: str
    details: str
    machine: str


def read_actions(journal: Journal, data_dir: Path, most: int) -> list[Action]:
    """Of all machines, newest first: those in this machine's file, and the newest of each other one."""
    with journal.reading() as step:
        notes = members.notes(step)
    actions = _read_file(data_dir, most, journal.machine)
    for key, (_, text) in notes.items():
        if key.startswith(_NOTE) and key != _NOTE + journal.machine and text:
            actions += (Action(*row) for row in json.loads(text))
    return sorted(actions, key=lambda action: action.at_ms, reverse=True)[:most]


def share_actions(journal: Journal, data_dir: Path) -> None:
    """Puts this machine's newest actions into its note, and empties notes of machines without one for a month."""
    own = _NOTE + journal.machine
    text = encode([astuple(action) for action in _read_file(data_dir, SHARED, journal.machine)])
    with journal.reading() as step:
        notes = {key: note for key, note in members.notes(step).items() if key.startswith(_NOTE) and note[1]}
        changed = [key for key, (at_ms, _) in notes.items() if key != own and step.now_ms - at_ms > SHARED_MS]
    if notes.get(own, (0, "[]"))[1] != text:
        changed.append(own)
    if changed:
        with journal.step() as step:
            for key in changed:
                members.put_note(step, key, text if key == own else "")


def _read_file(data_dir: Path, most: int, machine: str) -> list[Action]:
    """Those of the last ``most`` lines, newest first. Lines in another format are skipped."""
    try:
        with (data_dir / FILE).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most * LINE_BYTES))
            newest = file.read().decode(errors="replace").split("\n")[:-1][: -most - 1 : -1]
    except FileNotFoundError:
        return []
    actions = []
    for time, by, what, details in (found.groups() for line in newest if (found := _LINE.fullmatch(line))):
        moment = datetime.fromisoformat(time).astimezone()  # logging writes local time
        actions.append(Action(round(moment.timestamp() * 1000), by, what, details[:LINE_BYTES], machine))
    return actions
