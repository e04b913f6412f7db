"""make bench: what an email costs, each figure against anchors measured in the same run, in rounds that alternate.

    make bench                              everything, about fifteen minutes
    make bench ARGS="redis http"            these alone; --help lists them
    make bench ARGS="--json bench.json"     also as JSON, with machine, versions and date
    make bench ARGS="start --emails 6000"   fewer emails before the memory of a web process is read
    make bench ARGS="follow --events 50000" fewer events for a machine that starts with an empty disk

Absolute figures say as much about the machine as about the code; the ratios can be compared. Nothing is asserted. On a
machine that others use, look at the spread.
"""

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

from tests.bench.figures import HEADINGS, Row, aligned
from tests.bench.in_fleets import EVENTS, follow_rows, redis_rows
from tests.bench.in_process import disk_rows, id_rows, process_rows, seen_rows
from tests.bench.over_http import EMAILS, http_rows, start_rows, worker_rows
from tests.support.redis_server import RedisServer, redis_server_version

PACKAGES = ("Flask", "gunicorn", "redis", "hiredis")

Part = Callable[..., Iterator[Row]]
PARTS: Mapping[str, Part] = {
    "redis": redis_rows,
    "process": process_rows,
    "http": http_rows,
    "worker": worker_rows,
    "ids": id_rows,
    "disk": disk_rows,
    "seen": seen_rows,
    "start": start_rows,
    "follow": follow_rows,
}


def measure(part: Part) -> list[Row]:
    """Each part has a Redis and a folder of its own."""
    with RedisServer() as redis, tempfile.TemporaryDirectory(prefix="mailonce-bench-") as folder:
        return list(part(redis, Path(folder)))


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
    parser = argparse.ArgumentParser(prog="make bench ARGS=")
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    parser.add_argument("--json", type=Path, help="a file to write the figures to")
    parser.add_argument("--emails", type=int, default=EMAILS, help="before the memory of a web worker is read")
    parser.add_argument("--events", type=int, default=EVENTS, help="that a machine with an empty disk reads")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - PARTS.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    chosen = {name: part for name, part in PARTS.items() if name in (asked.parts or PARTS)}
    for name, options in {"start": {"emails": asked.emails}, "follow": {"events": asked.events}}.items():
        if name in chosen:
            chosen[name] = partial(chosen[name], **options)
    found, began, rows = surroundings(), time.monotonic(), []
    for name, part in chosen.items():
        rows += measure(part)
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(aligned([HEADINGS, *(row.cells for row in rows)]))
    print(f"\n{json.dumps(found)}")
    if asked.json:
        asked.json.write_text(json.dumps({**found, "rows": [row.document for row in rows]}, indent=2) + "\n")


if __name__ == "__main__":
    main()
