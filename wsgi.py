"""The WSGI entry point: builds the settings, wires the layers, nothing else."""

import sys

from orchestrator.logs import configure_logging
from orchestrator.settings import SettingsError, load_settings
from orchestrator.wiring import build
from routes.app import create_app

try:
    settings = load_settings()
    configure_logging(settings.log_level)
    app = create_app(build(settings))
except SettingsError as error:
    sys.exit(f"mailonce: {error}")
