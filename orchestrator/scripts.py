"""For scripts beside the service: the journal it uses, opened by the same settings."""

from __future__ import annotations

from pathlib import Path

from deduplication.journal.base import Journal
from orchestrator.build import build_journal, follow_redis, make_data_dir, system_sources
from orchestrator.config.settings import DOTENV, Settings, load_settings
from orchestrator.service_note import NoService, check_same_redis, find_service

new_token = system_sources().new_token


def open_journal() -> Journal:
    """The service's own, from any folder; where none has run, one in DATA_DIR.

    Raises SettingsError if a setting is wrong, or REDIS_URL is not the service's.
    """
    settings = _settings_of_service()
    make_data_dir(settings)
    journal = build_journal(settings)
    follow_redis(journal)
    return journal


def _settings_of_service() -> Settings:
    here = load_settings()
    try:
        note = find_service(here)
    except NoService:  # a script may use the vocabularies alone
        return here
    settings = load_settings(data_dir=Path(note.data_dir), mailonce_config=None, _env_file=Path(note.folder, DOTENV))
    check_same_redis(note, settings)
    return settings
