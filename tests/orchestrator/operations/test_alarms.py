"""What raises an alarm, when it begins and ends, and who is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.delivery.destination_states import DestinationState
from orchestrator.delivery.webhook import DeliveryFailed, Receipt, Webhook
from orchestrator.metrics.shared import RedisFacts
from orchestrator.operations.alarms import RETRY_AFTER_S, TURN_MS, Alarms
from orchestrator.operations.alerts import LEAST_RECEIVED, AlertCondition, Diagnosis, alert_rules, diagnose
from orchestrator.operations.fleet_state import DestinationView, FleetState, Lately, Outside
from tests.orchestrator.operations.fleet_bench import OpenProcess, Process, open_process, process, time
from tests.support.redis_server import RedisServer
from tests.support.surroundings import ROOT

__all__ = ["open_process", "process", "time"]  # fixtures

CRM = DestinationView(is_enabled=True, breaker="closed", oldest_s=900)
LATELY = Lately(0.05, 0.1, LEAST_RECEIVED, LEAST_RECEIVED // 100, {"crm": 0})
SOUND = FleetState(
    now_ms=1_800_000_000_000,
    machine="here",
    redis_status="up",
    lost_ms=None,
    era="a",
    behind_s=0,
    unpublished=0,
    known_since_ms=None,
    gap_ms=None,
    destinations={"crm": CRM},
    lately=LATELY,
    disk_free_bytes=1 << 40,
    outside=Outside(redis=RedisFacts(maxmemory_policy="noeviction", most_payload_bytes=1)),
    workers=1,
)
EVICTING = Outside(redis=RedisFacts(maxmemory_policy="allkeys-lru", most_payload_bytes=1))
BROKEN = replace(SOUND, destinations={"crm": replace(CRM, breaker="open")})


def lately(**changes: Any) -> dict[str, Any]:
    return {"lately": replace(LATELY, **changes)}


def crm(**changes: Any) -> dict[str, Any]:
    return {"destinations": {"crm": replace(CRM, **changes)}}


def test_at_its_thresholds_nothing_is_wrong() -> None:
    assert diagnose(SOUND) == Diagnosis({})


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        (lately(redis_error_share=0.051), "redis_errors", "Redis fails 5.1% of the steps"),
        (lately(redis_gone_share=0.101), "local_journal", "Redis was gone for 10.1% of the last ten minutes"),
        (lately(stopped=9), "low_hit_rate", "Only 0.9% of the emails of a day were recognised"),
        (lately(died={"crm": 3}), "dead_letters:crm", "New dead letters at crm: 3."),
        (crm(breaker="open"), "breaker_open:crm", "crm keeps failing. Its circuit breaker is open."),
        (crm(breaker="half-open"), "breaker_open:crm", "crm keeps failing."),
        (crm(oldest_s=901), "oldest_waiting:crm", "An email has waited for 15 min to be delivered to crm."),
        ({"workers": 0}, "no_worker", "The queue has no worker"),
        ({"outside": EVICTING}, "eviction_policy", "Redis may forget names"),
    ],
)
def test_each_condition_over_its_threshold_is_wrong_and_only_that(changes: Any, key: str, words: str) -> None:
    found = diagnose(replace(SOUND, **changes))
    assert list(found.wrong) == [key]
    assert found.wrong[key].startswith(words)
    assert found.unknown == frozenset()
    assert diagnose(replace(SOUND, **changes), off=[AlertCondition(key.partition(":")[0])]).wrong == {}


@pytest.mark.parametrize(
    ("changes", "unknown"),
    [
        (lately(received=LEAST_RECEIVED - 1, stopped=0), set()),
        (crm(breaker="open", oldest_s=10_000, paused=DestinationState(is_paused=True)), set()),
        (crm(breaker="open", oldest_s=10_000, is_enabled=False), set()),
        ({"redis_status": None, "workers": None, **lately(redis_gone_share=1.0)}, set()),
        ({"outside": None}, {AlertCondition.EVICTION_POLICY}),
        (lately(redis_error_share=None), {AlertCondition.REDIS_ERRORS}),
    ],
)
def test_what_does_not_apply_is_not_wrong(changes: Any, unknown: set[AlertCondition]) -> None:
    assert diagnose(replace(SOUND, **changes)) == Diagnosis({}, frozenset(unknown))


def test_the_rules_of_prometheus_are_those_of_the_table() -> None:
    shipped = (ROOT / "deploy/prometheus/alerts.yml").read_text()
    assert shipped == alert_rules(), "python -m orchestrator.operations.alerts > deploy/prometheus/alerts.yml"


class Receiver:
    def __init__(self) -> None:
        self.is_down = False
        self.asked: list[Webhook] = []
        self.accepted: list[tuple[str, str]] = []

    def deliver(self, webhook: Webhook, within_s: float | None = None) -> Receipt:
        self.asked.append(webhook)
        if self.is_down:
            raise DeliveryFailed("answered 500", permanent=False, status_code=500)
        self.accepted.append((webhook.payload["data"]["condition"], webhook.payload["data"]["status"]))
        return Receipt(200)


class Bench:
    """Alarms of one process, on a state that the test gives."""

    def __init__(self, process: Process, receiver: Receiver, after_ms: int = 60_000) -> None:
        self.process, self.after_ms, self.receiver = process, after_ms, receiver
        self.alarms = Alarms(
            process.journal,
            receiver,
            after_ms=after_ms,
            shared=process.observer.shared,
            is_redis_up=lambda: process.coordinator.redis.status == "up",
        )

    def look(self, state: FleetState, after_s: float = 0) -> list[str]:
        """So much later; the alarms that last then."""
        self.process.machine.time.pass_ms(int(after_s * 1000))
        state = replace(state, now_ms=self.process.machine.time.now_ms)
        self.alarms.look(state)
        return [each.key for each in self.alarms.read(state)]


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def bench(process: Process, receiver: Receiver) -> Bench:
    return Bench(process, receiver)


def test_only_what_stays_wrong_begins_an_alarm_and_only_what_stays_right_ends_it(bench: Bench) -> None:
    assert bench.look(BROKEN) == []
    assert bench.look(SOUND, 30) == []
    assert bench.look(BROKEN, 30) == [], "it begins to count again"
    assert bench.look(BROKEN, 60) == ["breaker_open:crm"]
    assert bench.look(SOUND, 30) == ["breaker_open:crm"]
    assert bench.look(BROKEN, 30) == bench.look(SOUND, 30) == ["breaker_open:crm"]
    assert bench.look(SOUND, 60) == []
    assert bench.receiver.accepted == [("breaker_open", "begun"), ("breaker_open", "ended")]
    begun, ended = bench.receiver.asked
    assert begun.webhook_id != ended.webhook_id
    assert ended.payload["data"]["text"].startswith("Over after ")
    assert ended.payload["data"]["since"] == begun.payload["data"]["since"]


def test_what_cannot_be_known_leaves_an_alarm_as_it_is(process: Process, receiver: Receiver) -> None:
    bench = Bench(process, receiver, after_ms=0)
    assert bench.look(replace(SOUND, outside=EVICTING)) == ["eviction_policy"]
    assert bench.look(replace(SOUND, outside=None), 600) == ["eviction_policy"]
    assert bench.look(SOUND) == []


def test_an_alarm_of_a_destination_that_is_gone_ends(process: Process, receiver: Receiver) -> None:
    bench = Bench(process, receiver, after_ms=0)
    assert bench.look(BROKEN) == ["breaker_open:crm"]
    assert bench.look(replace(SOUND, destinations={})) == []


def test_an_alarm_survives_a_restart_and_is_shown_in_the_words_of_now(process: Process, receiver: Receiver) -> None:
    Bench(process, receiver, after_ms=0).look(replace(SOUND, **lately(died={"crm": 1})))
    again = Bench(process, receiver, after_ms=0)
    state = replace(SOUND, **lately(died={"crm": 5}))
    assert again.look(state) == ["dead_letters:crm"]
    assert receiver.accepted == [("dead_letters", "begun")], "once"
    (alarm,) = again.alarms.read(state)
    assert "at crm: 5." in alarm.text
    assert alarm.shown()["condition"] == "dead_letters" and alarm.shown()["destination"] == "crm"


def test_a_receiver_that_fails_gets_it_again_with_the_same_id_and_in_order(bench: Bench) -> None:
    bench.receiver.is_down = True
    bench.look(BROKEN)
    bench.look(BROKEN, 60)
    bench.look(SOUND, 1)
    bench.look(SOUND, 61)
    assert len(bench.receiver.asked) == 2, "after ten seconds, and then not before another minute"
    bench.receiver.is_down = False
    bench.look(SOUND, RETRY_AFTER_S[1])
    assert bench.receiver.accepted == [("breaker_open", "begun")]
    bench.look(SOUND)
    assert bench.receiver.accepted[1:] == [("breaker_open", "ended")]
    assert len({each.webhook_id for each in bench.receiver.asked}) == 2


def test_a_receiver_that_always_fails_is_given_up(bench: Bench) -> None:
    bench.receiver.is_down = True
    bench.look(BROKEN)
    for _ in range(20):
        bench.look(BROKEN, 3600)
    assert len(bench.receiver.asked) == len(RETRY_AFTER_S) + 1


def test_without_a_receiver_alarms_are_only_shown(process: Process) -> None:
    alarms = Alarms(process.journal, after_ms=0)
    alarms.look(BROKEN)
    assert [(each.key, each.pending) for each in alarms.read(BROKEN)] == [("breaker_open:crm", ())]


def test_one_machine_of_a_fleet_sends_and_another_takes_over(
    open_process: OpenProcess, receiver: Receiver, redis_server: RedisServer
) -> None:
    one, two = (Bench(open_process(with_redis=True), receiver, after_ms=0) for _ in range(2))
    assert one.look(BROKEN) == ["breaker_open:crm"]
    assert two.look(BROKEN) == []
    for bench in (one, two):
        bench.process.machine.tick()
    assert two.look(SOUND) == ["breaker_open:crm"], "known to both, and it is not this one's turn"
    assert receiver.accepted == [("breaker_open", "begun")]
    assert 0 < redis_server.client.pttl("turn:alarms") <= TURN_MS
    redis_server.client.delete("turn:alarms")
    assert two.look(SOUND) == []
    assert receiver.accepted[1:] == [("breaker_open", "ended")]
    two.process.coordinator.redis.give_up()
    one.process.coordinator.redis.give_up()
    assert one.look(BROKEN) == two.look(BROKEN) == ["breaker_open:crm"], "without Redis each judges for itself"
