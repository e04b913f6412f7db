"""What a stranger can make of a monitored address: nobody else's email vanishes, and none is sent twice.

A stranger can send emails with any sender, subject, date and Message-ID, and may have captured a signature. Each
attempt is made on one machine without Redis, and on two that share one. Days pass before the email arrives that it is
aimed at: entries are kept for 7 of them, ids for ever.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from deduplication import again
from deduplication.errors import StoreUnavailable
from deduplication.files import Retention
from deduplication.journal.registry import RegistryOptions
from orchestrator.item import Item
from orchestrator.pipeline import ProofUsed
from tests.deduplication.conftest import Bench
from tests.deduplication.conftest import bench as bench
from tests.deduplication.journal.world import HOLD_MS, Line
from tests.support.pipeline import REFUSES, FakeDestination, PipelineBench, item, open_pipeline

DAY_MS = 24 * 3_600_000
Fields = dict[str, Any]


@dataclass
class Town:
    """``places``: processes of one machine, or two machines that share a Redis. All send to ``crm``."""

    bench: Bench
    crm: FakeDestination = field(default_factory=FakeDestination)
    line: Line = field(default_factory=Line)
    places: list[PipelineBench] = field(default_factory=list)

    def settle(self) -> None:
        """Everything is published, read, and ended that is kept no longer."""
        for machine in (self.bench.first, self.bench.second) * 2:
            with suppress(StoreUnavailable):
                machine.tick()
                machine.follow()
            machine.coordinator.tend()

    def pass_days(self, days: float) -> None:
        self.settle()
        self.bench.advance(int(days * DAY_MS))
        self.settle()

    def status_of(self, fields: Fields, place: int = 0) -> str:
        return str(self.places[place].send(**fields).status)

    def statuses(self, fields: Fields) -> set[str]:
        """The answers, if the email arrives everywhere."""
        found = set()
        for place in range(len(self.places)):
            found.add(self.status_of(fields, place))
            self.settle()
        return found


Build = Callable[..., Town]


@pytest.fixture
def build(bench: Bench) -> Iterator[Build]:
    with ExitStack() as stack:

        def build(decision_days: int = 7, suppressed_bytes: int = 64 << 20, **route: Any) -> Town:
            town, kept_ms = Town(bench), decision_days * DAY_MS
            for machine in (bench.first, bench.second):
                machine.retention = Retention(entry_ms=kept_ms, suppressed_bytes=suppressed_bytes)
                machine.options = RegistryOptions(hold_ms=HOLD_MS, entry_ms=kept_ms)
                machine.wrap = town.line.wrap
                machine.restart()
                opened = open_pipeline(machine, {"crm": town.crm}, **route)
                town.places.append(stack.enter_context(opened))
            town.pass_days(6)  # to the beginning of a month
            return town

        yield build


DAYS = (0, 6, 9, 400)
REAL = {"subject": "Invoice 7", "body": "real", "message_id": "<7@example.org>", "recipient": "ada@example.org"}
FORGED = REAL | {"body": "forged"}
OLD = REAL | {"date": "2026-11-01T08:00:00Z"}  # older than the service


# A forged email under the names of a real one


def deliver(town: Town, **fields: str) -> Fields:
    assert town.status_of(FORGED | fields) == "processed"
    return FORGED | fields


def refuse(town: Town) -> Fields:
    """It becomes a dead letter, whose entry is kept for longer."""
    town.crm.max_attempts, town.crm.reactions = 1, [REFUSES]
    assert town.status_of(FORGED) == "dead_lettered"
    return FORGED


def guess_the_message_id(town: Town) -> Fields:
    return deliver(town, subject="Another", date="2026-11-15T08:00:00Z")


def empty_redis(town: Town) -> Fields:
    deliver(town)
    town.pass_days(8)
    if town.bench.redis:
        client = town.bench.redis.client
        client.flushall()
        client.mset({"test:now": town.bench.first.time.now_ms, "test:run": "2"})
        town.pass_days(1 / 24)
    return FORGED


@pytest.mark.parametrize("decision_days", [1, 7])
@pytest.mark.parametrize("attack", [deliver, refuse, guess_the_message_id, empty_redis])
@pytest.mark.parametrize("days", DAYS)
def test_a_forged_email_does_not_stop_the_real_one(
    build: Build, days: int, attack: Callable[[Town], Fields], decision_days: int
) -> None:
    town = build(decision_days)
    forged = attack(town)
    town.pass_days(days)
    assert town.status_of(REAL, -1) == "processed"
    for _ in range(2):  # the second time, the entry of the real one has ended as well
        assert "processed" not in town.statuses(REAL) | town.statuses(forged)
        town.pass_days(min(days, 9))
    ids = [webhook.webhook_id for webhook in town.crm.taken]
    assert len(ids) == len(set(ids)), "a receiver may recognise a retry by this id"


@pytest.mark.parametrize("days", DAYS)
@pytest.mark.parametrize("how", ["an import", "another program"])
def test_a_mark_of_another_program_still_stops_even_after_a_forged_email(build: Build, days: int, how: str) -> None:
    town = build()
    names = item(**REAL).own_names
    if how == "another program" and town.bench.redis:
        town.bench.redis.client.sadd(f"processed_ids:{names[0].scope}", names[0].value)
    else:
        again.mark(town.places[0].machine.coordinator, names)
    assert town.statuses(FORGED) == {"already_processed"}
    town.pass_days(days)
    found = [place.send(**REAL) for place in town.places]
    assert {each.status for each in found} == {"already_processed"}
    assert {each.reason and each.reason.original for each in found} <= {None, found[0].id}
    assert again.replay(town.places[0].machine.coordinator, found[0].id, dry_run=True) is None


@pytest.mark.parametrize("days", DAYS)
def test_what_stops_an_email_is_named_as_long_as_it_does(build: Build, days: int) -> None:
    """A group lasts for a month, its email's entry for a week: no other program has marked it."""
    town = build()
    first = town.places[0].send(subject="Lot 7", body="first")
    town.pass_days(days)
    for number, place in enumerate(town.places):
        found = [place.send(subject="Lot 7", body="first")]
        if days < 20:
            found.append(place.send(subject="Lot 7", body=str(number), date=f"2026-11-17T08:00:0{number}Z"))
        assert {each.reason and each.reason.original for each in found} == {first.id}


