"""The text of mailonce.toml: what it says, on which line it says it, and what env: and file: stand for."""

from __future__ import annotations

import json
import re
import tomllib
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.config.settings import SettingsError

LARGEST_FILE_VALUE_BYTES = 64 * 1024

Loc = tuple[str | int, ...]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SYNTAX_ERROR = re.compile(r"(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)", re.S)


@dataclass(frozen=True)
class Complaint:
    """``loc`` is where it is, ``named`` what the sentence is about, if not the same; ``text`` goes on from there."""

    loc: Loc
    text: str
    named: Loc | None = None


@dataclass(frozen=True)
class Document:
    """``written`` is the file as it stands, ``values`` the same with env: and file: filled in.

    ``unresolved`` are those that could not be; in ``values`` they are as written.
    """

    path: Path
    written: Mapping[str, Any] = field(repr=False)
    values: Mapping[str, Any] = field(repr=False)
    lines: Mapping[Loc, int] = field(repr=False)
    unresolved: tuple[Complaint, ...] = ()

    def error(self, complaints: Iterable[Complaint]) -> SettingsError:
        """One line for each, in the order of the file."""
        ordered = sorted(complaints, key=lambda each: self.line_of(each.loc) or 0)
        return SettingsError("\n".join(map(self.sentence, ordered)))

    def sentence(self, complaint: Complaint) -> str:
        """``mailonce.toml, line 12: destinations.crm.url takes ...``; no line where the file does not get that far."""
        line = self.line_of(complaint.loc)
        name = self.name_of(complaint.loc if complaint.named is None else complaint.named)
        place = f"{self.path}, line {line}" if line else str(self.path)
        return f"{place}: {name} {complaint.text}" if name else f"{place}: {complaint.text}"

    def line_of(self, loc: Loc) -> int | None:
        """Of the key, or of the nearest table around it."""
        known = next((loc[:length] for length in range(len(loc), 0, -1) if loc[:length] in self.lines), None)
        return None if known is None else self.lines[known]

    def name_of(self, loc: Loc) -> str:
        """``routes.unsubscribe.match.#1``: list entries by their name or, where they have none, by their number."""
        return ".".join(filter(None, (self._part(loc[:length]) for length in range(1, len(loc) + 1))))

    def written_at(self, loc: Loc) -> Any:
        return _value_at(self.written, loc)

    def is_filled_in(self, loc: Loc) -> bool:
        """Whether the value, or a part of it, came from env: or file: and must not be shown."""
        return bool(self.written_at(loc) != _value_at(self.values, loc))

    def is_unresolved(self, loc: Loc) -> bool:
        """Whether it is a value, or lies in one, that could not be filled in."""
        return any(loc[: len(each.loc)] == each.loc for each in self.unresolved)

    def _part(self, loc: Loc) -> str:
        part = loc[-1]
        if isinstance(part, str):
            return part if _BARE_KEY.fullmatch(part) else quoted(part)
        if not isinstance(self.written_at(loc[:-1]), list):
            return ""
        name = self.written_at((*loc, "name"))
        return self._part((name,)) if isinstance(name, str) and name else f"#{part + 1}"


def quoted(text: str) -> str:
    """In quotation marks and on one line, whatever it holds."""
    return json.dumps(text, ensure_ascii=False)


def read_document(path: Path, environ: Mapping[str, str]) -> Document:
    """Raises SettingsError if the file cannot be read or is not TOML."""
    text = _read_text(path)
    try:
        written = tomllib.loads(text)
        resolver = _Resolver(path.parent, environ)
        values = resolver.resolve(written, ())
        return Document(path, written, values, _Scanner(text).scan(), tuple(resolver.complaints))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(_syntax_complaint(path, str(error), text)) from None
    except RecursionError:
        raise SettingsError(f"{path}: it is nested too deeply") from None
    except ValueError as error:  # a number with more digits than Python reads
        raise SettingsError(f"{path}: {error}") from None


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{path}, line {line}: it is not written in UTF-8") from None


def _syntax_complaint(path: Path, message: str, text: str) -> str:
    found = _SYNTAX_ERROR.fullmatch(message)
    if not found:
        return f"{path}: {message}"
    if not found["line"]:
        return f"{path}, line {text.count(chr(10), 0, -1) + 1}: {found['what']}, where the file ends"
    return f"{path}, line {found['line']}: {found['what']}, at column {found['column']}"


def _value_at(value: Any, loc: Loc) -> Any:
    for part in loc:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


class _Unresolved(Exception):
    pass


