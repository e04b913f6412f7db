"""The service, wired as always, with the faults that only strike from inside; each is chosen by its environment.

FAULTS_CRASH_AT      a step (STEPS) that kills or stops its process, once: by the signal FAULTS_CRASH_SIGNAL, when the
                     file FAULTS_CRASH_FILE + ".armed" is there; FAULTS_CRASH_FILE is there once it has happened
FAULTS_CLOCK         a file that says by how many seconds the time of day is wrong
FAULTS_REDIS_URLS    an address of Redis for each process of the server, by commas
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deduplication.journal.failover import FailoverJournal
from deduplication.journal.sqlite import SqliteJournal
from orchestrator.build import build, system_sources
from orchestrator.config.settings import Settings, load_settings
from orchestrator.delivery.http import HttpDestination
from orchestrator.delivery.webhook import DeliveryFailed
from orchestrator.logs import configure_logging
from routes.app import create_app

STEPS = ("before claim", "after claim", "before the POST", "after the POST", "after note_delivered", "after settle")
STEPS_OF_STORED = ("before begin", "after begin", "before finish", "after finish")


def crash_at(step: str, by: signal.Signals, file: Path) -> None:
    armed = Path(f"{file}.armed")

    def crash_if(reached: str) -> None:
        if reached != step or not armed.exists():
            return
        try:
            file.touch(exist_ok=False)
        except FileExistsError:
            return
        signal.pthread_kill(threading.get_ident(), by)  # to this very thread, so that it goes no further

    def around(owner: type, method: str, before: str = "", after: str = "") -> None:
        real: Callable[..., Any] = getattr(owner, method)

        def step_of(*args: Any, **named: Any) -> Any:
            crash_if(before)
            try:
                answer = real(*args, **named)
            except DeliveryFailed:  # it was sent all the same
                crash_if(after)
                raise
            crash_if(after)
            return answer

        setattr(owner, method, step_of)

    for journal in (FailoverJournal, SqliteJournal):
        around(journal, "claim", "before claim", "after claim")
        around(journal, "note_delivered", after="after note_delivered")
        around(journal, "settle", after="after settle")
        around(journal, "begin", "before begin", "after begin")
        around(journal, "finish", "before finish", "after finish")
    around(HttpDestination, "deliver", "before the POST", "after the POST")


def shift_the_clock(file: Path) -> Callable[[], datetime]:
    """For all that asks the time module; returns the clock for those who are handed one."""
    real_ns = time.time_ns

    def shifted_ns() -> int:
        return real_ns() + int(float(file.read_text()) * 1e9)

    time.time_ns = shifted_ns
    time.time = lambda: shifted_ns() / 1e9
    return lambda: datetime.fromtimestamp(shifted_ns() / 1e9, UTC)


def with_own_redis(settings: Settings, urls: list[str]) -> Settings:
    """The first that no other process of this server has; the kernel gives back what a dead one had."""
    for number, url in enumerate(urls):
        slot = os.open(settings.data_dir / f"redis-{number}.slot", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(slot)
        else:
            return settings.model_copy(update={"redis_url": url})
    raise AssertionError("there are more processes than addresses")


def make_app() -> Any:
    settings, sources = load_settings(), system_sources()
    configure_logging(settings.log_level, settings.log_format)
    if step := os.environ.get("FAULTS_CRASH_AT"):
        assert step in (*STEPS, *STEPS_OF_STORED)
        crash_at(step, signal.Signals[os.environ["FAULTS_CRASH_SIGNAL"]], Path(os.environ["FAULTS_CRASH_FILE"]))
    if file := os.environ.get("FAULTS_CLOCK"):
        sources = replace(sources, now=shift_the_clock(Path(file)))
    if urls := os.environ.get("FAULTS_REDIS_URLS"):
        settings = with_own_redis(settings, urls.split(","))
    return create_app(build(settings, sources))


app = make_app()
