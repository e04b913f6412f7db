"""mailonce serve: gunicorn around the application. SIGTERM lets requests finish, SIGHUP reloads mailonce.toml."""

from __future__ import annotations

import ctypes
import errno
import gc
import logging
import secrets
import shlex
import socket
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.errors import AppImportError
from gunicorn.workers.base import Worker

from deduplication.errors import DeduplicationError
from orchestrator.audit import keep_audit
from orchestrator.build import Service, build, check_start, make_data_dir
from orchestrator.config.model import Config
from orchestrator.config.settings import DELIVERY_BUDGET_S, Settings, SettingsError, environment
from orchestrator.logs import configure_logging
from orchestrator.service_note import leave_address
from orchestrator.tokens import ensure_tokens, ingress_token_file, show_new
from routes.app import create_app
from routes.connections import CONNECTIONS, ConnectionWorker, JsonLog, Log
from routes.providers.registry import checked_config

log = logging.getLogger(__name__)

M_ARENA_MAX = -8  # of malloc.h
HEAPS = 2


def check_address(settings: Settings) -> None:
    """gunicorn would try for five seconds, and name no setting. Sockets that it is handed are taken as they are."""
    if environment().keys() & {"LISTEN_FDS", "GUNICORN_FD"}:
        return
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        socket.create_server((settings.host, settings.port), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SettingsError(f"PORT takes a free port; {settings.bind} is in use by another program") from error
        if error.errno == errno.EACCES:
            raise SettingsError(f"PORT takes a port that this user may open; {settings.port} is not that") from error
        raise SettingsError(f"HOST takes an address of this machine; {settings.host!r} is not that") from error


def gunicorn_options(settings: Settings) -> dict[str, Any]:
    """For ``mailonce serve`` and deploy/gunicorn.conf.py alike."""
    return {
        "bind": settings.bind,
        "worker_class": ConnectionWorker,
        "logger_class": JsonLog if settings.log_format == "json" else Log,
        "workers": settings.web_concurrency,
        "threads": CONNECTIONS,  # at work are WEB_THREADS of them
        "graceful_timeout": DELIVERY_BUDGET_S + 15,  # a delivery under way is allowed to finish
        "timeout": 60,
        "keepalive": 5,
        "control_socket_disable": True,
        "forwarder_headers": "",  # else, behind a local proxy, a header SCRIPT_NAME: /x makes /metrics of /x/metrics
        "pre_fork": _share_what_is_loaded,
        "post_fork": _share_heaps,
    }


def _share_what_is_loaded(_server: Arbiter, _worker: Worker) -> None:
    """The garbage collector of a worker would write to all of it, and so make a copy of its own: 16 MB."""
    gc.freeze()


def _share_heaps(_server: Arbiter, _worker: Worker) -> None:
    """glibc gives threads heaps of their own, up to eight a core: 9 MB of a worker whose threads take turns anyway."""
    with suppress(AttributeError):  # another C library, which has no such heaps
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, HEAPS)


class Server(BaseApplication):
    """Everything is checked in the master, before the socket is opened: a worker that cannot start ends the server."""

    def __init__(self, settings: Settings) -> None:
        started_at = settings.service_started_at or datetime.now(UTC)  # the same for all workers, also restarted ones
        self._settings = settings.model_copy(update={"service_started_at": started_at})
        self._config = checked_config(settings)
        self._service: Service | None = None
        check_address(settings)
        make_data_dir(settings)
        check_start(settings, self._config)
        show_new(ensure_tokens(settings))
        leave_address(settings)
        super().__init__()

    def load_config(self) -> None:
        options = {**gunicorn_options(self._settings), "when_ready": self._when_ready, "worker_exit": self._worker_exit}
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """In each worker."""
        configure_logging(self._settings.log_level, self._settings.log_format)
        try:
            self._service = build(self._settings, config=self._config)
            app = create_app(self._service)
        except (SettingsError, DeduplicationError) as error:
            raise AppImportError(f"mailonce: {error}") from error
        keep_audit(self._settings.data_dir, by="service")
        return app

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
        if self._settings.log_format == "text":  # who collects JSON gets nothing else, whichever stream it is
            print(_welcome(self._settings, self._config), flush=True)


def _welcome(settings: Settings, config: Config) -> str:
    kept = shlex.quote(str(ingress_token_file(settings)))
    token = "${INGRESS_TOKEN%%,*}" if settings.ingress_token else f"$(cat {kept})"
    address = settings.address
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    places = ", ".join(
        f"{name} ({urlsplit(each.url).hostname or each.url})" for name, each in config.destinations.items()
    )
    note = "\nqueue: emails wait there until `.venv/bin/mailonce worker`, with the same settings, delivers them"
    queue = note if settings.queue_url else ""
    return f"""
Mailonce listens on {address}   page: {address}/   health: {address}/health
store: {"redis" if settings.redis_url else settings.data_dir / "journal.db"}   destination: {places}{queue}

Try it (twice: the second time it is a duplicate):
  curl -sS {address}/api/ingress/gmail -H "Authorization: Bearer {token}" -H "Content-Type: application/json" \\
    -d '{{"subject": "Hello from Ada, {secrets.randbelow(10**6)}", "sender": "Ada <ada@example.org>",
        "date": "{now}", "body": "Hello"}}'
"""
