"""For those who start gunicorn themselves: gunicorn -c deploy/gunicorn.conf.py wsgi:app

`mailonce serve` does the same, and also keeps the old mailonce.toml where a reloaded one is wrong.
"""

import sys
from datetime import UTC, datetime

from deduplication.errors import DeduplicationError
from orchestrator.build import check_start, make_data_dir
from orchestrator.config.settings import SettingsError, load_settings, log_where_settings_come_from
from orchestrator.logs import configure_logging
from orchestrator.tokens import ensure_tokens, show_new
from routes.providers.registry import checked_config
from routes.server import gunicorn_options

try:
    _settings = load_settings()
    configure_logging(_settings.log_level, _settings.log_format)
    log_where_settings_come_from()
    make_data_dir(_settings)
    check_start(_settings, checked_config(_settings))
    globals().update(gunicorn_options(_settings))
    show_new(ensure_tokens(_settings))
except (SettingsError, DeduplicationError) as error:
    sys.exit(f"mailonce: {error}")

raw_env = [f"SERVICE_STARTED_AT={datetime.now(UTC).isoformat()}"]  # the same for all workers, also restarted ones
