"""The whole protocol against its promises, in any order of steps and faults."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Literal

import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from hypothesis.strategies import booleans, data, integers, sampled_from

from tests.deduplication.journal.stage import CASTS, FAILURES, Stage
from tests.deduplication.journal.world import LEASE_MS, Email
from tests.support.redis_server import RedisServer

EXAMPLES = 20  # pytest --examples=1000 tries more
NUMBERS = COUNTS = integers(0, 2)
EMAILS = integers(0, 11)


def limited(strike: Callable[..., None], budget: str) -> Callable[..., None]:
    """A few an example: with more of them, hardly anything happens in between."""

    @wraps(strike)
    def budgeted(self: Protocol, **values: Any) -> None:
        self.left[budget] -= 1
        strike(self, **values)

    return precondition(lambda self: self.stage is None or self.left[budget] > 0)(budgeted)


def pick(data: Any, values: list[Any]) -> Any:
    """By number: a failure then shows which one it was."""
    return values[data.draw(integers(0, len(values) - 1))]


fault, operation = partial(limited, budget="faults"), partial(limited, budget="operations")


class Protocol(RuleBasedStateMachine):
    server: RedisServer
    monkeypatch: pytest.MonkeyPatch
    is_wide = False  # all casts, and operators
    stage: Stage | None = None

    @initialize(faults=integers(0, 4), operations=integers(0, 3), cast=integers(0, len(CASTS) - 1))
    def begin(self, faults: int, operations: int, cast: int) -> None:
        self.stage = Stage(self.server, self.monkeypatch, CASTS[cast if self.is_wide else 0])
        self.left = {"faults": faults, "operations": operations if self.is_wide else 0}

    @rule(email=EMAILS, number=NUMBERS)
    def request(self, email: int, number: int) -> None:
        self.on.ask(self.email(email), self.on.processes[number])

    @rule(email=EMAILS, number=NUMBERS, count=COUNTS, failed=sampled_from(FAILURES))
    def whole_request(self, email: int, number: int, count: int, failed: str) -> None:
        before = len(self.on.flights)
        self.on.ask(self.email(email), self.on.processes[number])
        for flight in self.on.flights[before:]:
            self.on.post(flight, count)
            if flight in self.on.flights:
                self.on.settle(flight, failed)

    @precondition(lambda self: any(each.posted is None for each in self.on.flights))
    @rule(data=data(), count=COUNTS)
    def post(self, data: Any, count: int) -> None:
        self.on.post(pick(data, [each for each in self.on.flights if each.posted is None]), count)

    @precondition(lambda self: any(each.posted is not None for each in self.on.flights))
    @rule(data=data(), failed=sampled_from(FAILURES))
    def settle(self, data: Any, failed: str) -> None:
        self.on.settle(pick(data, [each for each in self.on.flights if each.posted is not None]), failed)

    @rule(number=NUMBERS, destination=sampled_from(("crm", "chat")))
    def take(self, number: int, destination: str) -> None:
        self.on.take(self.on.processes[number], destination)

    @rule(number=NUMBERS, step=sampled_from(("publish_settled", "publish_waiting", "release_orphans")))
    def late(self, number: int, step: str) -> None:
        self.on.late(self.on.processes[number], step)

    @rule(data=data(), email=EMAILS, number=NUMBERS, forgets=booleans())
    @operation
    def reset_or_mark(self, data: Any, email: int, number: int, forgets: bool) -> None:
        chosen, process = self.email(email), self.on.processes[number]
        name = pick(data, list(chosen.claim("").references.values()))
        self.on.forget(process, chosen, name) if forgets else self.on.mark(process, name)

    @precondition(lambda self: self.stage is None or any(map(self.stage.entries, self.stage.processes)))
    @rule(data=data(), how=sampled_from(("release", "replay", "reopen", "erase")))
    @operation
    def operate(self, data: Any, how: str) -> None:
        process = pick(data, [each for each in self.on.processes if self.on.entries(each)])
        entry = pick(data, self.on.entries(process))
        destination = pick(data, [each.destination for each in entry.deliveries])
        if how == "reopen":
            self.on.reopen(process, entry, destination)
        elif how == "erase":
            self.on.erase(process, entry)
        else:
            self.on.send_again(process, entry, destination if how == "replay" else None)

    @rule(ms=sampled_from((10, 6_000, LEASE_MS + 1_000)))
    def pass_time(self, ms: int) -> None:
        self.on.pass_time(ms)

    @rule(number=NUMBERS, follows=booleans())
    def tick(self, number: int, follows: bool) -> None:
        self.on.tick(self.on.processes[number])
        if follows:
            self.on.follow(self.on.processes[number])

    @precondition(lambda self: self.on.flights)
    @rule(data=data())
    @fault
    def kill(self, data: Any) -> None:
        self.on.kill(pick(data, self.on.flights).process)

    @rule(number=NUMBERS)
    @fault
    def cut(self, number: int) -> None:
        self.on.lines[number].is_cut = True

    @precondition(lambda self: any(line.is_cut for line in self.on.lines))
    @rule()
    def heal(self) -> None:
        for line in self.on.lines:
            line.is_cut = False

    @rule(number=NUMBERS, fault=sampled_from(("reply lost", "late")))
    @fault
    def lose(self, number: int, fault: str) -> None:
        self.on.lines[number].next_fault = fault

    @precondition(lambda self: any(line.late for line in self.on.lines))
    @rule()
    def run_late_requests(self) -> None:
        self.on.run_late_requests()

    @rule()
    def save_snapshot(self) -> None:
        self.on.save_snapshot()

    @rule(keeps=sampled_from(("all", "snapshot", "nothing")))
    @fault
    def restart_redis(self, keeps: Literal["all", "snapshot", "nothing"]) -> None:
        self.on.restart_redis(keeps)

    @precondition(lambda self: not self.on.judge.has_lost_disk)
    @rule()
    @fault
    def lose_disk(self) -> None:
        self.on.lose_disk()

    def teardown(self) -> None:
        if self.stage:
            try:
                self.stage.end_well()
            finally:
                self.stage.close()

    def email(self, number: int) -> Email:
        return self.on.emails[number % len(self.on.emails)]

    @property
    def on(self) -> Stage:
        assert self.stage
        return self.stage


def test_the_protocol_keeps_its_promises(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """With --wide also for emails that share media, words and destinations, and with operators: that still fails."""
    Protocol.server, Protocol.monkeypatch = redis_server, monkeypatch
    Protocol.is_wide = request.config.option.wide
    run_state_machine_as_test(
        Protocol, settings=settings(max_examples=request.config.option.examples or EXAMPLES, stateful_step_count=40)
    )
