"""How many messages are still to be handled. tests/routes/test_queue.py and make faults show what happens to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.delivery.dramatiq_queue import DramatiqQueue
from orchestrator.delivery.queue import QueueUnavailable
from tests.support.rabbitmq_server import RabbitmqServer
from tests.support.redis_server import RedisServer, free_port


@pytest.fixture
def rabbitmq() -> Iterator[RabbitmqServer]:
    if not RabbitmqServer.is_installed():
        pytest.skip("rabbitmq-server is not installed; apt-get install rabbitmq-server brings it")
    server = RabbitmqServer()
    try:
        yield server.start()
    finally:
        server.stop()


def fill(queue: DramatiqQueue) -> list[int]:
    """The depths for two destinations, before and after three messages for one of them."""
    before = [queue.depth(name) for name in ("crm", "archive")]
    for _ in range(3):
        queue.put("crm")
    return before + [queue.depth(name) for name in ("crm", "archive")]


@pytest.mark.real_redis
def test_the_depth_of_a_queue_on_redis(redis_server: RedisServer) -> None:
    queue = DramatiqQueue(redis_server.url, 5)
    assert fill(queue) == [0, 0, 3, 0]
    queue.close()


def test_the_depth_of_a_queue_on_rabbitmq(rabbitmq: RabbitmqServer) -> None:
    queue = DramatiqQueue(rabbitmq.url, 5)
    assert fill(queue) == [0, 0, 3, 0]
    queue.close()


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_queue_that_is_away_has_no_depth(scheme: str) -> None:
    queue = DramatiqQueue(f"{scheme}://127.0.0.1:{free_port()}", 0.25)
    with pytest.raises(QueueUnavailable):
        queue.depth("crm")
    queue.close()