# Many emails under the names of one


@pytest.mark.parametrize(("count", "days"), [(65, 0), (340, 6), (65, 9), (65, 400)])
def test_forged_emails_do_not_push_out_one_that_was_delivered(build: Build, count: int, days: int) -> None:
    town = build()
    emails = [REAL, *(REAL | {"body": f"forged {number}"} for number in range(count))]
    for fields in emails:
        assert town.places[0].pipeline.receive(item(**fields)).status == "processed"
    town.pass_days(days)
    for fields in (emails[0], emails[1], emails[-1]):
        assert town.statuses(fields) == {"already_processed"}


def test_forged_emails_that_are_not_delivered_do_not_push_out_one_that_was(build: Build) -> None:
    """Not even before another machine has read of it: the references in Redis say so."""
    town = build()
    assert town.status_of(REAL) == "processed"
    town.crm.max_attempts, town.crm.reactions = 1, [REFUSES] * 65
    for number in range(65):
        assert town.status_of(REAL | {"body": f"forged {number}"}) == "dead_lettered"
    assert town.status_of(REAL, -1) == "already_processed"


def test_an_email_under_names_that_many_have_is_still_claimed_by_one_machine(build: Build) -> None:
    town = build()
    for number in range(64):
        assert town.status_of(REAL | {"body": f"forged {number}"}) == "processed"
    answers: list[str] = []
    town.crm.reactions = [lambda: answers.append(town.status_of(REAL, -1))]
    assert town.status_of(REAL) == "processed"
    assert [*answers, town.status_of(REAL, -1)] == ["already_processing", "already_processed"]


# A captured proof of origin, such as a signature of Mailgun, which does not cover the email


