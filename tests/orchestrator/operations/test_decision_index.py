"""The index of decisions follows the journal, survives what happens to its file, and spares reading all of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deduplication.claims import Gate, Kind, Name
from deduplication.errors import StoreUnavailable
from deduplication.journal.base import DEFAULT_RETENTION, Claim, Claimed, Duplicate, Ending, Journal, Settlement, Wanted
from deduplication.journal.entry import About, Delivery, DeliveryStatus, Entry, State, Stop
from deduplication.journal.failover import FailoverJournal
from deduplication.journal.side import Side
from deduplication.journal.sqlite import SqliteJournal, Told
from deduplication.journal.storage import DiskRoom
from orchestrator.build import Parts, build_parts
from orchestrator.config.model import load_config
from orchestrator.config.settings import load_settings
from orchestrator.intake import Status
from orchestrator.operations import decision_index
from orchestrator.operations.decision_index import DecisionIndex, Filter, Sought
from orchestrator.operations.decisions import list_decisions, matches, read_decision
from orchestrator.privacy import Privacy
from tests.support.journals import JournalBench

DAY_MS = 24 * 3_600_000
GROUP = Name(Kind.SUBJECT_GROUP, "2026-11", "lot_1")


@pytest.fixture
def index(bench: JournalBench, tmp_path: Path) -> Iterator[DecisionIndex]:
    index = DecisionIndex(bench.journal, Privacy(bench.journal), DEFAULT_RETENTION, tmp_path / "decisions.db")
    yield index
    index.close()


def put(journal: Journal, name: str, status: DeliveryStatus = DeliveryStatus.DELIVERED, subject: str = "") -> None:
    own = (Name(Kind.EMAIL_ID, "2026-11-16", f"of {name}"),)
    about = About(f"of {name}", "gmail", "all", subject or f"Subject of {name}", f"{name}@example.org")
    shared = (GROUP,) if subject == "group" else ()
    claim = Claim(name, f"owner of {name}", own, shared, destinations=(Wanted("crm", "msg"),), about=about)
    verdict = journal.claim(claim)
    if isinstance(verdict, Duplicate) and verdict.entry:
        assert journal.settle(claim, verdict.entry, Settlement(Ending.DONE, "told", payload=b"payload"))
        return
    assert isinstance(verdict, Claimed)
    ended = Delivery("crm", "msg", status, next_try_ms=1 if status.is_open else None)
    assert journal.settle(claim, verdict.entry, Settlement(Ending.DONE, "told", (ended,), payload=b"payload"))


def ids(index: DecisionIndex, wanted: Filter | None = None) -> list[str]:
    while not index.follow():
        pass
    return found(index, wanted)


def found(index: DecisionIndex, wanted: Filter | None = None) -> list[str]:
    wanted = wanted or Filter()
    sought = Sought(wanted.q, (wanted.q,)) if wanted.q else None
    return [row.id for row in index.find(wanted, sought, None, 100)]


def test_what_came_is_found_the_newest_first(bench: JournalBench, index: DecisionIndex) -> None:
    for name in ("ada", "bob", "eve"):
        put(bench.journal, name)
        bench.advance(5)
    assert ids(index) == ["eve", "bob", "ada"]
    put(bench.journal, "zoe")
    assert ids(index) == ["zoe", "eve", "bob", "ada"]
    assert ids(index, Filter(q="OB@exam")) == ["bob"]
    assert ids(index, Filter(q="subject OF")) == ["zoe", "eve", "bob", "ada"]
    assert ids(index, Filter(q="of eve")) == ["eve"], "the id of the email"
    assert ids(index, Filter(q="ob")) == ["bob"], "too short for the index of texts"
    assert ids(index, Filter(q="%")) == ids(index, Filter(q="_")) == ids(index, Filter(q='"')) == []
    assert ids(index, Filter(destination="erp")) == []


def test_of_an_address_all_of_it_counts_though_a_part_is_looked_up(bench: JournalBench, index: DecisionIndex) -> None:
    put(bench.journal, "one", subject="from a-long-name.of-ada@example.org")
    put(bench.journal, "two", subject="from a-long-name.of-ada@example.com")
    put(bench.journal, "three", subject="from another-name.of-ada@example.org")
    assert ids(index, Filter(q="a-long-name.of-ada@example.org")) == ["one"]
    assert ids(index, Filter(q="of-ada@example.com")) == ["two"]
    assert set(ids(index, Filter(q="of-ada@example.org"))) == {"one", "three"}
    assert set(ids(index, Filter(q="a@example"))) == {"one", "two", "three"}, "too short a name: all of it is looked up"


def test_what_is_open_is_looked_at_until_it_has_ended(bench: JournalBench, index: DecisionIndex) -> None:
    put(bench.journal, "one", DeliveryStatus.WAITING)
    bench.advance(5_000)
    assert ids(index, Filter(Status.QUEUED)) == ["one"]
    begun = bench.journal.begin("one", "crm", "worker", 60_000)
    assert begun
    bench.journal.finish("one", "worker", Delivery("crm", "msg", DeliveryStatus.DEAD, reason="answered 404"))
    assert ids(index, Filter(Status.QUEUED)) == []
    assert ids(index, Filter(Status.DEAD_LETTERED, destination="crm")) == ["one"]


def test_what_is_under_way_is_looked_at_until_it_is_decided(bench: JournalBench, index: DecisionIndex) -> None:
    claim = Claim("one", "me", (Name(Kind.POST, "", "one"),), destinations=(Wanted("crm", "msg"),))
    claimed = bench.journal.claim(claim)
    assert isinstance(claimed, Claimed)
    assert ids(index, Filter(Status.ALREADY_PROCESSING)) == ["one"]
    bench.journal.settle(claim, claimed.entry, Settlement(Ending.FREE))
    assert ids(index, Filter(Status.RETRY_LATER)) == ["one"]


def test_what_is_taken_up_again_is_found_by_what_it_is_then(bench: JournalBench, index: DecisionIndex) -> None:
    put(bench.journal, "first", subject="group")
    bench.advance(5)
    put(bench.journal, "second", subject="group")
    put(bench.journal, "dead", DeliveryStatus.DEAD)
    bench.advance(5_000)
    assert ids(index, Filter(gate=Gate.SUBJECT_GROUP)) == ["second"]
    bench.journal.release("second")
    bench.journal.replay("dead", "crm")
    assert set(ids(index, Filter(Status.QUEUED))) == {"second", "dead"}
    assert ids(index, Filter(Status.QUEUED, gate=Gate.SUBJECT_GROUP)) == ["second"]
    assert ids(index, Filter(Status.SKIPPED_SUBJECT_GROUP)) == []


def test_rows_go_with_their_decisions_but_for_what_waits(bench: JournalBench, index: DecisionIndex) -> None:
    put(bench.journal, "old")
    put(bench.journal, "dead", DeliveryStatus.DEAD)
    put(bench.journal, "waits", DeliveryStatus.WAITING)
    assert len(ids(index)) == 3
    bench.advance(8 * DAY_MS)
    put(bench.journal, "new")
    assert set(ids(index)) == {"new", "dead", "waits"}
    bench.advance(23 * DAY_MS)
    assert set(ids(index)) == {"waits"}


@pytest.mark.parametrize("happens", ["nothing", "lost", "another version"])
def test_it_goes_on_whatever_happens_to_its_file(
    bench: JournalBench, tmp_path: Path, happens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "decisions.db"
    for name in ("ada", "bob"):
        put(bench.journal, name)
    bench.advance(60_000)
    first = DecisionIndex(bench.journal, Privacy(bench.journal), DEFAULT_RETENTION, path)
    assert set(ids(first)) == {"ada", "bob"}
    other = DecisionIndex(bench.journal, Privacy(bench.journal), DEFAULT_RETENTION, path)  # of another process
    assert set(found(other)) == {"ada", "bob"}
    match happens:
        case "lost":
            for end in ("", "-wal", "-shm"):
                Path(f"{path}{end}").unlink(missing_ok=True)
        case "another version":
            monkeypatch.setattr(decision_index, "VERSION", "another")
    told: list[str] = []
    news = bench.journal.news

    def counted(places: str, limit: int) -> Any:
        answer = news(places, limit)
        told.extend(entry.id for entry in answer.entries)
        return answer

    monkeypatch.setattr(bench.journal, "news", counted)
    after = DecisionIndex(bench.journal, Privacy(bench.journal), DEFAULT_RETENTION, path)
    assert set(ids(after)) == {"ada", "bob"}
    assert set(told) == (set() if happens == "nothing" else {"ada", "bob"}), "a restart reads nothing again"
    put(bench.journal, "eve")
    ids(after)
    if happens != "another version":  # whoever is of that made it empty
        assert set(found(other)) == {"ada", "bob", "eve"}, "who has it open follows it to the new file"
    assert path.stat().st_mode & 0o777 == 0o600
    for each in (first, other, after):
        each.close()


@pytest.mark.parametrize("damage", ["no database", "pages of nothing", "empty"])
def test_a_damaged_file_is_made_again(bench: JournalBench, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "decisions.db"
    put(bench.journal, "ada")
    before = DecisionIndex(bench.journal, Privacy(bench.journal), DEFAULT_RETENTION, path)
    ids(before)
    before.close()
    whole = path.read_bytes()
    assert not Path(f"{path}-wal").exists()
    damaged = {"no database": b"x" * len(whole), "pages of nothing": whole[:4096] + b"x" * (len(whole) - 4096)}
    path.write_bytes(damaged.get(damage, b""))
    after = DecisionIndex(bench.journal, Privacy(bench.journal), DEFAULT_RETENTION, path)
    if damage != "empty":
        with pytest.raises(StoreUnavailable, match="index of decisions"):
            after.follow()
    assert ids(after) == ["ada"]
    assert ids(after, Filter(q="ada@example")) == ["ada"]
    after.close()


def test_one_that_stood_still_for_long_begins_anew(bench: JournalBench, index: DecisionIndex) -> None:
    put(bench.journal, "dead", DeliveryStatus.DEAD)
    for _ in range(2):
        bench.advance(5_000)
        assert ids(index, Filter(Status.DEAD_LETTERED)) == ["dead"]
    bench.journal.replay("dead", "crm")
    bench.advance(25 * 3_600_000)
    bench.journal.forget([GROUP])  # whatever writes lets go of what is over
    assert ids(index, Filter(Status.QUEUED)) == ["dead"]


def test_without_an_index_of_texts_every_row_is_looked_at(
    bench: JournalBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_index, "_TEXTS", "CREATE VIRTUAL TABLE texts USING not_there(text)")
    index = DecisionIndex(bench.journal, Privacy(bench.journal), DEFAULT_RETENTION, tmp_path / "decisions.db")
    for name in ("ada", "bob"):
        put(bench.journal, name)
    assert ids(index, Filter(q="BOB@example")) == ["bob"]
    index.close()


def test_in_memory_it_knows_the_newest_only(
    bench: JournalBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_index, "MOST_IN_MEMORY", 2)
    index = DecisionIndex(bench.journal, Privacy(bench.journal), DEFAULT_RETENTION, None)
    for name in ("ada", "bob", "eve"):
        put(bench.journal, name)
        bench.advance(5)
    assert ids(index) == ["eve", "bob"]
    index.close()


def test_on_a_full_disk_the_oldest_make_room(bench: JournalBench, tmp_path: Path) -> None:
    free = [1]
    room = DiskRoom(tmp_path, 0, 0, lambda _folder: free[0])
    room.left_bytes()
    index = DecisionIndex(bench.journal, Privacy(bench.journal), DEFAULT_RETENTION, tmp_path / "decisions.db", room)
    for name in ("ada", "bob"):
        put(bench.journal, name)
        bench.advance(5)
    assert ids(index) == ["bob", "ada"]
    room._look_at = free[0] = 0
    bench.advance(5_000)
    put(bench.journal, "eve")
    index.follow()
    assert found(index) == ["eve", "bob"]
    index.close()


@pytest.mark.parametrize("page", [1, 1000])
def test_what_waits_or_is_dead_for_longer_than_entries_are_listed_is_found(
    bench: JournalBench, tmp_path: Path, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_index, "FOLLOWED_AT_ONCE", page)
    for name in ("dead", "dead too"):
        put(bench.journal, name, DeliveryStatus.DEAD)
    for name in ("waits", "waits too"):
        put(bench.journal, name, DeliveryStatus.WAITING)
    bench.advance(9 * DAY_MS)
    put(bench.journal, "new")
    late = DecisionIndex(bench.journal, Privacy(bench.journal), DEFAULT_RETENTION, tmp_path / "decisions.db")
    assert set(ids(late)) == {"new", "dead", "dead too", "waits", "waits too"}
    late.close()


@pytest.mark.parametrize("bench", ["failover"], indirect=True)
def test_while_redis_is_away_what_this_machine_decides_is_found(bench: JournalBench, index: DecisionIndex) -> None:
    journal = bench.journal
    assert isinstance(journal, FailoverJournal)
    put(journal, "before")
    assert ids(index) == ["before"]
    journal._side.change_to(Side.LOCAL)
    put(journal, "alone")
    assert set(ids(index)) == {"before", "alone"}
    journal._side.change_to(Side.REDIS)
    put(journal, "after")
    assert set(ids(index)) == {"before", "alone", "after"}


# Many


MANY = 4_000


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    """A journal of many entries, all of them in the index."""
    settings = load_settings(data_dir=tmp_path_factory.mktemp("data"))
    parts = build_parts(settings, load_config(settings))
    journal = parts.journal
    assert isinstance(journal, SqliteJournal)
    now_ms = journal.now_ms()

    def entry(number: int) -> Entry:
        is_rare = number % (MANY // 4) == 0
        stop = Stop(GROUP, "nobody", now_ms) if number % 10 == 1 else None
        status = DeliveryStatus.SKIPPED if stop else DeliveryStatus.DELIVERED
        at_ms = now_ms - (MANY - number) * 20
        return Entry(
            id=f"e{number}",
            own=(Name(Kind.EMAIL_ID, "2026-11-16", f"id{number}"),),
            shared=(),
            fingerprint="",
            state=State.DONE,
            owner="",
            fence=0,
            lease_until_ms=0,
            created_ms=at_ms,
            about=About(f"id{number}", "gmail", "all", f"About {'a needle' if is_rare else 'hay'}", "a@b", "s"),
            deliveries=(Delivery("rare" if is_rare else "crm", "msg", status),),
            answer="told",
            settled_ms=at_ms,
            stop=stop,
        )

    journal.take_over("many", ((entry(number), None, Told.NO) for number in range(MANY)), [], 0)
    steps = 1
    while not parts.decisions.follow():
        steps += 1
    assert steps <= MANY // decision_index.FOLLOWED_AT_ONCE + 3
    yield parts
    parts.close()


@pytest.mark.parametrize(
    "wanted",
    [
        Filter(),
        Filter(q="needle"),
        Filter(q="hay"),
        Filter(q="about", destination="rare"),
        Filter(q="nothing like it"),
        Filter(q="id77"),
        Filter(q="ha"),
        Filter(destination="rare"),
        Filter(gate=Gate.SUBJECT_GROUP),
        Filter(Status.PROCESSED, provider="gmail"),
        Filter(Status.DEAD_LETTERED),
        Filter(provider="mailgun"),
    ],
)
def test_a_page_reads_no_more_entries_than_it_shows(
    parts: Parts, wanted: Filter, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = parts.journal
    expected = [each.id for each in journal.find() if matches(each, wanted, journal.lease_time_ms(), parts.privacy)]
    read: list[str] = []
    read_all, news = journal.read_all, journal.news

    def counted(entries: list[str]) -> dict[str, Entry]:
        read.extend(entries)
        return read_all(entries)

    def counted_news(places: str, limit: int) -> Any:
        answer = news(places, limit)
        read.extend(entry.id for entry in answer.entries)
        return answer

    monkeypatch.setattr(journal, "read_all", counted)
    monkeypatch.setattr(journal, "news", counted_news)
    for whole in ("find", "names", "list_deliveries"):
        monkeypatch.setattr(journal, whole, None)
    page = list_decisions(parts, wanted, 10)
    assert [each.entry.id for each in page.decisions] == expected[:10]
    assert (page.next is not None) is (len(expected) > 10)
    originals = 1
    assert len(read) <= min(len(expected), 11) + originals


def test_rows_that_do_not_match_any_more_leave_no_page_short(parts: Parts) -> None:
    journal, wanted = parts.journal, Filter(Status.PROCESSED)
    with sqlite3.connect(parts.settings.data_dir / decision_index.FILE) as db:
        db.execute("UPDATE decisions SET status = 'processed' WHERE status = 'skipped_subject_group'")
    expected = [each.id for each in journal.find() if matches(each, wanted, 0, parts.privacy)]
    page = list_decisions(parts, wanted, 25)
    assert [each.entry.id for each in page.decisions] == expected[:25]
    following = list_decisions(parts, wanted, 25, page.next)
    assert [each.entry.id for each in following.decisions] == expected[25:50]
    parts.decisions.put(list(journal.find()))


def test_going_through_all_pages_shows_each_once(parts: Parts) -> None:
    cursor, shown = None, []
    for _ in range(MANY):
        page = list_decisions(parts, Filter(gate=Gate.SUBJECT_GROUP), 97, cursor)
        shown += [each.entry.id for each in page.decisions]
        cursor = page.next
        if cursor is None:
            break
    assert shown == [f"e{number}" for number in range(MANY - 9, 0, -10)]


def test_an_email_is_found_by_its_id_alone(parts: Parts) -> None:
    found = read_decision(parts, "id77")
    assert found and found.entry.id == "e77"
    assert read_decision(parts, "id7777777") is None


def test_a_row_that_says_otherwise_is_not_shown_and_is_mended(parts: Parts) -> None:
    with sqlite3.connect(parts.settings.data_dir / decision_index.FILE) as db:
        db.execute("UPDATE decisions SET status = 'dead_lettered' WHERE id = 'e42'")
    assert list_decisions(parts, Filter(Status.DEAD_LETTERED), 10).decisions == ()
    with sqlite3.connect(parts.settings.data_dir / decision_index.FILE) as db:
        assert db.execute("SELECT status FROM decisions WHERE id = 'e42'").fetchone() == ("processed",)
