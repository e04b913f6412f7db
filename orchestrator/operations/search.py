"""Finding emails in the journal: the filter of all lists, the SQL behind it, and the index for text search.

Lists are ordered by time, newest first. An email's place in them is one number, which the full-text table uses as its
row number: milliseconds of its receipt, then the low bits of its number in the journal.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from deduplication.dates import parse_date
from deduplication.email import well_formed
from deduplication.errors import StoreUnavailable
from deduplication.identity import bounded_key
from deduplication.journal.entry import DeliveryStatus, Entry
from deduplication.journal.sqlite import Journal, Step
from deduplication.names import Kind, Name
from orchestrator.pipeline import SKIPPED_AT, Status
from orchestrator.privacy import Privacy

PAUSE_S = 0.01
INDEXED_AT_ONCE = 40  # with merging, 2 to 5 ms of the journal's lock
MERGED_PAGES = 32
CAUGHT_UP_AT_MOST = 20  # batches that a search indexes itself before it looks
SHORTEST_INDEXED = 3  # characters: the full-text index is made of pieces of three
MOST_SCANNED = 10_000  # emails that a search for shorter words looks at
PLACE = "(e.created_ms << 20 | (e.seq & 1048575))"

_UNUSUAL = "e.outcome NOT IN ('delivered', 'claimed')"  # as in schema.sql, or its index would not be used
_LIVE = (
    "e.seq IN (SELECT seq FROM deliveries WHERE owner <> '' AND lease_until_ms > {steady_ms} AND status = 'claimed')"
)
_BY_STATUS = {
    Status.PROCESSED: "e.outcome IN ('delivered', '')",
    Status.QUEUED: f"e.outcome = 'waiting' AND {_UNUSUAL}",
    Status.DEAD_LETTERED: f"e.outcome = 'dead' AND {_UNUSUAL}",
    Status.ALREADY_PROCESSING: f"e.outcome = 'claimed' AND {_LIVE}",
    Status.RETRY_LATER: f"e.outcome IN ('returned', 'claimed') AND NOT {_LIVE}",
    Status.ALREADY_PROCESSED: "e.outcome = 'skipped' AND e.gate = 'identity' AND e.gate <> ''",
    Status.SKIPPED_SUBJECT_GROUP: "e.outcome = 'skipped' AND e.gate = 'subject_group' AND e.gate <> ''",
    Status.SKIPPED_MEDIA: "e.outcome = 'skipped' AND e.gate = 'media' AND e.gate <> ''",
    Status.SKIPPED_CONTENT: "e.outcome = 'skipped' AND e.gate = 'content' AND e.gate <> ''",
    Status.SKIPPED_OLD: f"e.outcome = 'skipped' AND e.gate = '' AND {_UNUSUAL}",
}


def status_of(entry: Entry, steady_ms: int) -> Status:
    """What its provider was told, brought up to date with what has happened since; as _BY_STATUS says it in SQL."""
    match entry.outcome:
        case DeliveryStatus.CLAIMED:
            is_live = any(each.lease_until_ms > steady_ms for each in entry.deliveries)
            return Status.ALREADY_PROCESSING if is_live else Status.RETRY_LATER
        case DeliveryStatus.RETURNED:
            return Status.RETRY_LATER
        case DeliveryStatus.WAITING:
            return Status.QUEUED
        case DeliveryStatus.DEAD:
            return Status.DEAD_LETTERED
        case DeliveryStatus.SKIPPED:
            return SKIPPED_AT[entry.stop.gate] if entry.stop else Status.SKIPPED_OLD
        case _:
            return Status.PROCESSED


def _moment(value: object) -> object:
    if value is None or isinstance(value, datetime):
        return value
    moment = parse_date(value) if isinstance(value, str) else None
    if moment is None:
        raise ValueError("must be a time such as 2026-11-16T09:00:00Z")
    return moment


def _plain(value: object) -> object:
    """Text that SQLite accepts; an empty one asks for nothing."""
    return well_formed(value).replace("\0", " ").strip() or None if isinstance(value, str) else value


Text = Annotated[str | None, BeforeValidator(_plain)]
Moment = Annotated[datetime | None, BeforeValidator(_moment)]


class Filter(BaseModel):
    """Which emails; a field that is None matches all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gate: Literal["identity", "subject_group", "media", "content"] | None = Field(
        default=None, description="The gate that stopped it."
    )
    provider: Text = None
    route: Text = None
    destination: Text = None
    sender: Text = Field(default=None, description="A part of the sender.")
    q: Text = Field(
        default=None,
        description="Words or parts of words of sender and subject; or a complete id, email id, Message-ID or "
        "webhook-id.",
    )
    since: Moment = Field(default=None, description="Only emails received at this time or later.")
    until: Moment = Field(default=None, description="Only emails received before this time.")


