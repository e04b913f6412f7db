"""Builds the service from its settings: the only place that decides which parts are used."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from deduplication.errors import StoreMisconfigured, StoreUnavailable
from deduplication.files import Retention
from deduplication.journal.coordinator import Coordinator
from deduplication.journal.fleet import Fleet
from deduplication.journal.registry import Registry, RegistryOptions
from deduplication.journal.sqlite import Journal
from deduplication.locks import PublicationLocks, new_server_id
from deduplication.realtime_guard import RealtimeGuard
from deduplication.redis_client import Client, connect
from orchestrator.config.model import Config, DestinationConfig, load_config
from orchestrator.config.settings import DAY_MS, MB, Settings, SettingsError
from orchestrator.data_dir import Tokens, ensure_tokens, leave_note, show_new
from orchestrator.delivery.counters import Counters
from orchestrator.delivery.guard import Guard
from orchestrator.delivery.retrier import Retrier
from orchestrator.delivery.sender import Sender
from orchestrator.delivery.webhook import Destination
from orchestrator.files import PATH, Files, Folder
from orchestrator.logs import quiet
from orchestrator.metrics.meter import Meter
from orchestrator.operations.alarms import Alarms
from orchestrator.pipeline import Pipeline
from orchestrator.privacy import Privacy
from orchestrator.routing import Route, Router
from orchestrator.watch import Watch, describe_machine

log = logging.getLogger(__name__)

RETRIER_THREADS = 2  # of a web process for each destination, beside those of the requests


class Service:
    """One process of Mailonce, with all its parts. Nothing runs until ``start``."""

    def __init__(
        self, settings: Settings, config: Config, *, is_trial: bool | None = None, is_worker: bool = False
    ) -> None:
        """Raises SettingsError if a setting is wrong. ``is_trial``: by default as the configuration says."""
        make_data_dir(settings)
        self.settings = settings
        self.config = config
        self.is_worker = is_worker
        self.tokens = ensure_tokens(settings)
        self.server = new_server_id()

        # What this machine and the fleet know
        is_trial = config.is_trial if is_trial is None else is_trial
        self.coordinator, self.fleet = open_machine(settings, is_trial=is_trial, about=lambda: describe_machine(self))
        self.journal = self.coordinator.journal
        self.meter = Meter(self.journal)
        self.privacy = Privacy(self.journal, is_strict=settings.privacy == "strict")
        self.locks = PublicationLocks(self.coordinator, self.server)
        self.counters = Counters(self.coordinator)

        # How webhooks are sent: by a request, and later by the retrier
        self.guard = Guard(self.counters, config.destinations)
        pool_size = max(settings.web_threads, settings.worker_threads)
        self.sender = Sender(
            coordinator=self.coordinator,
            destinations={name: Destination(name, to, pool_size) for name, to in config.destinations.items()},
            guard=self.guard,
            pools={name: ThreadPoolExecutor(settings.web_threads, f"to-{name}") for name in config.destinations},
            meter=self.meter,
            server=self.server,
        )
        margin_s = 0.6 * settings.lease_seconds  # how much longer than a POST its lease is: 15 s, by default
        threads = settings.worker_threads if is_worker else RETRIER_THREADS
        self.retrier = Retrier(self.sender, threads, margin_s, is_worker=is_worker)

        self.files = open_files(settings, self.journal, self.meter, is_trial=is_trial)
        self.pipeline = Pipeline(
            coordinator=self.coordinator,
            router=Router(config.routes, Route("default", tuple(config.destinations), settings.subject_groups)),
            sender=self.sender,
            guard=RealtimeGuard(settings.service_started_at),
            privacy=self.privacy,
            meter=self.meter,
            settings=settings,
            config=config,
            files=self.files,
        )

        # What an operator is shown
        alarms_to = DestinationConfig.model_construct(url=config.alerts.url, secret=config.alerts.secret)
        alarms_at = Destination("alerts", alarms_to, pool_size=1) if alarms_to.url else None
        self.alarms = Alarms(self.coordinator, config.alerts, alarms_at)
        self.notices: list[str] = []  # shown on /health, which is public, and the page
        self.watch = Watch(self)

    def start(self) -> None:
        """Starts the threads behind the requests, and those that send stored deliveries, unless workers do that."""
        leave_note(self.settings, is_trial=self.config.is_trial)
        self.watch.start()
        if self.fleet:
            self.fleet.start()
        if self.is_worker or self.settings.deliver_by == "requests":
            self.retrier.start()

    def close(self) -> None:
        """Waits until deliveries in progress have ended."""
        self.retrier.close()
        self.sender.close()
        self.watch.close()
        self.coordinator.close()


def build(settings: Settings, config: Config | None = None, *, is_worker: bool = False) -> Service:
    """The running service of this process. Raises SettingsError if a setting is wrong."""
    service = Service(settings, config or load_config(settings), is_worker=is_worker)
    show_new(service.tokens)
    service.start()
    return service


def open_machine(
    settings: Settings, *, is_trial: bool = False, about: Callable[[], dict[str, Any]] | None = None
) -> tuple[Coordinator, Fleet | None]:
    """The journal of this machine and, with a REDIS_URL, its part in the fleet, which is not started yet. Closing the
    coordinator closes both.

    In a trial, emails are only printed. They go to another journal and to other keys in Redis: they must not count as
    delivered once a destination is configured. ``about``: what other machines see of this one; None for a script, which
    is no member.
    """
    retention = Retention(
        entry_ms=settings.decision_ms,
        dead_ms=int(settings.dead_letter_days * DAY_MS),
        delivered_payload_ms=int(settings.delivered_payload_days * DAY_MS),
        stream_bytes=int(settings.stream_mb * MB),
        disk_free_bytes=settings.disk_free_bytes,
    )
    journal = Journal(settings.data_dir / ("trial.db" if is_trial else "journal.db"), retention=retention)
    coordinator = Coordinator(
        journal,
        open_registry(settings, journal, is_trial=is_trial) if settings.redis_url else None,
        is_open=settings.on_store_failure == "open",
    )
    if not settings.redis_url:
        return coordinator, None
    fleet = Fleet(coordinator, about)
    coordinator.closing.append(fleet.close)
    return coordinator, fleet


def open_registry(settings: Settings, journal: Journal, *, is_trial: bool = False) -> Registry:
    is_open = settings.on_store_failure == "open"
    options = RegistryOptions(
        prefix=f"{settings.redis_prefix}{'trial:' if is_trial else ''}",
        group_ttl=settings.subject_group_ttl_seconds > 0,
        entry_ms=settings.decision_ms,
        hold_within_ms=settings.redis_timeout_ms,
        hold_ms=2 * settings.redis_timeout_ms + 2_000 if is_open else settings.lease_ms + 60_000,  # rule 16
        payload_bytes=None if settings.payload_mb is None else int(settings.payload_mb * MB),
    )

    def connect_to(more_s: int) -> Client:
        return connect(settings.redis_url, settings.redis_timeout_ms / 1000 + more_s, decode_responses=False)

    return Registry(connect_to, journal.machine, journal.clock, options)


def open_files(settings: Settings, journal: Journal, meter: Meter, *, is_trial: bool = False) -> Files:
    # Twice what claims need: files never make a provider retry.
    folder = Folder(settings.data_dir / ("trial-files" if is_trial else PATH), 2 * settings.disk_free_bytes)
    bucket = None
    if settings.files_url:
        try:
            from orchestrator.delivery.s3 import Bucket  # needs the extra "s3"
        except ModuleNotFoundError as error:
            how = ".venv/bin/pip install -c constraints.txt -e '.[s3]'"
            raise SettingsError(f"FILES_URL needs the extra s3: {how}; {error}") from error
        bucket = Bucket(settings.files_url, journal.machine, settings.data_dir)
    return Files(journal, folder, bucket, settings, meter)


def check_start(settings: Settings, config: Config) -> Tokens:
    """Opens everything that a process needs, once and before the socket, so that a wrong setting stops the start.

    A Redis that cannot be reached does not.
    """
    with quiet():
        service = Service(settings, config)
    with closing(service):
        try:
            if service.coordinator.registry:
                service.coordinator.registry.probe()
        except StoreMisconfigured as error:
            raise SettingsError(f"REDIS_URL must be a Redis that Mailonce can use; {error}") from error
        except StoreUnavailable as error:
            log.error("WARNING: REDIS_URL: %s. Until Redis is back, this machine's journal decides.", error)
        return service.tokens


def make_data_dir(settings: Settings) -> None:
    try:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"DATA_DIR must be a writable folder; {error}") from error
