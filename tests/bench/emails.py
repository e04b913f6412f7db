"""Emails never seen before, and the steps of the journal that each of them takes."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from deduplication.email import Email
from deduplication.journal.base import Claim, Claimed, Duplicate, Ending, Journal, Settlement, Wanted
from deduplication.journal.entry import Attempt, DeliveryStatus, new_entry_id
from deduplication.subject_group import GroupMode, generate_subject_group_id, group_name
from orchestrator.delivery.webhook import webhook_id
from orchestrator.item import email_item

_FIRST_DAY = datetime(2026, 11, 1, 9, tzinfo=UTC)
_numbers = itertools.count(secrets.randbelow(10**6) * 10**6)


def new_email() -> Email:
    """As a provider's parser hands it on. Sixty emails to a day, so that days are not all alike."""
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


def new_claim(*, is_rich: bool = False, destinations: tuple[str, ...] = ("crm",)) -> Claim:
    """As the intake makes it of most emails: id, canonical id and Message-ID, and one destination.

    Rich: Mailgun's, which have a proof as well, and with a subject that makes a group.
    """
    item = email_item(new_email(), ids_kept_ms=None)
    if is_rich:
        item = item.proven_by(secrets.token_hex(25))
    group = generate_subject_group_id(item.subject, mode=GroupMode.ALL) if is_rich else None
    return Claim(
        entry=new_entry_id(),
        owner=secrets.token_urlsafe(9),
        own=item.own_names,
        shared=(group_name(group, "2026-11", ttl_seconds=0),) if group else (),
        destinations=tuple(Wanted(each, webhook_id(item.key, item.fingerprint, each)) for each in destinations),
        fingerprint=item.fingerprint,
        about=item.about("default", "a-server"),
    )


def again(claim: Claim) -> Claim:
    """The same email from its provider once more."""
    return replace(claim, entry=new_entry_id(), owner=secrets.token_urlsafe(9))


def deliver(journal: Journal, claim: Claim) -> None:
    """Everything the journal is asked about an email that is delivered at once."""
    verdict = journal.claim(claim)
    assert isinstance(verdict, Claimed), verdict
    entry = journal.before_sending(verdict)
    assert entry is not None
    attempt = Attempt(entry.created_ms, 12, 200)
    for delivery in entry.deliveries:
        sent = replace(
            delivery, status=DeliveryStatus.DELIVERED, tries=1, delivered_ms=entry.created_ms, attempts=(attempt,)
        )
        journal.note_delivered(entry, sent)
        entry = entry.with_delivery(sent)
    assert journal.settle(claim, entry, Settlement(Ending.DONE, "processed", entry.deliveries))


def repeat(journal: Journal, claim: Claim) -> None:
    verdict = journal.claim(claim)
    assert isinstance(verdict, Duplicate), verdict


@dataclass(frozen=True)
class Traffic:
    """Steps over claims that were made before the clock ran: only the journal is measured."""

    journal: Journal
    count: int

    def new(self, **how: Any) -> Callable[[], None]:
        """``how``: as new_claim takes it."""
        claims = iter([new_claim(**how) for _ in range(self.count)])
        return lambda: deliver(self.journal, next(claims))

    def duplicates(self) -> Callable[[], None]:
        """Of a hundred emails that were settled."""
        settled = [new_claim() for _ in range(100)]
        for claim in settled:
            deliver(self.journal, claim)
        claims = iter([again(settled[number % 100]) for number in range(self.count)])
        return lambda: repeat(self.journal, next(claims))
