"""A real RabbitMQ for make faults: Debian's rabbitmq-server, in a folder and on ports of its own."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pika

from tests.support.programs import Program
from tests.support.redis_server import free_port


class RabbitmqServer(Program):
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mailonce-rabbitmq-", ignore_cleanup_errors=True)
        self.port = free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"
        folder = Path(self._folder.name)
        env = {
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
        super().__init__([_binary() or "rabbitmq-server"], folder, folder / "server.log", env)

    @staticmethod
    def is_installed() -> bool:
        return _binary() is not None

    def ask(self) -> None:
        try:
            pika.BlockingConnection(pika.URLParameters(self.url)).close()
        except pika.exceptions.AMQPError as error:
            raise OSError("it does not listen yet") from error

    def stop(self) -> None:
        super().stop()
        subprocess.run(["epmd", "-kill"], env=self.env, capture_output=True, check=False)
        self._folder.cleanup()


def _binary() -> str | None:
    """The wrapper in /usr/sbin insists on the user rabbitmq; the script itself does not."""
    found = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    return str(found) if found.exists() else shutil.which("rabbitmq-server")
