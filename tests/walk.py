"""make walk: the way of one real email through the code, in order, as the interpreter itself saw it.

    make walk                        inline on SQLite and on Redis, and with a queue: the counts
    make walk ARGS=inline-redis      one of them, function by function
    make walk ARGS=--json            the counts as JSON

A Gmail email comes in by HTTP and goes to a receiver on this machine. Another email went the same way just before: what
is done only once (connections, scripts, compiled patterns) is not counted. Counted are the functions of routes/,
orchestrator/ and deduplication/ that were entered (each once), their files, and how often a call changed the layer.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from orchestrator.build import Service, build
from orchestrator.config.settings import load_settings
from orchestrator.worker import start_worker
from routes.app import create_app
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, email
from tests.support.sink import Sink
from tests.support.surroundings import ROOT

LAYERS = ("routes", "orchestrator", "deduplication")
WAYS = ("inline-sqlite", "inline-redis", "queued-redis")
MOST = "at most, inline-redis: 200 functions in 40 files, 30 changes of layer; then 160, 35, 12"
# Threads that work whether an email comes or not.
BACKGROUND = ("fleet", "follow", "retrier", "watch", "due", "search")


@dataclass(frozen=True)
class Step:
    """One function that was entered. Those of a worker's thread come after those of the request."""

    depth: int
    file: str
    name: str
    line: int

    @property
    def layer(self) -> str:
        return self.file.partition("/")[0]


@dataclass(frozen=True)
class Walk:
    way: str
    steps: Sequence[Step]

    @property
    def functions(self) -> int:
        return len({(step.file, step.line) for step in self.steps})

    @property
    def files(self) -> int:
        return len({step.file for step in self.steps})

    @property
    def layer_changes(self) -> int:
        layers = [step.layer for step in self.steps]
        return sum(one != other for one, other in zip(layers, layers[1:], strict=False))

    @property
    def row(self) -> str:
        counts = f"{self.functions} functions in {self.files} files, {self.layer_changes} changes of layer"
        return f"{self.way}: {counts}; {len(self.steps)} calls"


class Recorder:
    """The hook that profilers use."""

    def __init__(self) -> None:
        self.is_on = False
        self._steps: dict[str, list[Step]] = {}
        self._depths: dict[int, int] = {}

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        thread = threading.current_thread().name
        code = frame.f_code
        path = code.co_filename.removeprefix(f"{ROOT}/")
        is_ours = path.partition("/")[0] in LAYERS and not code.co_name.startswith("<")
        if event not in ("call", "return") or not is_ours or thread.startswith(BACKGROUND):
            return
        ident = threading.get_ident()
        depth = self._depths.get(ident, 0)
        if event == "return":
            self._depths[ident] = max(0, depth - 1)
            return
        self._depths[ident] = depth + 1
        if self.is_on:
            self._steps.setdefault(thread, []).append(Step(depth, path, code.co_qualname, code.co_firstlineno))

    @property
    def steps(self) -> list[Step]:
        return [step for steps in self._steps.values() for step in steps]


@contextmanager
def opened(way: str, folder: Path, redis: RedisServer, sink: Sink) -> Iterator[Service]:
    settings = load_settings(
        data_dir=folder,
        webhook_url=sink.url,
        ingress_token=INGRESS_TOKEN,
        admin_token=ADMIN_TOKEN,
        redis_url=redis.url if way.endswith("redis") else "",
        queue_url=f"{redis.address}/1" if way.startswith("queued") else "",
        redis_timeout_ms=5_000,
        disk_free_mb=1,
    )
    service = build(settings)
    worker = start_worker(settings, service.config) if settings.queue_url else None
    try:
        while service.fleet and service.coordinator.redis.status != "up":
            threading.Event().wait(0.01)
        yield service
    finally:
        if worker:
            worker.stop()
        service.close()


def walk(way: str) -> Walk:
    """Threads take the hook up when they start, so it is set before anything is built."""
    recorder = Recorder()
    threading.setprofile(recorder)
    redis = RedisServer().start()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="mailonce-walk-") as folder,
            Sink() as sink,
            opened(way, Path(folder), redis, sink) as service,
        ):
            client = create_app(service).test_client()
            headers = {"Authorization": f"Bearer {INGRESS_TOKEN}"}
            number = 0
            while number < 2:
                recorder.is_on = number == 1
                sys.setprofile(recorder)
                response = client.post("/api/ingress/gmail", json=email(subject=f"Walk {number}"), headers=headers)
                sys.setprofile(None)
                answer = response.get_json()
                if answer["status"] == "retry_later" and number == 0:  # a new era is closed for some seconds
                    threading.Event().wait(0.2)
                    continue
                assert answer["status"] in ("processed", "queued"), answer
                _wait_until_recorded(service, answer["id"])
                recorder.is_on = False
                number += 1
        return Walk(way, recorder.steps)
    finally:
        threading.setprofile(None)
        redis.stop()


def _wait_until_recorded(service: Service, entry_id: str) -> None:
    while True:
        with service.journal.reading() as step:
            entry = step.read(entry_id)
        if entry and not entry.is_open:
            return


def main() -> None:
    parser = argparse.ArgumentParser(prog="make walk ARGS=")
    parser.add_argument("way", nargs="?", choices=WAYS)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    walks = [walk(way) for way in ([asked.way] if asked.way else WAYS)]
    if asked.json:
        counts = ("functions", "files", "layer_changes")
        print(json.dumps({each.way: {name: getattr(each, name) for name in counts} for each in walks}, indent=2))
        return
    for each in walks:
        if asked.way:
            for step in each.steps:
                print(f"{'  ' * step.depth}{step.file}:{step.line} {step.name}")
        print(each.row)
    print(MOST)


if __name__ == "__main__":
    main()
