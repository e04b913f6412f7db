"""The journal starts on what the version before it wrote, on a disk or on Redis, and goes on from there."""

from __future__ import annotations

import json
import multiprocessing
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any

import pytest

from deduplication.claims import Gate, Kind, Name
from deduplication.errors import StoreUnavailable
from deduplication.journal import upgrade as upgrading
from deduplication.journal.base import Claim, Claimed, Duplicate, Ending, InFlight, Journal, Settlement
from deduplication.journal.entry import DeliveryStatus, Entry, State
from deduplication.journal.failover import FailoverJournal
from deduplication.journal.side import Side, Standing
from deduplication.journal.sqlite import SqliteJournal
from deduplication.journal.upgrade import upgrade_folder, upgrade_redis
from deduplication.redis_client import connect
from tests.support.journals import FakeClock, MovableRedisJournal
from tests.support.old_version import PREFIX, claim_of, item, write_folder, write_redis, written_ms
from tests.support.redis_server import RedisServer

DAY_MS = 24 * 3600 * 1000
ROOM = {"crm": 100, "archive": 100}
DELIVERED = ("delivered", "other text", "undated", "group", "with media")


@dataclass(frozen=True)
class Old:
    """A journal in the place of the older version's data. ``put_back``: that data, as if it had never been taken."""

    journal: Journal
    upgrade: Callable[[], int]
    put_back: Callable[[], None]
    advance: Callable[[int], None]

    def entry_of(self, name: str) -> Entry:
        (found,) = [
            each for each in self.journal.find()
            if each.about.item == item(name)["item"] and each.fingerprint == item(name)["fingerprint"]
            and not each.is_trial
        ]  # fmt: skip
        return found


def on_disk(folder: Path, time: FakeClock) -> Old:
    write_folder("alone", folder)
    time.ms = written_ms("alone")
    journal = SqliteJournal(folder / "journal.db", time.clock)
    return Old(
        journal,
        upgrade=lambda: upgrade_folder(folder, journal),
        put_back=lambda: write_folder("alone", folder),
        advance=time.advance,
    )


def on_redis(server: RedisServer) -> tuple[MovableRedisJournal, Any]:
    client = connect(server.url, timeout_s=10, decode_responses=False)
    journal = MovableRedisJournal(client, prefix=PREFIX)
    journal.set_time_to(written_ms("fleet"))
    return journal, client


@pytest.fixture(params=("alone", pytest.param("fleet", marks=pytest.mark.real_redis)))
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Old]:
    if request.param == "alone":
        found = on_disk(tmp_path, FakeClock())
        yield found
        found.journal.close()
        return
    journal, client = on_redis(request.getfixturevalue("redis_server"))

    def put_back() -> None:
        write_redis(client, lambda key: key != f"{PREFIX}fence")
        client.delete(f"{PREFIX}upgraded")

    write_redis(client)
    yield Old(journal, lambda: upgrade_redis(client, PREFIX, journal), put_back, journal.advance)
    journal.close()


@pytest.fixture
def upgraded(old: Old) -> Old:
    assert old.upgrade() > 0
    return old


def claim(old: Old, name: str, **other: Any) -> Any:
    return old.journal.claim(claim_of(name, owner=f"again-{name}-{len(other)}".replace(" ", "-"), **other))


# What was settled


@pytest.mark.parametrize("name", DELIVERED)
def test_a_delivered_item_is_known_by_every_name_it_had(upgraded: Old, name: str) -> None:
    original = upgraded.entry_of(name)
    for number, own in enumerate(claim_of(name).own):
        again = upgraded.journal.claim(claim_of(name, owner=f"again-{number}", own=(own,)))
        assert isinstance(again, Duplicate)
        assert (again.entry, again.stop.original, again.answer) == (None, original.id, "processed")
        assert again.stop.first_seen_ms == original.created_ms


def test_what_was_delivered_says_where_and_when(upgraded: Old) -> None:
    (delivery,) = upgraded.entry_of("delivered").deliveries
    (wanted,) = item("delivered")["destinations"]
    assert (delivery.destination, delivery.webhook_id) == (wanted[0], wanted[1])
    assert delivery.status is DeliveryStatus.DELIVERED
    assert delivery.delivered_ms is not None
    assert delivery.attempts[0].status_code == 200


