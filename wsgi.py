"""The WSGI entry point, for servers other than `mailonce serve`."""

import sys

from deduplication.errors import DeduplicationError
from orchestrator.config.settings import SettingsError, load_settings
from routes.server import load_app

CANNOT_BOOT = 3  # gunicorn stops on this exit status; with any other it would start the worker again and again

try:
    app = load_app(load_settings())
except (SettingsError, DeduplicationError) as error:
    print(f"mailonce: {error}", file=sys.stderr, flush=True)
    sys.exit(CANNOT_BOOT)
