"""How far an import has come: a note in DATA_DIR, so that a run that was stopped can go on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from deduplication.private_files import write_private
from orchestrator.importing.sources import Source

FOLDER = "imports"


@dataclass(frozen=True)
class Note:
    """``after``: the last piece that is remembered; ``seen``: how many were read up to there."""

    source: str
    head: str
    after: str
    seen: int


@dataclass(frozen=True)
class Notes:
    """Of one source; two paths are two sources."""

    data_dir: Path
    source: Source

    @property
    def _path(self) -> Path:
        name = hashlib.sha256(str(self.source.path).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        return self.data_dir / FOLDER / f"{name}.json"

    def read(self) -> Note | None:
        """None: there is none, or it is of another file under the same name."""
        try:
            note = Note(**json.loads(self._path.read_text()))
        except (OSError, ValueError, TypeError):  # a damaged one only costs time: what is known is not imported twice
            return None
        return note if self.source.begins_with(note.head) else None

    def write(self, after: str, seen: int) -> None:
        """At once, so that nobody finds half of it."""
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        draft = self._path.with_suffix(".draft")
        write_private(draft, json.dumps(asdict(Note(str(self.source.path), self.source.head(), after, seen))))
        draft.replace(self._path)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
