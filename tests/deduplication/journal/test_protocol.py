"""The whole protocol against its promises, in any order of steps and faults."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Literal

import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from hypothesis.strategies import booleans, data, integers, sampled_from

from tests.deduplication.journal.stage import EMAILS, Stage
from tests.deduplication.journal.world import LEASE_MS, Email
from tests.support.redis_server import RedisServer

EXAMPLES = 20  # pytest --examples=1000 tries more
NUMBERS = integers(0, 2)


def fault(strike: Callable[..., None]) -> Callable[..., None]:
    """A few faults an example: with more of them, hardly anything happens in between."""

    @wraps(strike)
    def budgeted(self: Protocol, **values: Any) -> None:
        self.faults_left -= 1
        strike(self, **values)

    return precondition(lambda self: self.stage is None or self.faults_left > 0)(budgeted)


class Protocol(RuleBasedStateMachine):
    server: RedisServer
    monkeypatch: pytest.MonkeyPatch
    stage: Stage | None = None
    faults_left = 0

    @initialize(faults=integers(0, 4))
    def begin(self, faults: int) -> None:
        self.stage, self.faults_left = Stage(self.server, self.monkeypatch), faults

    @rule(email=sampled_from(EMAILS), number=NUMBERS)
    def request(self, email: Email, number: int) -> None:
        self.on.ask(email, self.on.processes[number])

    @rule(email=sampled_from(EMAILS), number=NUMBERS, succeeds=booleans(), stores=booleans())
    def whole_request(self, email: Email, number: int, succeeds: bool, stores: bool) -> None:
        before = len(self.on.flights)
        self.on.ask(email, self.on.processes[number])
        for flight in self.on.flights[before:]:
            self.on.post(flight, succeeds)
            self.on.settle(flight, stores)

    @precondition(lambda self: any(each.posted is None for each in self.on.flights))
    @rule(data=data(), succeeds=booleans())
    def post(self, data: Any, succeeds: bool) -> None:
        self.on.post(data.draw(sampled_from([each for each in self.on.flights if each.posted is None])), succeeds)

    @precondition(lambda self: any(each.posted is not None for each in self.on.flights))
    @rule(data=data(), stores=booleans())
    def settle(self, data: Any, stores: bool) -> None:
        self.on.settle(data.draw(sampled_from([each for each in self.on.flights if each.posted is not None])), stores)

    @rule(number=NUMBERS, destination=sampled_from(("crm", "chat")))
    def take(self, number: int, destination: str) -> None:
        self.on.take(self.on.processes[number], destination)

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
        self.on.kill(data.draw(sampled_from(self.on.flights)).process)

    @rule(number=NUMBERS)
    @fault
    def cut(self, number: int) -> None:
        self.on.lines[number].is_cut = True

    @rule()
    def heal(self) -> None:
        for line in self.on.lines:
            line.is_cut = False

    @rule(number=NUMBERS, fault=sampled_from(("reply lost", "late")))
    @fault
    def lose(self, number: int, fault: str) -> None:
        self.on.lines[number].next_fault = fault

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

    @invariant()
    def a_group_is_delivered_once(self) -> None:
        if self.stage:
            keys = [email.key for email in EMAILS if email.group and self.on.judge.posts[email.key, "crm"]]
            assert len(keys) < 2 or self.on.judge.excused & set(keys), "two emails of a group were delivered"

    def teardown(self) -> None:
        if self.stage:
            try:
                self.stage.end_well()
            finally:
                self.stage.close()

    @property
    def on(self) -> Stage:
        assert self.stage
        return self.stage


def test_the_protocol_keeps_its_promises(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    Protocol.server, Protocol.monkeypatch = redis_server, monkeypatch
    run_state_machine_as_test(
        Protocol, settings=settings(max_examples=request.config.option.examples or EXAMPLES, stateful_step_count=40)
    )
