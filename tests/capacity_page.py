"""make docs-reference: puts the figures of docs/bench.json into docs/capacity.md, between their marks."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from types import ModuleType

from tests.support.surroundings import ROOT

PAGE = ROOT / "docs/capacity.md"
MILLION = 1_000_000
MARKED = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
WORDS = {
    "redis_bytes": "Redis, memory of an email for the days it is kept",
    "redis_bytes_id": "Redis, memory of its ids, which stay",
    "redis_bytes_destination": "Redis, memory of each further destination",
    "redis_new_us": "Redis, processor, a new email",
    "redis_duplicate_us": "Redis, processor, a duplicate",
    "web_new_us": "web server and Redis, processor, a new email that the request delivers",
    "web_queued_us": "web server and Redis, processor, a new email for a worker",
    "web_duplicate_us": "web server and Redis, processor, a duplicate",
    "worker_a_second": "one worker process, to a receiver that answers at once",
    "disk_bytes": "disk of the server that took it",
    "process_mb": "memory of a web process",
}


def simulator() -> ModuleType:
    """examples/capacity.py, which is no package."""
    spec = importlib.util.spec_from_file_location("capacity", ROOT / "examples/capacity.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["capacity"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def capacity_page(page: str) -> str:
    capacity = simulator()
    costs = capacity.read_costs(capacity.MEASURED)
    run = json.loads(capacity.MEASURED.read_text())
    half = capacity.HEADROOM

    def shown(**figures: float) -> str:
        load = capacity.Load(emails=MILLION, **figures)
        lines = capacity.shown(load, capacity.needs(load, costs)).splitlines()
        rows = [f"| {line[:18].strip()} | {line[18:].strip()} |" for line in lines]
        return "\n".join(["| | |", "|---|---|", *rows])

    def cost(name: str) -> str:
        value = getattr(costs, name)
        unit = {"us": "µs", "mb": "MB", "second": "deliveries a second"}.get(name.rsplit("_", 1)[1], "bytes")
        return f"{value:,.0f} {unit}"

    def costs_table() -> str:
        rows = [f"| {words} | {cost(name)} |" for name, words in WORDS.items()]
        machine, versions = run["machine"], run["versions"]
        where = f"{machine['cores']} cores, shared with others (a load of {machine['load'][0]:.0f})"
        with_what = f"Python {versions['python']}, Redis {versions['redis-server']}"
        told = f"Measured on {run['date'][:10]}, everything on one machine with {where}, {with_what}."
        return "\n".join(["| | |", "|---|---|", *rows, "", told])

    def makes_table() -> str:
        def line(what: str, how: str, a_second: float) -> str:
            return f"| {what} | {how} | {a_second:,.0f} | {a_second * capacity.DAY_S / 1e6:,.1f} million |"

        web_us = costs.web_new_us - costs.redis_new_us
        return "\n".join(
            [
                "| one | the sum | new emails a second | a day, at that pace |",
                "|---|---|---|---|",
                line("Redis", f"{half} s ÷ {costs.redis_new_us:,.0f} µs", half * 1e6 / costs.redis_new_us),
                line("web process", f"{half} s ÷ {web_us:,.0f} µs", half * 1e6 / web_us),
                line("worker process", f"{half} × {costs.worker_a_second:,.0f}", half * costs.worker_a_second),
                "",
                "| one GB of Redis holds | the sum | new emails a day |",
                "|---|---|---|",
                *(gigabyte(days) for days in (30, 90, 365)),
            ]
        )

    def gigabyte(id_days: int) -> str:
        kept = capacity.Load.kept_days
        entry, ids = costs.redis_bytes - costs.redis_bytes_id, costs.redis_bytes_id
        each = kept * entry + id_days * ids
        how = f"1 GB ÷ ({kept} × {entry:,.0f} + {id_days} × {ids:,.0f}) ÷ {capacity.ROOM}"
        return f"| with ids for {id_days} days | {how} | {capacity.GB / each / capacity.ROOM:,.0f} |"

    parts = {
        "million": lambda: shown(),
        "ninety": lambda: shown(id_days=90),
        "costs": costs_table,
        "makes": makes_table,
    }
    return MARKED.sub(lambda found: f"{found[1]}\n{parts[found[2]]()}\n\n{found[3]}", page)


def main() -> None:
    PAGE.write_text(capacity_page(PAGE.read_text()))


if __name__ == "__main__":
    main()
