"""mailonce.toml as it is written: its values, with env: and file: references replaced, and the name of each."""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import field
from operator import itemgetter
from pathlib import Path
from typing import Any

from deduplication.values import frozen
from orchestrator.config.settings import SettingsError
from orchestrator.config.words import Loc

_PLAIN_NAME = re.compile(r"#?[A-Za-z0-9_-]+")


@frozen
class Document:
    """``written`` is the parsed file, ``values`` the same with env: and file: references replaced."""

    path: Path
    text: str = field(repr=False)
    written: Mapping[str, Any] = field(repr=False)
    values: Mapping[str, Any] = field(repr=False)

    def error(self, problems: Iterable[tuple[Loc, str]]) -> SettingsError:
        """A line for each problem, in their order: ``mailonce.toml, line 12: destinations.crm.url must be ...``."""
        lines = []
        for loc, text in problems:
            is_reference = _value_at(self.written, loc) != _value_at(self.values, loc)
            shown = text.partition(";")[0] if is_reference else text  # the rest may quote the value
            line = self._line_of(loc)
            where = f"{self.path}, line {line}" if line else self.path
            lines.append((line, f"{where}: {self._name_of(loc)} {shown}"))
        ordered = dict.fromkeys(sorted(lines, key=itemgetter(0)))  # pydantic may have several errors for one mistake
        return SettingsError("\n".join(text for _, text in ordered))

    def _line_of(self, loc: Loc) -> int:
        """Where the statement begins that sets the key or, if it is missing, the nearest table around it; 0 for none.

        tomllib keeps no positions, but the beginning of a valid file can be parsed up to the end of any statement.
        """
        while loc and _value_at(self.written, loc) is None:
            loc = loc[:-1]
        lines, begin = self.text.split("\n"), 1
        for end in range(1, len(lines) + 1 if loc else 0):
            with suppress(tomllib.TOMLDecodeError):
                if _value_at(tomllib.loads("\n".join(lines[:end])), loc) is not None:
                    return begin
                begin = end + 1
        return 0

    def _name_of(self, loc: Loc) -> str:
        """``routes.unsubscribe.match.#1``: list entries by their name or, if they have none, by their number."""
        names = []
        for place, part in enumerate(loc):
            if isinstance(part, int):
                named = _value_at(self.written, (*loc[: place + 1], "name"))
                part = named if isinstance(named, str) and named else f"#{part + 1}"
            names.append(part if _PLAIN_NAME.fullmatch(part) else quoted(part))
        return ".".join(names)


def quoted(text: str) -> str:
    """In quotation marks and on one line, whatever it holds."""
    return json.dumps(text, ensure_ascii=False)


def read_document(path: Path, environ: Mapping[str, str]) -> Document:
    """Raises SettingsError if the file cannot be read, is not TOML, or refers to something that does not exist."""
    problems: list[tuple[Loc, str]] = []

    def replaced(value: Any, loc: Loc) -> Any:
        """env:NAME and file:PATH are replaced once: the text of a variable or a file is not searched for more."""
        if isinstance(value, dict):
            return {key: replaced(inner, (*loc, key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [replaced(inner, (*loc, index)) for index, inner in enumerate(value)]
        if not isinstance(value, str) or not value.startswith(("env:", "file:")):
            return value
        found, problem = _read_reference(value, path.parent, environ)
        if not found:
            problems.append((loc, problem))
        return found

    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
        written = tomllib.loads(text)
        document = Document(path, text, written, replaced(written, ()))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path} must be TOML in UTF-8: {error}") from None
    if problems:
        raise document.error(problems)
    return document


def _read_reference(text: str, folder: Path, environ: Mapping[str, str]) -> tuple[str, str]:
    """What it refers to, and what is wrong if that is empty."""
    kind, _, name = text.partition(":")
    if kind == "env":
        return environ.get(name, ""), f"refers to the environment variable {quoted(name)}, which is not set or empty"
    found = ""
    with suppress(OSError, ValueError):
        if (folder / name).is_file():  # opening a pipe would block
            found = (folder / name).read_text(encoding="utf-8-sig").rstrip("\r\n")
    return found, f"refers to the file {quoted(name)}, which does not exist, is empty, or is not UTF-8 text"


def _value_at(value: Any, loc: Loc) -> Any:
    with suppress(KeyError, IndexError, TypeError):
        for part in loc:
            value = value[part]
        return value
    return None
