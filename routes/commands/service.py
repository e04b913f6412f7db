"""What every command needs: the settings, and the service of DATA_DIR."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from contextlib import contextmanager

from deduplication.errors import StoreUnavailable
from orchestrator.audit import audit, keep_audit
from orchestrator.build import Service
from orchestrator.config.model import Config, load_config
from orchestrator.config.settings import Settings, load_settings, log_where_settings_come_from
from orchestrator.data_dir import find_service
from orchestrator.logs import configure_logging, quiet


def read_settings(*, serves: bool = False) -> Settings:
    """A command that does not serve logs warnings alone, so that stderr has its own words."""
    settings = load_settings()
    level = "WARNING" if settings.log_level == "INFO" and not serves else settings.log_level
    configure_logging(level, settings.log_format)
    log_where_settings_come_from()
    return settings


@contextmanager
def open_service() -> Iterator[Service]:
    """The service of DATA_DIR. Raises NoService: no command creates a journal."""
    settings = read_settings()
    with build_quietly(settings, load_config(settings), is_trial=find_service(settings).is_trial) as service:
        yield service


@contextmanager
def build_quietly(settings: Settings, config: Config, *, is_trial: bool) -> Iterator[Service]:
    """The service with its audit.log, but without its threads: the running service sends what a command releases, and
    publishes what it records."""
    handler = keep_audit(settings.data_dir, by=f"mailonce, by {user_name()}")
    with quiet():
        service = Service(settings, config, is_trial=is_trial)
    try:
        if registry := service.coordinator.registry:
            try:
                registry.probe()
                service.coordinator.redis.note_answer()
            except StoreUnavailable:
                service.coordinator.redis.give_up()
        yield service
    finally:
        service.close()
        audit.removeHandler(handler)
        handler.close()


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user of a container may have no name
        return str(os.getuid())
