"""Every journal gives the same answers and remembers the same, under any sequence of steps."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from deduplication.claims import WEEK_MS, Kind, Name, Pattern
from deduplication.journal.base import (
    Begun,
    Claim,
    Claimed,
    Duplicate,
    Ending,
    Found,
    InFlight,
    Settlement,
    Settling,
    Wanted,
)
from deduplication.journal.destination_state import DestinationState
from deduplication.journal.entry import About, Attempt, Delivery, DeliveryStatus, Entry, State
from deduplication.journal.listing import Count
from deduplication.journal.redis import RedisJournal
from deduplication.journal.sqlite import SqliteJournal
from tests.support.journals import JOURNALS, StandingRedisJournal, counted_and_kept, open_journal
from tests.support.redis_server import RedisServer

EXAMPLES = 60
LEASE_MS = 60_000
HOLD_MS = 15_000  # less than any time that passes here
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
FAR_MS = 2_500_000_000_000  # on every clock here it is still to come
WELL_MS = 1_000
OWN = [
    Name(Kind.EMAIL_ID, "2026-11-16", "e1"),
    Name(Kind.EMAIL_ID, "undated", "e2"),
    Name(Kind.POST, "", "p", WEEK_MS),
]
SHARED = [
    Name(Kind.SUBJECT_GROUP, "2026-11", "lot_1"),
    Name(Kind.MEDIA, "", "https://a.example/x", WEEK_MS),
    Name(Kind.MEDIA, "", "https://a.example/y", WEEK_MS),
]
LOCK = Name(Kind.LOCK, "crm", "e1")
WORDS = ["w1", "w2"]
DESTINATIONS = ["crm", "slack"]
FINGERPRINTS = [
    "",
    "t1.f1.-.-.-.-.-",
    "t1.f2.-.-.-.-.-",
    "t1.-.n1.-.-.-.-",
    "t2.f1.-.-.l1.-.-",
    "t1.f1.n1.-.l1.-.-",
    "t1.f1.-.-.-.-.h1",
    "t1.f1.-.-.-.-.h2",
]


def subsets(values: list[Any], least: int = 0) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(values), min_size=least, max_size=len(values), unique=True)


class LockStep(RuleBasedStateMachine):
    redis_server: RedisServer

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.count = 0
        self.claims: list[tuple[Claim, Any]] = []
        self.begun: list[tuple[str, str, Begun]] = []
        self.payloads: dict[str, bytes | None] = {}

    @initialize()
    def open_journals(self) -> None:
        self.redis_server.client.flushall()
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.benches = [
            self.stack.enter_context(open_journal(kind, folder, self.redis_server, on_redis=StandingRedisJournal))
            for kind in JOURNALS
        ]

    def teardown(self) -> None:
        self.stack.close()

    def on_all(self, step: str, *arguments: Any, **named: Any) -> Any:
        answers = {bench.kind: getattr(bench.journal, step)(*arguments, **named) for bench in self.benches}
        seen = {kind: repr(without_times(answer)) for kind, answer in answers.items()}
        assert len(set(seen.values())) == 1, "\n".join(f"{kind}: {text}" for kind, text in seen.items())
        return answers["memory"]

    def a_token(self) -> str:
        self.count += 1
        return f"owner{self.count}"

    @rule(
        own=subsets(OWN, least=1),
        shared=subsets(SHARED),
        destinations=subsets(DESTINATIONS),
        words=st.sampled_from([None, *WORDS]),
        fingerprint=st.sampled_from(FINGERPRINTS),
        is_trial=st.sampled_from([False, False, False, True]),
    )
    def claim(self, own: Any, shared: Any, destinations: Any, words: Any, fingerprint: Any, is_trial: Any) -> None:
        owner = self.a_token()
        wanted = [
            Wanted(name, f"{owner}-{name}", Name(Kind.CONTENT, name, words, 3 * DAY_MS) if words else None)
            for name in destinations
        ]
        claim = Claim(
            entry=f"entry{self.count:03}",
            owner=owner,
            own=tuple(own),
            shared=tuple(shared),
            destinations=tuple(wanted),
            fingerprint=fingerprint,
            lease_ms=LEASE_MS,
            about=About(item=own[0].value, subject="Sujet é", sender="a@example.org"),
            is_trial=is_trial,
        )
        verdict = self.on_all("claim", claim)
        again = self.on_all("claim", claim)
        if entry := getattr(verdict, "entry", None):
            assert type(again) is type(verdict) and again.entry.id == entry.id, "same token, same answer"
        self.claims.append((claim, verdict))

    @rule(
        items=st.lists(st.tuples(st.sampled_from(OWN), st.sampled_from([None, *SHARED])), min_size=2, max_size=4),
        destinations=subsets(DESTINATIONS),
    )
    def claim_many(self, items: Any, destinations: Any) -> None:
        """Also of items that have a name in common: then the later ones hear of the first."""
        claims = []
        for own, shared in items:
            owner = self.a_token()
            wanted = tuple(Wanted(name, f"{owner}-{name}") for name in destinations)
            shared_names = (shared,) if shared else ()
            claims.append(Claim(f"entry{self.count:03}", owner, (own,), shared_names, wanted, lease_ms=LEASE_MS))
        self.claims += zip(claims, self.on_all("claim_many", claims), strict=True)

    @rule(data=st.data(), count=st.integers(2, 3), ending=st.sampled_from(Ending))
    def settle_many(self, data: st.DataObject, count: int, ending: Ending) -> None:
        chosen = [each for _ in range(count) if (each := self.some_entry_at_hand(data)) and not each[1].is_lock]
        settlings = []
        for claim, entry in {entry.id: (claim, entry) for claim, entry in chosen}.values():  # nobody settles one twice
            going = [each for each in entry.deliveries if each.status is DeliveryStatus.DELIVERING]
            ended = tuple(self.end_of(each, data) for each in going)
            self.note_delivered(entry, ended)
            payload = self.payloads.setdefault(claim.owner, data.draw(st.sampled_from([None, b"payload"])))
            settlings.append(Settling(claim, entry, Settlement(ending, "answer", ended, None, payload)))
        self.on_all("settle_many", settlings)

    @rule(words=st.sampled_from([None, *WORDS]))
    def take_lock(self, words: str | None) -> None:
        """As a script does, by itself or to mark words."""
        owner = self.a_token()
        content = Name(Kind.CONTENT, "crm", words, 3 * DAY_MS) if words else None
        wanted = (Wanted("crm", "", content),) if words else ()
        about = About(item="e1", server="s1")
        claim = Claim(f"entry{self.count:03}", owner, (LOCK,), (), wanted, lease_ms=LEASE_MS, about=about)
        self.claims.append((claim, self.on_all("claim", claim)))

    def some_entry(self, data: st.DataObject) -> tuple[Claim, Entry] | None:
        held = [(claim, verdict.entry) for claim, verdict in self.claims if getattr(verdict, "entry", None)]
        return data.draw(st.sampled_from(held)) if held else None

    def some_entry_at_hand(self, data: st.DataObject) -> tuple[Claim, Entry] | None:
        """Nobody is at an item for as long as its entry is kept."""
        chosen = self.some_entry(data)
        return chosen if chosen and self.benches[0].journal.read(chosen[1].id) else None

    @rule(data=st.data(), ending=st.sampled_from(Ending), retries=st.sampled_from([None, 3, 0]))
    def settle(self, data: st.DataObject, ending: Ending, retries: int | None) -> None:
        chosen = self.some_entry_at_hand(data)
        if chosen is None:
            return
        claim, entry = chosen
        ended = []
        for delivery in entry.deliveries:
            if delivery.status is DeliveryStatus.DELIVERING:
                ended.append(self.end_of(delivery, data, may_wait=not entry.is_lock))
        payload = None if entry.is_lock else data.draw(st.sampled_from([None, b"payload"]))  # a lock sends nothing
        payload = self.payloads.setdefault(claim.owner, payload)  # an owner that says it again sends the same
        self.note_delivered(entry, ended)
        self.on_all("settle", claim, entry, Settlement(ending, "answer", tuple(ended), retries, payload))

    def note_delivered(self, entry: Entry, ended: Iterable[Delivery]) -> None:
        """As whoever sends does, before anything else."""
        for delivery in ended:
            if delivery.status is DeliveryStatus.DELIVERED:
                self.on_all("note_delivered", entry, delivery)

    def end_of(self, delivery: Delivery, data: st.DataObject, may_wait: bool = True) -> Delivery:
        ends = [DeliveryStatus.DELIVERED, DeliveryStatus.DEAD] + [DeliveryStatus.WAITING] * may_wait
        status = data.draw(st.sampled_from(ends))
        next_try_ms = data.draw(st.sampled_from([0, FAR_MS, FAR_MS + 1])) if status is DeliveryStatus.WAITING else None
        delivered_ms = 1 if status is DeliveryStatus.DELIVERED else None
        tried_ms = data.draw(st.sampled_from([None, WELL_MS - 1, WELL_MS]))
        return replace(
            delivery,
            status=status,
            tries=delivery.tries + 1,
            next_try_ms=next_try_ms,
            delivered_ms=delivered_ms,
            attempts=() if tried_ms is None else (*delivery.attempts, Attempt(tried_ms, 1)),
        )

    @rule(data=st.data(), destination=st.sampled_from([None, *DESTINATIONS]))
    def renew(self, data: st.DataObject, destination: str | None) -> None:
        chosen = self.some_entry(data)
        if chosen:
            self.on_all("renew", chosen[1].id, chosen[0].owner, LEASE_MS, destination)

    @rule(data=st.data(), destination=st.sampled_from(DESTINATIONS))
    def begin(self, data: st.DataObject, destination: str) -> None:
        chosen = self.some_entry(data)
        if chosen is None:
            return
        owner = self.a_token()
        begun = self.on_all("begin", chosen[1].id, destination, owner, LEASE_MS, "s1")
        if begun:
            self.begun.append((chosen[1].id, owner, begun))

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        if self.begun:
            entry, owner, begun = data.draw(st.sampled_from(self.begun))
            ended = self.end_of(begun.delivery, data)
            self.note_delivered(begun.entry, [ended])
            self.on_all("finish", entry, owner, ended)

    @rule(limit=st.integers(1, 3))
    def due(self, limit: int) -> None:
        found = [sorted(bench.journal.due(dict.fromkeys(DESTINATIONS, limit * 10), HOLD_MS)) for bench in self.benches]
        assert all(each == found[0] for each in found)

    @rule(destination=st.sampled_from(DESTINATIONS), limit=st.integers(1, 3))
    def recover(self, destination: str, limit: int) -> None:
        self.on_all("recover", destination, WELL_MS, 0, limit, HOLD_MS)

    @rule(destination=st.sampled_from(DESTINATIONS), age_ms=st.sampled_from([HOUR_MS, DAY_MS + HOUR_MS]))
    def expire(self, destination: str, age_ms: int) -> None:
        expired = []
        for bench in self.benches:
            before_ms = bench.journal.now_ms() - age_ms
            expired.append(sorted(bench.journal.expire(destination, before_ms, 100, "too old")))
        assert all(each == expired[0] for each in expired), expired

    @rule(
        destination=st.sampled_from(DESTINATIONS),
        is_paused=st.booleans(),
        since_ms=st.integers(0, 3),
        well_since_ms=st.integers(0, 3),
    )
    def put_states(self, destination: str, is_paused: bool, since_ms: int, well_since_ms: int) -> None:
        state = DestinationState(is_paused, since_ms, self.a_token(), "ada", well_since_ms)
        self.on_all("put_states", {destination: state})

    @rule(destination=st.sampled_from(DESTINATIONS))
    def look_at_destinations(self, destination: str) -> None:
        self.on_all("states")

    @rule(data=st.data(), destination=st.sampled_from(DESTINATIONS), force=st.booleans(), renamed=st.booleans())
    def replay(self, data: st.DataObject, destination: str, force: bool, renamed: bool) -> None:
        chosen = self.some_entry(data)
        if chosen:
            webhook_id = self.a_token() if renamed else None
            self.on_all("replay", chosen[1].id, destination, force=force, webhook_id=webhook_id)

    @rule(data=st.data(), force=st.booleans())
    def release(self, data: st.DataObject, force: bool) -> None:
        chosen = self.some_entry(data)
        if chosen:
            self.on_all("release", chosen[1].id, force=force)

    @rule(data=st.data(), destination=st.sampled_from(DESTINATIONS))
    def reopen(self, data: st.DataObject, destination: str) -> None:
        chosen = self.some_entry(data)
        if chosen:
            self.on_all("reopen", chosen[1].id, destination)

    @rule(names=subsets([*OWN, *SHARED], least=1))
    def forget(self, names: list[Name]) -> None:
        self.on_all("forget", names)

    @rule(ms=st.sampled_from([20_000, LEASE_MS, HOUR_MS // 2, DAY_MS, WEEK_MS - HOUR_MS // 4, WEEK_MS]))
    def let_time_pass(self, ms: int) -> None:
        for bench in self.benches:
            bench.advance(ms)

    @invariant()
    def the_journals_remember_the_same(self) -> None:
        ids = [claim.entry for claim, _ in self.claims]
        known = {
            bench.kind: {id_: repr(without_times(bench.journal.read(id_))) for id_ in ids}
            for bench in getattr(self, "benches", [])
        }
        for kind, entries in known.items():
            differing = [id_ for id_ in ids if entries[id_] != known["memory"][id_]]
            assert not differing, [(kind, entries[id_], known["memory"][id_]) for id_ in differing]

    @invariant()
    def every_name_that_something_is_known_of_is_found(self) -> None:
        if not hasattr(self, "benches"):
            return
        names = [*OWN, *SHARED, *(Name(Kind.CONTENT, to, words) for to in DESTINATIONS for words in WORDS)]
        found = self.on_all("look", names)
        known = {each.name for each in found if each.is_marked or any(not entry.is_lock for entry in each.entries)}
        for bench in self.benches:
            assert known <= set(bench.journal.names(Pattern())), bench.kind

    @invariant()
    def the_journals_keep_the_same_payloads(self) -> None:
        """What never came to an end has none; what is left of one under that id that was kept no longer goes later."""
        for claim, _ in self.claims:
            entry = self.benches[0].journal.read(claim.entry)
            if entry and (entry.state is State.DONE or entry.needs_payload):
                payloads = {bench.kind: bench.journal.payload(claim.entry) for bench in self.benches}
                assert len(set(payloads.values())) == 1, (claim.entry, payloads)

    @invariant()
    def what_is_counted_is_what_is_kept(self) -> None:
        for bench in getattr(self, "benches", []):
            journals = [bench.journal, getattr(bench.journal, "local", None), getattr(bench.journal, "_redis", None)]
            for journal in journals:
                if isinstance(journal, SqliteJournal):
                    counted = journal.storage()
                    kept = journal._db.execute("SELECT coalesce(sum(length(payload)), 0) FROM payloads").fetchone()[0]
                    assert (counted.disk_bytes or 0) + (counted.suppressed_bytes or 0) == kept, bench.kind
                elif isinstance(journal, RedisJournal):
                    counted_bytes, kept_bytes = counted_and_kept(journal._client)
                    assert counted_bytes == kept_bytes, bench.kind

    @invariant()
    def the_lists_show_what_is_there(self) -> None:
        """And what waits is at a known destination."""
        for bench in getattr(self, "benches", []):
            listed = {entry.id: entry for entry in bench.journal.find()}
            for claim, _ in self.claims:
                entry = bench.journal.read(claim.entry)
                is_listed = entry is not None and not entry.is_lock
                assert is_listed == (claim.entry in listed), bench.kind
            waiting = {
                delivery.destination
                for entry in listed.values()
                if entry.state is State.DONE
                for delivery in entry.deliveries
                if delivery.status.is_open
            }
            known = set(bench.journal.destinations())
            assert waiting <= known if bench.kind in ("redis", "failover") else waiting == known, bench.kind

    @invariant()
    def the_indexes_have_what_waits_and_what_is_dead(self) -> None:
        for bench in getattr(self, "benches", []):
            entries = [entry for claim, _ in self.claims if (entry := bench.journal.read(claim.entry))]
            all_of_it = [
                (each.status, entry.id, each.destination)
                for entry in entries
                for each in entry.deliveries
                if entry.has_open_delivery_to(each.destination)
                or each.status is DeliveryStatus.DEAD
                and not entry.is_lock
            ]
            for status in (DeliveryStatus.WAITING, DeliveryStatus.DEAD):
                listed = list(bench.journal.list_deliveries(status))
                found = [(status, each.entry.id, each.delivery.destination) for each in listed]
                assert sorted(found) == sorted(each for each in all_of_it if each[0] is status), bench.kind
                positions = [each.position for each in listed]
                assert positions == sorted(positions, reverse=status is DeliveryStatus.DEAD), bench.kind
            dead = Counter(to for status, _, to in all_of_it if status is DeliveryStatus.DEAD)
            still_open = Counter(to for status, _, to in all_of_it if status.is_open)
            counts = {to: Count(still_open[to], dead[to]) for to in {*dead, *still_open}}
            assert bench.journal.count_deliveries() == counts, bench.kind

    @invariant()
    def the_same_is_under_way(self) -> None:
        """Of what a request is at, only what came lately."""
        seen = set()
        for bench in getattr(self, "benches", []):
            lately_ms = bench.journal.now_ms() - HOUR_MS
            under_way = [
                (each.entry.id, each.delivery and each.delivery.destination)
                for each in bench.journal.under_way()
                if each.entry.state is State.DONE or each.entry.is_lock or each.entry.created_ms > lately_ms
            ]
            seen.add(tuple(sorted(under_way, key=repr)))
        assert len(seen) <= 1, seen

    @invariant()
    def nothing_to_be_delivered_is_out_of_reach(self) -> None:
        for entry in self.benches[0].journal.find() if hasattr(self, "benches") else ():
            for delivery in entry.deliveries:
                if entry.state is State.DONE and delivery.status.is_open:
                    assert delivery.next_try_ms is not None


def without_times(answer: Any) -> Any:
    """Clocks and counters of different journals differ, and each says which it is; what follows does not."""
    match answer:
        case dict():
            return sorted(answer.items())
        case list():
            return [without_times(each) for each in answer]
        case Found():
            return answer.name.label, answer.is_marked, sorted(entry.id for entry in answer.entries)
        case Claimed():
            return replace(answer, entry=without_times(answer.entry))
        case Duplicate():
            stop = replace(answer.stop, first_seen_ms=None)
            return replace(answer, stop=stop, entry=answer.entry and without_times(answer.entry))
        case InFlight():
            return replace(answer, name="", retry_after_ms=0)  # of several, the one that is held longest
        case Begun():
            return replace(answer, entry=without_times(answer.entry), delivery=without_times(answer.delivery))
        case Delivery():
            next_try_ms, lease_until_ms = answer.next_try_ms is not None, answer.lease_until_ms > 0
            return replace(answer, next_try_ms=next_try_ms, lease_until_ms=lease_until_ms, fence=0)
        case Entry():
            return replace(
                answer,
                about=replace(answer.about, store=""),
                deliveries=tuple(map(without_times, answer.deliveries)),
                stop=answer.stop and replace(answer.stop, first_seen_ms=None),
                fence=0,
                lease_until_ms=answer.lease_until_ms > 0,
                created_ms=0,
                settled_ms=answer.settled_ms is not None,
                repeated_ms=answer.repeated_ms is not None,
                released_ms=answer.released_ms is not None,
                payload_machine="",  # on this disk, where there is one beside Redis
            )
    return answer


def test_the_journals_agree_under_any_sequence(redis_server: RedisServer) -> None:
    LockStep.redis_server = redis_server
    run_state_machine_as_test(
        LockStep,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
        ),
    )
