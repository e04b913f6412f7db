"""What a stranger can make of a monitored address: nobody else's email vanishes, and none is sent twice.

A stranger can send emails with any sender, subject, date and Message-ID, and may have captured a signature. Each
attempt is made on one machine without Redis, and on two that share one. Days pass before the email arrives that it is
aimed at: entries are kept for 7 of them, ids for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from deduplication import again
from deduplication.errors import StoreUnavailable
from deduplication.files import Retention
from deduplication.journal import registry as registry_module
from deduplication.journal.registry import RegistryOptions
from orchestrator.item import Item
from orchestrator.pipeline import ProofUsed
from tests.deduplication.journal.world import HOLD_MS, HandedScript, Line, Machine, Time
from tests.support.pipeline import REFUSES, FakeDestination, PipelineBench, item, open_pipeline
from tests.support.redis_server import RedisServer

START_MS = 1_793_700_000_000  # on the third of a month
DAY_MS = 24 * 3_600_000
DAYS = (0, 6, 9, 400)
REAL = {
    "subject": "Invoice 7",
    "body": "the real text",
    "message_id": "<7@example.org>",
    "recipient": "ada@example.org",
}
FORGED = {**REAL, "body": "the forged text"}


@dataclass
class Town:
    """``places``: the service on each machine, or on the one. All send to the same destination, ``crm``."""

    places: list[PipelineBench]
    crm: FakeDestination
    time: Time
    redis: RedisServer | None
    line: Line

    def settle(self) -> None:
        """Everything is published, read, and ended that is kept no longer."""
        for place in (*self.places, *self.places):
            with suppress(StoreUnavailable):
                place.machine.tick()
                place.machine.follow()
            place.machine.coordinator.tend()

    def advance(self, ms: int) -> None:
        self.settle()
        self.time.pass_ms(ms)
        if self.redis:
            client = self.redis.client
            for key in client.scan_iter():
                if (left_ms := client.pttl(key)) >= 0:
                    client.pexpire(key, max(0, left_ms - ms))
            client.set("test:now", self.time.now_ms)
        self.settle()

    def pass_days(self, days: int) -> None:
        self.advance(days * DAY_MS)

    def empty_redis(self) -> None:
        if self.redis:
            self.redis.client.flushall()
            self.redis.client.mset({"test:now": self.time.now_ms, "test:run": "2"})
            self.settle()
            self.advance(60_001)  # while one machine restores what it knows, others wait at most that long

    def lose_redis(self) -> None:
        self.settle()
        self.line.is_cut = True
        self.settle()

    def statuses(self, fields: dict[str, Any]) -> list[str]:
        """The answers, if the email arrives at every machine."""
        found = []
        for place in self.places:
            found.append(str(place.send(**fields).status))
            self.settle()
        return found

    def delivered(self) -> list[str]:
        return [webhook.payload["body"] for webhook in self.crm.taken]


Build = Callable[..., Town]


@pytest.fixture(params=["sqlite", "redis"])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Build]:
    time, crm, server = Time(START_MS), FakeDestination(), None
    if request.param == "redis":
        server = request.getfixturevalue("redis_server")
        monkeypatch.setattr(registry_module, "_Script", HandedScript)
        server.client.mset({"test:now": time.now_ms, "test:run": "1"})
    with ExitStack() as stack:

        def build(decision_days: int = 7, suppressed_bytes: int = 64 << 20, **route: Any) -> Town:
            kept_ms = decision_days * DAY_MS
            retention = Retention(entry_ms=kept_ms, suppressed_bytes=suppressed_bytes)
            town = Town([], crm, time, server, Line())
            for name in ("one", "two")[: 2 if server else 1]:
                machine = Machine(
                    server.url if server else None,
                    time,
                    options=RegistryOptions(hold_ms=HOLD_MS, entry_ms=kept_ms),
                    folder=tmp_path / name,
                    wrap=town.line.wrap,
                    retention=retention,
                )
                stack.callback(machine.close)
                town.places.append(stack.enter_context(open_pipeline(machine, {"crm": crm}, town.advance, **route)))
            town.settle()
            town.advance(HOLD_MS + 1)
            return town

        (tmp_path / "one").mkdir()
        (tmp_path / "two").mkdir()
        yield build


# A forged email under the names of a real one


def deliver(town: Town, **fields: Any) -> dict[str, Any]:
    assert town.places[0].status_of(**FORGED | fields) == "processed"
    return FORGED | fields


def refuse(town: Town) -> dict[str, Any]:
    """It becomes a dead letter, whose entry is kept for longer."""
    town.crm.max_attempts, town.crm.reactions = 1, [REFUSES]
    assert town.places[0].status_of(**FORGED) == "dead_lettered"
    return FORGED


def guess_the_message_id(town: Town) -> dict[str, Any]:
    return deliver(town, subject="Another", date="2026-11-15T08:00:00Z")


def empty_redis(town: Town) -> dict[str, Any]:
    sent = deliver(town)
    town.pass_days(8)
    town.empty_redis()
    return sent


@pytest.mark.parametrize("decision_days", [1, 7])
@pytest.mark.parametrize("attack", [deliver, refuse, guess_the_message_id, empty_redis])
@pytest.mark.parametrize("days", DAYS)
def test_a_forged_email_does_not_stop_the_real_one(
    build: Build, days: int, attack: Callable[[Town], dict[str, Any]], decision_days: int
) -> None:
    town = build(decision_days)
    forged = attack(town)
    town.pass_days(days)
    assert town.places[-1].status_of(**REAL) == "processed"
    for _ in range(2):  # the second time, the entry of the real one has ended as well
        for sent in (REAL, forged):
            assert "processed" not in town.statuses(sent)
        town.pass_days(min(days, 9))
    assert town.delivered().count(REAL["body"]) == 1
    ids = [webhook.webhook_id for webhook in town.crm.taken]
    assert len(ids) == len(set(ids)), "its receiver may recognise a retry by this id"


@pytest.mark.parametrize("days", DAYS)
@pytest.mark.parametrize("how", ["an import", "another program"])
def test_a_mark_of_another_program_still_stops_even_after_a_forged_email(build: Build, days: int, how: str) -> None:
    town = build()
    if how == "an import" or town.redis is None:
        again.mark(town.places[0].machine.coordinator, item(**REAL).own_names)
    else:
        name = item(**REAL).own_names[0]
        town.redis.client.sadd(f"processed_ids:{name.scope}", name.value)
    assert town.statuses(FORGED)[0] == "already_processed"
    town.pass_days(days)
    assert set(town.statuses(REAL)) == {"already_processed"}
    assert town.delivered() == []
    with town.places[0].machine.journal.reading() as step:
        kept = [entry for _, entry in step.read_rows("1", ()) if step.payload(entry.id)]
    assert kept and all(entry.stop and entry.stop.original is None for entry in kept), "it can be released"


@pytest.mark.parametrize("days", DAYS)
def test_what_stops_an_email_is_named_as_long_as_it_does(build: Build, days: int) -> None:
    """A group lasts for a month, its email's entry for a week: no other program has marked it."""
    town = build()
    first = town.places[0].send(subject="Lot 7", body="one")
    town.pass_days(days)
    for number, place in enumerate(town.places):
        found = [place.send(subject="Lot 7", body="one")]
        if days < 30:
            found.append(place.send(subject="Lot 7", body=str(number), date=f"2026-11-17T08:00:0{number}Z"))
        assert [each.reason and each.reason.original for each in found] == [first.id] * len(found)


