"""The WSGI entry point: builds the settings, wires the layers, nothing else."""

import sys

from deduplication.errors import DeduplicationError
from orchestrator.audit import keep_audit
from orchestrator.build import build
from orchestrator.config.settings import SettingsError, load_settings
from orchestrator.logs import configure_logging
from routes.app import create_app

CANNOT_BOOT = 3  # gunicorn ends on this one; a process that ends with another is started again, and again

try:
    settings = load_settings()
    configure_logging(settings.log_level, settings.log_format)
    app = create_app(build(settings))
    keep_audit(settings.data_dir, by="service")
except (SettingsError, DeduplicationError) as error:
    print(f"mailonce: {error}", file=sys.stderr, flush=True)
    sys.exit(CANNOT_BOOT)
