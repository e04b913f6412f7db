"""Reset: forget names, so that the emails behind them are delivered again when they are received again."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator

from deduplication import again
from deduplication.errors import StoreUnavailable
from deduplication.identity import log_id
from deduplication.journal.coordinator import Coordinator
from deduplication.journal.entry import Entry
from deduplication.journal.rules import reference
from deduplication.journal.sqlite import Step
from deduplication.marks import find_marks
from deduplication.members import last_event, members_before
from deduplication.names import UNDATED, Kind, Name
from orchestrator.audit import audit
from orchestrator.operations.search import catch_up

WAIT_S = 3.0
AT_ONCE = 500  # names in one step: rule 21 allows 1,000, and emails wait meanwhile
_LAST = "\U0010ffff"
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


class Reset(BaseModel):
    """What to forget. ``value`` is not used for the scope ``all``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scope: Scope = Field(description=f"one of {', '.join(Scope)}")
    value: str = Field(default="", description="What of the scope; only `all` needs none.")
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


class Forgotten(BaseModel):
    names: int = Field(description="How many names were forgotten.")
    kept: list[str] = Field(description="Emails that are still to be delivered; their names are kept.")
    behind: list[str] = Field(description="Machines that had not applied it after 3 seconds. They will.")


def reset(coordinator: Coordinator, request: Reset) -> Forgotten:
    """Forgets the names of the scope, and all other names of the emails behind them, on all machines.

    Emails that are still to be delivered keep their names: they were accepted, and nobody would send them again.
    Raises StoreUnavailable while Redis is away.
    """
    if not request.dry_run:
        _check_redis(coordinator)
    done = _Forgetting(coordinator, request.dry_run)
    for pattern in _patterns(request):
        done.forget(_in_journal(coordinator, pattern))
        with suppress(StoreUnavailable) if request.dry_run else nullcontext():
            done.forget(_in_redis(coordinator, pattern), are_known=True)
        if pattern.kind in (Kind.SUBJECT_GROUP, Kind.MEDIA):
            done.forget(_of_stopped(coordinator, pattern))
    if request.scope is Scope.EMAIL_ID:
        catch_up(coordinator.journal)
        done.forget(
            _of_entries(coordinator, "seq IN (SELECT seq FROM keys WHERE value = ?) AND seq > ?", request.value)
        )
    if request.scope is Scope.DESTINATION:
        done.reopen(request.value)
    audit.warning(
        "AUDIT reset scope=%s value=%s dry_run=%s names=%d kept=%d",
        request.scope,
        log_id(request.value),
        request.dry_run,
        done.names,
        len(done.kept),
    )
    behind = [] if request.dry_run else _wait_for_machines(coordinator)
    return Forgotten(names=done.names, kept=list(done.kept), behind=behind)


class Forgot(StrEnum):
    """The result of a reset of one email."""

    FORGOTTEN = "forgotten"
    KEPT = "kept"
    NOTHING = "nothing"
    UNKNOWN = "unknown"


def forget_email(coordinator: Coordinator, id_: str) -> Forgot:
    """All names of one email, by the id of its entry."""
    _check_redis(coordinator)
    with coordinator.journal.reading() as step:
        entry = step.read(id_)
    if entry is None:
        return Forgot.UNKNOWN
    done = _Forgetting(coordinator, is_dry_run=False)
    done.forget(_labels_of(entry))
    audit.warning("AUDIT reset entry=%s names=%d kept=%d", id_, done.names, len(done.kept))
    if id_ in done.kept:
        return Forgot.KEPT
    return Forgot.FORGOTTEN if done.names else Forgot.NOTHING


def _check_redis(coordinator: Coordinator) -> None:
    """Even if nothing is found here, another machine may know the email. What Redis does not know of yet is published:
    it would keep the names of an email that was delivered a moment ago."""
    registry = coordinator.registry
    if registry is None:
        return
    try:
        coordinator.redis.ask(registry.probe)
        while coordinator.publish_waiting():
            pass
    except StoreUnavailable as error:
        raise StoreUnavailable(
            f"a reset needs Redis, so that all machines forget; try again later ({error})"
        ) from error


