"""The queue between the request that receives an email and the worker that delivers it: Dramatiq on Redis or RabbitMQ.

A message only says that something is due at a destination; the delivery itself is stored. So a message that arrives
twice, or never, does no harm: the store hands each delivery to one worker, and workers look every second as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import parse_qsl, urlencode, urlsplit

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker
from pika.exceptions import AuthenticationError, ProbableAccessDeniedError, ProbableAuthenticationError

from deduplication.errors import StoreMisconfigured, StoreUnavailable
from deduplication.redis_client import connect, ping

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
    """One Dramatiq queue, and one actor of the same name, for each destination.

    ``put``, ``check`` and ``depth`` raise StoreUnavailable, or StoreMisconfigured if waiting will not help.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self._broker = make_broker(url, timeout_s)
        self._worker: dramatiq.Worker | None = None

    def put(self, destination: str) -> None:
        """Wakes a worker."""
        name = queue_of(destination)
        self._broker.declare_queue(name)
        with _translating_errors():
            self._broker.enqueue(dramatiq.Message(name, name, (destination,), {}, {}))

    def consume(self, destinations: Iterable[str], wake: Callable[[str], None]) -> None:
        """Calls ``wake``, which returns at once, for each message, in a thread of its own until it is closed."""
        for destination in destinations:
            name = queue_of(destination)
            dramatiq.actor(actor_name=name, queue_name=name, broker=self._broker)(wake)
        self._worker = dramatiq.Worker(self._broker, worker_threads=1, worker_timeout=200)
        self._worker.start()

    def check(self) -> None:
        """Raises if it cannot accept a message now."""
        with _translating_errors():
            if isinstance(self._broker, RedisBroker):
                ping(self._broker.client)
            else:
                # This thread's connection may have been idle for too long. If RabbitMQ closed it, it looks open until
                # it is used.
                del self._broker.connection
                _ = self._broker.connection

    def depth(self, destination: str) -> int:
        """How many messages are not handled yet."""
        name = queue_of(destination)
        self._broker.declare_queue(name)
        with _translating_errors():
            if isinstance(self._broker, RedisBroker):
                return int(self._broker.do_qsize(name))
            return int(self._broker.get_queue_message_counts(name)[0])

    def close(self) -> None:
        if self._worker:
            self._worker.stop()
        self._broker.close()


def make_broker(url: str, timeout_s: float) -> RedisBroker | RabbitmqBroker:
    """Without middleware: retries follow our own schedule."""
    parts = urlsplit(url)
    if parts.scheme in ("amqp", "amqps"):
        query = urlencode({**RABBITMQ_TIMEOUTS, **dict(parse_qsl(parts.query))})
        return RabbitmqBroker(url=parts._replace(query=query).geturl(), confirm_delivery=True, middleware=[])
    client = connect(url, timeout_s, decode_responses=False)
    return RedisBroker(client=client, namespace="mailonce", middleware=[])  # type: ignore[no-untyped-call]


def queue_of(destination: str) -> str:
    return f"mailonce.{destination}"


@contextmanager
def _translating_errors() -> Iterator[None]:
    try:
        yield
    except _REFUSED as error:
        raise StoreMisconfigured(str(error) or type(error).__name__) from error
    except Exception as error:  # Dramatiq and its drivers have several unrelated trees of errors
        raise StoreUnavailable(f"the queue is unavailable: {type(error.__cause__ or error).__name__}") from error