def test_two_texts_under_one_md5_are_still_told_apart(upgraded: Old) -> None:
    assert set(claim_of("delivered").own) & set(claim_of("other text").own)
    assert upgraded.entry_of("delivered").id != upgraded.entry_of("other text").id
    third = claim(upgraded, "third text")
    assert isinstance(third, Claimed)
    assert third.entry.delivery_to("crm")


def test_what_was_only_printed_is_a_repeat_for_who_prints_and_new_for_a_destination(upgraded: Old) -> None:
    printed = claim(upgraded, "third text", is_trial=True)
    assert isinstance(printed, Duplicate)
    assert isinstance(claim(upgraded, "third text"), Claimed)


@pytest.mark.parametrize(
    ("name", "gate", "by"),
    [
        ("skipped by group", Gate.SUBJECT_GROUP, "group"),
        ("skipped by media", Gate.MEDIA, "with media"),
        ("skipped by content", Gate.CONTENT, "with media"),
    ],
)
def test_a_skipped_item_stays_skipped_and_says_why(upgraded: Old, name: str, gate: Gate, by: str) -> None:
    again = claim(upgraded, name)
    assert isinstance(again, Duplicate)
    assert (again.entry, again.answer) == (None, f"skipped_{gate}")
    stop = upgraded.entry_of(name).stop
    assert stop is not None
    assert (stop.gate, stop.original) == (gate, upgraded.entry_of(by).id)


@pytest.mark.parametrize(
    ("name", "by"),
    [("next in group", "group"), ("next with media", "with media"), ("next in waiting group", "waiting")],
)
def test_group_and_media_still_stop_others_and_name_their_original(upgraded: Old, name: str, by: str) -> None:
    stopped = claim(upgraded, name)
    assert isinstance(stopped, Duplicate)
    original = upgraded.entry_of(by)
    assert (stopped.stop.original, stopped.stop.first_seen_ms) == (original.id, original.created_ms)


def test_words_still_stop_others_at_their_destination(upgraded: Old) -> None:
    stopped = claim(upgraded, "with media", own=(Name(Kind.POST, "", "feed:5"),), shared=(), fingerprint="")
    assert isinstance(stopped, Duplicate)
    assert (stopped.stop.gate, stopped.stop.original) == (Gate.CONTENT, upgraded.entry_of("with media").id)


def test_a_group_names_its_original_for_as_long_as_its_mark_lasts(upgraded: Old) -> None:
    original = upgraded.entry_of("group").id
    upgraded.advance(20 * DAY_MS)
    stopped = claim(upgraded, "next in group")
    assert isinstance(stopped, Duplicate)
    assert stopped.stop.original == original


# What was to be delivered


@pytest.mark.parametrize("name", ["waiting", "delivering", "both waiting"])
def test_what_waits_is_due_with_its_payload_under_the_same_webhook_id(upgraded: Old, name: str) -> None:
    again = claim(upgraded, name)
    assert isinstance(again, Duplicate)
    assert (again.entry, again.answer) == (None, "queued")
    entry = upgraded.entry_of(name)
    due = upgraded.journal.due(ROOM, hold_ms=1000)
    for destination, webhook_id, _ in item(name)["destinations"]:
        assert (entry.id, destination) in due
        begun = upgraded.journal.begin(entry.id, destination, "worker", 1000)
        assert begun is not None
        assert begun.payload is not None
        assert begun.delivery.webhook_id == webhook_id
        assert json.loads(begun.payload)["email_id"] == item(name)["item"]
    assert entry.about.subject == json.loads(upgraded.journal.payload(entry.id) or b"")["subject"]


def test_what_was_tried_waits_for_its_time(upgraded: Old) -> None:
    entry = upgraded.entry_of("tried")
    (delivery,) = entry.deliveries
    assert (delivery.tries, len(delivery.attempts), delivery.attempts[0].status_code) == (1, 1, 503)
    assert (entry.id, "crm") not in upgraded.journal.due(ROOM, hold_ms=1000)
    upgraded.advance(6_000)
    assert (entry.id, "crm") in upgraded.journal.due(ROOM, hold_ms=1000)


