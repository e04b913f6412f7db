"""Reset: forget names, so that the emails behind them are delivered again when they are received again. Erase: delete
the emails of a person. Both on every machine."""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple, Self, TypeVar

from pydantic import BaseModel, Field, StrictBool, model_validator

from deduplication import again, erasing
from deduplication.errors import StoreUnavailable
from deduplication.identity import log_id
from deduplication.journal.coordinator import Coordinator
from deduplication.journal.entry import Entry
from deduplication.journal.rules import name_of, references
from deduplication.journal.sqlite import Step
from deduplication.marks import find_marks
from deduplication.members import last_event, members_before
from deduplication.names import UNDATED, Kind, Name
from orchestrator.audit import audit
from orchestrator.build import Service
from orchestrator.operations.search import Request, catch_up, find_entries

Value = TypeVar("Value")
Row = TypeVar("Row", bound=tuple[Any, ...])

WAIT_S = 3.0
AT_ONCE = 500  # names in one step: rule 21 allows 1,000, and emails wait meanwhile
ERASED_AT_ONCE = 100
_MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")
_DAY = re.compile(rf"{_MONTH.pattern}-\d\d|{UNDATED}")
_MONTHLY = re.compile(rf"({_MONTH.pattern}):(.+)", re.DOTALL)


class Scope(StrEnum):
    EMAIL_ID = "email_id"
    SUBJECT_GROUP = "subject_group"
    MONTH = "month"
    DATE = "date"
    DESTINATION = "destination"
    MEDIA = "media"
    ALL = "all"


class Reset(Request):
    """What to forget. ``value`` is not used for the scope ``all``."""

    scope: Scope = Field(description=f"one of {', '.join(Scope)}")
    value: str = Field(
        default="",
        description="What of the scope; only `all` needs none. Without a domain, as in `lot_456` instead of "
        "`lot_456@example.org`, a subject group or a file is that of all senders.",
    )
    dry_run: StrictBool = False

    @model_validator(mode="after")
    def check_value(self) -> Self:
        if self.scope is Scope.MONTH and not _MONTH.fullmatch(self.value):
            raise ValueError("value must be a month such as 2026-11")
        if self.scope is Scope.DATE and not _DAY.fullmatch(self.value):
            raise ValueError("value must be a day such as 2026-11-16, or undated")
        if self.scope is not Scope.ALL and not self.value:
            raise ValueError(f"value must be the {self.scope} to forget")
        return self


class Erase(Request):
    who: str = Field(min_length=3, description="An address, for all emails from it; or the Message-ID or id of one.")
    dry_run: StrictBool = False


class Forgotten(BaseModel):
    names: int = Field(description="How many names were forgotten.")
    kept: list[str] = Field(description="Emails that are still to be delivered; their names are kept.")
    behind: list[str] = Field(description="Machines that had not applied it after 3 seconds. They will.")


class Erased(BaseModel):
    emails: int = Field(description="How many emails were erased.")
    kept: list[str] = Field(description="Emails that are being delivered at this moment: erase them again later.")
    behind: list[str] = Field(description="Machines that had not applied it after 3 seconds. They will.")


def reset(coordinator: Coordinator, request: Reset) -> Forgotten:
    """Forgets the names of the scope, and all other names of the emails behind them, on all machines.

    Emails that are still to be delivered keep their names: they were accepted, and their provider will not send them
    again. Raises StoreUnavailable while Redis is away.
    """
    scope, value, dry_run = request.scope, request.value, request.dry_run
    _check_redis(coordinator, "a reset")
    names, kept = _forget(coordinator, _labels(coordinator, request), dry_run)
    if scope is Scope.DESTINATION:  # other destinations keep their status
        for entry in _entries(coordinator, "instr(outcomes, ?)", f" {value}="):
            if entry.is_open or not (dry_run or again.reopen(coordinator, entry.id, value)):
                kept[entry.id] = None
            else:
                names += 1
    line = "AUDIT reset scope=%s value=%s dry_run=%s names=%d kept=%d"
    audit.warning(line, scope, log_id(value), dry_run, names, len(kept))
    return Forgotten(names=names, kept=list(kept), behind=[] if dry_run else _wait_for_machines(coordinator))


