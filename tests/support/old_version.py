"""Data written by the version before the journal (tests/fixtures/upgrade/README.md), put where a test wants it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from deduplication.claims import Name
from deduplication.journal.base import Claim, Wanted
from deduplication.journal.entry import About
from deduplication.redis_client import Client

FIXTURES = Path(__file__).parents[1] / "fixtures" / "upgrade"
PREFIX = "mailonce:"


@cache
def _items() -> dict[str, Any]:
    written: dict[str, Any] = json.loads((FIXTURES / "items.json").read_text())
    return written


def written_ms(place: str) -> int:
    return int(_items()[f"{place}_ms"])


def item(name: str) -> dict[str, Any]:
    found: dict[str, Any] = _items()["items"][name]
    return found


def claim_of(name: str, owner: str = "provider", **other: Any) -> Claim:
    """What the item would ask for if it came again."""
    asked = item(name)
    wanted = [
        Wanted(destination, f"new {webhook_id}", Name.from_label(content) if content else None)
        for destination, webhook_id, content in asked["destinations"]
    ]
    names = {
        "own": tuple(map(Name.from_label, asked["own"])),
        "shared": tuple(map(Name.from_label, asked["shared"])),
        "destinations": tuple(wanted),
        "fingerprint": asked["fingerprint"],
        "about": About(item=asked["item"]),
    }
    return Claim(entry=f"new-{owner}", owner=owner, **(names | other))


def write_folder(place: str, folder: Path) -> None:
    for dump in (FIXTURES / place).rglob("*.sql"):
        target = folder / dump.relative_to(FIXTURES / place).with_suffix(".db")
        target.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(target)
        db.execute("PRAGMA journal_mode=WAL")
        db.executescript(dump.read_text())
        db.close()


def write_redis(client: Client, wanted: Callable[[str], bool] = lambda key: True) -> None:
    for key, kept in json.loads((FIXTURES / "fleet" / "redis.json").read_text())["keys"].items():
        if not wanted(key):
            continue
        value = kept["value"]
        match kept["type"]:
            case "string":
                client.set(key, value)
            case "hash":
                client.hset(key, mapping=value)
            case "set":
                client.sadd(key, *value)
            case "zset":
                client.zadd(key, dict(value))
            case "stream":
                client.delete(key)
                for id_, fields in value:
                    client.xadd(key, fields, id_)
        if kept["ttl_ms"] >= 0:
            client.pexpire(key, kept["ttl_ms"])
