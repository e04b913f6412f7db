"""The note that a service leaves in DATA_DIR: commands and scripts use the same journal and Redis, or refuse."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass

from deduplication.redis_client import parse_address
from orchestrator.config.model import Config
from orchestrator.config.settings import Settings, SettingsError

NOTE = "service.json"


class NoService(SettingsError):
    """No service has run with this DATA_DIR."""


@dataclass(frozen=True)
class ServiceNote:
    """``redis`` is the address of its Redis and the prefix of its keys, without credentials; empty for none."""

    redis: str
    is_trial: bool


def leave_note(settings: Settings, config: Config) -> None:
    """Replaces the note at once, so that no reader sees half of it. With an unwritable folder there is no note."""
    draft = settings.data_dir / f".{NOTE}.{secrets.token_hex(4)}"
    with suppress(OSError):
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(asdict(ServiceNote(_redis(settings), config.is_trial)), file)
        draft.replace(settings.data_dir / NOTE)


def find_service(settings: Settings) -> ServiceNote:
    """The service with this DATA_DIR. Raises NoService, or SettingsError if REDIS_URL or KEY_PREFIX differ from its."""
    path = settings.data_dir.resolve() / NOTE
    try:
        note = json.loads(path.read_text())
        found = ServiceNote(str(note["redis"]), bool(note["is_trial"]))  # a newer version may have written more fields
    except FileNotFoundError:
        raise NoService(
            f"no service has run with its data in {path.parent}; run the command in the folder of the service, "
            "or set DATA_DIR"
        ) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    if found.redis != _redis(settings):
        raise SettingsError(
            f"REDIS_URL and KEY_PREFIX must be those of the service in {path.parent}: "
            f"{found.redis or 'none'}, got {_redis(settings) or 'none'}"
        )
    return found


def _redis(settings: Settings) -> str:
    if not settings.redis_url:
        return ""
    address = parse_address(settings.redis_url)
    hosts = ",".join(f"{host}:{port}" for host, port in address.hosts)
    prefix = f" with the prefix {settings.redis_prefix}" if settings.redis_prefix else ""
    return f"{hosts}/{address.path}{prefix}"