def test_everything_stored_is_due_once(upgraded: Old) -> None:
    upgraded.advance(6_000)
    stored = ("waiting", "delivering", "both waiting", "tried", "reset")
    wanted = [(each[1], each[0]) for name in stored for each in item(name)["destinations"]]
    due = upgraded.journal.due(ROOM, hold_ms=60_000)
    found = [upgraded.journal.begin(entry, destination, "worker", 1000) for entry, destination in due]
    assert sorted((each.delivery.webhook_id, each.delivery.destination) for each in found if each) == sorted(wanted)


def test_what_was_reset_while_it_waited_is_delivered_and_its_names_are_free(upgraded: Old) -> None:
    assert isinstance(claim(upgraded, "reset"), Claimed)


def test_a_dead_letter_is_dead_with_its_payload(upgraded: Old) -> None:
    again = claim(upgraded, "dead")
    assert isinstance(again, Duplicate)
    assert again.answer == "dead_lettered"
    entry = upgraded.entry_of("dead")
    (delivery,) = entry.deliveries
    assert (delivery.status, delivery.attempts[0].status_code) == (DeliveryStatus.DEAD, 422)
    payload = upgraded.journal.payload(entry.id)
    assert payload is not None
    assert json.loads(payload)["subject"] == "Refused"
    upgraded.advance(20 * DAY_MS)
    assert upgraded.journal.payload(entry.id) == payload


def test_what_was_given_back_is_joined_with_its_tries(upgraded: Old) -> None:
    again = claim(upgraded, "given back")
    assert isinstance(again, Claimed)
    assert not again.is_first
    (delivery,) = again.entry.deliveries
    assert delivery.status is DeliveryStatus.DELIVERING
    assert (delivery.tries, len(delivery.attempts)) == (2, 4)
    assert delivery.webhook_id == item("given back")["destinations"][0][1]


def test_where_one_destination_has_it_only_the_other_gets_it(upgraded: Old) -> None:
    again = claim(upgraded, "half")
    assert isinstance(again, Claimed)
    assert {each.destination: each.status for each in again.entry.deliveries} == {
        "crm": DeliveryStatus.DELIVERED,
        "archive": DeliveryStatus.DELIVERING,
    }


# What scripts reserved


def post(key: str, *media: str) -> Claim:
    own = (Name(Kind.POST, "", key, 7 * DAY_MS),)
    shared = tuple(Name(Kind.MEDIA, "", f"https://cdn.example/{each}.mp4", 7 * DAY_MS) for each in media)
    return Claim(f"new-{key}", f"script-{key}", own, shared, lease_ms=60_000)


def test_a_post_keeps_its_retries(upgraded: Old) -> None:
    again = upgraded.journal.claim(post("t3_failed", "failed"))
    assert isinstance(again, Claimed)
    assert again.entry.retries_left == 2


def test_a_published_post_is_through_and_so_are_its_media(upgraded: Old) -> None:
    assert isinstance(upgraded.journal.claim(post("t3_published")), Duplicate)
    assert isinstance(upgraded.journal.claim(post("t3_other", "published")), Duplicate)


def test_a_post_under_way_is_held_for_what_is_left_of_its_lease(upgraded: Old) -> None:
    held = upgraded.journal.claim(post("t3_held"))
    assert isinstance(held, InFlight)
    assert 0 < held.retry_after_ms <= 60_000
    assert isinstance(upgraded.journal.claim(post("t3_other", "held")), InFlight)
    upgraded.advance(60_000)
    assert isinstance(upgraded.journal.claim(post("t3_held")), Claimed)


def test_a_post_whose_lease_is_over_is_free_with_its_media(upgraded: Old) -> None:
    assert isinstance(upgraded.journal.claim(post("t3_other", "lapsed")), Claimed)
    assert isinstance(upgraded.journal.claim(post("t3_lapsed")), Claimed)


# Once


def test_numbers_go_on_above_the_old_ones(old: Old) -> None:
    old.upgrade()
    highest = max(each.fence for each in old.journal.find())
    assert highest > 10
    new = old.journal.claim(post("t3_new"))
    assert isinstance(new, Claimed)
    assert new.entry.fence > highest


def everything(old: Old) -> list[tuple[Entry, bytes | None]]:
    """But for leases, which are counted from each upgrade."""
    return [(replace(each, lease_until_ms=0), old.journal.payload(each.id)) for each in old.journal.find()]


