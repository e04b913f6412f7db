"""The queue (queue.py) on Dramatiq, with Redis or RabbitMQ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import parse_qsl, urlencode, urlsplit

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker
from pika.exceptions import AuthenticationError, ProbableAccessDeniedError, ProbableAuthenticationError

from deduplication.errors import StoreMisconfigured
from deduplication.redis_client import connect, ping
from orchestrator.delivery.queue import QueueMisconfigured, QueueUnavailable

ACTOR = "deliver"
# The messages of a killed worker are handed out again once its heartbeat is this old; one command in 20 checks that.
HEARTBEAT_TIMEOUT_MS = 10_000
MAINTENANCE_CHANCE = 50_000
CONSUMER_TIMEOUT_S = 5.0
_REFUSED = (StoreMisconfigured, AuthenticationError, ProbableAuthenticationError, ProbableAccessDeniedError)
# A RabbitMQ that hangs is noticed within a request, though Dramatiq tries six times. QUEUE_URL may override these.
RABBITMQ_TIMEOUTS = {
    "connection_attempts": "1",
    "retry_delay": "0",
    "socket_timeout": "1",
    "stack_timeout": "1",
    "blocked_connection_timeout": "1",
}


class DramatiqQueue:
    """The sending side: one Dramatiq queue for each destination."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._broker = make_broker(url, timeout_s)

    def put(self, destination: str) -> None:
        queue_name = queue_of(destination)
        with _translating_errors():
            self._broker.declare_queue(queue_name)
            self._broker.enqueue(dramatiq.Message(queue_name, ACTOR, (destination,), {}, {}))

    def check(self) -> None:
        with _translating_errors():
            if isinstance(self._broker, RabbitmqBroker):
                self._reconnect(self._broker)
            elif isinstance(self._broker, RedisBroker):
                ping(self._broker.client)

    def depth(self, destination: str) -> int:
        queue_name = queue_of(destination)
        with _translating_errors():
            self._broker.declare_queue(queue_name)
            if isinstance(self._broker, RabbitmqBroker):
                self._reconnect(self._broker)
                return int(self._broker.get_queue_message_counts(queue_name)[0])
            return int(self._broker.do_qsize(queue_name))  # type: ignore[attr-defined]

    def close(self) -> None:
        self._broker.close()

    def _reconnect(self, broker: RabbitmqBroker) -> None:
        """This thread's connection may have been idle for too long: if RabbitMQ closed it, it looks open until used."""
        del broker.connection
        _ = broker.connection


class Consumers:
    """The workers of this process. Each destination has its own threads, so that a slow one never delays another.

    Dramatiq accepts one worker for each broker, so each destination has its own broker too.
    """

    def __init__(self, url: str, destinations: Iterable[str], threads: int) -> None:
        self._brokers = {name: make_broker(url, CONSUMER_TIMEOUT_S) for name in destinations}
        self._threads = threads
        self._workers: list[dramatiq.Worker] = []

    def start(self, deliver_due: Callable[[str], object]) -> None:
        def handle(destination: str) -> None:
            deliver_due(destination)

        for destination, broker in self._brokers.items():
            dramatiq.actor(actor_name=ACTOR, queue_name=queue_of(destination), broker=broker)(handle)
            worker = dramatiq.Worker(broker, worker_threads=self._threads, worker_timeout=200)
            worker.start()
            self._workers.append(worker)

    def stop(self, timeout_s: float) -> None:
        """Finishes deliveries in progress; messages that were only fetched go back into the queue."""
        for worker in self._workers:
            for thread in worker.workers:
                thread.stop()
        for worker in self._workers:
            worker.stop(timeout=int(timeout_s * 1000))
        for broker in self._brokers.values():
            broker.close()


def make_broker(url: str, timeout_s: float) -> dramatiq.Broker:
    """Without middleware: retries follow our own schedule."""
    parts = urlsplit(url)
    if parts.scheme in ("amqp", "amqps"):
        query = urlencode({**RABBITMQ_TIMEOUTS, **dict(parse_qsl(parts.query))})
        return RabbitmqBroker(url=parts._replace(query=query).geturl(), confirm_delivery=True, middleware=[])
    return RedisBroker(  # type: ignore[no-untyped-call]
        client=connect(url, timeout_s, decode_responses=False),
        namespace="mailonce",
        heartbeat_timeout=HEARTBEAT_TIMEOUT_MS,
        maintenance_chance=MAINTENANCE_CHANCE,
        middleware=[],
    )


def queue_of(destination: str) -> str:
    return f"mailonce.{destination}"


@contextmanager
def _translating_errors() -> Iterator[None]:
    try:
        yield
    except _REFUSED as error:
        raise QueueMisconfigured(str(error) or type(error).__name__) from error
    except Exception as error:  # Dramatiq and its drivers have several unrelated trees of errors
        raise QueueUnavailable(f"the queue is unavailable: {type(error.__cause__ or error).__name__}") from error
