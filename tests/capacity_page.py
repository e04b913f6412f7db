"""make docs-reference: puts the figures of docs/bench.json into docs/capacity.md, between their marks."""

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
    "disk_bytes": "disk of each server",
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


def table(*rows: tuple[str, ...], head: str = "| | |") -> str:
    rule = f"|{'---|' * (head.count('|') - 1)}"
    return "\n".join([head, rule, *(f"| {' | '.join(row)} |" for row in rows)])


def capacity_page(page: str) -> str:
    capacity = simulator()
    costs, run = capacity.read_costs(capacity.MEASURED), json.loads(capacity.MEASURED.read_text())

    def needs(**figures: float) -> str:
        load = capacity.Load(emails=MILLION, **figures)
        lines = capacity.shown(load, capacity.needs(load, costs)).splitlines()
        return table(*((line[:18].strip(), line[18:].strip()) for line in lines))

    def measured() -> str:
        units = {"us": "µs", "mb": "MB", "second": "deliveries a second"}
        rows = [
            (words, f"{getattr(costs, name):,.0f} {units.get(name.rsplit('_', 1)[1], 'bytes')}")
            for name, words in WORDS.items()
        ]
        machine, versions = run["machine"], run["versions"]
        where = f"{machine['cores']} cores, shared with others (a load of {machine['load'][0]:.0f})"
        with_what = f"Python {versions['python']}, Redis {versions['redis-server']}"
        return f"{table(*rows)}\n\nMeasured on {run['date'][:10]}, everything on one machine with {where}, {with_what}."

    def makes() -> str:
        half, web_us = capacity.HEADROOM, costs.web_new_us - costs.redis_new_us
        paces = {
            "Redis": (f"{half} s ÷ {costs.redis_new_us:,.0f} µs", half * 1e6 / costs.redis_new_us),
            "web process": (f"{half} s ÷ {web_us:,.0f} µs", half * 1e6 / web_us),
            "worker process": (f"{half} × {costs.worker_a_second:,.0f}", half * costs.worker_a_second),
        }
        ones = [
            (what, how, f"{pace:,.0f}", f"{pace * capacity.DAY_S / 1e6:,.1f} million")
            for what, (how, pace) in paces.items()
        ]
        head = "| one | calculation | new emails a second | a day, at that pace |"
        holds = "| one GB of Redis holds | calculation | new emails a day |"
        return f"{table(*ones, head=head)}\n\n{table(*map(gigabyte, (30, 90, 365)), head=holds)}"

    def gigabyte(id_days: int) -> tuple[str, ...]:
        kept, ids = capacity.Load.kept_days, costs.redis_bytes_id
        entry = costs.redis_bytes - ids
        how = f"1 GB ÷ ({kept} × {entry:,.0f} + {id_days} × {ids:,.0f}) ÷ {capacity.ROOM}"
        a_day = capacity.GB / (kept * entry + id_days * ids) / capacity.ROOM
        return f"with ids for {id_days} days", how, f"{a_day:,.0f}"

    parts = {"million": needs(), "ninety": needs(id_days=90), "costs": measured(), "makes": makes()}
    return MARKED.sub(lambda found: f"{found[1]}\n{parts[found[2]]}\n\n{found[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(capacity_page(PAGE.read_text()))
