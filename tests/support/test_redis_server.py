"""Ports that a server can be started on, however many tests run at the same time."""

from __future__ import annotations

import socket
import subprocess
import sys

from tests.support.redis_server import PORTS, free_port
from tests.support.surroundings import clean_environment

ASK = "from tests.support.redis_server import free_port; print(*[free_port() for _ in range(50)], flush=True); input()"


def test_a_port_given_to_one_process_is_given_to_no_other() -> None:
    asking = [
        subprocess.Popen(
            [sys.executable, "-c", ASK], env=clean_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(3)
    ]
    given = [{free_port() for _ in range(50)}]
    for each in asking:
        assert each.stdout is not None
        given.append(set(map(int, each.stdout.readline().split())))
    for each in asking:
        each.communicate(b"\n", timeout=60)
    assert len(set.union(*given)) == 4 * 50


def test_no_connection_is_given_one_by_the_system() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        for end in (server, client):
            assert end.getsockname()[1] not in range(PORTS.start, PORTS.stop + 10_000)


def test_one_that_somebody_listens_on_is_left_out() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port + 1)):
        assert free_port() != port + 1
