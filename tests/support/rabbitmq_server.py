"""A real RabbitMQ for make faults: Debian's rabbitmq-server, in a folder and on ports of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pika

from tests.support.redis_server import free_port


class RabbitmqServer:
    """Kill and start again keeps the folder and the port."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mailonce-rabbitmq-", ignore_cleanup_errors=True)
        self.port = free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"
        self.process: subprocess.Popen[bytes] | None = None
        folder = Path(self._folder.name)
        self._env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "RABBITMQ_NODENAME": f"mailonce{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "ERL_EPMD_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
        }

    @staticmethod
    def is_installed() -> bool:
        return _binary() is not None

    def start(self) -> RabbitmqServer:
        binary = _binary()
        assert binary is not None, "rabbitmq-server is not installed"
        with (Path(self._folder.name) / "server.log").open("ab") as log:
            self.process = subprocess.Popen([binary], env=self._env, stdout=log, stderr=subprocess.STDOUT)
        self._wait_until_up()
        return self

    def stop(self) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait(timeout=60)
            self.process = None
        subprocess.run(["epmd", "-kill"], env=self._env, capture_output=True, check=False)
        self._folder.cleanup()

    def _wait_until_up(self, within_s: float = 60) -> None:
        deadline = time.monotonic() + within_s
        while True:
            try:
                pika.BlockingConnection(pika.URLParameters(self.url)).close()
                return
            except pika.exceptions.AMQPError:
                assert self.process is not None
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)


def _binary() -> str | None:
    """The wrapper in /usr/sbin insists on the user rabbitmq; the script itself does not."""
    found = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    return str(found) if found.exists() else shutil.which("rabbitmq-server")
