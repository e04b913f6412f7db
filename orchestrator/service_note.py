"""The note that a service leaves in DATA_DIR: commands and scripts use the same journal and Redis, or refuse."""

from __future__ import annotations

import secrets
from contextlib import suppress

from pydantic import BaseModel, ValidationError

from deduplication.redis_client import parse_address
from orchestrator.config.settings import Settings, SettingsError

NOTE = "service.json"


class NoService(SettingsError):
    """No service has run with this DATA_DIR."""


class ServiceNote(BaseModel):
    """``redis``: its address and prefix, without credentials; empty for none. Fields of a newer version are ignored."""

    redis: str
    is_trial: bool


def leave_note(settings: Settings, *, is_trial: bool) -> None:
    """Replaces the note in one step, so that no reader sees half of it. An unwritable folder gets no note."""
    draft = settings.data_dir / f".{NOTE}.{secrets.token_hex(4)}"
    with suppress(OSError):
        draft.touch(mode=0o600)
        draft.write_text(ServiceNote(redis=_redis(settings), is_trial=is_trial).model_dump_json())
        draft.replace(settings.data_dir / NOTE)


def find_service(settings: Settings) -> ServiceNote:
    """The service with this DATA_DIR. Raises NoService, or SettingsError if REDIS_URL or KEY_PREFIX differ from its."""
    path = settings.data_dir.resolve() / NOTE
    try:
        note = ServiceNote.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        where = "run the command in the folder of the service, or set DATA_DIR"
        raise NoService(f"no service has run with its data in {path.parent}; {where}") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise SettingsError(f"{path} cannot be read; the service writes it again when it starts") from error
    if note.redis != _redis(settings):
        must_be = f"must be those of the service in {path.parent}: {note.redis or 'none'}"
        raise SettingsError(f"REDIS_URL and KEY_PREFIX {must_be}, got {_redis(settings) or 'none'}")
    return note


def _redis(settings: Settings) -> str:
    if not settings.redis_url:
        return ""
    address = parse_address(settings.redis_url)
    hosts = ",".join(f"{host}:{port}" for host, port in address.hosts)
    return f"{hosts}/{address.path}{settings.redis_prefix and f' with the prefix {settings.redis_prefix}'}"
