"""What alarms are judged by: what is counted and what stands in the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deduplication.journal.entry import DeliveryStatus
from deduplication.journal.failover import FailoverJournal
from orchestrator.build import Parts, build_intake, build_parts, build_recorder
from orchestrator.config.model import load_config
from orchestrator.config.settings import load_settings
from orchestrator.item import email_item
from orchestrator.metrics.counted import WORKER
from orchestrator.operations.alert_facts import FactsReader
from orchestrator.operations.alerts import Facts
from routes.providers import gmail
from tests.support.redis_server import RedisServer, free_port
from tests.support.server import PATIENT_MS, email
from tests.support.sink import Reply, Sink

Open = Callable[..., Parts]


@pytest.fixture
def open_parts(tmp_path: Path) -> Iterator[Open]:
    opened: list[Parts] = []

    def start(slot: str = "web", **settings: object) -> Parts:
        own = load_settings(**{"data_dir": tmp_path / "data", "redis_timeout_ms": PATIENT_MS, **settings})
        opened.append(build_parts(own, load_config(own), slot=slot))
        return opened[-1]

    yield start
    for parts in opened:
        parts.close()


def facts(parts: Parts) -> Facts:
    has_queue = bool(parts.settings.queue_url)
    return FactsReader(parts.journal, parts.sender, parts.counted, parts.oldest, has_queue).read()


def receive(parts: Parts, subject: str) -> None:
    build_intake(parts).receive(email_item(gmail.parse(email(subject=subject)), None))


def test_of_an_idle_service_all_is_known_and_nothing_wrong(open_parts: Open) -> None:
    found = facts(open_parts())
    assert found == Facts(received=0, died={}, breakers={"default": "closed"}, oldest_s={})


def test_what_waits_and_what_is_dead_is_told_by_destination(open_parts: Open, tmp_path: Path) -> None:
    with Sink(otherwise=Reply(503)) as down, Sink(otherwise=Reply(422)) as refuses:
        config = tmp_path / "m.toml"
        config.write_text(
            f'[destinations.down]\nurl = "{down.url}"\nbreaker_failures = 2\n'
            f'[destinations.refuses]\nurl = "{refuses.url}"\n'
            f'[destinations.off]\nurl = "{down.url}"\nenabled = false\n'
            f'[destinations.paused]\nurl = "{down.url}"\n'
            '[[routes]]\nname = "all"\ndestinations = ["down", "refuses", "off", "paused"]\n'
        )
        parts = open_parts(mailonce_config=config)
        parts.sender.states.decide("paused", is_paused=True, reason="", by="test")
        receive(parts, "one")
        receive(parts, "two")
    found = facts(parts)
    assert found.breakers == {"down": "open", "refuses": "closed"}
    assert found.oldest_s == {"down": 0}, "what waits for the others waits on purpose"
    assert {name: died for name, died in (found.died or {}).items() if died} == {"refuses": 2}
    assert (found.received, found.stopped) == (2, 0)


def test_the_oldest_is_as_old_as_it_is(open_parts: Open) -> None:
    with Sink(otherwise=Reply(503)) as down:
        parts = open_parts(webhook_url=down.url)
        receive(parts, "one")
        (entry,) = parts.journal.find()
        assert entry.deliveries[0].status is DeliveryStatus.WAITING
        later = FactsReader(LaterJournal(parts.journal, 5_000_000), parts.sender, parts.counted, parts.oldest, False)  # type: ignore[arg-type]
        assert later.read().oldest_s == {"default": 5_000}


class LaterJournal:
    """The same journal, so much later."""

    def __init__(self, journal: object, later_ms: int) -> None:
        self._journal, self._later_ms = journal, later_ms

    def now_ms(self) -> int:
        (entry,) = self._journal.find()  # type: ignore[attr-defined]
        return int(entry.waits_since_ms) + self._later_ms

    def __getattr__(self, name: str) -> object:
        return getattr(self._journal, name)


@pytest.mark.real_redis
def test_redis_is_judged_by_its_answers_its_sides_and_its_policy(open_parts: Open, redis_server: RedisServer) -> None:
    parts = open_parts(redis_url=redis_server.url)
    assert facts(parts).policy == "noeviction"
    steps = parts.counted.here().counts["redis_steps"]
    for _ in range(int(steps)):
        parts.meter.count_redis_step("ConnectionError")
    parts.meter.count_side("redis", 30)
    parts.meter.count_side("local", 10)
    found = facts(parts)
    assert found.has_redis
    assert found.redis_error_share == pytest.approx(0.5, abs=0.2)
    assert found.local_share == 0.25


def test_while_redis_is_away_what_only_it_knows_is_unknown(open_parts: Open) -> None:
    away = f"redis://127.0.0.1:{free_port()}/0"
    parts = open_parts(redis_url=away, queue_url=away, redis_timeout_ms=200)
    assert isinstance(parts.journal, FailoverJournal)
    parts.journal.tick()
    found = facts(parts)
    assert (found.policy, found.workers, found.breakers) == (None, None, None)
    assert found.oldest_s == {}


@pytest.mark.real_redis
def test_workers_are_those_of_the_fleet(open_parts: Open, redis_server: RedisServer, tmp_path: Path) -> None:
    addresses = {"redis_url": redis_server.url, "queue_url": redis_server.url}
    web = open_parts(**addresses)
    assert facts(web).workers == 0
    worker = open_parts(slot=WORKER, data_dir=tmp_path / "elsewhere", **addresses)
    build_recorder(worker).beat()
    assert facts(web).workers == 1
