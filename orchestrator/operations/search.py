"""Finding emails and deliveries in the journal: the filter of all lists, its SQL, and the index for text search.

Lists are ordered by time, newest first. Rows of the full-text table are numbered by time as well: the milliseconds of
the email's receipt, then the low bits of its number in the journal (PLACE).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from deduplication.dates import parse_date
from deduplication.email import without_brackets
from deduplication.errors import StoreUnavailable
from deduplication.journal.entry import DeliveryStatus, Entry
from deduplication.journal.sqlite import Journal, Step
from deduplication.names import Gate, Kind, Name, bounded_key
from deduplication.text import well_formed
from orchestrator.pipeline import SKIPPED_AT, Status
from orchestrator.privacy import Privacy

if TYPE_CHECKING:
    from orchestrator.build import Service

PAUSE_S = 0.01
INDEXED_AT_ONCE = 80  # with merging, 3 to 5 ms of the journal's lock
MERGED_PAGES = 32
CATCH_UP_S = 0.3  # that a search spends on indexing before it looks
SHORTEST_INDEXED = 3  # characters: the full-text index is made of pieces of three
MOST_SCANNED = 10_000  # emails that a search for shorter words looks at
LATE_S = 15 * 60  # a delivery that has waited for longer needs attention
MOST_COUNTED = 1_000  # emails that a search finds; without one, all are counted
ALL = 10**9
PLACE = "(e.created_ms << 20 | (e.seq & 1048575))"
BY_PLACE = "s.rowid"
# Waiting deliveries are ordered by their next attempt, dead ones by their end, all others and searches as the emails.
BY_DELIVERY: dict[str | None, tuple[str, str]] = {
    DeliveryStatus.WAITING: ("d.next_try_ms", "ASC"),
    DeliveryStatus.DEAD: ("d.ended_ms", "DESC"),
}

_UNUSUAL = "e.outcome NOT IN ('delivered', 'claimed')"  # as in schema.sql, or its index would not be used
_LIVE = "EXISTS (SELECT 1 FROM deliveries WHERE seq = e.seq AND status = 'claimed' AND lease_until_ms > :steady_ms)"


class EmailOutcome(StrEnum):
    """What happened to an email, in the words of the page, the API and the command line. ``waiting`` and
    ``dead_letter``: at one of its destinations, at least. ``duplicate``: it was received again, or repeats another one
    but for a tag in its subject. ``stopped``: suppressed or duplicate. ``needs_attention``: a dead letter, a delivery
    that has waited for 15 minutes, or returned to its provider and not received again."""

    DELIVERED = "delivered"
    WAITING = "waiting"
    DEAD_LETTER = "dead_letter"
    SUPPRESSED = "suppressed"
    DUPLICATE = "duplicate"
    RETURNED = "returned"
    IN_PROGRESS = "in_progress"
    STOPPED = "stopped"
    NEEDS_ATTENTION = "needs_attention"


OUTCOME_OF = {
    Status.PROCESSED: EmailOutcome.DELIVERED,
    Status.QUEUED: EmailOutcome.WAITING,
    Status.DEAD_LETTERED: EmailOutcome.DEAD_LETTER,
    Status.ALREADY_PROCESSED: EmailOutcome.DUPLICATE,
    Status.ALREADY_PROCESSING: EmailOutcome.IN_PROGRESS,
    Status.RETRY_LATER: EmailOutcome.RETURNED,
}
"""All other statuses are those of suppressed emails."""

_BY_STATUS = {
    Status.PROCESSED: "e.outcome IN ('delivered', '')",
    Status.QUEUED: f"e.outcome = 'waiting' AND {_UNUSUAL}",
    Status.DEAD_LETTERED: f"e.outcome = 'dead' AND {_UNUSUAL}",
    Status.ALREADY_PROCESSING: f"e.outcome = 'claimed' AND {_LIVE}",
    Status.RETRY_LATER: f"e.outcome IN ('returned', 'claimed') AND NOT {_LIVE}",
    **{status: f"e.outcome = 'skipped' AND e.gate = '{gate}' AND e.gate <> ''" for gate, status in SKIPPED_AT.items()},
    Status.SKIPPED_OLD: f"e.outcome = 'skipped' AND e.gate = '' AND e.answer <> 'skipped_route' AND {_UNUSUAL}",
    Status.SKIPPED_ROUTE: f"e.outcome = 'skipped' AND e.gate = '' AND e.answer = 'skipped_route' AND {_UNUSUAL}",
}
# Sets of numbers, each found by an index: counting them costs little, however many emails there are.
_REPEATED = "SELECT seq FROM entries WHERE id IN (SELECT entry FROM repeats)"
_TAGGED = "SELECT seq FROM entries WHERE gate = 'identity' AND gate <> '' AND outcome = 'skipped'"
_SKIPPED = "SELECT seq FROM entries WHERE outcome = 'skipped' AND outcome NOT IN ('delivered', 'claimed')"
_RETURNED = "SELECT seq FROM entries WHERE outcome = 'returned' AND outcome NOT IN ('delivered', 'claimed')"
_WAITING = "SELECT seq FROM deliveries WHERE status = 'waiting' AND destination {which}"
_DEAD = "SELECT seq FROM deliveries WHERE status = 'dead' AND destination {which}"
_LATE = f"SELECT d.seq FROM ({_WAITING}) d JOIN entries USING (seq) WHERE created_ms < :now_ms - {LATE_S * 1000}"  # noqa: S608
_BY_OUTCOME = {
    EmailOutcome.DELIVERED: _BY_STATUS[Status.PROCESSED],
    EmailOutcome.WAITING: f"e.seq IN ({_WAITING})",
    EmailOutcome.DEAD_LETTER: f"e.seq IN ({_DEAD})",
    EmailOutcome.SUPPRESSED: f"e.outcome = 'skipped' AND e.gate <> 'identity' AND {_UNUSUAL}",
    EmailOutcome.DUPLICATE: f"e.seq IN ({_REPEATED} UNION {_TAGGED})",
    EmailOutcome.RETURNED: _BY_STATUS[Status.RETRY_LATER],
    EmailOutcome.IN_PROGRESS: _BY_STATUS[Status.ALREADY_PROCESSING],
    EmailOutcome.STOPPED: f"e.seq IN ({_REPEATED} UNION {_SKIPPED})",
    EmailOutcome.NEEDS_ATTENTION: f"e.seq IN ({_DEAD} UNION {_LATE} UNION {_RETURNED})",
}


def read_status(step: Step, entry_id: str) -> Status:
    """The answer to its provider, brought up to date."""
    cases = " ".join(f"WHEN {condition} THEN '{status}'" for status, condition in _BY_STATUS.items())
    query = f"SELECT CASE {cases} END FROM entries e WHERE id = :id"  # noqa: S608
    rows = step.query(query, {"id": entry_id, "steady_ms": step.steady_ms})
    return Status(rows[0][0] if rows else Status.RETRY_LATER)  # without a row, it has just been deleted


_AGE = re.compile(r"(\d{1,5}) ?(min|h|d|w)")
_MINUTES = {"min": 1, "h": 60, "d": 24 * 60, "w": 7 * 24 * 60}


def _moment(value: object) -> datetime | None:
    if isinstance(value, str) and (age := _AGE.fullmatch(value.strip())):
        return datetime.now(UTC) - timedelta(minutes=int(age[1]) * _MINUTES[age[2]])
    moment = parse_date(value) if isinstance(value, str) else None
    if moment is None and value is not None:
        raise ValueError("must be a time such as 2026-11-16T09:00:00Z, or an age such as 30min, 12h, 7d or 2w")
    return moment


def _plain(value: object) -> object:
    """Text that SQLite accepts; an empty one is no filter."""
    return well_formed(value).replace("\0", " ").strip() or None if isinstance(value, str) else value


Text = Annotated[str | None, BeforeValidator(_plain)]
Moment = Annotated[datetime | None, BeforeValidator(_moment)]


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Filter(Request):
    """Which emails; a field that is None matches all."""

    outcome: EmailOutcome | None = Field(default=None, description="Only emails with this outcome.")
    gate: Literal["identity", "subject_group", "media", "content"] | None = Field(
        default=None, description="Only emails that this gate stopped."
    )
    provider: Text = None
    route: Text = None
    destination: Text = None
    sender: Text = Field(default=None, description="Only emails whose sender contains this text.")
    q: Text = Field(
        default=None, description="Parts of sender and subject; or a complete id, Message-ID, `thread` or webhook-id."
    )
    since: Moment = Field(default=None, description="Only emails received since then; 7d means seven days ago.")
    until: Moment = Field(default=None, description="Only emails received before this time.")


class DecisionFilter(Filter):
    status: Status | None = Field(default=None, description="The answer to its provider, brought up to date.")


class DeliveryFilter(Filter):
    status: DeliveryStatus | None = None


FIELDS = ("status", *Filter.model_fields)
_SEARCHED = {"sender": "s.sender", "{sender subject}": "s.sender || ' ' || s.subject"}  # columns in FTS5 and in SQL
_CONDITIONS = {
    "gate": "e.gate = :gate AND e.gate <> ''",  # as in schema.sql
    "provider": "e.provider = :provider",
    "route": "instr(' + ' || e.route || ' + ', ' + ' || :route || ' + ')",  # several may match an email
    "destination": "instr(e.outcomes, ' ' || :destination || '=')",
    "since": "e.created_ms >= :since",
    "until": "e.created_ms < :until",
}


class InvalidCursor(ValueError):
    """Not a cursor of this list. Clients can send anything, so no cursor is trusted."""


class Listing:
    """Parts of a SELECT on entries ``e``, ordered by ``time``, then ``seq``, then ``destination``. ``has``: only emails
    with such a delivery."""

    source = "entries e"
    time = "e.created_ms"
    seq = "e.seq"
    destination = "''"
    direction = "DESC"

    def __init__(self, step: Step, wanted: Filter, privacy: Privacy, has: DeliveryStatus | None = None) -> None:
        self.where = ["1"]
        moments = {name: int(at.timestamp() * 1000) for name in ("since", "until") if (at := getattr(wanted, name))}
        self.values: dict[str, Any] = {**wanted.model_dump(), **moments}
        self.values |= {"now_ms": step.now_ms, "steady_ms": step.steady_ms}
        self._search(step, wanted, privacy)
        if isinstance(wanted, DecisionFilter) and wanted.status:
            self.where.append(_BY_STATUS[wanted.status])
        if wanted.outcome:
            which = "= :destination" if wanted.destination else "<> ''"  # coalesce() would use no index
            self.where.append(_BY_OUTCOME[wanted.outcome].format(which=which))
        if isinstance(wanted, DeliveryFilter):
            has = wanted.status
            self.destination = "d.destination"
            if wanted.destination:
                self.where.append("d.destination = :destination")
            if has:
                self.where.append(f"d.status = '{has}'")  # no parameter, or the partial indexes would not be used
            if has in BY_DELIVERY and self.time != BY_PLACE:
                self.source, self.seq = "deliveries d CROSS JOIN entries e ON e.seq = d.seq", "d.seq"
                self.time, self.direction = BY_DELIVERY[has]
            else:
                self.source += " CROSS JOIN deliveries d ON d.seq = e.seq"
        if has:
            self.where.append(f"instr(e.outcomes, '={has} ')")
        conditions = dict(_CONDITIONS)
        if wanted.gate == Gate.IDENTITY.value:  # an exact repeat has no entry of its own
            conditions["gate"] = _BY_OUTCOME[EmailOutcome.DUPLICATE]
        self.where += [conditions[name] for name in conditions if getattr(wanted, name) is not None]

    def _search(self, step: Step, wanted: Filter, privacy: Privacy) -> None:
        """By a complete id or thread, or by words of sender and subject."""
        text, sender = wanted.q or "", privacy.text(wanted.sender or "")
        keys = _keys_of(text, privacy) | {"thread": f"thread:{bounded_key(without_brackets(text))}"}
        found = f"{_BY_KEY} UNION SELECT seq FROM keys WHERE value = :thread"  # noqa: S608
        if text and step.query(f"SELECT 1 FROM ({found}) LIMIT 1", keys):  # noqa: S608
            self.where.append(f"e.seq IN ({found})")
            self.values |= keys
            text = ""
        words = [privacy.text(text)] if privacy.is_strict else text.split()
        matches = []
        for column, word in (*(("{sender subject}", word) for word in words), ("sender", sender)):
            if len(word) >= SHORTEST_INDEXED:
                quoted = word.replace('"', '""')
                matches.append(f'{column} : "{quoted}"')
            elif word:
                name = f"short{len(self.values)}"
                self.where.append(f"instr(lower({_SEARCHED[column]}), :{name})")
                self.values[name] = word.lower()
        if not (text or sender):
            return
        newest = f"(SELECT rowid, * FROM search ORDER BY rowid DESC LIMIT {MOST_SCANNED})"  # noqa: S608
        self.source = f"{'search' if matches else newest} s CROSS JOIN entries e ON e.seq = s.seq AND s.rowid = {PLACE}"
        self.time = BY_PLACE
        if matches:
            self.where.append("s.search MATCH :words")
            self.values["words"] = " AND ".join(matches)

    def select(self, columns: str, most: int, order: str = "") -> str:
        return f"SELECT {columns} FROM {self.source} WHERE {' AND '.join(self.where)}{order} LIMIT {most}"  # noqa: S608

    def start_after(self, cursor: str) -> None:
        """Raises InvalidCursor."""
        try:
            column, time, seq, destination = cursor.split("~", 3)
            after = {"after": int(time), "after_seq": int(seq)}
            destination.encode()
        except ValueError as error:
            raise InvalidCursor("not a cursor") from error
        if column != self.time or not all(0 <= number < 1 << 63 for number in after.values()):  # SQLite's numbers
            raise InvalidCursor("a cursor of another list")
        self.values |= {**after, "after_destination": destination}
        sign, keys = ">" if self.direction == "ASC" else "<", f"({self.time}, {self.seq})"
        same = f"{keys} = (:after, :after_seq) AND {self.destination} > :after_destination"
        # The first condition follows from the second, but can use an index.
        self.where.append(f"{self.time} {sign}= :after AND ({keys} {sign} (:after, :after_seq) OR {same})")


def find_ids(
    service: Service, wanted: Filter, limit: int = ALL, cursor: str | None = None, has: DeliveryStatus | None = None
) -> tuple[list[str], str | None]:
    """A page of ids of emails or, with a DeliveryFilter, of deliveries ("email:destination"), and the cursor of the
    next page. ``has``: only emails with such a delivery. Raises InvalidCursor."""
    if wanted.q or wanted.sender:
        catch_up(service.journal)
    with service.journal.reading() as step:
        listing = Listing(step, wanted, service.privacy, has)
        if cursor:
            listing.start_after(cursor)
        order = f" ORDER BY {listing.time} {listing.direction}"
        if listing.time != BY_PLACE:  # a search would be sorted as a whole; its rows come in this order anyway
            order += f", {listing.seq} {listing.direction}, {listing.destination}"
        columns = f"e.id, {listing.destination}, {listing.time}, {listing.seq}"
        rows = step.query(listing.select(columns, limit + 1, order), listing.values)
    following = None
    if len(rows) > limit:
        _, destination, time_, seq = rows[limit - 1]
        following = f"{listing.time}~{time_ or 0}~{seq}~{destination}"
    is_delivery = isinstance(wanted, DeliveryFilter)
    return [f"{id_}:{destination}" if is_delivery else id_ for id_, destination, *_ in rows[:limit]], following


def count_emails(service: Service, wanted: DecisionFilter, outcomes: Iterable[EmailOutcome | None]) -> list[int]:
    """How many emails a list has with each of these outcomes (None: with any); of a search, at most MOST_COUNTED."""
    most = MOST_COUNTED if wanted.q or wanted.sender else ALL
    with service.journal.reading() as step:
        counts = []
        for outcome in outcomes:
            listing = Listing(step, wanted.model_copy(update={"outcome": outcome}), service.privacy)
            counts.append(step.query(f"SELECT count(*) FROM ({listing.select('1', most)})", listing.values)[0][0])  # noqa: S608
        return counts


def count_repeats(service: Service, since: datetime | None) -> int:
    """How often emails that were first received since then were received again."""
    query = "SELECT total(r.count) FROM repeats r CROSS JOIN entries e ON e.id = r.entry WHERE e.created_ms >= ?"
    with service.journal.reading() as step:
        return int(step.query(query, (since.timestamp() * 1000 if since else 0,))[0][0])


# By a key: an id, email id, Message-ID, webhook-id or sender

_BY_KEY = (
    "SELECT seq FROM entries WHERE id = :key UNION SELECT seq FROM keys WHERE value IN (:key, :lower, :stored)"
    " UNION SELECT seq FROM names WHERE reference = :post"
)


def _keys_of(text: str, privacy: Privacy) -> dict[str, str]:
    post = Name(Kind.POST, "", bounded_key(without_brackets(text))).label
    return {"key": text, "lower": text.lower(), "stored": privacy.text(text.lower()), "post": post}


def find_by_key(step: Step, text: str, privacy: Privacy) -> str | None:
    """The id of the newest email with that key."""
    query = f"SELECT id FROM entries WHERE seq IN ({_BY_KEY}) ORDER BY seq DESC LIMIT 1"  # noqa: S608
    rows = step.query(query, _keys_of(text, privacy))
    return rows[0][0] if rows else None


def find_entries(step: Step, text: str, privacy: Privacy) -> list[Entry]:
    """All emails with that key, and others with the same email ids, which cannot be told apart by it."""
    own = "SELECT reference FROM names WHERE reference >= 'email_id:' AND reference < 'email_id;' AND seq IN"
    found = f"seq IN ({_BY_KEY}) OR seq IN (SELECT seq FROM names WHERE reference IN ({own} ({_BY_KEY})))"  # noqa: S608
    return [entry for _, entry in step.read_rows(found, _keys_of(text, privacy))]


# The index, filled behind the requests


def index_some(journal: Journal) -> int:
    """Makes the next entries searchable, and removes some that are gone. Returns how many."""
    # Read first: a search must not wait for the write lock when there is nothing to index.
    with journal.reading() as step:
        if step.last_seq() <= int(step.meta("searched") or 0) and not step.query("SELECT 1 FROM unsearched LIMIT 1"):
            return 0
    fields = ("item", "subject", "sender", "thread")
    item, subject, sender, thread = (f"json_extract(e.data, '$.about.{field}')" for field in fields)
    new = "FROM entries e WHERE e.seq > ?1 AND e.seq <= ?2"
    with journal.step() as step:
        begin = int(step.meta("searched") or 0)
        seqs = step.query("SELECT seq FROM entries WHERE seq > ? ORDER BY seq LIMIT ?", (begin, INDEXED_AT_ONCE))
        if seqs:
            span = (begin, seqs[-1][0])
            step.query(  # in another order, each row would be written to the disk alone
                f"INSERT OR REPLACE INTO search (rowid, sender, subject, seq) SELECT {PLACE}, {sender}, {subject},"  # noqa: S608
                f" e.seq {new} ORDER BY 1",
                span,
            )
            # An entry can have the place of one that is gone, if it got the same number in the same millisecond.
            step.query(f"DELETE FROM unsearched WHERE place IN (SELECT {PLACE} {new})", span)  # noqa: S608
            step.query(
                f"INSERT OR IGNORE INTO keys SELECT {item}, e.seq {new} UNION SELECT {sender}, e.seq {new}"  # noqa: S608
                f" UNION SELECT 'thread:' || {thread}, e.seq {new} AND {thread} <> ''"
                " UNION SELECT webhook_id, seq FROM deliveries WHERE seq > ?1 AND seq <= ?2",
                span,
            )
            step.set_meta("searched", str(span[1]))
        gone = step.query("SELECT place FROM unsearched ORDER BY place LIMIT ?", (INDEXED_AT_ONCE,))
        for place in gone:
            step.query("DELETE FROM search WHERE rowid = ?", place)
            step.query("DELETE FROM unsearched WHERE place = ?", place)
        step.query("INSERT INTO search (search, rank) VALUES ('merge', ?)", (MERGED_PAGES,))
    return len(seqs) + len(gone)


def catch_up(journal: Journal, within_s: float = CATCH_UP_S) -> None:
    """Makes what has just been received searchable, with pauses in which emails get the lock. Several processes may do
    it. If the journal cannot be written, a search finds what was indexed before."""
    ends_at = time.monotonic() + within_s
    with suppress(StoreUnavailable):
        while index_some(journal) >= INDEXED_AT_ONCE and time.monotonic() < ends_at:
            time.sleep(PAUSE_S)
