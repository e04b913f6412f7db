"""Forgetting on request: which names a reset drops, so that the emails behind them are delivered again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from deduplication.claims import Kind, Name, Pattern
from deduplication.identity import log_id
from deduplication.journal.base import Forgotten, Journal
from deduplication.journal.entry import Entry
from deduplication.message import ITEM_ID_PREFIX
from orchestrator.audit import audit

_MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")
_DAY = re.compile(rf"{_MONTH.pattern}-\d\d|undated")
_MONTHLY = re.compile(rf"({_MONTH.pattern}):(.+)", re.DOTALL)
_AT_ONCE = 200  # names in one step: emails must not wait for a reset


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


def reset(journal: Journal, request: Reset) -> Forgotten:
    """Drops the names of the scope and every other name of the emails behind them.

    What is still to be delivered is kept, and said to be: its provider was told 200, and nobody would send it again.
    """
    if not request.dry_run:
        journal.forget(())  # refused while it could not reach every machine, also where nothing is found here
    if request.scope is Scope.DESTINATION:
        done = _forget_destination(journal, request.value, request.dry_run)
    else:
        names = list(dict.fromkeys(_names_of(journal, request)))
        done = _known(journal, names) if request.dry_run else _forget(journal, names)
    audit.warning(
        "AUDIT reset scope=%s value=%s dry_run=%s names=%d kept=%d",
        request.scope,
        log_id(request.value),
        request.dry_run,
        done.names,
        len(done.kept),
    )
    return done


class Forgot(StrEnum):
    """What became of a wish to forget one email."""

    FORGOTTEN = "forgotten"
    KEPT = "kept"
    NOTHING = "nothing"
    UNKNOWN = "unknown"


def forget_email(journal: Journal, id_: str) -> Forgot:
    """All names of one email, by the id of its entry, as a reset by its email id does; nothing is searched for."""
    journal.forget(())  # as above
    entry = journal.read(id_)
    if entry is None:
        return Forgot.UNKNOWN
    done = _forget(journal, list(dict.fromkeys(_names_with_stop(entry))))
    audit.warning("AUDIT reset entry=%s names=%d kept=%d", id_, done.names, len(done.kept))
    if id_ in done.kept:
        return Forgot.KEPT
    return Forgot.FORGOTTEN if done.names else Forgot.NOTHING


def _names_of(journal: Journal, request: Reset) -> Iterator[Name]:
    match request.scope:
        case Scope.EMAIL_ID:
            kinds = () if request.value.startswith(ITEM_ID_PREFIX) else (Kind.EMAIL_ID, Kind.POST)
            found = [name for kind in kinds for name in journal.names(Pattern(kind, value=request.value))]
            yield from _with_entries(journal, found, (e for e in journal.find() if e.about.item == request.value))
        case Scope.DATE:
            yield from _with_entries(journal, journal.names(Pattern(Kind.EMAIL_ID, scope=request.value)))
        case Scope.SUBJECT_GROUP:
            monthly = _MONTHLY.fullmatch(request.value)
            month, group = (monthly[1], monthly[3]) if monthly else (None, request.value)
            yield from _with_everyone_at(journal, Pattern(Kind.SUBJECT_GROUP, month, group))
        case Scope.MONTH:
            yield from _with_everyone_at(journal, Pattern(Kind.SUBJECT_GROUP, request.value))
        case Scope.MEDIA:
            yield from _with_everyone_at(journal, Pattern(Kind.MEDIA, value=request.value))
        case _:
            yield from _with_entries(journal, journal.names(Pattern()))


def _with_entries(journal: Journal, names: Iterable[Name], entries: Iterable[Entry] = ()) -> Iterator[Name]:
    """The names found, and all other names of the emails behind them."""
    for page in _pages(names):
        for found in journal.look(page):
            yield found.name
            for entry in found.entries:
                yield from _names_with_stop(entry)
    for entry in entries:
        yield from _names_with_stop(entry)


def _names_with_stop(entry: Entry) -> Iterator[Name]:
    """What stopped it goes too, or it would be stopped again when it comes."""
    yield from entry.names
    if entry.stop:
        yield entry.stop.name


def _with_everyone_at(journal: Journal, shared: Pattern) -> Iterator[Name]:
    """The shared names found, and all names of the emails that hold them or were stopped by them."""
    names = set(journal.names(shared))
    yield from names
    if names:
        for entry in journal.find():
            if names.intersection(entry.names) or (entry.stop and entry.stop.name in names):
                yield from entry.names


def _pages(names: Iterable[Name]) -> Iterator[tuple[Name, ...]]:
    left = iter(names)
    while page := tuple(islice(left, _AT_ONCE)):
        yield page


def _known(journal: Journal, names: list[Name]) -> Forgotten:
    """What a reset would do."""
    count, kept = 0, dict[str, None]()
    for page in _pages(names):
        for found in journal.look(page):
            staying = [entry.id for entry in found.entries if entry.has_open_deliveries and found.name.is_own]
            kept |= dict.fromkeys(staying)
            count += not staying and (found.is_marked or bool(found.entries))
    return Forgotten(count, tuple(kept))


def _forget(journal: Journal, names: list[Name]) -> Forgotten:
    done = [journal.forget(page) for page in _pages(names)]
    kept = dict.fromkeys(entry for each in done for entry in each.kept)
    return Forgotten(sum(each.names for each in done), tuple(kept))


def _forget_destination(journal: Journal, destination: str, dry_run: bool) -> Forgotten:
    """That it had anything: its words, its locks, each delivery there. What other destinations had stays as it is."""
    kinds = (Kind.CONTENT, Kind.LOCK)
    names = list(dict.fromkeys(name for kind in kinds for name in journal.names(Pattern(kind, destination))))
    sent = [entry for entry in journal.find() if entry.delivery_to(destination)]
    done = _known(journal, names) if dry_run else _forget(journal, names)
    if dry_run:
        now_ms = journal.lease_time_ms()
        kept = [entry.id for entry in sent if entry.has_open_deliveries or entry.is_held(now_ms)]
    else:
        kept = [entry.id for entry in sent if not journal.reopen(entry.id, destination)]
    return Forgotten(done.names + len(sent) - len(kept), tuple(kept))