class _Resolver:
    """Fills in env:NAME and file:PATH, once: what a variable or a file says is not read for more of them."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._environ = environ
        self.complaints: list[Complaint] = []

    def resolve(self, value: Any, loc: Loc) -> Any:
        if isinstance(value, dict):
            return {key: self.resolve(each, (*loc, key)) for key, each in value.items()}
        if isinstance(value, list):
            return [self.resolve(each, (*loc, index)) for index, each in enumerate(value)]
        return self._text(value, loc) if isinstance(value, str) else value

    def _text(self, value: str, loc: Loc) -> str:
        try:
            if value.startswith("env:"):
                return self._variable(value.removeprefix("env:"))
            if value.startswith("file:"):
                return self._file(value.removeprefix("file:"))
        except _Unresolved as error:
            self.complaints.append(Complaint(loc, str(error)))
        return value

    def _variable(self, name: str) -> str:
        if not _VARIABLE.fullmatch(name):
            raise _Unresolved(f"takes the name of a variable after env:, not {quoted(name)}")
        if name not in self._environ:
            raise _Unresolved(f"takes what the variable {name} says, which is not set")
        if not self._environ[name]:
            raise _Unresolved(f"takes what the variable {name} says, which is empty")
        return self._environ[name]

    def _file(self, path: str) -> str:
        wanted = f"takes what the file {quoted(path)} says, which"
        try:
            text = _read_value(self._folder / path).rstrip("\r\n")
        except OSError as error:
            raise _Unresolved(f"{wanted} cannot be read: {error.strerror}") from None
        except ValueError:
            raise _Unresolved(f"{wanted} is not text in UTF-8") from None
        if not text:
            raise _Unresolved(f"{wanted} is empty")
        return text


def _read_value(path: Path) -> str:
    """Only of a regular file: a pipe would wait for ever, and the workers read the file again."""
    if path.exists() and not path.is_file():
        raise OSError(0, "it is not a file")
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE_VALUE_BYTES + 1)
    if len(content) > LARGEST_FILE_VALUE_BYTES:
        raise OSError(0, f"it is longer than {LARGEST_FILE_VALUE_BYTES} bytes")
    return content.decode("utf-8-sig")


_BLANK = re.compile(r"(?:[ \t\n,]|#[^\n]*)*")
_KEY = re.compile(r"""(?:[A-Za-z0-9_-]+|"(?:\\.|[^"\\])*"|'[^']*'|[ \t]*\.[ \t]*)+""")
_EQUALS = re.compile(r"[ \t]*=[ \t]*")
_OPENED = re.compile(r"\[{1,2}[ \t]*")
_CLOSED = re.compile(r"[ \t]*\]{1,2}")
_STRING = re.compile(
    r'''"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?'{3,5}|"(?:\\.|[^"\\])*"|'[^']*\'''',
    re.DOTALL,
)
_PLAIN = re.compile(r"[^,\]}#\n]+")


class _Scanner:
    """Finds the line of every key and list entry in text that tomllib has read, so that it need not doubt any of it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line_ends = [found.start() for found in re.finditer("\n", text)]
        self._lines: dict[Loc, int] = {}
        self._last_of: dict[Loc, int] = {}

    def scan(self) -> Mapping[Loc, int]:
        table: Loc = ()
        while self._next_char():
            if self._next_char() == "[":
                table = self._header()
            else:
                self._pair(table)
        return self._lines

    def _header(self) -> Loc:
        line = self._line()
        is_list = self._take(_OPENED).startswith("[[")
        *around, last = self._key()
        self._take(_CLOSED)
        loc: Loc = ()
        for part in around:
            loc = self._entry((*loc, part))
        loc = (*loc, last)
        if is_list:
            self._last_of[loc] = self._last_of.get(loc, -1) + 1
        return self._note(self._entry(loc), line)

    def _entry(self, loc: Loc) -> Loc:
        """After ``[[a]]``, ``[a.b]`` belongs to the last a so far."""
        return (*loc, self._last_of[loc]) if loc in self._last_of else loc

    def _pair(self, table: Loc) -> None:
        line = self._line()
        loc = self._note((*table, *self._key()), line)
        self._take(_EQUALS)
        self._value(loc)

    def _value(self, loc: Loc) -> None:
        first = self._text[self._at]
        if first == "[":
            self._list(loc)
        elif first == "{":
            self._inline_table(loc)
        else:
            self._take(_STRING if first in "\"'" else _PLAIN)

    def _list(self, loc: Loc) -> None:
        self._at += 1
        count = 0
        while self._next_char() != "]":
            self._value(self._note((*loc, count), self._line()))
            count += 1
        self._at += 1

    def _inline_table(self, loc: Loc) -> None:
        self._at += 1
        while self._next_char() != "}":
            self._pair(loc)
        self._at += 1

    def _key(self) -> tuple[str, ...]:
        """tomllib itself knows best how keys are quoted."""
        node = tomllib.loads(f"{self._take(_KEY)} = 0")
        parts: list[str] = []
        while isinstance(node, dict):
            ((part, node),) = node.items()
            parts.append(part)
        return tuple(parts)

    def _next_char(self) -> str:
        self._take(_BLANK)
        return self._text[self._at : self._at + 1]

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise ValueError(f"line {self._line()} cannot be followed")
        self._at = found.end()
        return found[0]

    def _line(self) -> int:
        return bisect_left(self._line_ends, self._at) + 1

    def _note(self, loc: Loc, line: int) -> Loc:
        for length in range(1, len(loc) + 1):
            self._lines.setdefault(loc[:length], line)
        return loc
