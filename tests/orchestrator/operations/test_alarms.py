"""What raises an alarm, when it begins and ends, and which machine reports it."""

from dataclasses import replace
from typing import Any, cast

import pytest

from deduplication import members
from deduplication.redis_state import REDIS_ERRORS, REDIS_STEPS
from orchestrator.config.model import AlertCondition, AlertsConfig, DestinationConfig
from orchestrator.delivery.webhook import PostResult, Webhook
from orchestrator.metrics.meter import DELIVERIES, EMAILS, REDIS_S, Sums
from orchestrator.operations.alarms import LEAST_RECEIVED, RETRY_AFTER_MS, TURN_MS, Alarms, diagnose
from orchestrator.operations.fleet_state import DestinationView, Facts, FleetState, Pause
from tests.alert_rules import PATH, alert_rules
from tests.orchestrator.operations.fleet_bench import OpenProcess, Process
from tests.support.redis_server import RedisServer

CRM = DestinationView(enabled=True, breaker="closed", paused=None, oldest_s=900)
COUNTS: dict[str, dict[str, float]] = {
    "ten_minutes": {REDIS_STEPS: 1000, f"{REDIS_ERRORS}|refused": 50, f"{REDIS_S}|up": 900, f"{REDIS_S}|gone": 100},
    "hour": {f"{DELIVERIES}|crm|delivered": 5},
    "day": {f"{EMAILS}|gmail|processed|": LEAST_RECEIVED - 10, f"{EMAILS}|gmail|already_processed|identity": 10},
}
FEWER = {f"{EMAILS}|gmail|already_processed|identity": 9.0}
FACTS = Facts(maxmemory_policy="noeviction", used_bytes=1, redis_payload_bytes=0, redis_payload_limit_bytes=100)
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
    **{span: Sums(counts) for span, counts in COUNTS.items()},
    disk_free_bytes=1 << 40,
    facts=FACTS,
    members={"here": {"at_ms": 1_800_000_000_000}},
    suppressed_share=0,
    workers=1,
)
EVICTING = FACTS.model_copy(update={"maxmemory_policy": "allkeys-lru"})


def counted(span: str, counts: dict[str, float]) -> dict[str, Any]:
    return {span: Sums(COUNTS[span] | counts)}


def died(count: int) -> dict[str, Any]:
    return counted("hour", {f"{DELIVERIES}|crm|dead": count})


def crm(**changes: Any) -> dict[str, Any]:
    return {"destinations": {"crm": DestinationView(**{**dict(CRM), **changes})}}


BROKEN = replace(SOUND, **crm(breaker="open"))


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        (counted("ten_minutes", {f"{REDIS_ERRORS}|refused": 51}), "redis_errors", "5.1% of the steps that Redis"),
        (counted("ten_minutes", {f"{REDIS_S}|gone": 102}), "local_journal", "Redis was gone for 10.2% of the last ten"),
        (counted("day", FEWER | {f"{EMAILS}|a|processed|": 1}), "low_hit_rate", "Only 0.9% of the emails of a day"),
        (died(3), "dead_letters:crm", "New dead letters at crm: 3."),
        (crm(breaker="open"), "breaker_open:crm", "crm keeps failing. Its circuit breaker is open."),
        (crm(breaker="half-open"), "breaker_open:crm", "crm keeps failing."),
        (crm(oldest_s=901), "oldest_waiting:crm", "An email has waited for 15 min to be delivered to crm."),
        ({"workers": 0}, "no_worker", "No worker is running"),
        ({"facts": EVICTING}, "eviction_policy", "Redis may forget names"),
        (
            {"suppressed_share": 0.81},
            "suppressed_room",
            "The suppressed emails of one sender domain",
        ),
    ],
)
def test_each_condition_over_its_threshold_is_wrong_and_only_that(changes: Any, key: str, words: str) -> None:
    found = diagnose(replace(SOUND, **changes))
    assert list(found) == [key]
    assert (found[key] or "").startswith(words)
    assert diagnose(replace(SOUND, **changes), off=[AlertCondition(key.partition(":")[0])]) == {}


@pytest.mark.parametrize(
    ("changes", "unknown"),
    [
        ({}, set()),  # all values are at their thresholds
        (counted("day", FEWER), set()),
        (crm(breaker="open", oldest_s=10_000, paused=Pause(since="", reason="", by="")), set()),
        (crm(breaker="open", oldest_s=10_000, enabled=False), set()),
        ({"redis_status": None, "workers": None, **counted("ten_minutes", {f"{REDIS_S}|up": 0})}, set()),
        (
            {"facts": Facts(), "suppressed_share": None},
            {AlertCondition.EVICTION_POLICY, AlertCondition.SUPPRESSED_ROOM},
        ),
        ({"ten_minutes": Sums({})}, {AlertCondition.REDIS_ERRORS, AlertCondition.LOCAL_JOURNAL}),
    ],
)
def test_what_does_not_apply_is_not_wrong(changes: Any, unknown: set[AlertCondition]) -> None:
    assert diagnose(replace(SOUND, **changes)) == dict.fromkeys(unknown)


def test_the_rules_of_prometheus_are_those_of_the_table() -> None:
    assert PATH.read_text() == alert_rules(), "make docs-reference"


class Receiver:
    config = DestinationConfig(url="https://alerts.example")

    def __init__(self) -> None:
        self.is_down = False
        self.asked: list[Webhook] = []
        self.accepted: list[tuple[str, str]] = []

    def deliver(self, webhook: Webhook, within_s: float | None = None) -> PostResult:
        self.asked.append(webhook)
        if self.is_down:
            return PostResult(500, "answered 500")
        self.accepted.append((webhook.payload["data"]["condition"], webhook.payload["data"]["status"]))
        return PostResult(200)


