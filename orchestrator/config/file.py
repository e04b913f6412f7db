"""mailonce.toml as text: its values, with env: and file: references replaced, and the line of each key."""

from __future__ import annotations

import json
import re
import tomllib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import field
from operator import itemgetter
from pathlib import Path
from typing import Any

from deduplication.values import frozen
from orchestrator.config.settings import SettingsError
from orchestrator.config.words import Loc

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@frozen
class Document:
    """``written`` is the parsed file, ``values`` the same with env: and file: references replaced."""

    path: Path
    text: str = field(repr=False)
    written: Mapping[str, Any] = field(repr=False)
    values: Mapping[str, Any] = field(repr=False)

    def error(self, problems: Iterable[tuple[Loc, str]]) -> SettingsError:
        """A line for each problem, in the order of the file: ``mailonce.toml, line 12: destinations.crm.url ...``."""
        numbered = []
        for loc, sentence in problems:
            line = self._line_of(loc)
            numbered.append((line, f"{self.path}, line {line}: {sentence}" if line else f"{self.path}: {sentence}"))
        return SettingsError("\n".join(text for _, text in sorted(numbered, key=itemgetter(0))))

    def _line_of(self, loc: Loc) -> int:
        """Where the statement begins that sets the key or, if it is missing, the nearest table around it; 0 for none.

        tomllib keeps no positions. But the beginning of a valid file can be parsed up to the end of any statement.
        """
        while loc and _value_at(self.written, loc) is None:
            loc = loc[:-1]
        lines = self.text.split("\n")

        def is_set_at_the_end_of(first: int) -> bool:
            """Of the statement that line ``first`` belongs to, or is the last line of."""
            for end in range(first, len(lines) + 1):
                with suppress(tomllib.TOMLDecodeError, RecursionError):
                    return _value_at(tomllib.loads("\n".join(lines[:end])), loc) is not None
            return True

        return 1 + bisect_left(range(1, len(lines)), True, key=is_set_at_the_end_of) if loc else 0

    def name_of(self, loc: Loc) -> str:
        """``routes.unsubscribe.match.#1``: list entries by their name or, if they have none, by their number."""
        return ".".join(self._name_of_last(loc[:length]) for length in range(1, len(loc) + 1))

    def _name_of_last(self, loc: Loc) -> str:
        name = loc[-1]
        if isinstance(name, int):
            named = _value_at(self.written, (*loc, "name"))
            if not isinstance(named, str) or not named:
                return f"#{name + 1}"
            name = named
        return name if _BARE_KEY.fullmatch(name) else quoted(name)

    def is_reference(self, loc: Loc) -> bool:
        """Whether the value came from env: or file:, and must not be shown."""
        return bool(_value_at(self.written, loc) != _value_at(self.values, loc))


def quoted(text: str) -> str:
    """In quotation marks and on one line, whatever it holds."""
    return json.dumps(text, ensure_ascii=False)


def read_document(path: Path, environ: Mapping[str, str]) -> Document:
    """Raises SettingsError if the file cannot be read, is not TOML, or refers to something that does not exist."""
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
        written = tomllib.loads(text)
        problems: list[tuple[Loc, str]] = []
        values = _replace_references(written, (), lambda text: _read_reference(text, path.parent, environ), problems)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path} must be TOML in UTF-8: {error}") from None
    document = Document(path, text, written, values)
    if problems:
        raise document.error((loc, f"{document.name_of(loc)} {problem}") for loc, problem in problems)
    return document


def _replace_references(value: Any, loc: Loc, read: Callable[[str], str], problems: list[tuple[Loc, str]]) -> Any:
    """Replaces env:NAME and file:PATH, once: the text of a variable or a file is not searched for more of them."""
    if isinstance(value, dict):
        return {key: _replace_references(inner, (*loc, key), read, problems) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replace_references(inner, (*loc, index), read, problems) for index, inner in enumerate(value)]
    if isinstance(value, str) and value.startswith(("env:", "file:")):
        try:
            return read(value)
        except LookupError as error:
            problems.append((loc, str(error.args[0])))
    return value


def _read_reference(text: str, folder: Path, environ: Mapping[str, str]) -> str:
    """Raises LookupError, which says what is wrong."""
    kind, _, name = text.partition(":")
    found, problem = "", ""
    if kind == "env":
        found, problem = environ.get(name, ""), "" if name in environ else "is not set"
    else:
        try:
            if (folder / name).is_file():  # opening a pipe would block
                found = (folder / name).read_text(encoding="utf-8-sig").rstrip("\r\n")
            else:
                problem = "does not exist or is not a file"
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
        except ValueError:
            problem = "is not UTF-8 text"
    if problem or not found:
        kind = "environment variable" if kind == "env" else kind
        raise LookupError(f"refers to the {kind} {quoted(name)}, which {problem or 'is empty'}")
    return found


def _value_at(value: Any, loc: Loc) -> Any:
    for part in loc:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value
