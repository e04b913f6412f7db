"""mailonce serve: gunicorn around the application. SIGTERM lets requests finish, SIGHUP reloads mailonce.toml."""

from __future__ import annotations

import logging
import shlex
import sys
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.workers.base import Worker

from orchestrator.config import Config
from orchestrator.logs import configure_logging
from orchestrator.parts import make_data_dir
from orchestrator.settings import DELIVERY_BUDGET_S, Settings, SettingsError
from orchestrator.tokens import ensure_tokens, ingress_token_file, show_new
from orchestrator.wiring import Service, build
from routes.app import create_app
from routes.connections import CONNECTIONS, ConnectionWorker, Log
from routes.providers.registry import checked_config

log = logging.getLogger(__name__)

EXAMPLE = """{"subject": "Lot 456 - Documents", "sender": "Ada <ada@example.org>",
        "date": "2026-11-16T09:00:00.000Z", "body": "Hello"}"""


def gunicorn_options(settings: Settings) -> dict[str, Any]:
    """For ``mailonce serve`` and deploy/gunicorn.conf.py alike."""
    return {
        "bind": settings.bind,
        "worker_class": ConnectionWorker,
        "logger_class": Log,
        "workers": settings.web_concurrency,
        "threads": CONNECTIONS,  # at work are WEB_THREADS of them
        "graceful_timeout": DELIVERY_BUDGET_S + 15,  # a delivery under way is allowed to finish
        "timeout": 60,
        "keepalive": 5,
        "control_socket_disable": True,
    }


class Server(BaseApplication):
    """Reads mailonce.toml in the master, so that a bad one is found before any worker has to live with it."""

    def __init__(self, settings: Settings) -> None:
        started_at = settings.service_started_at or datetime.now(UTC)  # the same for all workers, also restarted ones
        self._settings = settings.model_copy(update={"service_started_at": started_at})
        self._config = checked_config(settings)
        self._service: Service | None = None
        make_data_dir(settings)
        show_new(ensure_tokens(settings))
        super().__init__()

    def load_config(self) -> None:
        options = {**gunicorn_options(self._settings), "when_ready": self._when_ready, "worker_exit": self._worker_exit}
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """In each worker."""
        configure_logging(self._settings.log_level)
        try:
            self._service = build(self._settings, config=self._config)
            return create_app(self._service)
        except SettingsError as error:
            sys.exit(f"mailonce: {error}")

    def reload(self) -> None:
        """On SIGHUP, in the master; the workers are then replaced one by one."""
        try:
            self._config = checked_config(self._settings)
        except SettingsError as error:
            log.error("not reloaded, the old mailonce.toml stays in force: %s", error)
        super().reload()

    def _worker_exit(self, _server: Arbiter, _worker: Worker) -> None:
        if self._service:
            self._service.close()

    def _when_ready(self, _server: Arbiter) -> None:
        print(_welcome(self._settings, self._config), flush=True)


def _welcome(settings: Settings, config: Config) -> str:
    kept = shlex.quote(str(ingress_token_file(settings)))
    token = "${INGRESS_TOKEN%%,*}" if settings.ingress_token else f"$(cat {kept})"
    address = settings.address
    places = ", ".join(
        f"{name} ({urlsplit(each.url).hostname or each.url})" for name, each in config.destinations.items()
    )
    return f"""
Mailonce listens on {address}   health: {address}/health
store: {"redis" if settings.redis_url else settings.data_dir / "mailonce.db"}   destination: {places}

Try it (twice: the second time it is a duplicate):
  curl -sS {address}/api/ingress/gmail -H "Authorization: Bearer {token}" -H "Content-Type: application/json" \\
    -d '{EXAMPLE}'
"""