def forget_email(coordinator: Coordinator, id_: str) -> Literal["forgotten", "kept", "nothing", "unknown"]:
    """Forgets all names of one email, by the id of its entry. Raises StoreUnavailable while Redis is away."""
    _check_redis(coordinator, "a reset")
    with coordinator.journal.reading() as step:
        entry = step.read(id_)
    if entry is None:
        return "unknown"
    names, kept = _forget(coordinator, _labels_of([entry]))
    audit.warning("AUDIT reset entry=%s names=%d kept=%d", id_, names, len(kept))
    return "kept" if id_ in kept else "forgotten" if names else "nothing"


def erase(service: Service, request: Erase) -> Erased:
    """Removes entries, payloads, files, search rows and events; deliveries that wait are ended. Ids stay as digests.

    Raises StoreUnavailable while Redis is away.
    """
    coordinator, registry = service.coordinator, service.coordinator.registry
    _check_redis(coordinator, "erasing")
    catch_up(service.journal)
    with service.journal.reading() as step:
        found = find_entries(step, request.who, service.privacy)
    kept, behind = list[str](), list[str]()
    if not request.dry_run and found:
        for batch in _batches(found, ERASED_AT_ONCE):
            kept += erasing.erase(coordinator, batch)
        # Before anything else is deleted, or some would take that for a gap.
        behind = _wait_for_machines(coordinator, even_this=True)
        if registry:
            erasing.delete_events(registry, {entry.id for entry in found} - set(kept))
        catch_up(service.journal)  # the words of the search index
        service.files.sweep()
    line = "AUDIT erase emails=%d kept=%d dry_run=%s"  # not whose: that would be what was to be erased
    audit.warning(line, len(found) - len(kept), len(kept), request.dry_run)
    return Erased(emails=len(found) - len(kept), kept=kept, behind=behind)


def _check_redis(coordinator: Coordinator, what: str) -> None:
    """Even if nothing is found here, another machine may know the email. What Redis does not know of yet is published:
    it would keep the names of an email that was delivered a moment ago."""
    registry = coordinator.registry
    if registry is None:
        return
    try:
        coordinator.redis.check()
        registry.probe()
        while coordinator.publish_waiting():
            pass
    except StoreUnavailable as error:
        raise StoreUnavailable(f"{what} needs Redis, so that all machines forget; try again later ({error})") from error


def _wait_for_machines(coordinator: Coordinator, *, even_this: bool = False) -> list[str]:
    """Waits until all live machines have read the stream up to now; returns those that have not after 3 s (rule 21)."""
    registry, journal = coordinator.registry, coordinator.journal
    if registry is None:
        return []
    ends_at, target = time.monotonic() + WAIT_S, last_event(registry)
    ignored = set() if even_this else {journal.machine}
    while (late := members_before(registry, target, journal.clock.now_ms()) - ignored) and time.monotonic() < ends_at:
        time.sleep(0.05)
    return sorted(late)


def _forget(coordinator: Coordinator, labels: Iterable[str], is_dry_run: bool = False) -> tuple[int, dict[str, None]]:
    """Returns how many names were forgotten, and the ids of entries that are still to be delivered and keep theirs."""
    names, kept_ids = 0, dict[str, None]()
    for batch in _batches(labels, AT_ONCE):
        kept = again.forget(coordinator, {label: name_of(label) for label in batch}, dry_run=is_dry_run)
        names += len(batch) - len(kept)
        kept_ids |= {id_: None for ids in kept.values() for id_ in ids}
    return names, kept_ids


def _batches(values: Iterable[Value], size: int) -> Iterator[list[Value]]:
    left = iter(values)
    return iter(lambda: list(islice(left, size)), [])


# Which names a scope means


class Pattern(NamedTuple):
    """None matches everything. A group or a file without the senders among whom it counts (GROUP_SCOPE) is that of all
    senders: ``lot_456`` matches ``lot_456@example.org``."""

    kind: Kind
    scope: str | None = None
    value: str | None = None

    def matches(self, name: Name) -> bool:
        is_shared = name.kind in (Kind.SUBJECT_GROUP, Kind.MEDIA)
        is_of_some = is_shared and name.value.startswith((f"{self.value}@", f"{self.value} @"))
        return self.scope in (None, name.scope) and (self.value in (None, name.value) or is_of_some)