def test_upgrading_again_finds_nothing(upgraded: Old) -> None:
    before = everything(upgraded)
    assert upgraded.upgrade() == 0
    assert everything(upgraded) == before


def test_taking_over_twice_changes_nothing(upgraded: Old) -> None:
    before = everything(upgraded)
    upgraded.put_back()
    upgraded.upgrade()
    assert sorted(everything(upgraded), key=lambda each: each[0].id) == sorted(before, key=lambda each: each[0].id)


def test_taking_over_again_undoes_nothing(upgraded: Old) -> None:
    """Two machines start: one has delivered something before the other is through."""
    entry = upgraded.entry_of("waiting")
    begun = upgraded.journal.begin(entry.id, "crm", "worker", 1000)
    assert begun is not None
    done = replace(begun.delivery, status=DeliveryStatus.DELIVERED, delivered_ms=1, next_try_ms=None)
    assert upgraded.journal.finish(entry.id, "worker", done)
    back = claim(upgraded, "given back")
    upgraded.journal.settle(
        claim_of("given back", owner=back.entry.owner), back.entry, Settlement(Ending.DONE, "queued")
    )
    upgraded.put_back()
    upgraded.upgrade()
    assert upgraded.entry_of("waiting").deliveries[0].status is DeliveryStatus.DELIVERED
    assert upgraded.entry_of("given back").state is State.DONE
    assert (entry.id, "crm") not in upgraded.journal.due(ROOM, hold_ms=1000)


def test_what_is_older_than_a_week_is_known_by_its_marks(old: Old) -> None:
    old.advance(8 * DAY_MS)
    old.upgrade()
    stopped = claim(old, "delivered")
    assert isinstance(stopped, Duplicate)
    assert stopped.entry is not None
    assert stopped.stop.original is None
    in_group = claim(old, "next in group")
    assert isinstance(in_group, Duplicate)
    assert in_group.stop.original is not None
    assert isinstance(claim(old, "next with media"), Claimed)  # these were kept for a week
    assert {name for name in ("waiting", "dead", "tried") if old.entry_of(name)} == {"waiting", "dead", "tried"}
    (printed,) = [own for own in claim_of("third text").own if own.kind is Kind.POST]
    assert isinstance(claim(old, "third text", own=(printed,)), Claimed)  # and what was only printed has no mark


# On this disk


def test_the_old_files_are_put_aside_and_can_still_be_opened(tmp_path: Path) -> None:
    old = on_disk(tmp_path, FakeClock())
    old.upgrade()
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.db*")}
    assert {each for each in left if not each.startswith("journal.db")} == {
        "mailonce.db.old", "deliveries.db.old", "trial/mailonce.db.old", "trial/deliveries.db.old",
    }  # fmt: skip
    db = sqlite3.connect(tmp_path / "mailonce.db.old")
    assert db.execute("SELECT count(*) FROM names").fetchone()[0] > 0
    db.close()
    old.journal.close()


