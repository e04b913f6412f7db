"""The web server: gunicorn around the application. SIGTERM lets requests finish, SIGHUP reloads mailonce.toml.

``mailonce serve`` and deploy/gunicorn.conf.py start and close the service by the same functions.
"""

import ctypes
import gc
import logging
import os
import secrets
import shlex
import signal
import socket
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from flask import Flask
from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.workers.base import Worker

from deduplication.errors import DeduplicationError
from orchestrator.audit import keep_audit
from orchestrator.build import build, check_start
from orchestrator.config.model import Config
from orchestrator.config.settings import DELIVERY_BUDGET_S, Settings, SettingsError, environment, load_settings
from orchestrator.data_dir import ingress_token_file, show_new
from orchestrator.logs import configure_logging
from routes.app import create_app
from routes.commands.service import read_settings
from routes.connections import CONNECTIONS, ConnectionWorker, Log
from routes.providers.registry import checked_config

log = logging.getLogger(__name__)

M_ARENA_MAX = -8  # of malloc.h
HEAPS = 1
REFUSED_RELOAD = "mailonce.toml was refused when it was reloaded; the log and mailonce check say why"
CANNOT_BOOT = 3  # gunicorn stops on this exit status; with any other it would start the worker again and again


def check_address(settings: Settings) -> None:
    """gunicorn would retry for five seconds and name no setting. Sockets that were passed to it are not checked."""
    if environment().keys() & {"LISTEN_FDS", "GUNICORN_FD"}:
        return
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        socket.create_server((settings.host, settings.port), family=family).close()
    except OSError as error:
        problem = f"HOST and PORT must be a free address of this machine, got {settings.bind} ({error.strerror})"
        raise SettingsError(problem) from error


def check_before_start(settings: Settings) -> Config:
    """Checks what every worker will need before the socket is opened: a worker that cannot start ends the server."""
    config = checked_config(settings)
    show_new(check_start(settings, config))
    _let_sigterm_end_new_workers()
    return config


def _let_sigterm_end_new_workers() -> None:
    """Before a worker has its own handler, it has the master's, which would swallow the signal: to stop a server that
    had just started took the whole grace period."""

    def restore_default() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM]),
        after_in_child=restore_default,
    )


def gunicorn_conf() -> dict[str, Any]:
    """The options for deploy/gunicorn.conf.py, after the checks that ``mailonce serve`` makes."""
    try:
        settings = read_settings(serves=True)
        check_before_start(settings)
    except (SettingsError, DeduplicationError) as error:
        sys.exit(f"mailonce: {error}")
    started_at = datetime.now(UTC).isoformat()  # the same for all workers, including restarted ones
    return gunicorn_options(settings) | {"raw_env": [f"SERVICE_STARTED_AT={started_at}"]}


def load_app(settings: Settings | None = None, config: Config | None = None) -> Flask:
    """The application of a worker process. ``close_app`` closes its service."""
    try:
        settings = settings or load_settings()
        configure_logging(settings.log_level, settings.log_format)
        service = build(settings, config=config)
    except (SettingsError, DeduplicationError) as error:
        print(f"mailonce: {error}", file=sys.stderr, flush=True)
        sys.exit(CANNOT_BOOT)
    keep_audit(settings.data_dir, by="service")
    return create_app(service)


def close_app(_server: Arbiter, worker: Worker) -> None:
    app = getattr(worker, "wsgi", None)  # None if the worker ended before it was loaded
    if isinstance(app, Flask):
        app.extensions["mailonce"].close()


def gunicorn_options(settings: Settings) -> dict[str, Any]:
    """Used by ``mailonce serve`` and deploy/gunicorn.conf.py."""
    return {
        "bind": settings.bind,
        "worker_class": ConnectionWorker,
        "logger_class": Log,
        "workers": settings.web_concurrency,
        "threads": CONNECTIONS,  # WEB_THREADS of them process requests
        "graceful_timeout": DELIVERY_BUDGET_S + 15,  # deliveries in progress may finish
        "timeout": 60,
        "keepalive": 5,
        "control_socket_disable": True,
        "forwarder_headers": "",  # else, behind a local proxy, a header SCRIPT_NAME: /x makes /metrics of /x/metrics
        # Otherwise the garbage collector of each worker writes to the shared pages and so copies them: 16 MB.
        "pre_fork": lambda _server, _worker: gc.freeze(),
        "post_fork": _share_heaps,
        "worker_exit": close_app,
    }


def _share_heaps(_server: Arbiter, _worker: Worker) -> None:
    """glibc gives threads their own heaps, up to eight per core: 9 MB for a worker whose threads take turns anyway."""
    with suppress(AttributeError):  # another C library, without such heaps
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, HEAPS)


class Server(BaseApplication):
    def __init__(self, settings: Settings) -> None:
        started_at = settings.service_started_at or datetime.now(UTC)  # the same for all workers
        self._settings = settings.model_copy(update={"service_started_at": started_at})
        check_address(settings)
        self._config = check_before_start(settings)
        self._refused = list[str]()
        super().__init__()

    def load_config(self) -> None:
        for name, value in gunicorn_options(self._settings).items():
            self.cfg.set(name, value)
        if self._settings.log_format == "text":  # with LOG_FORMAT=json nothing else is printed to any stream
            self.cfg.set("when_ready", lambda _server: print(_welcome(self._settings, self._config), flush=True))

    def load(self) -> Any:
        """In each worker."""
        app = load_app(self._settings, self._config)
        app.extensions["mailonce"].notices += self._refused
        return app

    def reload(self) -> None:
        """On SIGHUP, in the master; the workers are then replaced one by one."""
        try:
            self._config, self._refused = checked_config(self._settings), []
        except SettingsError as error:
            log.error("not reloaded, the previous mailonce.toml stays in force: %s", error)
            # /health is public, and the error may contain values of the file.
            self._refused = [f"{REFUSED_RELOAD} (at {datetime.now(UTC).isoformat(timespec='seconds')})"]
        super().reload()


def _welcome(settings: Settings, config: Config) -> str:
    kept = shlex.quote(str(ingress_token_file(settings)))
    token = "${INGRESS_TOKEN%%,*}" if settings.ingress_token else f"$(cat {kept})"
    address = settings.address
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    hosts = {name: urlsplit(to.url).hostname or to.url for name, to in config.destinations.items()}
    destinations = ", ".join(f"{name} ({host})" for name, host in hosts.items())
    journal = settings.data_dir / ("trial.db" if config.is_trial else "journal.db")
    note = "\nworkers: emails wait until `.venv/bin/mailonce worker`, with the same settings, delivers them"
    workers = note if settings.deliver_by == "workers" else ""
    return f"""
Mailonce listens on {address}   page: {address}/   health: {address}/health
store: {"redis" if settings.redis_url else journal}   destination: {destinations}{workers}

Try it (twice: the second time it is a duplicate):
  curl -sS {address}/api/ingress/gmail -H "Authorization: Bearer {token}" -H "Content-Type: application/json" \\
    -d '{{"subject": "Hello from Ada, {secrets.randbelow(10**6)}", "sender": "Ada <ada@example.org>",
        "date": "{now}", "body": "Hello"}}'
"""
