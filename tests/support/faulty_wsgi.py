"""The service as always, with faults that only strike from inside; the environment chooses them.

FAULTS_CRASH_AT      a step (STEPS) that kills or stops its process, once: by the signal FAULTS_CRASH_SIGNAL, when the
                     file FAULTS_CRASH_FILE + ".armed" exists; FAULTS_CRASH_FILE exists once it has happened
FAULTS_CLOCK         a file with the number of seconds by which the time of day is wrong
FAULTS_REDIS_URLS    an address of Redis for each process of the server, separated by commas
"""

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deduplication.journal.coordinator import Coordinator
from deduplication.journal.registry import Registry
from orchestrator.config.settings import Settings, load_settings
from orchestrator.delivery.webhook import Destination
from routes.server import load_app

# A method, and what the moments before and after it are called.
AROUND: tuple[tuple[type, str, str, str], ...] = (
    (Coordinator, "claim", "before claim", "after claim"),
    (Registry, "hold", "", "after hold"),
    (Destination, "deliver", "before the POST", "after the POST"),
    (Coordinator, "_note", "", "after the note"),
    (Coordinator, "settle", "", "after settle"),
    (Registry, "take", "", "after hand-out"),
    (Coordinator, "take", "before take", "after take"),
    (Coordinator, "finish", "before finish", "after finish"),
)
STEPS = {step for _, _, before, after in AROUND for step in (before, after) if step}


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

    def wrap(owner: type, method: str, before: str, after: str) -> None:
        real: Callable[..., Any] = getattr(owner, method)

        def wrapped(*args: Any, **named: Any) -> Any:
            crash_if(before)
            answer = real(*args, **named)
            if answer != []:  # "take" that found nothing
                crash_if(after)
            return answer

        setattr(owner, method, wrapped)

    for each in AROUND:
        wrap(*each)


def shift_the_clock(file: Path) -> None:
    real_ns = time.time_ns

    def shifted_ns() -> int:
        return real_ns() + int(float(file.read_text()) * 1e9)

    time.time_ns = shifted_ns
    time.time = lambda: shifted_ns() / 1e9


def with_own_redis(settings: Settings, urls: list[str]) -> Settings:
    """The first address that no other process of this server uses; the kernel frees that of a dead one."""
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
    settings = load_settings()
    if step := os.environ.get("FAULTS_CRASH_AT"):
        assert step in STEPS
        crash_at(step, signal.Signals[os.environ["FAULTS_CRASH_SIGNAL"]], Path(os.environ["FAULTS_CRASH_FILE"]))
    if file := os.environ.get("FAULTS_CLOCK"):
        shift_the_clock(Path(file))
    if urls := os.environ.get("FAULTS_REDIS_URLS"):
        settings = with_own_redis(settings, urls.split(","))
    return load_app(settings)


app = make_app()
