"""What an email takes on the disk of the server that received it: the journal, and the index behind lists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from deduplication.journal.entry import About, Delivery, DeliveryStatus, Entry, new_entry_id
from deduplication.names import Kind, Name
from orchestrator.build import build
from orchestrator.config.settings import load_settings
from orchestrator.operations.search import index_some
from tests.bench.figures import Figure, Row
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN


def disk_rows(_: RedisServer, folder: Path) -> Iterator[Row]:
    few, many = (_bytes_on_disk(folder / str(emails), emails) for emails in (1_000, 5_000))
    yield Row("disk: bytes of an email in DATA_DIR", Figure.of((many - few) / 4_000), "")


def _bytes_on_disk(folder: Path, emails: int) -> int:
    """Once the service is stopped: no write-ahead log is left then."""
    service = build(load_settings(data_dir=folder, webhook_url="http://127.0.0.1:9/", admin_token=ADMIN_TOKEN))
    with service.journal.step() as step:
        for at in range(emails):
            delivered = Delivery("default", f"msg_{at:032x}", DeliveryStatus.DELIVERED, tries=1, ended_ms=step.now_ms)
            entry = Entry(
                new_entry_id(),
                service.journal.machine,
                (Name(Kind.EMAIL_ID, "2026-11-16", f"{at:032x}"),),
                created_ms=step.now_ms - 1_000_000 + at,
                about=About(f"{at:032x}", "gmail", "all", f"Weekly report {at}", f"sender{at}@example.org"),
                deliveries=(delivered,),
                answer="processed",
            )
            step.put(entry, None, publishes=False)
    while index_some(service.journal):
        pass
    service.close()
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
