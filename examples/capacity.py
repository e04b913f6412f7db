"""What your own emails need: Redis, servers, workers, disk. It needs only Python 3.11.

    python3 examples/capacity.py --emails 1000000 --duplicates 0.3 --peak 5

The costs are those of docs/bench.json, which make bench measured; with --bench they are those of your own machines:

    make bench ARGS="redis http worker disk start --json mine.json"
    python3 examples/capacity.py --emails 1000000 --bench mine.json

docs/capacity.md has the arithmetic in words.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

MEASURED = Path(__file__).parents[1] / "docs/bench.json"
DAY_S = 86_400
KB, MB, GB = 1_000, 1_000_000, 1_000_000_000
HEADROOM = 0.5  # how busy anything may be at the peak
ROOM = 1.5  # for Redis in addition to its data: fragmentation, and changes while it writes its file
QUEUED = 2  # steps on Redis of an email that a worker delivers, against those of one that its request delivers
THREADS = 8  # WEB_THREADS, and WORKER_THREADS for each destination


@dataclass(frozen=True)
class Costs:
    """What one email costs, as make bench measures it."""

    redis_bytes: float
    redis_bytes_id: float
    redis_bytes_destination: float
    redis_new_us: float
    redis_duplicate_us: float
    web_new_us: float
    web_queued_us: float
    web_duplicate_us: float
    worker_a_second: float
    disk_bytes: float
    process_mb: float


ROWS = {
    "redis_bytes": "redis: bytes of an email within 7 days",
    "redis_bytes_id": "redis: bytes of an email after 7 days",
    "redis_bytes_destination": "redis: bytes of each further destination within 7 days",
    "redis_new_us": "redis: CPU of a new email",
    "redis_duplicate_us": "redis: CPU of a duplicate email",
    "web_new_us": "http: CPU of delivered new, servers and Redis",
    "web_queued_us": "http: CPU of queued new, servers and Redis",
    "web_duplicate_us": "http: CPU of redis duplicate, servers and Redis",
    "worker_a_second": "worker: deliveries a second of one process",
    "disk_bytes": "disk: bytes of an email in DATA_DIR",
    "process_mb": "start: memory of a web worker",
}


@dataclass(frozen=True)
class Load:
    """Your figures. ``emails`` a day, duplicates among them; ``peak`` is the busiest minute against the average."""

    emails: float
    duplicates: float = 0.3
    peak: float = 5
    body_kb: float = 20
    waiting: float = 0.01
    waiting_hours: float = 24
    kept_days: float = 7
    id_days: float = 365
    stream_mb: float = 256
    destinations: int = 1
    receiver_ms: float = 200
    cores: int = 2
    workers: bool = False


@dataclass(frozen=True)
class Needs:
    """``redis_core`` is the share of one core at the peak; Redis cannot use a second one for this."""

    peak_a_second: float
    redis_bytes: float
    redis_ids_bytes: float
    redis_payload_bytes: float
    redis_maxmemory_bytes: float
    redis_core: float
    redis_shards: int
    web_processes: int
    servers: int
    worker_processes: int
    disk_bytes: float
    memory_mb: float


def read_costs(path: Path) -> Costs:
    """Raises KeyError with the row that is missing."""
    rows = {row["what"]: row["median"] for row in json.loads(path.read_text())["rows"]}
    return Costs(**{field.name: float(rows[ROWS[field.name]]) for field in fields(Costs)})


def needs(load: Load, costs: Costs) -> Needs:
    new_a_day = load.emails * (1 - load.duplicates)
    new_a_second = new_a_day / DAY_S * load.peak
    repeats_a_second = load.emails * load.duplicates / DAY_S * load.peak

    entry_bytes = costs.redis_bytes - costs.redis_bytes_id + (load.destinations - 1) * costs.redis_bytes_destination
    ids_bytes = new_a_day * load.id_days * costs.redis_bytes_id
    entries_bytes = new_a_day * load.kept_days * entry_bytes
    payload_bytes = new_a_day * load.waiting * load.waiting_hours / 24 * load.body_kb * KB
    redis_bytes = entries_bytes + ids_bytes + payload_bytes + load.stream_mb * MB

    redis_new_us = costs.redis_new_us * (QUEUED if load.workers else 1)
    redis_core = (new_a_second * redis_new_us + repeats_a_second * costs.redis_duplicate_us) / 1e6

    web_new_us = (costs.web_queued_us if load.workers else costs.web_new_us) - costs.redis_new_us
    web_duplicate_us = costs.web_duplicate_us - costs.redis_duplicate_us
    busy_cores = (new_a_second * web_new_us + repeats_a_second * web_duplicate_us) / 1e6
    busy_threads = 0 if load.workers else new_a_second * load.receiver_ms / 1000
    web_processes = max(2, math.ceil(busy_cores / HEADROOM), math.ceil(busy_threads / THREADS / HEADROOM))

    deliveries_a_second = new_a_second * load.destinations if load.workers else 0
    threads_a_second = THREADS * load.destinations / (load.receiver_ms / 1000)
    worker_processes = math.ceil(deliveries_a_second / min(costs.worker_a_second, threads_a_second) / HEADROOM)

    busy_cores += deliveries_a_second / costs.worker_a_second
    servers = max(1, math.ceil(busy_cores / HEADROOM / load.cores))
    return Needs(
        peak_a_second=new_a_second + repeats_a_second,
        redis_bytes=redis_bytes,
        redis_ids_bytes=ids_bytes,
        redis_payload_bytes=payload_bytes,
        redis_maxmemory_bytes=redis_bytes * ROOM,
        redis_core=redis_core,
        redis_shards=math.ceil(redis_core / HEADROOM),
        web_processes=web_processes,
        servers=servers,
        worker_processes=worker_processes,
        disk_bytes=new_a_day * load.kept_days * costs.disk_bytes + payload_bytes / servers,
        memory_mb=(web_processes + worker_processes) * costs.process_mb,
    )


def shown(load: Load, found: Needs) -> str:
    kept = "forever: after a year" if load.id_days == 365 else f"for {load.id_days:g} days (PROCESSED_IDS_DAYS)"
    lines = [
        ("emails", f"{load.emails:,.0f} a day, {found.peak_a_second:,.1f} a second at the peak"),
        ("Redis, memory", f"{found.redis_bytes / GB:,.2f} GB; maxmemory {found.redis_maxmemory_bytes / GB:,.2f} GB"),
        ("  of it ids", f"{found.redis_ids_bytes / GB:,.2f} GB, kept {kept}"),
        ("  of it payloads", f"{found.redis_payload_bytes / MB:,.0f} MB (PAYLOAD_MB; providers keep the rest)"),
        ("  of it the stream", f"{load.stream_mb:,.0f} MB (STREAM_MB)"),
        ("Redis, processor", f"{found.redis_core:.1%} of one core at the peak"),
        ("Redis, how many", f"{found.redis_shards}" + (": see KEY_PREFIX" if found.redis_shards > 1 else "")),
        ("web processes", f"{found.web_processes} (WEB_CONCURRENCY, across all servers)"),
        ("worker processes", f"{found.worker_processes}" + ("" if load.workers else ": requests deliver")),
        ("their memory", f"{found.memory_mb:,.0f} MB"),
        ("servers", f"{found.servers} with {load.cores} cores; one more, so that one may fail"),
        ("disk of a server", f"{found.disk_bytes / GB:,.2f} GB"),
    ]
    return "\n".join(f"{name:<18} {text}" for name, text in lines)


def share(text: str) -> float:
    if not 0 <= float(text) <= 1:
        raise argparse.ArgumentTypeError("must be a share from 0 to 1, such as 0.3")
    return float(text)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What your own emails need.")
    option = parser.add_argument
    option("--emails", type=float, required=True, help="a day, with duplicates")
    option("--duplicates", type=share, default=Load.duplicates, help="share of them, 0 to 1 (%(default)s)")
    option("--peak", type=float, default=Load.peak, help="the busiest minute against the average (%(default)s)")
    option("--body-kb", type=float, default=Load.body_kb, help="of an email (%(default)s)")
    option("--waiting", type=share, default=Load.waiting, help="share of new ones that wait (%(default)s)")
    option("--waiting-hours", type=float, default=Load.waiting_hours, help="for so long (%(default)s)")
    option("--kept-days", type=float, default=Load.kept_days, help="DECISION_DAYS (%(default)s)")
    option(
        "--id-days", type=float, default=Load.id_days, help="PROCESSED_IDS_DAYS, or as far as you plan (%(default)s)"
    )
    option("--stream-mb", type=float, default=Load.stream_mb, help="STREAM_MB (%(default)s)")
    option("--destinations", type=int, default=Load.destinations, help="of an email (%(default)s)")
    option("--receiver-ms", type=float, default=Load.receiver_ms, help="how long a destination takes (%(default)s)")
    option("--cores", type=int, default=Load.cores, help="of a server (%(default)s)")
    option("--workers", action="store_true", help="workers deliver (DELIVER_BY)")
    option("--bench", type=Path, default=MEASURED, help="costs, as make bench --json writes them")
    asked = vars(parser.parse_args(words))
    try:
        costs = read_costs(asked.pop("bench"))
    except KeyError as missing:
        parser.error(
            f"the file of --bench has no row {missing}; make bench ARGS='redis http worker disk start --json ...'"
        )
    load = Load(**asked)
    print(shown(load, needs(load, costs)))


if __name__ == "__main__":
    main()
