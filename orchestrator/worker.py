"""mailonce worker: processes that deliver what requests have queued."""

import logging
import multiprocessing
import signal
import sys
import threading
from multiprocessing.context import SpawnProcess

from orchestrator.audit import keep_audit
from orchestrator.build import build
from orchestrator.config.model import Config, load_config
from orchestrator.config.settings import Settings, SettingsError
from orchestrator.logs import configure_logging

log = logging.getLogger(__name__)

GRACE_S = 30.0  # the wait for the rate, and a POST with its default timeouts
LOOK_EVERY_S = 0.5
CANNOT_START = 3  # the exit code of a process that would fail in the same way again
_CONTEXT = multiprocessing.get_context("spawn")


def supervise(settings: Settings) -> None:
    """Keeps the processes running. SIGTERM and SIGINT end them gracefully, SIGHUP reloads mailonce.toml."""
    config = load_config(settings)
    stopping, reloading = threading.Event(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    signal.signal(signal.SIGHUP, lambda *_: reloading.set())
    log.info("worker: %d processes, %d threads per destination", settings.worker_processes, settings.worker_threads)
    processes: list[SpawnProcess] = []
    while not stopping.wait(LOOK_EVERY_S):
        if any(process.exitcode == CANNOT_START for process in processes):
            _end(processes)
            raise SettingsError("the worker cannot start; the lines above say why")
        replaced: list[SpawnProcess] = []
        if reloading.is_set():
            reloading.clear()
            try:
                config = load_config(settings)
                replaced, processes = processes, []
            except SettingsError as error:
                log.error("not reloaded, the previous mailonce.toml stays in force: %s", error)
        processes = [process for process in processes if process.is_alive()]
        while len(processes) < settings.worker_processes:
            processes.append(_CONTEXT.Process(target=run_process, args=(settings, config), name="mailonce-worker"))
            processes[-1].start()
        if replaced:
            _end(replaced)
            log.info("reloaded")
    _end(processes)


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
        worker = build(settings, config, is_worker=True)
    except Exception:  # whatever it is, the supervisor must not start the process again and again
        log.exception("this process cannot start")
        sys.exit(CANNOT_START)
    supervisor = multiprocessing.parent_process()
    while not stopping.wait(LOOK_EVERY_S):
        if supervisor and not supervisor.is_alive():
            break
    worker.close()