def proven(town: Town, fields: Fields, place: int = 0) -> str:
    received: Item = replace(item(**fields), proof="captured")
    return str(town.places[place].receive(received).status)


def accept(town: Town) -> None:
    assert proven(town, REAL) == "processed"


def accept_a_repeat(town: Town) -> None:
    assert [town.status_of(REAL), proven(town, REAL)] == ["processed", "already_processed"]


def accept_too_old_an_email(town: Town) -> None:
    assert proven(town, OLD) == "skipped_old"


def reset(town: Town) -> None:
    accept(town)
    again.forget(town.places[0].machine.coordinator, {name.label: name for name in item(**REAL).own_names})


def lose_redis(town: Town) -> None:
    accept(town)
    town.settle()
    town.line.is_cut = True
    town.settle()


NEW_ONLY, BY_RECIPIENT = {"realtime_only": True}, {"identity_by_recipient": True}
FOR_ANOTHER = REAL | {"recipient": "eve@example.org"}


@pytest.mark.parametrize("days", [0, 6])
@pytest.mark.parametrize(
    ("how", "email", "forged", "route"),
    [
        (accept, REAL, FORGED, {}),
        (accept, REAL, FORGED | {"recipient": "eve@example.org"}, BY_RECIPIENT),
        (accept, REAL, FOR_ANOTHER, BY_RECIPIENT),
        (accept, REAL, OLD, NEW_ONLY),
        (accept_a_repeat, REAL, FORGED, {}),
        (accept_too_old_an_email, OLD, REAL, NEW_ONLY),
        (accept_too_old_an_email, OLD, OLD | {"body": "forged"}, NEW_ONLY),
        (reset, REAL, FORGED, {}),
        (lose_redis, REAL, FORGED, {}),
        (lose_redis, REAL, OLD, NEW_ONLY),
    ],
)
def test_a_proof_proves_one_email_once(
    build: Build, how: Callable[[Town], None], email: Fields, forged: Fields, route: Fields, days: int
) -> None:
    town = build(**route)
    how(town)
    town.pass_days(days) if days else None
    for place in (0, -1):
        with pytest.raises(ProofUsed):
            proven(town, forged, place)
        assert proven(town, email, place) != "retry_later", "the same email may come again"


# Junk that a gate stops


def stop(town: Town, sender: str, number: int) -> str:
    """An email that the group of an earlier one stops; it can be released."""
    sent = {"subject": "Lot 9", "sender": sender, "body": f"text {number}", "date": f"2026-11-03T08:{number}:00Z"}
    outcome = town.places[0].send(**sent)
    assert outcome.status == "skipped_subject_group"
    return outcome.id


@pytest.mark.parametrize("days", [0, 6])
@pytest.mark.parametrize(
    ("client", "stranger"),
    [
        ("ada@example.org", "eve@example.net"),
        ("ada@gmail.com", "eve@gmail.com"),
        ("ada@example.org", f"{'e' * 108}@example.org.example.net"),  # its head looks like the client's domain
    ],
)
def test_junk_of_one_sender_does_not_evict_what_another_can_release(
    build: Build, client: str, stranger: str, days: int
) -> None:
    town = build(suppressed_bytes=2_000)
    for sender in (client, stranger):
        assert town.status_of({"subject": "Lot 9", "sender": sender}) == "processed"
    clients = stop(town, client, 10)
    town.pass_days(days)
    junk = [stop(town, stranger, number) for number in range(11, 31)]
    town.settle()
    for place in town.places:
        release = partial(again.replay, place.machine.coordinator, dry_run=True)
        assert [release(each) for each in (clients, junk[0], junk[-1])] == [None, again.Refusal.NO_PAYLOAD, None]


def test_junk_does_not_evict_an_email_that_was_released(build: Build) -> None:
    town = build(suppressed_bytes=2_000)
    town.status_of({"subject": "Lot 9"})
    again.replay(town.places[0].machine.coordinator, stop(town, "ada@example.org", 10))
    for number in range(11, 31):
        stop(town, "eve@example.org", number)
    town.places[0].deliver_due()
    assert town.crm.taken[-1].payload["body"] == "text 10"
