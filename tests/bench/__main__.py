"""make bench: what an email costs, each figure against anchors measured in the same run, in rounds that alternate.

    make bench                              everything, about fifteen minutes
    make bench ARGS="redis http"            these alone; --help lists them
    make bench ARGS="--json bench.json"     also as JSON, with machine, versions and date
    make bench ARGS="start --emails 6000"   fewer emails before the memory of a web process is read
    make bench ARGS="follow --events 50000" fewer events for a machine that starts with an empty disk
    make bench ARGS=sizes                   what hostile requests cost, of all sizes (bench_sizes.py)
    make bench ARGS=steps                   what an email costs before the journal is asked (bench_names.py)

Absolute figures say as much about the machine as about the code; the ratios can be compared. Nothing is asserted. On a
machine that others use, look at the spread.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path

from tests.bench.figures import Figure, Row, table
from tests.bench.following import EVENTS, follow_rows
from tests.bench.in_process import id_rows, process_rows
from tests.bench.on_disk import disk_rows
from tests.bench.on_redis import redis_rows
from tests.bench.over_http import http_rows
from tests.bench.seen import seen_rows
from tests.bench.start import EMAILS, start_rows
from tests.bench.worker import worker_rows
from tests.support.redis_server import RedisServer, redis_server_version

PACKAGES = ("Flask", "gunicorn", "redis", "hiredis", "dramatiq")

Part = Callable[[RedisServer, Path], Iterator[Row]]


def name_rows(_redis: RedisServer, _folder: Path) -> Iterator[Row]:
    from tests import bench_names

    costs = bench_names.measured()
    yield Row("names: subject group id", Figure.once(costs["subject group id"]), "µs", "", 8, 4, True)
    for kind in ("plain", "html"):
        cost = Figure.once(costs[f"ids + fingerprint, {kind} 20 KB"])
        yield Row(f"names: ids + fingerprint, 20 KB, {kind}", cost, "µs", "", 300, 150, True)


def parts(emails: int, events: int) -> Mapping[str, Part]:
    return {
        "redis": redis_rows,
        "process": process_rows,
        "http": http_rows,
        "worker": worker_rows,
        "ids": id_rows,
        "disk": disk_rows,
        "seen": seen_rows,
        "names": name_rows,
        "start": partial(start_rows, emails=emails),
        "follow": partial(follow_rows, events=events),
    }


def measure(part: Part) -> list[Row]:
    """Each part has a Redis and a folder of its own."""
    redis = RedisServer().start()
    try:
        with tempfile.TemporaryDirectory(prefix="mailonce-bench-") as folder:
            return list(part(redis, Path(folder)))
    finally:
        redis.stop()


def surroundings() -> Mapping[str, object]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            "load": os.getloadavg(),
        },
        "versions": {
            "python": platform.python_version(),
            "redis-server": ".".join(map(str, redis_server_version())),
            **{name: metadata.version(name) for name in PACKAGES},
        },
    }


def main() -> None:
    if sys.argv[1:2] == ["sizes"]:
        from tests import bench_sizes

        bench_sizes.print_sizes(*sys.argv[2:])
        return
    if sys.argv[1:2] == ["steps"]:
        from tests import bench_names

        bench_names.print_costs(as_json="--json" in sys.argv)
        return
    known = parts(EMAILS, EVENTS)
    parser = argparse.ArgumentParser(prog="make bench ARGS=", epilog="also: sizes, steps")
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(known))
    parser.add_argument("--json", type=Path, help="a file to write the figures to")
    parser.add_argument("--emails", type=int, default=EMAILS, help="before the memory of a web worker is read")
    parser.add_argument("--events", type=int, default=EVENTS, help="that a machine with an empty disk reads")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - known.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    found, began, rows = surroundings(), time.monotonic(), []
    for name, part in parts(asked.emails, asked.events).items():
        if name in (asked.parts or known):
            rows += measure(part)
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(table(rows))
    print(f"\n{json.dumps(found)}")
    if asked.json:
        asked.json.write_text(json.dumps({**found, "rows": [row.document for row in rows]}, indent=2) + "\n")


if __name__ == "__main__":
    main()
