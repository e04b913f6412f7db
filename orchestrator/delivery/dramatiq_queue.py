"""The queue (queue.py) as Dramatiq makes it, on Redis or RabbitMQ."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from urllib.parse import parse_qsl, urlencode, urlsplit

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker
from pika.exceptions import AMQPError, AuthenticationError, ProbableAccessDeniedError, ProbableAuthenticationError

from deduplication.errors import StoreMisconfigured, StoreUnavailable
from deduplication.redis_client import connect, ping
from orchestrator.delivery.queue import QueueMisconfigured, QueueUnavailable

ACTOR = "deliver"
NAMESPACE = "mailonce"
# A killed worker's messages come back once its heartbeat is this old and somebody tidies up; one command in 20 does.
HEARTBEAT_TIMEOUT_MS = 10_000
MAINTENANCE_CHANCE = 50_000
CONSUMER_TIMEOUT_S = 5.0
_REFUSED_BY_RABBITMQ = (AuthenticationError, ProbableAuthenticationError, ProbableAccessDeniedError)
# So that a RabbitMQ that hangs or is away is noticed within a request, though Dramatiq tries six times; an address may
# say otherwise.
RABBITMQ_TIMEOUTS = {
    "connection_attempts": "1",
    "retry_delay": "0",
    "socket_timeout": "1",
    "stack_timeout": "1",
    "blocked_connection_timeout": "1",
}


class DramatiqQueue:
    """One Dramatiq queue for each destination. For whoever puts; workers have ``Consumers``."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._broker = make_broker(url, timeout_s)

    def put(self, destination: str) -> None:
        queue_name = queue_of(destination)
        message: dramatiq.Message[None] = dramatiq.Message(queue_name, ACTOR, (destination,), {}, {})
        try:
            self._broker.declare_queue(queue_name)
            self._broker.enqueue(message)
        except Exception as error:  # of a library that has several trees of errors, and whose driver has more
            raise QueueUnavailable(f"the queue is away: {type(error).__name__}") from error

    def check(self) -> None:
        try:
            if isinstance(self._broker, RabbitmqBroker):
                del self._broker.connection  # of this thread; one that RabbitMQ has left looks open until it is used
                _ = self._broker.connection
            elif isinstance(self._broker, RedisBroker):
                ping(self._broker.client)
        except (StoreMisconfigured, *_REFUSED_BY_RABBITMQ) as error:
            raise QueueMisconfigured(str(error) or type(error).__name__) from error
        except (StoreUnavailable, AMQPError, OSError) as error:
            raise QueueUnavailable(f"the queue is away: {type(error.__cause__ or error).__name__}") from error

    def depth(self, destination: str) -> int:
        queue_name = queue_of(destination)
        try:
            self._broker.declare_queue(queue_name)
            if isinstance(self._broker, RabbitmqBroker):
                del self._broker.connection  # it may have rested for longer than RabbitMQ lets it
                return int(self._broker.get_queue_message_counts(queue_name)[0])
            return int(self._broker.do_qsize(queue_name))  # type: ignore[attr-defined]
        except Exception as error:  # as in put
            raise QueueUnavailable(f"the queue is away: {type(error).__name__}") from error

    def close(self) -> None:
        self._broker.close()


class Consumers:
    """Workers of this process: for each destination threads of its own, so that a slow one never holds up another.

    Dramatiq takes one worker a broker, so each destination has a broker too.
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
        """Deliveries under way are finished; what was only fetched goes back into the queue."""
        for worker in self._workers:
            for thread in worker.workers:
                thread.stop()
        for worker in self._workers:
            worker.stop(timeout=int(timeout_s * 1000))
        for broker in self._brokers.values():
            broker.close()


def make_broker(url: str, timeout_s: float) -> dramatiq.Broker:
    """Without middleware: retries are the schedule's."""
    if urlsplit(url).scheme in ("amqp", "amqps"):
        return RabbitmqBroker(url=_with_timeouts(url), confirm_delivery=True, middleware=[])
    return RedisBroker(  # type: ignore[no-untyped-call]
        client=connect(url, timeout_s, decode_responses=False),
        namespace=NAMESPACE,
        heartbeat_timeout=HEARTBEAT_TIMEOUT_MS,
        maintenance_chance=MAINTENANCE_CHANCE,
        middleware=[],
    )


def queue_of(destination: str) -> str:
    return f"mailonce.{destination}"


def _with_timeouts(url: str) -> str:
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query))
    return parts._replace(query=urlencode({**RABBITMQ_TIMEOUTS, **given})).geturl()
