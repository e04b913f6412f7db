"""A machine without its threads: only what an email asks for is measured. And emails never seen before."""

import itertools
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import structs

from deduplication.email import Email
from deduplication.journal.coordinator import Claimed, Coordinator
from deduplication.journal.entry import About, Attempt, DeliveryStatus, new_entry_id
from deduplication.journal.fleet import Fleet
from deduplication.journal.rules import Claim, Repeat, Wanted
from orchestrator.build import open_machine
from orchestrator.config.settings import load_settings
from orchestrator.delivery.webhook import webhook_id
from orchestrator.item import email_item

_FIRST_DAY = datetime(2026, 11, 1, 9, tzinfo=UTC)
_numbers = itertools.count(secrets.randbelow(10**6) * 10**6)


def new_email() -> Email:
    """As a provider's parser returns it, with dates on 28 days."""
    number = next(_numbers)
    moment = _FIRST_DAY + timedelta(days=number % 28, seconds=number % 60)
    return Email(
        subject=f"Report {number} of the week",
        sender=f"Sender {number} <sender{number}@example.org>",
        date=moment.strftime("%a, %d %b %Y %H:%M:%S +0000"),
        html=f"<p>The text of email {number}.</p>",
        message_id=f"<{number}.bench@mail.example.org>",
        recipients=("inbox@in.example.com",),
        provider="mailgun",
    )


def new_claim(destinations: tuple[str, ...] = ("crm",)) -> Claim:
    """As the pipeline makes it: id, canonical id and Message-ID."""
    item = email_item(new_email(), ids_kept_ms=None)
    return Claim(
        entry=new_entry_id(),
        owner=f"bench.{secrets.token_urlsafe(9)}",
        own=item.own_names,
        destinations=tuple(Wanted(each, webhook_id(each, item.key)) for each in destinations),
        fingerprint=item.fingerprint,
        about=About(item.id, item.provider, "default", item.folded_subject, "ada@example.org", "a-server"),
    )


def again(claim: Claim) -> Claim:
    """The same email, received once more."""
    return structs.replace(claim, entry=new_entry_id(), owner=f"bench.{secrets.token_urlsafe(9)}")


@dataclass(frozen=True)
class Machine:
    coordinator: Coordinator
    fleet: Fleet | None

    def deliver(self, claim: Claim, *, publishes: bool = True) -> None:
        """Every step of an email that is delivered at once; its outcome is published right after it."""
        claimed = self.coordinator.claim(claim)
        assert isinstance(claimed, Claimed), claimed
        attempt = Attempt(claimed.entry.created_ms, 12, 200)
        sent = [
            structs.replace(each, status=DeliveryStatus.DELIVERED, tries=1, ended_ms=attempt.at_ms, attempts=(attempt,))
            for each in claimed.to_send
        ]
        assert self.coordinator.settle(claimed, sent, "processed").is_safe
        if publishes:
            self.coordinator.publish_waiting()

    def repeat(self, claim: Claim) -> None:
        found = self.coordinator.claim(again(claim))
        assert isinstance(found, Repeat), found

    def new(self, count: int, destinations: tuple[str, ...] = ("crm",)) -> Callable[[], None]:
        """A step over claims that are made before the clock runs."""
        claims = iter([new_claim(destinations) for _ in range(count)])
        return lambda: self.deliver(next(claims))


@contextmanager
def opened(folder: Path, redis_url: str = "") -> Iterator[Machine]:
    folder.mkdir(parents=True, exist_ok=True)
    settings = load_settings(data_dir=folder, redis_url=redis_url, redis_timeout_ms=5_000, disk_free_mb=1)
    coordinator, fleet = open_machine(settings, about=dict)
    if fleet:
        fleet.check()
        while coordinator.registry and coordinator.registry.probe().closed_ms:
            time.sleep(0.1)
        fleet.follow()
        while coordinator.publish_waiting():
            pass
        fleet.restore()
        fleet.check()
    try:
        yield Machine(coordinator, fleet)
    finally:
        coordinator.close()
