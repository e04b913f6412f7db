"""Forgetting on request: which names a reset drops, so that the emails behind them are delivered again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from deduplication.claims import Kind, Name
from deduplication.identity import log_id
from deduplication.message import ITEM_ID_PREFIX
from deduplication.stores.base import Pattern, Record, Store
from orchestrator.audit import audit
from orchestrator.delivery.ledger.base import Ledger, Wanted
from orchestrator.delivery.record import DeliveryStatus

_MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")
_DAY = re.compile(rf"{_MONTH.pattern}-\d\d|undated")
_MONTHLY = re.compile(rf"({_MONTH.pattern}):(.+)", re.DOTALL)


OWN_KINDS = (Kind.EMAIL_ID, Kind.POST)


class Scope(StrEnum):
    EMAIL_ID = "email_id"
    SUBJECT_GROUP = "subject_group"
    MONTH = "month"
    DATE = "date"
    DESTINATION = "destination"
    MEDIA = "media"
    ALL = "all"


class InvalidReset(Exception):
    """The request does not say what to forget; ``field`` takes something else."""

    def __init__(self, field: str, takes: str) -> None:
        super().__init__(f"{field} takes {takes}")
        self.field = field


@dataclass(frozen=True)
class Reset:
    """``value`` is not used for the scope ``all``."""

    scope: Scope
    value: str = ""
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.scope is Scope.MONTH and not _MONTH.fullmatch(self.value):
            raise InvalidReset("value", "a month such as 2026-11")
        if self.scope is Scope.DATE and not _DAY.fullmatch(self.value):
            raise InvalidReset("value", "a day such as 2026-11-16, or undated")
        if self.scope is not Scope.ALL and not self.value:
            raise InvalidReset("value", f"the {self.scope} to forget")


def reset(store: Store, ledger: Ledger, request: Reset) -> int:
    """Drops the names of the scope and every other name of the emails behind them. Returns how many there were.

    With its name, the record of a delivered one goes too: it must not say of the email's next coming that it is
    delivered. What waits or is dead stays: its provider was told 200, and nobody would send it again. Records go first:
    without the names they could no longer be found.
    """
    names = _names_of(store, request)
    known = {record.name for record in store.read(names)}
    if not request.dry_run:
        ledger.forget({name.value for name in names if name.kind is Kind.DELIVERY} - _to_be_kept(ledger))
    count = len(known) if request.dry_run else store.forget(known)
    value = log_id(request.value)
    audit.warning("AUDIT reset scope=%s value=%s dry_run=%s names=%d", request.scope, value, request.dry_run, count)
    return count


def _to_be_kept(ledger: Ledger) -> set[str]:
    kept = (DeliveryStatus.WAITING, DeliveryStatus.DELIVERING, DeliveryStatus.DEAD)
    return {delivery.id for status in kept for delivery in ledger.find(Wanted(status))}


def _names_of(store: Store, request: Reset) -> set[Name]:
    match request.scope:
        case Scope.EMAIL_ID:
            if request.value.startswith(ITEM_ID_PREFIX):  # a message's id as the log has it; its name is its key
                return _with_siblings(store, (r for r in store.find(Pattern(Kind.POST)) if r.item == request.value))
            found = [r for kind in OWN_KINDS for r in store.find(Pattern(kind, value=request.value))]
            return _with_siblings(store, found)
        case Scope.DATE:
            return _with_siblings(store, store.find(Pattern(Kind.EMAIL_ID, scope=request.value)))
        case Scope.SUBJECT_GROUP:
            monthly = _MONTHLY.fullmatch(request.value)
            month, group = (monthly[1], monthly[3]) if monthly else (None, request.value)
            return _with_emails(store, Pattern(Kind.SUBJECT_GROUP, month, group))
        case Scope.MONTH:
            return _with_emails(store, Pattern(Kind.SUBJECT_GROUP, request.value))
        case Scope.MEDIA:
            return _with_emails(store, Pattern(Kind.MEDIA, value=request.value))
        case Scope.DESTINATION:
            return _of_destination(store, request.value)
        case Scope.ALL:
            return {record.name for record in store.find(Pattern())}


def _with_siblings(store: Store, records: Iterable[Record]) -> set[Name]:
    """The names found and all other names of their emails; a canonical id leads to them by its item."""
    found = list(records)
    names = {record.name for record in found}
    items = [Name(Kind.EMAIL_ID, r.name.scope, r.item) for r in found if r.item and not r.siblings]
    for record in [*found, *store.read(items)]:
        names |= {Name.from_label(label) for label in record.siblings}
    return names


def _with_emails(store: Store, shared: Pattern) -> set[Name]:
    """The shared names found, and all names of the emails that hold them or were stopped by them."""
    names = {record.name for record in store.find(shared)}
    labels = {name.label for name in names}
    if labels:
        listing = [r for kind in OWN_KINDS for r in store.find(Pattern(kind)) if labels.intersection(r.siblings)]
        names |= _with_siblings(store, listing)
    return names


def _of_destination(store: Store, destination: str) -> set[Name]:
    """What was sent there, and the emails themselves; what other destinations had stays as it is."""
    kinds = (Kind.CONTENT, Kind.DELIVERY, Kind.LOCK)
    names = {name for kind in kinds for name in _with_emails(store, Pattern(kind, destination))}
    return {name for name in names if name.kind not in kinds or name.scope == destination}