class Bench:
    """Alarms of one process, on a state that the test gives."""

    def __init__(self, process: Process, receiver: Receiver | None, after_s: float = 0) -> None:
        self.process, self.receiver = process, receiver or Receiver()
        self.alarms = Alarms(process.coordinator, AlertsConfig(after_s=after_s), cast(Any, receiver))

    def look(self, state: FleetState, after_s: float = 0) -> list[str]:
        """So much later; the alarms that last then."""
        self.process.machine.time.pass_ms(int(after_s * 1000))
        state = replace(state, now_ms=self.process.machine.time.now_ms)
        self.alarms.evaluate(state)
        return [alarm.condition for alarm in self.alarms.read().values()]


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


def test_only_what_stays_wrong_begins_an_alarm_and_only_what_stays_right_ends_it(
    process: Process, receiver: Receiver
) -> None:
    bench = Bench(process, receiver, after_s=60)
    assert bench.look(BROKEN) == []
    assert bench.look(SOUND, 30) == []
    assert bench.look(BROKEN, 30) == [], "it begins to count again"
    assert bench.look(BROKEN, 60) == ["breaker_open"]
    assert bench.look(SOUND, 30) == ["breaker_open"]
    assert bench.look(BROKEN, 30) == bench.look(SOUND, 30) == ["breaker_open"]
    assert bench.look(SOUND, 60) == []
    assert receiver.accepted == [("breaker_open", "begun"), ("breaker_open", "ended")]
    begun, ended = receiver.asked
    assert begun.webhook_id != ended.webhook_id
    assert ended.payload["data"]["text"].startswith("Over after 3 min: crm keeps failing")
    assert ended.payload["data"]["since"] == begun.payload["data"]["since"]


@pytest.mark.parametrize(
    ("states", "lasting"),
    [
        (({"facts": EVICTING}, {"facts": Facts()}), ["eviction_policy"]),  # it cannot be known now
        (({"facts": EVICTING}, {"facts": Facts()}, {}), []),
        ((crm(breaker="open"), {"destinations": {}}), []),  # its destination was removed
    ],
)
def test_an_alarm_lasts_until_its_condition_is_known_to_be_over(
    process: Process, receiver: Receiver, states: tuple[dict[str, Any], ...], lasting: list[str]
) -> None:
    bench = Bench(process, receiver)
    assert [bench.look(replace(SOUND, **changes), 600) for changes in states][-1] == lasting


def test_an_alarm_survives_a_restart(process: Process, receiver: Receiver) -> None:
    Bench(process, receiver).look(replace(SOUND, **died(1)))
    again = Bench(process, receiver)
    again.look(replace(SOUND, **died(5)))
    assert receiver.accepted == [("dead_letters", "begun")], "once"
    (alarm,) = again.alarms.read().values()
    assert (alarm.condition, alarm.destination) == ("dead_letters", "crm")


def test_an_alarm_of_a_newer_version_is_left_alone(process: Process, receiver: Receiver) -> None:
    with process.journal.step() as step:
        members.put_note(step, "alarm:unheard_of:crm", "[]")
    assert Bench(process, receiver).look(BROKEN) == ["breaker_open"]


def test_a_receiver_that_fails_gets_it_again_with_the_same_id_after_a_pause(
    process: Process, receiver: Receiver
) -> None:
    bench, later_s = Bench(process, receiver), RETRY_AFTER_MS / 1000
    receiver.is_down = True
    for after_s in (0, 1, later_s - 2, 1, later_s):
        assert bench.look(BROKEN, after_s) == ["breaker_open"]
    assert [webhook.webhook_id for webhook in receiver.asked] == [receiver.asked[0].webhook_id] * 3
    receiver.is_down = False
    bench.look(BROKEN, later_s)
    assert receiver.accepted == [("breaker_open", "begun")]


def test_what_is_over_before_its_receiver_answers_is_reported_as_ended(process: Process, receiver: Receiver) -> None:
    bench = Bench(process, receiver)
    receiver.is_down = True
    bench.look(BROKEN)
    receiver.is_down = False
    for _ in range(2):
        bench.look(SOUND, RETRY_AFTER_MS / 1000)
    assert receiver.accepted == [("breaker_open", "ended")]


def test_without_a_receiver_alarms_are_only_shown_and_a_later_one_gets_no_old_ones(
    process: Process, receiver: Receiver
) -> None:
    assert Bench(process, None).look(BROKEN) == ["breaker_open"]
    assert Bench(process, receiver).look(BROKEN) == ["breaker_open"]
    assert receiver.asked == []


def test_one_machine_of_a_fleet_sends_and_another_takes_over(
    open_process: OpenProcess, receiver: Receiver, redis_server: RedisServer
) -> None:
    one, two = (Bench(open_process(with_redis=True), receiver) for _ in range(2))
    assert one.look(SOUND) == []
    assert one.look(BROKEN) == ["breaker_open"], "it keeps its turn"
    assert two.look(BROKEN) == []
    for bench in (one, two):
        bench.process.machine.tick()
    assert two.look(SOUND) == ["breaker_open"], "known to both, and it is not this one's turn"
    assert receiver.accepted == [("breaker_open", "begun")]
    assert 0 < redis_server.client.pttl("turn:alarms") <= TURN_MS
    redis_server.client.delete("turn:alarms")
    assert two.look(SOUND) == []
    assert receiver.accepted[1:] == [("breaker_open", "ended")]
    two.process.coordinator.redis.give_up()
    one.process.coordinator.redis.give_up()
    assert one.look(BROKEN) == two.look(BROKEN) == ["breaker_open"], "without Redis each judges for itself"