def test_a_folder_with_nothing_old_is_left_alone(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    assert upgrade_folder(tmp_path, journal) == 0
    journal.close()


@pytest.mark.parametrize("file", ["mailonce.db", "deliveries.db"])
def test_either_file_may_be_missing(tmp_path: Path, file: str) -> None:
    old = on_disk(tmp_path, FakeClock())
    (tmp_path / file).unlink()
    assert old.upgrade() > 0
    assert not (tmp_path / file).exists()
    old.journal.close()


def test_nothing_is_taken_over_while_the_older_version_runs(tmp_path: Path) -> None:
    old = on_disk(tmp_path, FakeClock())
    running = sqlite3.connect(tmp_path / "mailonce.db")
    running.execute("SELECT count(*) FROM names").fetchone()
    with pytest.raises(StoreUnavailable, match="stop the older version"):
        old.upgrade()
    assert list(old.journal.find()) == []
    running.close()
    assert old.upgrade() > 0
    old.journal.close()


def test_cut_off_in_the_middle_everything_is_left_for_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = on_disk(tmp_path, FakeClock())
    put = SqliteJournal._put_payload
    left = iter(range(5))

    def put_some(journal: SqliteJournal, entry: str, payload: bytes | None) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        put(journal, entry, payload)

    monkeypatch.setattr(SqliteJournal, "_put_payload", put_some)
    with pytest.raises(KeyboardInterrupt):
        old.upgrade()
    monkeypatch.undo()
    assert list(old.journal.find()) == []
    assert isinstance(claim(old, "delivered"), Claimed)
    assert (tmp_path / "mailonce.db").exists()
    assert old.upgrade() > 10
    assert isinstance(claim(old, "dead"), Duplicate)
    old.journal.close()


def test_cut_off_before_the_files_are_renamed_nothing_is_taken_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = on_disk(tmp_path, FakeClock())

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        old.upgrade()
    monkeypatch.undo()
    taken = everything(old)
    assert len(taken) > 10
    old.journal.forget(claim_of("dead").own)
    old.upgrade()
    assert [each[0].id for each in everything(old) if not each[0].is_trial] == [each[0].id for each in taken]
    assert isinstance(claim(old, "dead"), Claimed)  # what was reset since is not brought back
    assert not (tmp_path / "mailonce.db").exists()
    old.journal.close()


def change(file: Path, statement: str, *values: Any) -> None:
    db = sqlite3.connect(file)
    db.execute(statement, values)
    db.commit()
    db.close()


def test_whoever_goes_back_to_the_older_version_can_upgrade_again(tmp_path: Path) -> None:
    old = on_disk(tmp_path, FakeClock())
    change(tmp_path / "mailonce.db", "DELETE FROM names")
    change(tmp_path / "deliveries.db", "DELETE FROM deliveries")
    old.upgrade()
    old.put_back()
    assert old.upgrade() > 10
    assert isinstance(claim(old, "delivered"), Duplicate)
    old.journal.close()


def test_a_process_waits_for_the_one_that_takes_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = on_disk(tmp_path, FakeClock())
    time = FakeClock()
    time.ms = written_ms("alone")
    second = SqliteJournal(tmp_path / "journal.db", time.clock, busy_timeout_s=0.01)
    is_at_it, may_end = Event(), Event()
    put = SqliteJournal._put_payload

    def put_slowly(journal: SqliteJournal, entry: str, payload: bytes | None, until_ms: int | None = None) -> None:
        is_at_it.set()
        may_end.wait(60)
        put(journal, entry, payload, until_ms)

    monkeypatch.setattr(SqliteJournal, "_put_payload", put_slowly)
    counts = []
    threads = [Thread(target=lambda: counts.append(first.upgrade()))]
    threads[0].start()
    is_at_it.wait(60)
    threads.append(Thread(target=lambda: counts.append(upgrade_folder(tmp_path, second))))
    threads[1].start()
    threads[1].join(0.2)  # time enough to fail, were it not waiting
    assert threads[1].is_alive()
    may_end.set()
    for thread in threads:
        thread.join()
    (tmp_path / "another").mkdir()
    alone = on_disk(tmp_path / "another", FakeClock())
    assert sum(counts) == alone.upgrade(), "what was only printed is in a folder of its own, and may be taken by either"
    alone.journal.close()
    first.journal.close()
    second.close()


def test_what_is_stored_is_delivered_also_if_the_process_died_before_its_names_were_settled(tmp_path: Path) -> None:
    old = on_disk(tmp_path, FakeClock())
    change(tmp_path / "mailonce.db", "UPDATE names SET state = 'pending' WHERE item = ?", item("waiting")["item"])
    old.upgrade()
    assert (old.entry_of("waiting").id, "crm") in old.journal.due(ROOM, hold_ms=1000)
    assert isinstance(claim(old, "waiting"), Duplicate)
    old.journal.close()


def test_what_a_destination_has_is_not_sent_again_though_its_record_says_it_waits(tmp_path: Path) -> None:
    old = on_disk(tmp_path, FakeClock())
    (group,), (waiting,) = item("group")["destinations"], item("waiting")["destinations"]
    as_delivered = (waiting[1], item("waiting")["item"], group[1])
    change(tmp_path / "mailonce.db", "UPDATE names SET value = ?, item = ? WHERE value = ?", *as_delivered)
    old.upgrade()
    assert old.entry_of("waiting").deliveries[0].status is DeliveryStatus.DELIVERED
    assert (old.entry_of("waiting").id, "crm") not in old.journal.due(ROOM, hold_ms=1000)
    old.journal.close()


def test_a_clock_that_was_set_back_holds_nothing_for_longer_than_a_lease(tmp_path: Path) -> None:
    old = on_disk(tmp_path, FakeClock())
    change(tmp_path / "mailonce.db", "UPDATE names SET lease_until_ms = lease_until_ms + ?", DAY_MS)
    old.upgrade()
    old.advance(60_000)
    assert isinstance(old.journal.claim(post("t3_held")), Claimed)
    old.journal.close()


def test_what_was_printed_and_then_given_back_is_not_taken_for_delivered(tmp_path: Path) -> None:
    """Under the same name of the destination both have the same webhook-id."""
    old = on_disk(tmp_path, FakeClock())
    of_group = item("group")["item"]
    ((destination, webhook_id, _),) = item("group")["destinations"]
    names, printed = tmp_path / "mailonce.db", tmp_path / "trial" / "mailonce.db"
    change(names, "DELETE FROM names WHERE item = ? AND kind IN ('subject_group', 'delivery')", of_group)
    change(names, "UPDATE names SET state = 'free', owner = '' WHERE item = ?", of_group)
    change(tmp_path / "deliveries.db", "DELETE FROM deliveries WHERE id = ?", webhook_id)
    as_there = (f"delivery:{destination}:{webhook_id}", of_group)
    change(
        printed,
        "UPDATE names SET siblings = json_set(siblings, '$[4]', ?) WHERE siblings <> '[]' AND item = ?",
        *as_there,
    )
    old.upgrade()
    assert isinstance(claim(old, "group", is_trial=True), Duplicate)
    assert isinstance(claim(old, "group"), Claimed)
    old.journal.close()


def take_over_in_process(folder: Path) -> int:
    time = FakeClock()
    time.ms = written_ms("alone")
    journal = SqliteJournal(folder / "journal.db", time.clock)
    count = upgrade_folder(folder, journal)
    journal.close()
    return count


def test_of_several_processes_that_start_at_once_one_does_it(tmp_path: Path) -> None:
    write_folder("alone", tmp_path)
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        counts = pool.map(take_over_in_process, [tmp_path] * 6, chunksize=1)
    assert sorted(counts)[:5] == [0] * 5
    assert max(counts) > 10


# On Redis


@pytest.fixture
def fleet(redis_server: RedisServer) -> Iterator[tuple[MovableRedisJournal, Any]]:
    journal, client = on_redis(redis_server)
    yield journal, client
    journal.close()


MARKS = ("processed_ids:", "subject_groups:", "post:", "media:", "dedup:")


def test_the_marks_stay_as_they_were_and_the_old_records_go(fleet: tuple[MovableRedisJournal, Any]) -> None:
    journal, client = fleet
    write_redis(client)

    def shown() -> dict[bytes, Any]:
        keys = [key for mark in MARKS for key in client.scan_iter(match=f"{PREFIX}{mark}*")]
        return {key: client.get(key) if client.type(key) == b"string" else client.smembers(key) for key in keys}

    journal.advance(2 * DAY_MS)
    before = shown()
    ends = {key: client.pttl(key) for key in before}
    upgrade_redis(client, PREFIX, journal)
    lapsed = {key for key, value in before.items() if value == b"pending"}
    assert shown() == {key: value for key, value in before.items() if key not in lapsed}
    settled = [key for key, value in before.items() if value in (b"0", b"1") or type(value) is set]
    assert {key: client.pttl(key) for key in settled} == {key: pytest.approx(ends[key], abs=60_000) for key in settled}
    left = {key.decode() for key in client.scan_iter()}
    assert not [key for key in left if key.startswith((f"{PREFIX}claim:", f"{PREFIX}delivery"))]
    assert not [key for key in left if key.startswith(f"{PREFIX}trial:claim:")]
    assert {key for key in left if key.startswith(f"{PREFIX}deliveries:")} <= {f"{PREFIX}deliveries:destinations"}


def test_a_mark_that_was_taken_away_by_hand_counts(fleet: tuple[MovableRedisJournal, Any]) -> None:
    journal, client = fleet
    write_redis(client)
    for label in item("delivered")["own"]:
        name = Name.from_label(label)
        client.srem(f"{PREFIX}processed_ids:{name.scope}", name.value)
        client.delete(f"{PREFIX}post:{name.value}")
    upgrade_redis(client, PREFIX, journal)
    assert isinstance(journal.claim(claim_of("delivered")), Claimed)


def test_that_a_destination_has_it_is_known_where_no_record_of_the_delivery_is_left(
    fleet: tuple[MovableRedisJournal, Any],
) -> None:
    journal, client = fleet
    (at_crm, _) = item("half")["destinations"]
    write_redis(client, lambda key: key != f"{PREFIX}delivery:{at_crm[1]}")
    upgrade_redis(client, PREFIX, journal)
    again = journal.claim(claim_of("half"))
    assert isinstance(again, Claimed)
    delivery = again.entry.delivery_to("crm")
    assert delivery is not None
    assert (delivery.status, delivery.webhook_id) == (DeliveryStatus.DELIVERED, at_crm[1])


def test_a_record_whose_time_is_over_is_not_taken_over(fleet: tuple[MovableRedisJournal, Any]) -> None:
    journal, client = fleet
    write_redis(client)
    for label in item("given back")["own"]:
        client.persist(f"{PREFIX}claim:{label}")  # another text may hold the key of a name for longer
    journal.advance(8 * DAY_MS)
    upgrade_redis(client, PREFIX, journal)
    again = journal.claim(claim_of("given back"))
    assert isinstance(again, Claimed)
    assert again.is_first


def test_it_is_done_once_for_the_fleet(fleet: tuple[MovableRedisJournal, Any]) -> None:
    journal, client = fleet
    write_redis(client)
    upgrade_redis(client, PREFIX, journal)
    write_redis(client, lambda key: key.startswith(f"{PREFIX}claim:"))
    assert upgrade_redis(client, PREFIX, journal) == 0


def test_an_empty_redis_is_noted_as_upgraded(fleet: tuple[MovableRedisJournal, Any]) -> None:
    journal, client = fleet
    assert upgrade_redis(client, PREFIX, journal) == 0
    assert client.exists(f"{PREFIX}upgraded")


def test_other_prefixes_are_left_alone(fleet: tuple[MovableRedisJournal, Any]) -> None:
    journal, client = fleet
    write_redis(client)
    client.hset("other:claim:post::x", "-", "{}")
    client.hset(f"{PREFIX}claim:not-ours", "-", "{}")
    upgrade_redis(client, PREFIX, journal)
    assert client.exists("other:claim:post::x", f"{PREFIX}claim:not-ours") == 2


def test_what_an_older_server_stores_after_the_upgrade_is_taken_over_at_the_next_start(
    fleet: tuple[MovableRedisJournal, Any],
) -> None:
    journal, client = fleet
    ids = [each[1] for each in item("waiting")["destinations"]]
    of_waiting = [item("waiting")["item"], *item("waiting")["own"], *ids]

    def is_of_waiting(key: str) -> bool:
        return any(each in key for each in of_waiting)

    write_redis(client, lambda key: not is_of_waiting(key))
    upgrade_redis(client, PREFIX, journal)
    write_redis(client, lambda key: is_of_waiting(key) or key.startswith(f"{PREFIX}deliveries:"))
    assert upgrade_redis(client, PREFIX, journal) == 1
    assert ids[0] in [
        begun.delivery.webhook_id
        for entry, destination in journal.due(ROOM, hold_ms=1000)
        if (begun := journal.begin(entry, destination, "worker", 1000))
    ]
    assert upgrade_redis(client, PREFIX, journal) == 0


@pytest.mark.parametrize(
    ("step", "nth"),
    [("merge", 0), ("merge", 2), ("merge", 5), ("unlink", 0), ("unlink", 5), ("unlink", 20), ("zrem", 2)],
)
def test_cut_off_at_any_page_the_next_start_brings_the_same(
    fleet: tuple[MovableRedisJournal, Any], monkeypatch: pytest.MonkeyPatch, step: str, nth: int
) -> None:
    journal, client = fleet
    write_redis(client)
    upgrade_redis(client, PREFIX, journal)
    old = Old(journal, lambda: 0, lambda: None, journal.advance)
    whole = {entry.id: (entry, payload) for entry, payload in everything(old)}
    client.flushdb()
    journal.set_time_to(written_ms("fleet"))
    write_redis(client)

    monkeypatch.setattr(upgrading, "_PAGE", 3)
    place: Any = journal if step == "merge" else client
    real, calls = getattr(place, step), iter(range(nth))

    def cut_off(*arguments: Any, **more: Any) -> Any:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return real(*arguments, **more)

    monkeypatch.setattr(place, step, cut_off)
    with pytest.raises(KeyboardInterrupt):
        upgrade_redis(client, PREFIX, journal)
    monkeypatch.setattr(place, step, real)
    upgrade_redis(client, PREFIX, journal)
    found = {entry.id: (entry, payload) for entry, payload in everything(old)}
    assert found.keys() == whole.keys()
    assert {id_: without_times(*each) for id_, each in found.items()} == {
        id_: without_times(*each) for id_, each in whole.items()
    }


def without_times(entry: Entry, payload: bytes | None) -> tuple[Entry, bytes | None]:
    """What is due at once is due when it is taken over; what is left of a name's time is counted then, too."""
    deliveries = tuple(replace(each, next_try_ms=each.next_try_ms and 1) for each in entry.deliveries)
    return replace(entry, deliveries=deliveries), payload


def test_two_machines_that_start_at_once_do_no_harm(redis_server: RedisServer) -> None:
    journals = [on_redis(redis_server) for _ in range(2)]
    write_redis(journals[0][1])
    barrier = Barrier(2)

    def start(journal: MovableRedisJournal, client: Any) -> None:
        barrier.wait()
        upgrade_redis(client, PREFIX, journal)

    threads = [Thread(target=start, args=each) for each in journals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    old = Old(journals[0][0], lambda: 0, lambda: None, journals[0][0].advance)
    test_everything_stored_is_due_once(old)
    for name in DELIVERED:
        test_a_delivered_item_is_known_by_every_name_it_had(old, name)
    for journal, _ in journals:
        journal.close()


# A machine with Redis: both at once


@pytest.fixture
def machine(redis_server: RedisServer, tmp_path: Path) -> Iterator[Callable[[], FailoverJournal]]:
    time = FakeClock()
    time.ms = written_ms("fleet")
    with ExitStack() as stack:

        def start() -> FailoverJournal:
            journal, client = on_redis(redis_server)
            local = SqliteJournal(tmp_path / "journal.db", time.clock)
            upgrade_folder(tmp_path, local)
            both = FailoverJournal(
                journal, local, tmp_path, prepare_redis=lambda: upgrade_redis(client, PREFIX, journal)
            )
            stack.callback(both.close)
            return both

        write_folder("fleet", tmp_path)
        write_redis(redis_server.client)
        yield start


def test_a_machine_with_redis_takes_over_both_and_doubles_nothing(machine: Callable[[], FailoverJournal]) -> None:
    both = machine()
    assert both.standing.side is Side.REDIS
    assert both.local.untold_count() == 0
    assert isinstance(both.claim(claim_of("delivered")), Duplicate)
    old = Old(both, lambda: 0, lambda: None, lambda ms: None)
    stored = ("waiting", "delivering", "both waiting", "reset")
    wanted = sorted((each[1], each[0]) for name in stored for each in item(name)["destinations"])
    found = [both.begin(entry, destination, "worker", 1000) for entry, destination in both.due(ROOM, hold_ms=60_000)]
    assert sorted((each.delivery.webhook_id, each.delivery.destination) for each in found if each) == wanted
    known_here = {each.id for each in both.local.find()}
    assert old.entry_of("delivered").id in known_here
    assert known_here <= {each.id for each in both.find()}


def test_while_redis_is_away_the_machine_knows_what_it_saw_and_what_redis_has_to_deliver_rests(
    machine: Callable[[], FailoverJournal], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> int:
        raise StoreUnavailable("redis: away")

    monkeypatch.setattr("tests.deduplication.journal.test_upgrade.upgrade_redis", away)
    both = machine()
    assert both.standing == Standing()
    for name in DELIVERED:
        assert isinstance(both.claim(claim_of(name, owner=f"again-{name}")), Duplicate)
    assert both.due(ROOM, hold_ms=1000) == []
    monkeypatch.undo()
    both._try_at_ms = 0
    both.tick()
    assert both.standing.side is Side.REDIS
    assert len(both.due(ROOM, hold_ms=1000)) == 5