# Many emails under the names of one


@pytest.mark.parametrize("days", DAYS)
@pytest.mark.parametrize("count", [65, 400])
def test_forged_emails_do_not_push_out_one_that_was_delivered(build: Build, count: int, days: int) -> None:
    town = build()
    emails = [REAL, *({**REAL, "body": f"forged {number}"} for number in range(count))]
    for fields in emails:
        assert town.places[0].pipeline.receive(item(**fields)).status == "processed"
    town.pass_days(days)
    for fields in (emails[0], emails[1], emails[-1]):
        assert set(town.statuses(fields)) == {"already_processed"}
    assert len(town.crm.taken) == len(emails)


def test_an_email_under_names_that_many_have_is_still_claimed_by_one_machine(build: Build) -> None:
    town = build()
    for number in range(64):
        assert town.places[0].status_of(**REAL | {"body": f"forged {number}"}) == "processed"
    answers: list[str] = []
    town.crm.reactions = [lambda: answers.append(town.places[-1].status_of(**REAL))]
    assert town.places[0].status_of(**REAL) == "processed"
    assert answers == ["already_processing"]
    assert town.places[-1].status_of(**REAL) == "already_processed", "even before it has read the stream"


# A captured proof of origin, such as a signature of Mailgun, which does not cover the email


def proven(**fields: Any) -> Item:
    return replace(item(**fields), proof="captured")


def accept(town: Town) -> None:
    assert town.places[0].receive(proven(**REAL)).status == "processed"


def accept_a_repeat(town: Town) -> None:
    assert town.places[0].status_of(**REAL) == "processed"
    assert town.places[0].receive(proven(**REAL)).status == "already_processed"


def accept_too_old_an_email(town: Town) -> None:
    assert town.places[0].receive(proven(**OLD)).status == "skipped_old"


def reset(town: Town) -> None:
    accept(town)
    town.settle()
    for name in item(**REAL).own_names:
        again.forget(town.places[0].machine.coordinator, {name.label: name})


def lose_redis(town: Town) -> None:
    accept(town)
    town.lose_redis()


OLD = REAL | {"date": "2026-11-01T08:00:00Z"}
NEW_ONLY: dict[str, Any] = {"realtime_only": True}
BY_RECIPIENT: dict[str, Any] = {"identity_by_recipient": True}
FOR_ANOTHER = REAL | {"recipient": "eve@example.org"}


@pytest.mark.parametrize("days", [0, 6])
@pytest.mark.parametrize(
    ("how", "email", "forged", "route"),
    [
        (accept, REAL, FORGED, {}),
        (accept, REAL, FOR_ANOTHER | {"body": "forged"}, BY_RECIPIENT),
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
    build: Build,
    how: Callable[[Town], None],
    email: dict[str, Any],
    forged: dict[str, Any],
    route: dict[str, Any],
    days: int,
) -> None:
    town = build(**route)
    how(town)
    if days:
        town.pass_days(days)
    for place in town.places:
        for _ in range(2):
            with pytest.raises(ProofUsed):
                place.receive(proven(**forged))
        assert place.receive(proven(**email)).status != "retry_later", "the same email may come again"