def _patterns(scope: Scope, value: str) -> list[Pattern]:
    monthly = _MONTHLY.fullmatch(value)  # a subject group of one month: 2026-11:group
    month, group = monthly.group(1, 3) if monthly else (None, value)
    return {
        Scope.EMAIL_ID: [Pattern(Kind.EMAIL_ID, None, value), Pattern(Kind.POST, "", value)],
        Scope.DATE: [Pattern(Kind.EMAIL_ID, value)],
        Scope.SUBJECT_GROUP: [Pattern(Kind.SUBJECT_GROUP, month, group)],
        Scope.MONTH: [Pattern(Kind.SUBJECT_GROUP, value)],
        Scope.MEDIA: [Pattern(Kind.MEDIA, "", value)],
        Scope.DESTINATION: [Pattern(Kind.CONTENT, value)],
        Scope.ALL: [Pattern(kind) for kind in Kind if kind is not Kind.LOCK],
    }[scope]


def _labels(coordinator: Coordinator, request: Reset) -> dict[str, None]:
    """The names of the scope, and all other names of the emails behind them."""
    labels, others, registry = dict[str, None](), dict[str, None](), coordinator.registry
    for pattern in _patterns(request.scope, request.value):
        labels |= dict.fromkeys(_labels_in_journal(coordinator, pattern))
        if registry:  # it has marks of other programs, and of before this machine
            marked = registry.ask(partial(find_marks, **pattern._asdict()))
            labels |= {name.label: None for name in marked if pattern.matches(name)}
        if pattern.kind in (Kind.SUBJECT_GROUP, Kind.MEDIA):
            stopped = _entries(coordinator, "gate = ? AND gate <> ''", pattern.kind.value)
            others |= _labels_of(entry for entry in stopped if entry.stop and pattern.matches(entry.stop.name))
    for batch in _batches(list(labels), AT_ONCE):
        places = ",".join("?" * len(batch))
        behind = f"seq IN (SELECT seq FROM names WHERE reference IN ({places}))"  # noqa: S608
        others |= _labels_of(_entries(coordinator, behind, *batch))
    if request.scope is Scope.EMAIL_ID:  # the id of a message is none of its names
        catch_up(coordinator.journal)
        found = _entries(coordinator, "seq IN (SELECT seq FROM keys WHERE value = ?)", request.value)
        others |= _labels_of(entry for entry in found if entry.about.item == request.value)
    return labels | others


def _labels_in_journal(coordinator: Coordinator, pattern: Pattern) -> Iterator[str]:
    """In the order of the primary key; a name of which only a reset is left is forgotten already."""
    start = f"{pattern.kind}:" if pattern.scope is None else f"{pattern.kind}:{pattern.scope}:"
    end = f"{start[:-1]};"  # ";" follows ":"
    query = (
        "SELECT DISTINCT reference FROM names WHERE reference > ? AND reference < ? AND instr(reference, ?)"
        " AND seq >= 0 ORDER BY 1 LIMIT ?"
    )
    part = f":{pattern.value or ''}"
    rows = _pages(coordinator, start, lambda step, after: step.query(query, (after, end, part, AT_ONCE)))
    return (label for (label,) in rows if pattern.matches(name_of(label)))


def _entries(coordinator: Coordinator, where: str, *values: str) -> Iterator[Entry]:
    page = f"{where} AND seq > ? ORDER BY seq LIMIT ?"
    rows = _pages(coordinator, 0, lambda step, after: step.read_rows(page, (*values, after, AT_ONCE)))
    return (entry for _, entry in rows)


def _pages(coordinator: Coordinator, after: Any, read: Callable[[Step, Any], list[Row]]) -> Iterator[Row]:
    """Rows after the first value of the one before: they may be many, and a long read keeps the journal's log from
    being trimmed."""
    while True:
        with coordinator.journal.reading() as step:
            rows = read(step, after)
        if not rows:
            return
        after = rows[-1][0]
        yield from rows


def _labels_of(entries: Iterable[Entry]) -> dict[str, None]:
    """Including the names that stopped them, or they would be stopped again."""
    labels = dict[str, None]()
    for entry in entries:
        labels |= dict.fromkeys(references(entry.names, entry.fingerprint))
        if entry.stop:
            labels[entry.stop.name.label] = None
    return labels
