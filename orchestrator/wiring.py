"""Builds the service from its settings: the only place that decides which parts are used."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from deduplication.realtime_guard import RealtimeGuard
from deduplication.stores.base import Store
from deduplication.stores.failover import FailoverStore
from orchestrator.config import Config, load_config
from orchestrator.delivery.outbox import Outbox, Queue, QueueMisconfigured, QueueUnavailable
from orchestrator.delivery.resolution import LinkResolver
from orchestrator.delivery.sweeper import Chore, Hands, InProcess, Sweeper
from orchestrator.health import HealthChecks
from orchestrator.housekeeping import LOCKS_EVERY_S, drop_expired_locks
from orchestrator.intake import Intake, Naming, Sources
from orchestrator.parts import Parts, build_parts, make_data_dir
from orchestrator.routing import Route, Router
from orchestrator.service_note import leave_note
from orchestrator.settings import Settings, SettingsError
from orchestrator.store_time import SYNC_EVERY_S
from orchestrator.tokens import Tokens, ensure_tokens, show_new

log = logging.getLogger(__name__)

HELD_IN_PROCESS_MS = 60_000


@dataclass(frozen=True)
class Service:
    """Everything the routes need. ``queue`` None: requests deliver."""

    settings: Settings
    config: Config
    tokens: Tokens
    parts: Parts
    intake: Intake
    health: HealthChecks
    queue: Queue | None
    closing: tuple[Callable[[], None], ...] = ()

    @property
    def store(self) -> Store:
        return self.parts.store

    def close(self) -> None:
        """Lets what is under way finish."""
        for close in self.closing:
            close()


def check_start(settings: Settings, config: Config) -> None:
    """Opens once, before there is a socket or a process, what every process will need: a wrong setting stops the start.

    A queue that is away does not: meanwhile requests deliver.
    """
    queue = build_queue(settings)
    parts = build_parts(settings, config)
    try:
        if queue:
            queue.check()
    except QueueMisconfigured as error:
        raise SettingsError(f"QUEUE_URL takes a queue that we can use; {error}") from error
    except QueueUnavailable as error:
        log.error("WARNING: QUEUE_URL: %s. Until it is back, requests deliver.", error)
    finally:
        parts.close()
        if queue:
            queue.close()


def build(settings: Settings, sources: Sources | None = None, config: Config | None = None) -> Service:
    """The service of a web process. Raises SettingsError if something in the settings or mailonce.toml is wrong."""
    config = config or load_config(settings)
    make_data_dir(settings)
    tokens = ensure_tokens(settings)
    show_new(tokens)
    leave_note(settings, config)
    queue = build_queue(settings)
    parts = build_parts(settings, config, sources)
    health = HealthChecks(parts.store, settings.memory_limit_mb, queue)
    for warning in health.report().warnings:
        log.warning("WARNING: %s", warning)
    follow_redis(parts)
    closing = (*_look_after_due(parts, queue), *([queue.close] if queue else []), parts.close)
    intake = build_intake(settings, parts, queue)
    return Service(settings, config, tokens, parts, intake, health, queue, closing)


def build_intake(settings: Settings, parts: Parts, queue: Queue | None = None) -> Intake:
    config = parts.config
    return Intake(
        store=parts.store,
        leases=parts.leases,
        router=make_router(settings, config),
        dispatcher=parts.dispatcher,
        naming=make_naming(settings, config),
        guard=RealtimeGuard(settings.service_started_at),
        sources=parts.sources,
        resolve=LinkResolver(config.media.resolve).resolve if config.media.resolve else None,
        outbox=Outbox(parts.ledger, queue, parts.time.now_ms) if queue else None,
    )


def build_queue(settings: Settings) -> Queue | None:
    if not settings.queue_url:
        return None
    try:
        from orchestrator.delivery.queue import DramatiqQueue  # needs the extra "queue"
    except ModuleNotFoundError as error:
        how = "make run brings it, and so does .venv/bin/pip install -c constraints.txt -e '.[queue]'"
        raise SettingsError(f"QUEUE_URL takes the extra queue ({error}); {how}") from error
    return DramatiqQueue(settings.queue_url, settings.redis_timeout_ms / 1000)


def follow_redis(parts: Parts) -> None:
    if isinstance(parts.store, FailoverStore):
        parts.store.start()


def chores(parts: Parts) -> tuple[Chore, ...]:
    return (
        Chore(SYNC_EVERY_S, parts.time.sync),
        Chore(LOCKS_EVERY_S, lambda: drop_expired_locks(parts.store, parts.locks)),
    )


def _look_after_due(parts: Parts, queue: Queue | None) -> tuple[Callable[[], None], ...]:
    """Without a queue this process delivers what is due, such as replays; with one, the workers do."""
    if queue:
        sweeper = Sweeper(parts.ledger, chores=chores(parts))
        sweeper.start()
        return (sweeper.close,)
    in_process = InProcess(parts.dispatcher.deliver_or_leave, parts.config.destinations)
    hands = Hands(in_process.take, in_process.room, parts.dispatcher.courier.most_for, HELD_IN_PROCESS_MS)
    sweeper = Sweeper(parts.ledger, hands, chores(parts))
    sweeper.start()
    return (sweeper.close, in_process.close)


def make_router(settings: Settings, config: Config) -> Router:
    return Router(config.routes, Route("default", tuple(config.destinations), settings.subject_groups))


def make_naming(settings: Settings, config: Config) -> Naming:
    return Naming(
        tz=settings.tz,
        patterns=config.patterns,
        group_ttl_seconds=settings.subject_group_ttl_seconds,
        media_hosts=config.media.hosts,
        identity_parameters=config.media.identity_parameters,
    )
