"""The bearer tokens: from the settings or, on a first run without them, made and kept in DATA_DIR."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path

from deduplication.private_files import make_private
from orchestrator.config.settings import STRONG_TOKENS, Settings, SettingsError, token_weakness

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tokens:
    """``view`` may look, not act; ``metrics`` opens /metrics alone. ``new``: the files made just now, shown once."""

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
    """To a terminal only: elsewhere the output is somebody's log, such as the journal of the machine."""
    for path in tokens.new:
        if sys.stdout.isatty():
            print(f"{path.name}: {path.read_text().strip()}   (shown once; kept in {path})", flush=True)
        else:
            log.info("%s: made, and kept in %s", path.name, path.resolve())


def ingress_token_file(settings: Settings) -> Path:
    return settings.data_dir / "ingress_token"


def admin_token_file(settings: Settings) -> Path:
    return settings.data_dir / "admin_token"


def _kept(path: Path, made: list[Path]) -> str:
    """The token in the file. Of several processes that start at once, one makes it and all read the same."""
    try:
        if not path.exists() and _write_first(path, secrets.token_urlsafe(24)):
            made.append(path)
        make_private(path)
        token = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise SettingsError(f"DATA_DIR takes a folder that can be written; {path}: {error.strerror}") from error
    if not (token and token.isascii() and token.isprintable()):
        raise SettingsError(f"{path} holds no token; delete it to have a new one made")
    if weakness := token_weakness(token):
        raise SettingsError(f"{path} takes {STRONG_TOKENS}; its token {weakness}; delete it to have a new one made")
    return token


def _write_first(path: Path, token: str) -> bool:
    """Linking a finished file is atomic: nobody ever reads half a token."""
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
