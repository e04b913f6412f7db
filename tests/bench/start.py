"""What a web process costs before and after its first emails: the time to import it, and its memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.bench.figures import Figure, Row, number
from tests.bench.load import Generator, Request
from tests.bench.over_http import AUTHORIZED, NEW
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, Server
from tests.support.surroundings import clean_environment

IMPORTS = 5
EMAILS = 50_000
_TIMED = "import time; began = time.process_time(); import wsgi; print(time.process_time() - began)"


def start_rows(redis: RedisServer, folder: Path, emails: int = EMAILS) -> Iterator[Row]:
    yield Row("start: import of wsgi", Figure.of([_import_s(folder) for _ in range(IMPORTS)]), "s", "", 0.6, 0.4, True)
    redis.client.flushall()
    sizes = []
    with (
        Server(folder / "memory", REDIS_URL=redis.url, WEB_CONCURRENCY="1", WEB_THREADS="4") as server,
        Generator() as generator,
    ):
        (pid,) = server.worker_pids()
        request = Request(server.port, "/api/ingress/gmail", NEW, True, AUTHORIZED)
        sent = 0
        for share in (0.5, 1.0):
            while sent < emails * share:
                sent += generator.run(request, 1.0).answered
            sizes.append(psutil.Process(pid).memory_info().rss / 1e6)
    half, whole = sizes
    told = f"{number(half)} MB after half of {sent:,} emails"
    yield Row("start: memory of a web worker", Figure.once(whole), "MB", told, 75, 65, True)


def _import_s(folder: Path) -> float:
    """In time of the processor, as the machine may be busy. The service is built by it."""
    tokens = {"INGRESS_TOKEN": INGRESS_TOKEN, "ADMIN_TOKEN": ADMIN_TOKEN}
    ran = subprocess.run(
        [sys.executable, "-c", _TIMED],
        env=clean_environment(DATA_DIR=str(folder / "import"), **tokens),
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(ran.stdout.splitlines()[-1])
