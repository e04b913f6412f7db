"""make walk: the way of one real email through the code, in order, as the interpreter itself saw it.

    make walk                        inline on SQLite and on Redis, and with a worker: the counts
    make walk ARGS=inline-redis      one of them, function by function
    make walk ARGS=--json            the counts as JSON

A Gmail email comes in by HTTP and goes to a receiver on this machine. Another email went the same way just before: what
is done only once (connections, scripts, compiled patterns) is not counted. Counted are the functions of routes/,
orchestrator/ and deduplication/ that were entered (each once), their files, and how often a call changed the layer.
"""

import argparse
import itertools
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from flask.testing import FlaskClient

from orchestrator.build import Service, build
from orchestrator.config.settings import load_settings
from routes.app import create_app
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, email
from tests.support.sink import Sink
from tests.support.surroundings import ROOT

LAYERS = ("routes", "orchestrator", "deduplication")
WAYS = ("inline-sqlite", "inline-redis", "queued-redis")
MOST = "at most, inline-redis: 160 functions in 35 files, 12 changes of layer"
# Threads that work whether an email comes or not.
BACKGROUND = ("fleet", "follow", "retrier", "watch", "due", "search")


class Step(NamedTuple):
    """One function that was entered. Those of a worker's thread come after those of the request."""

    depth: int
    file: str
    name: str
    line: int


def counts(steps: Sequence[Step]) -> dict[str, int]:
    layers = [step.file.partition("/")[0] for step in steps]
    return {
        "functions": len({(step.file, step.line) for step in steps}),
        "files": len({step.file for step in steps}),
        "layer_changes": sum(one != other for one, other in itertools.pairwise(layers)),
        "calls": len(steps),
    }


class Recorder:
    """The hook that profilers use."""

    def __init__(self) -> None:
        self.is_on = False
        self._steps: dict[str, list[Step]] = {}
        self._depths: Counter[int] = Counter()

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        code, thread = frame.f_code, threading.current_thread()
        path = code.co_filename.removeprefix(f"{ROOT}/")
        is_ours = path.partition("/")[0] in LAYERS and not code.co_name.startswith("<")
        if event not in ("call", "return") or not is_ours or thread.name.startswith(BACKGROUND):
            return
        if event == "call" and self.is_on:
            step = Step(self._depths[id(thread)], path, code.co_qualname, code.co_firstlineno)
            self._steps.setdefault(thread.name, []).append(step)
        self._depths[id(thread)] = max(0, self._depths[id(thread)] + (1 if event == "call" else -1))

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
        deliver_by="workers" if way.startswith("queued") else "requests",
        redis_timeout_ms=5_000,
        disk_free_mb=1,
    )
    service = build(settings)
    worker = build(settings, service.config, is_worker=True) if settings.deliver_by == "workers" else None
    try:
        while service.fleet and not _knows_the_era(service):
            time.sleep(0.01)
        yield service
    finally:
        if worker:
            worker.close()
        service.close()


def _knows_the_era(service: Service) -> bool:
    """Before that, Redis grants nothing."""
    with service.journal.reading() as step:
        return bool(step.meta("era")) and not step.meta("restore")


def walk(way: str) -> list[Step]:
    """Threads take the hook up when they start, so it is set before anything is built."""
    recorder = Recorder()
    threading.setprofile(recorder)
    try:
        with RedisServer() as redis, tempfile.TemporaryDirectory(prefix="mailonce-walk-") as folder, Sink() as sink:
            redis.open_era()
            with opened(way, Path(folder), redis, sink) as service:
                client = create_app(service).test_client()
                for number in range(2):
                    recorder.is_on = number == 1
                    _send(client, recorder, f"Walk {number}", service)
                    recorder.is_on = False
        return recorder.steps
    finally:
        threading.setprofile(None)


def _send(client: FlaskClient, recorder: Recorder, subject: str, service: Service) -> None:
    """Returns once its outcome is recorded."""
    headers = {"Authorization": f"Bearer {INGRESS_TOKEN}"}
    sys.setprofile(recorder)
    answer = client.post("/api/ingress/gmail", json=email(subject=subject), headers=headers).get_json()
    sys.setprofile(None)
    assert answer["status"] in ("processed", "queued"), answer
    while True:
        with service.journal.reading() as step:
            entry = step.read(answer["id"])
        if entry and not entry.is_open:
            return


def main() -> None:
    parser = argparse.ArgumentParser(prog="make walk ARGS=")
    parser.add_argument("way", nargs="?", choices=WAYS)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    walks = {way: walk(way) for way in ([asked.way] if asked.way else WAYS)}
    if asked.json:
        print(json.dumps({way: counts(steps) for way, steps in walks.items()}, indent=2))
        return
    for way, steps in walks.items():
        for step in steps if asked.way else ():
            print(f"{'  ' * step.depth}{step.file}:{step.line} {step.name}")
        shown = "{functions} functions in {files} files, {layer_changes} changes of layer; {calls} calls"
        print(f"{way}: {shown.format(**counts(steps))}")
    print(MOST)


if __name__ == "__main__":
    main()