def _wait_for_machines(coordinator: Coordinator) -> list[str]:
    """Until all living machines have read the stream as far as it goes now; those that have not after 3 s (rule 21)."""
    registry = coordinator.registry
    if registry is None:
        return []
    ends_at, target = time.monotonic() + WAIT_S, coordinator.redis.ask(lambda: registry.ask(last_event))
    while True:
        now_ms = coordinator.journal.clock.now_ms()
        ask = partial(members_before, event=target, now_ms=now_ms)
        behind = coordinator.redis.ask(lambda: registry.ask(ask)) - {coordinator.journal.machine}  # noqa: B023
        if not behind or time.monotonic() >= ends_at:
            return sorted(behind)
        time.sleep(0.05)


class _Forgetting:
    """Forgets names in batches, and counts."""

    def __init__(self, coordinator: Coordinator, is_dry_run: bool) -> None:
        self._coordinator = coordinator
        self._is_dry_run = is_dry_run
        self._seen: set[str] = set()
        self.names = 0
        self.kept: dict[str, None] = {}

    def forget(self, labels: Iterable[str], *, are_known: bool = False) -> None:
        """The names, and all other names of the emails behind them. ``are_known``: even if this journal has none."""
        left = iter(labels)
        while batch := list(islice(left, AT_ONCE)):
            places = ",".join("?" * len(batch))
            with self._coordinator.journal.reading() as step:
                behind = step.read_rows(f"seq IN (SELECT seq FROM names WHERE reference IN ({places}))", batch)  # noqa: S608
            more = (label for _, entry in behind for label in _labels_of(entry))
            found = [label for label in dict.fromkeys((*batch, *more)) if label not in self._seen]
            self._seen.update(found)
            for start in range(0, len(found), AT_ONCE):
                self._forget(found[start : start + AT_ONCE], set(batch) if are_known else set())

    def _forget(self, labels: list[str], known: set[str]) -> None:
        with self._coordinator.journal.reading() as step:
            open_ids = {label: _open_entries(step, label) for label in labels}
            known = {label for label in labels if label in known or _is_known(step, label)}
        kept = frozenset(label for label, ids in open_ids.items() if ids)
        if not self._is_dry_run:
            _, kept = self._coordinator.reset({label: _name(label) for label in labels})
        self.names += len(known - kept)
        self.kept |= {id_: None for label in kept for id_ in open_ids[label]}

    def reopen(self, destination: str) -> None:
        """Each delivery to that destination; what other destinations received stays known."""
        for entry in _entries(self._coordinator, "instr(outcomes, ?) AND seq > ?", f" {destination}="):
            if entry.is_open or not (self._is_dry_run or again.reopen(self._coordinator, entry.id, destination)):
                self.kept[entry.id] = None
            else:
                self.names += 1


# Which names a scope means


class Pattern(NamedTuple):
    """None matches everything."""

    kind: Kind
    scope: str | None = None
    value: str | None = None


def _patterns(request: Reset) -> list[Pattern]:
    value = request.value
    match request.scope:
        case Scope.EMAIL_ID:
            return [Pattern(Kind.EMAIL_ID, None, value), Pattern(Kind.POST, "", value)]
        case Scope.DATE:
            return [Pattern(Kind.EMAIL_ID, value)]
        case Scope.SUBJECT_GROUP:
            monthly = _MONTHLY.fullmatch(value)
            month, group = (monthly[1], monthly[3]) if monthly else (None, value)
            return [Pattern(Kind.SUBJECT_GROUP, month, group)]
        case Scope.MONTH:
            return [Pattern(Kind.SUBJECT_GROUP, value)]
        case Scope.MEDIA:
            return [Pattern(Kind.MEDIA, "", value)]
        case Scope.DESTINATION:
            return [Pattern(Kind.CONTENT, value)]
        case Scope.ALL:
            return [Pattern(kind) for kind in Kind if kind is not Kind.LOCK]


