"""What a service keeps in DATA_DIR beside its journal: tokens that it generated, and a note for its commands."""

import json
import logging
import secrets
import sys
from contextlib import suppress
from pathlib import Path

from deduplication.files import make_private
from deduplication.redis_client import parse_address
from deduplication.values import frozen
from orchestrator.config.settings import Settings, SettingsError, check_tokens

log = logging.getLogger(__name__)

NOTE = "service.json"


def _draft(path: Path, text: str) -> Path:
    """A finished file, to be given its name in one step: no process reads half of it."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    draft.touch(mode=0o600)
    draft.write_text(text)
    return draft


# Bearer tokens


@frozen
class Tokens:
    """``view`` is read-only; ``metrics`` gives access to /metrics only. ``new``: files that were just generated."""

    ingress: tuple[str, ...]
    admin: tuple[str, ...]
    view: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    new: tuple[Path, ...] = ()


def ensure_tokens(settings: Settings) -> Tokens:
    """From the settings or, on a first run without them, generated."""
    made: list[Path] = []
    ingress = settings.ingress_token or (_kept(ingress_token_file(settings), made),)
    admin = settings.admin_token or (_kept(settings.data_dir / "admin_token", made),)
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


def _kept(path: Path, made: list[Path]) -> str:
    """The token in the file. If several processes start at once, one generates it and all read the same."""
    try:
        if not path.exists():
            draft = _draft(path, f"{secrets.token_urlsafe(24)}\n")
            try:
                with suppress(FileExistsError):
                    path.hardlink_to(draft)
                    made.append(path)
            finally:
                draft.unlink()
        make_private(path)
        token = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise SettingsError(f"DATA_DIR must be a writable folder; {path}: {error.strerror}") from error
    if not (token.isascii() and token.isprintable()):
        raise SettingsError(f"{path} must be one line of printable ASCII; delete it to generate a new one")
    try:
        return check_tokens((token,))[0]
    except ValueError as error:
        raise SettingsError(f"{path} {error}; delete it to generate a new one") from None


# The note: commands and scripts use the same journal and Redis as the service, or refuse


class NoService(SettingsError):
    """No service has run with this DATA_DIR."""


def leave_note(settings: Settings, *, is_trial: bool) -> None:
    """An unwritable folder gets no note."""
    path = settings.data_dir / NOTE
    with suppress(OSError):
        _draft(path, json.dumps({"redis": _redis(settings), "is_trial": is_trial})).replace(path)


def is_trial_service(settings: Settings) -> bool:
    """Whether the service with this DATA_DIR is a trial. Raises NoService, or SettingsError if its REDIS_URL or
    KEY_PREFIX are others."""
    path = settings.data_dir.resolve() / NOTE
    try:
        note = json.loads(path.read_bytes())
        redis, is_trial = note["redis"], bool(note["is_trial"])
    except FileNotFoundError:
        where = "run the command in the folder of the service, or set DATA_DIR"
        raise NoService(f"no service has run with its data in {path.parent}; {where}") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise SettingsError(f"{path} cannot be read ({error}); the service writes it when it starts") from error
    if redis != _redis(settings):
        must_be = f"must be those of the service in {path.parent}: {redis or 'none'}"
        raise SettingsError(f"REDIS_URL and KEY_PREFIX {must_be}, got {_redis(settings) or 'none'}")
    return is_trial


def _redis(settings: Settings) -> str:
    """Its address and prefix, without credentials; empty for none."""
    if not settings.redis_url:
        return ""
    address = parse_address(settings.redis_url)
    hosts = ",".join(f"{host}:{port}" for host, port in address.hosts)
    return f"{hosts}/{address.path}{settings.redis_prefix and f' with the prefix {settings.redis_prefix}'}"
