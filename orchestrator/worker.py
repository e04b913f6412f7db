"""mailonce worker: processes that deliver what requests have queued."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import sys
import threading
from multiprocessing.context import SpawnProcess

from orchestrator.audit import keep_audit
from orchestrator.build import Service
from orchestrator.config.model import Config, load_config
from orchestrator.config.settings import Settings, SettingsError
from orchestrator.logs import configure_logging

log = logging.getLogger(__name__)

GRACE_S = 30.0  # the wait for the rate, and a POST with its default timeouts
LOOK_EVERY_S = 0.5
CANNOT_START = 3  # the exit code of a process that would fail in the same way again
_CONTEXT = multiprocessing.get_context("spawn")


def start_worker(settings: Settings, config: Config) -> Service:
    """The worker of this process: it delivers when the queue announces something, and looks every second as well."""
    service = Service(settings, config, is_worker=True)
    service.start(delivers=True)
    if service.queue:
        service.queue.consume(config.destinations, service.retrier.wake)
    return service


class Supervisor:
    """Keeps the processes running. SIGTERM and SIGINT end them gracefully, SIGHUP reloads mailonce.toml."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._config = load_config(settings)
        self._processes: list[SpawnProcess] = []
        self._stopping = threading.Event()
        self._reloading = threading.Event()

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stopping.set())
        signal.signal(signal.SIGHUP, lambda *_: self._reloading.set())
        log.info(
            "worker: %d processes, %d threads per destination",
            self._settings.worker_processes,
            self._settings.worker_threads,
        )
        while not self._stopping.wait(LOOK_EVERY_S):
            if any(process.exitcode == CANNOT_START for process in self._processes):
                _end(self._processes)
                raise SettingsError("the worker cannot start; the lines above say why")
            if self._reloading.is_set():
                self._reload()
            self._fill_up()
        _end(self._processes)

    def _fill_up(self) -> None:
        self._processes = [process for process in self._processes if process.is_alive()]
        while len(self._processes) < self._settings.worker_processes:
            process = _CONTEXT.Process(target=run_process, args=(self._settings, self._config), name="mailonce-worker")
            process.start()
            self._processes.append(process)

    def _reload(self) -> None:
        self._reloading.clear()
        try:
            self._config = load_config(self._settings)
        except SettingsError as error:
            log.error("not reloaded, the previous mailonce.toml stays in force: %s", error)
            return
        old, self._processes = self._processes, []
        self._fill_up()
        _end(old)
        log.info("reloaded")


def _end(processes: list[SpawnProcess]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(GRACE_S + 5)
        if process.is_alive():
            process.kill()


def run_process(settings: Settings, config: Config) -> None:
    """Runs in a process of its own, until SIGTERM or until its supervisor is gone."""
    configure_logging(settings.log_level, settings.log_format)
    keep_audit(settings.data_dir, by="worker")  # a 410 pauses its destination
    stopping = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the supervisor ends us
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    try:
        worker = start_worker(settings, config)
    except Exception:  # whatever it is, the supervisor must not start the process again and again
        log.exception("this process cannot start")
        sys.exit(CANNOT_START)
    supervisor = multiprocessing.parent_process()
    while not stopping.wait(LOOK_EVERY_S):
        if supervisor and not supervisor.is_alive():
            break
    worker.close()