def _in_journal(coordinator: Coordinator, pattern: Pattern) -> Iterator[str]:
    """By the primary keys of names and marks; a pattern without a scope looks at one scope after the other."""
    kind, value = pattern.kind, pattern.value
    for scope in _scopes(coordinator, f"{kind}:") if pattern.scope is None else [pattern.scope]:
        start = f"{kind}:{scope}:{value or ''}"
        # The reference of an undated id ends with "#" and the fingerprint.
        end = f"{start}{_LAST}" if value is None else f"{start}$" if scope == UNDATED else f"{start}\0"
        while rows := _references(coordinator, start, end, AT_ONCE):
            yield from rows
            start = f"{rows[-1]}\0"


def _scopes(coordinator: Coordinator, start: str) -> Iterator[str]:
    """Days, months or destinations of a kind, each found by one step in the index."""
    end = f"{start[:-1]};"  # ";" follows ":"
    while rows := _references(coordinator, start, end, 1):
        kind, scope, _ = rows[0].split(":", 2)
        yield scope
        start = f"{kind}:{scope};"


def _references(coordinator: Coordinator, start: str, end: str, limit: int) -> list[str]:
    one = "SELECT reference FROM {} WHERE reference >= ? AND reference < ?"
    with coordinator.journal.reading() as step:
        rows = step.query(
            f"{one.format('names')} UNION {one.format('marks')} ORDER BY 1 LIMIT ?", (start, end, start, end, limit)
        )
    return [label for (label,) in rows]


def _in_redis(coordinator: Coordinator, pattern: Pattern) -> Iterator[str]:
    """Marks that no journal may know: of other programs, or older than this machine."""
    registry = coordinator.registry
    if registry:
        find = partial(find_marks, **pattern._asdict())
        yield from (name.label for name in coordinator.redis.ask(lambda: registry.ask(find)))


def _of_stopped(coordinator: Coordinator, pattern: Pattern) -> Iterator[str]:
    """All names of the emails that such a name has stopped."""
    for entry in _entries(coordinator, "gate = ? AND gate <> '' AND seq > ?", pattern.kind.value):
        name = entry.stop.name if entry.stop else None
        if name and pattern.scope in (None, name.scope) and pattern.value in (None, name.value):
            yield from _labels_of(entry)


def _of_entries(coordinator: Coordinator, where: str, value: str) -> Iterator[str]:
    return (label for entry in _entries(coordinator, where, value) for label in _labels_of(entry))


def _entries(coordinator: Coordinator, where: str, value: str) -> Iterator[Entry]:
    """A page at a time; the condition takes the value, and the number after which to go on."""
    after = 0
    while True:
        with coordinator.journal.reading() as step:
            rows = step.read_rows(f"{where} ORDER BY seq LIMIT ?", (value, after, AT_ONCE))
        if not rows:
            return
        after = rows[-1][0]
        yield from (entry for _, entry in rows)


def _labels_of(entry: Entry) -> Iterator[str]:
    """What stopped it is forgotten too, or it would be stopped again."""
    yield from (reference(name, entry.fingerprint) for name in entry.names)
    if entry.stop:
        yield entry.stop.name.label


def _open_entries(step: Step, label: str) -> list[str]:
    rows = step.query(
        "SELECT DISTINCT e.id FROM names n JOIN deliveries d ON d.seq = n.seq JOIN entries e ON e.seq = n.seq WHERE"
        " n.reference = ? AND (d.status = 'waiting' OR (d.status = 'claimed' AND d.lease_until_ms > ?))",
        (label, step.steady_ms),
    )
    return [id_ for (id_,) in rows]


def _is_known(step: Step, label: str) -> bool:
    query = "SELECT 1 FROM names WHERE reference = ? UNION ALL SELECT 1 FROM marks WHERE reference = ? LIMIT 1"
    return bool(step.query(query, (label, label)))


def _name(label: str) -> Name:
    is_undated = label.startswith(f"{Kind.EMAIL_ID}:{UNDATED}:")
    return Name.from_label(label.partition("#")[0] if is_undated else label)
