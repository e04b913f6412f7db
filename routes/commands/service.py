"""What every command needs: the settings, the journal of the service, and who is at it."""

from __future__ import annotations

import getpass
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from orchestrator.audit import audit, keep_audit
from orchestrator.build import Parts, build_parts
from orchestrator.config.model import Config, load_config
from orchestrator.config.settings import Settings, load_settings, log_where_settings_come_from
from orchestrator.logs import configure_logging
from orchestrator.service_note import check_same_redis, find_service


def read_settings() -> Settings:
    settings = load_settings()
    configure_logging(settings.log_level, settings.log_format)
    log_where_settings_come_from()
    return settings


@contextmanager
def open_parts() -> Iterator[Parts]:
    """On the journal of the service, and with what is done to it in the service's audit.log."""
    settings, config = as_the_service_has_them(read_settings())
    with audited(settings, config) as parts:
        yield parts


@contextmanager
def audited(settings: Settings, config: Config) -> Iterator[Parts]:
    handler = keep_audit(settings.data_dir, by=f"mailonce, by {user_name()}")
    try:
        with opened(settings, config) as parts:
            yield parts
    finally:
        audit.removeHandler(handler)
        handler.close()


def as_the_service_has_them(here: Settings) -> tuple[Settings, Config]:
    """As the service has them: its .env and its mailonce.toml are where it was started."""
    note = find_service(here)
    given = {"mailonce_config": here.mailonce_config.resolve()} if here.mailonce_config else {}
    if Path(note.folder) != Path.cwd():
        click.echo(f"mailonce: on the service in {note.data_dir}, started in {note.folder}", err=True)
        with suppress(OSError):
            os.chdir(note.folder)
    settings = load_settings(data_dir=Path(note.data_dir), **given)
    check_same_redis(note, settings)
    return settings, load_config(settings).in_trial(note.is_trial)


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())


@contextmanager
def opened(settings: Settings, config: Config) -> Iterator[Parts]:
    """Without the lines that a service logs when it starts."""
    log, level = logging.getLogger(), logging.getLogger().level
    log.setLevel(logging.ERROR)
    parts = build_parts(settings, config, slot="command")  # what it delivers counts, too
    try:
        yield parts
    finally:
        parts.close()
        log.setLevel(level)