class DecisionFilter(Filter):
    status: Status | None = None


class DeliveryFilter(Filter):
    status: DeliveryStatus | None = None


FIELDS = ("status", *Filter.model_fields)


@dataclass
class Query:
    """The parts of a SELECT on entries ``e``. ``place`` is the SQL of an email's place in the list."""

    source: str
    where: list[str]
    values: list[Any]
    place: str
    order: str

    def sql(self, columns: str, order: str = "") -> str:
        where = " AND ".join(self.where) or "1"
        return f"SELECT {columns} FROM {self.source} WHERE {where} ORDER BY {order or self.order}"  # noqa: S608

    def require(self, condition: str, *values: Any) -> None:
        self.where.append(condition)
        self.values += values

    def after(self, place: int, compare: str = "<") -> None:
        """Only emails behind that place in the list; with "<=", the one at that place as well."""
        if self.place == PLACE:
            self.require("e.created_ms <= ?", place >> 20)
        self.require(f"{self.place} {compare} ?", place)


def select(step: Step, wanted: Filter, privacy: Privacy, has: DeliveryStatus | None = None) -> Query:
    """``has``: only emails with such a delivery."""
    query = _source(step, wanted, privacy)
    if isinstance(wanted, DecisionFilter) and wanted.status:
        query.require(_BY_STATUS[wanted.status].format(steady_ms=step.steady_ms))
    has = wanted.status if isinstance(wanted, DeliveryFilter) else has
    if has:
        query.require("instr(e.outcomes, ?)", f"={has} ")
    if wanted.gate:
        query.require("e.gate = ? AND e.gate <> ''", wanted.gate)
    if wanted.provider:
        query.require("e.provider = ?", wanted.provider)
    if wanted.route:
        query.require("instr(' + ' || e.route || ' + ', ?)", f" + {wanted.route} + ")  # several may match an email
    if wanted.destination:
        query.require("instr(e.outcomes, ?)", f" {wanted.destination}=")
    if wanted.since:
        query.require("e.created_ms >= ?", int(wanted.since.timestamp() * 1000))
    if wanted.until:
        query.require("e.created_ms < ?", int(wanted.until.timestamp() * 1000))
    return query


def _source(step: Step, wanted: Filter, privacy: Privacy) -> Query:
    by_time = Query("entries e", [], [], PLACE, "e.created_ms DESC, (e.seq & 1048575) DESC")
    words = [privacy.text(wanted.q)] if wanted.q and privacy.is_strict else (wanted.q or "").split()
    if wanted.q and find_by_id(step, wanted.q):
        by_time.require(f"e.seq IN ({_BY_ID})", *_keys_of(wanted.q))
        words = []
    terms = [_phrase(word) for word in words if len(word) >= SHORTEST_INDEXED]
    scanned = [word for word in words if len(word) < SHORTEST_INDEXED]
    sender = privacy.text(wanted.sender) if wanted.sender else ""
    if len(sender) >= SHORTEST_INDEXED:
        terms.append(f"sender : {_phrase(sender)}")
    if not (terms or scanned or sender):
        return by_time
    newest = f"(SELECT rowid, * FROM search ORDER BY rowid DESC LIMIT {MOST_SCANNED})"  # noqa: S608
    source = f"{'search' if terms else newest} s CROSS JOIN entries e ON e.seq = s.seq AND s.rowid = {PLACE}"
    query = Query(source, by_time.where, by_time.values, "s.rowid", "s.rowid DESC")
    if terms:
        query.require("s.search MATCH ?", " AND ".join(terms))
    for word in scanned:
        query.require("instr(lower(s.sender || ' ' || s.subject), ?)", word.lower())
    if sender and len(sender) < SHORTEST_INDEXED:
        query.require("instr(lower(s.sender), ?)", sender.lower())
    return query


