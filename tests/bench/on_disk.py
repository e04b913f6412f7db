"""What an email takes on the disk of the server that took it: its copy of the journal, and the index behind lists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.bench.figures import Figure, Row
from tests.bench.seen import visit
from tests.support.redis_server import RedisServer

FEW, MANY = 1_000, 5_000


def disk_rows(_: RedisServer, folder: Path) -> Iterator[Row]:
    few, many = (_bytes(folder, entries) for entries in (FEW, MANY))
    yield Row("disk: bytes of an email in DATA_DIR", Figure.once((many - few) / (MANY - FEW)), "")


def _bytes(folder: Path, entries: int) -> int:
    """Once it is stopped: no write-ahead log is left then."""
    visit(folder, entries).app.service.close()
    return sum(path.stat().st_size for path in (folder / str(entries)).rglob("*") if path.is_file())
