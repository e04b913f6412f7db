"""The note a service leaves, so that an operator's command finds it, from any folder, and makes no store of its own."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from deduplication.redis_client import parse_address
from orchestrator.config.model import Config
from orchestrator.config.settings import Settings, SettingsError, environment

NOTE = "service.json"
OF_THE_UNIT = Path("/var/lib/mailonce")  # where deploy/mailonce.service keeps its data


class NoService(SettingsError):
    """None has run on this machine where it was looked for."""


@dataclass(frozen=True)
class ServiceNote:
    """What a command must know to work on the same store. ``folder`` is where the service was started; no secrets.

    ``redis``: where it is, and the prefix of its keys; empty for none.
    """

    folder: str
    data_dir: str
    redis: str
    is_trial: bool


def leave_note(settings: Settings, config: Config) -> None:
    """In DATA_DIR, whoever starts there; it changes with the settings only."""
    _write(settings.data_dir / NOTE, json.dumps(asdict(_note(settings, config))))


def leave_address(settings: Settings) -> None:
    """Where this user's commands find the service that was started last."""
    address = _address_file(environment())
    if address:
        _write(address, str(settings.data_dir.resolve()))


def find_service(settings: Settings) -> ServiceNote:
    """The service on this machine that the settings mean. Raises NoService with where it was looked for."""
    looked_in = _folders(settings)
    for data_dir in looked_in:
        note = read_note(data_dir)
        if note:
            return note
    places = " or ".join(str(folder.resolve()) for folder in looked_in)
    raise NoService(f"no service has run with its data in {places}; DATA_DIR takes the folder of the one you mean")


def read_note(data_dir: Path) -> ServiceNote | None:
    try:
        written = json.loads((data_dir / NOTE).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SettingsError(f"{data_dir / NOTE} cannot be read: {error}") from error
    return ServiceNote(**written)


def check_same_redis(note: ServiceNote, settings: Settings) -> None:
    """A command on another store than the service's would answer with zeros, and reset nothing."""
    ours = _redis(settings)
    if ours != note.redis:
        raise SettingsError(
            f"REDIS_URL and KEY_PREFIX take what the service in {note.data_dir} was started with: "
            f"{note.redis or 'none'}, not {ours or 'none'}"
        )


def _note(settings: Settings, config: Config) -> ServiceNote:
    return ServiceNote(str(Path.cwd()), str(settings.data_dir.resolve()), _redis(settings), config.is_trial)


def _redis(settings: Settings) -> str:
    """Without user and password."""
    if not settings.redis_url:
        return ""
    address = parse_address(settings.redis_url)
    hosts = ",".join(f"{host}:{port}" for host, port in address.hosts)
    prefix = f" with the prefix {settings.redis_prefix}" if settings.redis_prefix else ""
    return f"{hosts}/{address.path}{prefix}"


def _folders(settings: Settings) -> list[Path]:
    if "data_dir" in settings.model_fields_set:
        return [settings.data_dir]
    address = _address_file(environment())
    told = [Path(address.read_text())] if address and address.is_file() else []
    return [settings.data_dir, *told, OF_THE_UNIT]


def _address_file(environ: Mapping[str, str]) -> Path | None:
    if environ.get("XDG_STATE_HOME"):
        return Path(environ["XDG_STATE_HOME"], "mailonce", "data_dir")
    return Path(environ["HOME"], ".local", "state", "mailonce", "data_dir") if environ.get("HOME") else None


def _write(path: Path, text: str) -> None:
    """At once, so that nobody reads half of it. A folder that cannot be written is told by those who need it."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
