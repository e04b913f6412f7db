"""For scripts next to the service: its journal and its Redis, opened with the same settings."""

import time

from deduplication.journal.coordinator import Coordinator
from deduplication.journal.sqlite import Journal
from orchestrator.build import open_machine, open_registry
from orchestrator.config.settings import load_settings
from orchestrator.data_dir import is_trial_service


def open_coordinator() -> Coordinator:
    """The coordinator of the service with this DATA_DIR. With a REDIS_URL and no DATA_DIR, every question goes to Redis
    (rule 31).

    Raises SettingsError if a setting is wrong, no service has run there, or REDIS_URL is not the service's.
    """
    settings = load_settings()
    if settings.redis_url and "data_dir" not in settings.model_fields_set and not settings.data_dir.exists():
        journal = Journal(":memory:")
        return Coordinator(journal, open_registry(settings, journal), follows=False)
    coordinator, fleet = open_machine(settings, is_trial=is_trial_service(settings))
    if fleet:
        fleet.start()
        ends_at = time.monotonic() + 3 * settings.redis_timeout_ms / 1000
        while coordinator.redis.status == "suspected" and time.monotonic() < ends_at:
            time.sleep(0.01)  # until Redis has answered, or is known to be gone
    return coordinator
