"""The bearer tokens: from the settings or, on a first run without them, generated and kept in DATA_DIR. And the keys
that all machines share, as notes.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path

from deduplication import members
from deduplication.files import make_private
from deduplication.journal.sqlite import Journal
from orchestrator.config.settings import STRONG_TOKENS, Settings, SettingsError, token_weakness

log = logging.getLogger(__name__)

_END_OF_TIME_MS = 1 << 53


@dataclass(frozen=True)
class Tokens:
    """``view`` is read-only; ``metrics`` gives access to /metrics only. ``new``: files that were just generated."""

    ingress: tuple[str, ...]
    admin: tuple[str, ...]
    view: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    new: tuple[Path, ...] = ()


def ensure_tokens(settings: Settings) -> Tokens:
    made: list[Path] = []
    ingress = settings.ingress_token or (_kept(ingress_token_file(settings), made),)
    admin = settings.admin_token or (_kept(admin_token_file(settings), made),)
    return Tokens(ingress, admin, settings.view_token, settings.metrics_token, tuple(made))


def show_new(tokens: Tokens) -> None:
    """Prints new tokens to a terminal only: elsewhere the output ends up in a log."""
    for path in tokens.new:
        if sys.stdout.isatty():
            print(f"{path.name}: {path.read_text().strip()}   (shown once; stored in {path})", flush=True)
        else:
            log.info("%s: generated, stored in %s", path.name, path.resolve())


def ingress_token_file(settings: Settings) -> Path:
    return settings.data_dir / "ingress_token"


def admin_token_file(settings: Settings) -> Path:
    return settings.data_dir / "admin_token"


def _kept(path: Path, made: list[Path]) -> str:
    """The token in the file. If several processes start at once, one generates it and all read the same."""
    try:
        if not path.exists() and _write_first(path, secrets.token_urlsafe(24)):
            made.append(path)
        make_private(path)
        token = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise SettingsError(f"DATA_DIR must be a writable folder; {path}: {error.strerror}") from error
    if not (token and token.isascii() and token.isprintable()):
        raise SettingsError(f"{path} has no token; delete it to generate a new one")
    if weakness := token_weakness(token):
        raise SettingsError(f"{path} must have {STRONG_TOKENS}; its token {weakness}; delete it to generate a new one")
    return token


def _write_first(path: Path, token: str) -> bool:
    """Linking a finished file is atomic: no process reads half a token."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    try:
        path.hardlink_to(draft)
        return True
    except FileExistsError:
        return False
    finally:
        draft.unlink()


def shared_key(journal: Journal, note: str) -> bytes:
    """Made when it is first asked for; the same on all machines, a second after a new one has joined."""
    while not (key := known_key(journal, note)):
        with journal.step() as step:
            if note not in members.notes(step):
                # The latest note wins, but a machine that joins must not replace the fleet's key: time runs backwards.
                members.put_note(step, note, secrets.token_hex(32), _END_OF_TIME_MS - step.now_ms)
    return key


def known_key(journal: Journal, note: str) -> bytes:
    """b"" if no machine has made it, or this one does not know it yet."""
    with journal.reading() as step:
        known = members.notes(step).get(note)
    return bytes.fromhex(known[1]) if known else b""