def _phrase(word: str) -> str:
    return '"' + word.replace('"', '""') + '"'


def find_by_id(step: Step, text: str) -> list[int]:
    """The numbers of the newest entries with that id, email id, Message-ID or webhook-id, or from that sender."""
    return [seq for (seq,) in step.query(f"{_BY_ID} ORDER BY 1 DESC LIMIT 100", _keys_of(text))]


_BY_ID = (
    "SELECT seq FROM entries WHERE id = ? UNION SELECT seq FROM keys WHERE value IN (?, ?)"
    " UNION SELECT seq FROM names WHERE reference = ?"
)


def _keys_of(text: str) -> tuple[str, str, str, str]:
    message_id = bounded_key(text.strip().strip("<>").strip())
    return text, text, text.lower(), Name(Kind.POST, "", message_id).label


# The index, filled behind the requests


def index_some(journal: Journal) -> int:
    """Makes the next entries searchable, and removes some that are gone; how many. The background thread calls it until
    that is 0."""
    with journal.reading() as step:
        is_behind = step.last_seq() > int(step.meta("searched") or 0)
        if not is_behind and not step.query("SELECT 1 FROM unsearched LIMIT 1"):
            return 0
    with journal.step() as step:
        rows = step.query(
            "SELECT created_ms << 20 | (seq & 1048575), seq, data FROM entries WHERE seq > ? ORDER BY seq LIMIT ?",
            (int(step.meta("searched") or 0), INDEXED_AT_ONCE),
        )
        for place, seq, data in sorted(rows):  # in another order, each row would be written to the disk alone
            item, _, _, subject, sender, *_ = json.loads(data)[6]
            step.query(
                "INSERT OR REPLACE INTO search (rowid, sender, subject, seq) VALUES (?, ?, ?, ?)",
                (place, sender, subject, seq),
            )
            step.query(
                "INSERT OR IGNORE INTO keys VALUES (?, ?), (?, ?)"
                " UNION SELECT webhook_id, seq FROM deliveries WHERE seq = ?",
                (item, seq, sender, seq, seq),
            )
        if rows:
            step.set_meta("searched", str(rows[-1][1]))
        gone = step.query(
            "DELETE FROM unsearched WHERE place IN (SELECT place FROM unsearched ORDER BY place LIMIT ?)"
            " RETURNING place",
            (INDEXED_AT_ONCE,),
        )
        for (place,) in sorted(gone):
            is_again = f"EXISTS (SELECT 1 FROM entries e WHERE e.created_ms = ? AND {PLACE} = ?)"  # noqa: S608
            delete = f"DELETE FROM search WHERE rowid = ? AND NOT {is_again}"  # noqa: S608
            step.query(delete, (place, place >> 20, place))
        step.query("INSERT INTO search (search, rank) VALUES ('merge', ?)", (MERGED_PAGES,))
    return len(rows) + len(gone)


def index_for(journal: Journal, seconds: float) -> None:
    """Indexes for at most that long, with pauses in which emails get the lock. Several processes may do it."""
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at and index_some(journal):
        time.sleep(PAUSE_S)


def catch_up(journal: Journal) -> None:
    """Before a search: what has just been received is found, too. Another process may be doing the same."""
    with suppress(StoreUnavailable):
        for _ in range(CAUGHT_UP_AT_MOST):
            if index_some(journal) < INDEXED_AT_ONCE:
                return
