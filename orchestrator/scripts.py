"""For scripts beside the service: the store it uses, opened by the same settings."""

from __future__ import annotations

from pathlib import Path

from deduplication.stores.base import Store
from deduplication.stores.failover import FailoverStore
from orchestrator.parts import build_store, make_data_dir, system_sources
from orchestrator.service_note import NoService, check_same_redis, find_service
from orchestrator.settings import DOTENV, Settings, load_settings

new_token = system_sources().new_token


def open_store() -> Store:
    """The service's own, from any folder, also while it only prints webhooks; where none has run, one in DATA_DIR.

    Raises SettingsError if a setting is wrong, or REDIS_URL is not the service's.
    """
    settings = _settings_of_service()
    make_data_dir(settings)
    store = build_store(settings)
    if isinstance(store, FailoverStore):
        store.start()
    return store


def _settings_of_service() -> Settings:
    here = load_settings()
    try:
        note = find_service(here)
    except NoService:  # a script may use the vocabularies alone
        return here
    settings = load_settings(data_dir=Path(note.data_dir), mailonce_config=None, _env_file=Path(note.folder, DOTENV))
    check_same_redis(note, settings)
    return settings
