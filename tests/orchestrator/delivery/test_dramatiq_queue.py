"""How many messages wait, and a queue that is away. tests/routes/test_queue.py and make faults show the rest."""

import socket
from collections.abc import Iterator

import pytest

from deduplication.errors import StoreUnavailable
from orchestrator.delivery.dramatiq_queue import DramatiqQueue
from tests.support.rabbitmq_server import RabbitmqServer
from tests.support.redis_server import free_port
from tests.support.waiting import wait_for


@pytest.fixture
def rabbitmq() -> Iterator[RabbitmqServer]:
    if not RabbitmqServer.is_installed():
        pytest.skip("rabbitmq-server is not installed; apt-get install rabbitmq-server brings it")
    with RabbitmqServer() as server:
        yield server


@pytest.mark.real_redis
@pytest.mark.parametrize("kind", ["redis_server", "rabbitmq"])
def test_a_message_wakes_a_worker_of_its_destination(request: pytest.FixtureRequest, kind: str) -> None:
    url = request.getfixturevalue(kind).url
    web, worker = DramatiqQueue(url, 5), DramatiqQueue(url, 5)
    woken: list[str] = []
    assert [web.depth(name) for name in ("crm", "archive")] == [0, 0]
    for _ in range(3):
        web.put("crm")
    assert [web.depth(name) for name in ("crm", "archive")] == [3, 0]
    worker.consume(["archive", "crm"], woken.append)
    web.put("archive")
    wait_for(lambda: sorted(woken) == ["archive", "crm", "crm", "crm"])
    assert [web.depth(name) for name in ("crm", "archive")] == [0, 0]
    for queue in (web, worker):
        queue.close()


@pytest.mark.parametrize(("scheme", "is_listening"), [("redis", False), ("amqp", False), ("amqp", True)])
def test_a_queue_that_is_away_or_silent_is_noticed(scheme: str, is_listening: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if is_listening else free_port()
        queue = DramatiqQueue(f"{scheme}://127.0.0.1:{port}", 0.25)
        for action in (queue.put, queue.depth):
            with pytest.raises(StoreUnavailable):
                action("crm")
        queue.close()
