"""Blocks of the shell, as commands."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

_ASSIGNED = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Command:
    """``settings`` precede it; ``text`` is the command as written, without them; ``into_shell``: ``| sh`` follows."""

    text: str
    words: tuple[str, ...]
    settings: dict[str, str]
    into_shell: bool = False

    @property
    def program(self) -> str:
        return self.words[0] if self.words else ""


def commands(block: str) -> list[Command]:
    """One for each line, where a line goes on over backslashes and open quotes. Comments are left out."""
    found, lines = [], ""
    for line in block.splitlines():
        lines = f"{lines}\n{line}" if lines else line
        if line.endswith("\\"):
            continue
        try:
            words = shlex.split(lines.replace("\\\n", " "), comments=True)
        except ValueError:  # a quote is still open
            continue
        if words:
            found.append(_command(lines, words))
        lines = ""
    assert not lines, f"it does not end: {lines}"
    return found


def _command(text: str, words: list[str]) -> Command:
    settings = {}
    while words and words[0] == "export":
        words = words[1:]
    while words and (assigned := _ASSIGNED.fullmatch(words[0])):
        settings[assigned[1]] = assigned[2]
        words = words[1:]
    if words[:1] == ["sudo"]:
        words = words[3:] if words[1] == "-u" else words[1:]
    into_shell = words[-2:] == ["|", "sh"]
    return Command(text.strip(), tuple(words[:-2] if into_shell else words), settings, into_shell)
