"""make walk: the way of one real email through the code, in order, as the interpreter itself saw it.

    make walk                        inline and queued, over sqlite and Redis, the counts alone
    make walk ARGS=inline-redis      one of them, function by function
    make walk ARGS=--json            the counts as JSON

A Mailgun email comes in by HTTP and goes to a receiver on this machine. An email went the same way just before: what is
done once only (connections, scripts, compiled patterns) is not counted. Counted are the functions of routes/,
orchestrator/ and deduplication/ that were entered (each once), their files, and how often the way changed its layer.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from orchestrator.build import Service, build
from orchestrator.config.settings import load_settings
from orchestrator.worker import Worker, start_worker
from routes.app import create_app
from tests.routes.providers.conftest import LETTER, request_of
from tests.routes.providers.everyone import SETTINGS
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN
from tests.support.sink import Sink
from tests.support.surroundings import ROOT

LAYERS = ("routes", "orchestrator", "deduplication")
WAYS = ("inline-sqlite", "inline-redis", "queued-sqlite", "queued-redis")
BEFORE = "before the journal (inline-redis): 312 functions in 48 files, 42 changes of layer"


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
    def told(self) -> str:
        counts = f"{self.functions} functions in {self.files} files, {self.layer_changes} changes of layer"
        return f"{self.way}: {counts}; {len(self.steps)} calls"


class Recorder:
    """The hook that profilers use. Chores of other threads, which no email asked for, are left out."""

    def __init__(self) -> None:
        self.is_on = False
        self._steps: dict[str, list[Step]] = {}
        self._depths: dict[int, int] = {}

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        thread = threading.current_thread().name
        if event not in ("call", "return") or thread.startswith(("redis-follower", "lease-keeper", "due")):
            return
        code = frame.f_code
        file = code.co_filename
        if not file.startswith(str(ROOT)) or code.co_name.startswith("<"):
            return
        path = file[len(str(ROOT)) + 1 :]
        if path.partition("/")[0] not in LAYERS:
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
def opened(way: str, folder: Path, redis: RedisServer, sink: Sink) -> Iterator[tuple[Service, Worker | None]]:
    config = folder / "mailonce.toml"
    config.write_text(SETTINGS, encoding="utf-8")
    settings = load_settings(
        data_dir=folder,
        webhook_url=sink.url,
        mailonce_config=config,
        ingress_token=INGRESS_TOKEN,
        admin_token=ADMIN_TOKEN,
        redis_url=redis.url if way.endswith("redis") else "",
        queue_url=f"{redis.address}/1" if way.startswith("queued") else "",
        redis_timeout_ms=5_000,
    )
    service = build(settings)
    worker = start_worker(settings, service.config) if settings.queue_url else None
    try:
        yield service, worker
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
            opened(way, Path(folder), redis, sink) as (service, _),
        ):
            client = create_app(service).test_client()
            for number, is_counted in ((1, False), (2, True)):
                letter = replace(LETTER, subject=f"Les documents du lot {number}", message_id=f"<{number}@example.org>")
                request = request_of(SETTINGS, "mailgun", letter, datetime.now(UTC))
                body = {"input_stream": io.BytesIO(request.body), "content_length": len(request.body)}
                recorder.is_on = is_counted
                sys.setprofile(recorder)
                answer = client.post(request.path, headers=dict(request.headers), **body)
                sys.setprofile(None)
                told = answer.get_json()
                assert told["status"] in ("processed", "queued"), told
                wait_for(service, told["id"])
                recorder.is_on = False
        return Walk(way, recorder.steps)
    finally:
        threading.setprofile(None)
        redis.stop()


def wait_for(service: Service, entry: str) -> None:
    """Until its delivery is recorded."""
    while True:
        known = service.journal.read(entry)
        if known and not known.has_open_deliveries:
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
        print(each.told)
    print(BEFORE)


if __name__ == "__main__":
    main()
