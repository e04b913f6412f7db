"""For scripts beside the service: the store it uses, opened by the same settings."""

from __future__ import annotations

from deduplication.stores.base import Store
from deduplication.stores.failover import FailoverStore
from orchestrator.parts import build_store, make_data_dir, system_sources
from orchestrator.settings import load_settings

new_token = system_sources().new_token


def open_store() -> Store:
    """On Redis (REDIS_URL), or in DATA_DIR. Raises SettingsError if a setting is wrong."""
    settings = load_settings()
    make_data_dir(settings)
    store = build_store(settings)
    if isinstance(store, FailoverStore):
        store.start()
    return store
