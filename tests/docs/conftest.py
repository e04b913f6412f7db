"""The service that the pages speak of: in a folder of its own, with the providers of docs/providers.md."""

import mailbox
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.docs.pages import Block, all_blocks, commands
from tests.support import programs_loaded
from tests.support.curl import read_curl
from tests.support.server import Server
from tests.support.surroundings import clean_environment, output_of

ADDRESS = "http://127.0.0.1:8000"
INBOX = (
    ("Lot 456 - Documents", "bob@example.org", "Mon, 02 Nov 2026 09:00:00 +0000"),
    ("Lot 456, once more", "carla@example.org", "Tue, 03 Nov 2026 10:30:00 +0000"),
)
LETTER = b"From: Ada <ada@example.org>\r\nDate: Mon, 16 Nov 2026 09:00:00 +0000\r\nSubject: Hello\r\n\r\nHello\r\n"


def values_of(toml: str) -> dict[str, str]:
    """One for each env:NAME, of the kind that its name asks for."""
    return {name: _value(name) for name in re.findall(r'"env:(\w+)"', toml)}


def _value(name: str) -> str:
    if name.endswith("VERIFICATION_KEY"):
        key = ec.generate_private_key(ec.SECP256R1()).public_key()
        return "".join(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode().split("\n")[1:-2])
    return "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" if name.endswith("SECRET") else f"the-{name.lower()}-of-the-docs"


@dataclass
class Service:
    server: Server
    folder: Path
    answers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """To each curl line that sends something in: the first time, and again."""

    def run(self, words: tuple[str, ...]) -> str:
        """As a user in its folder does, with nothing of ours on PATH."""
        if words[0] == ".venv/bin/mailonce":
            command, env = [programs_loaded.MAILONCE, *words[1:]], clean_environment(LOG_LEVEL="ERROR")
            ran = programs_loaded.run(command, self.folder, env)
            assert ran.returncode == 0, ran.stdout
            return ran.stdout
        return output_of(words, self.folder, {"PATH": "/usr/bin:/bin"})

    def listen(self, words: tuple[str, ...]) -> str:
        """Its first line. On another port: the default one may be in use."""
        command = [*words, "--port", "0"]
        with subprocess.Popen(command, cwd=self.folder, stderr=subprocess.PIPE, text=True) as listening:
            assert listening.stderr
            line = next(line for line in listening.stderr if line.startswith("mailonce listens on http://127.0.0.1:"))
            listening.terminate()
        return line

    def send(self, curl: str) -> tuple[int, Any]:
        answer = read_curl(curl.replace(ADDRESS, self.server.url), self.folder).send()
        is_json = answer.headers["Content-Type"].startswith("application/json")
        return answer.status_code, answer.json() if is_json else answer.text


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "letter.eml").write_bytes(LETTER)
    box = mailbox.mbox(folder / "inbox.mbox")
    for subject, sender, date in INBOX:
        box.add(f"From: {sender}\r\nDate: {date}\r\nSubject: {subject}\r\n\r\nHello\r\n".encode())
    box.close()
    toml = "\n".join(block.text for block in all_blocks("toml") if _opens_a_provider(block))
    (folder / "mailonce.toml").write_text(toml)
    server = Server(folder / "data", INGRESS_TOKEN="", ADMIN_TOKEN="")
    server.folder = folder
    settings = values_of(toml) | {"PORT": str(server.port)}
    (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    with server:
        started = Service(server, folder)
        for block in all_blocks("sh"):
            if block.page in ("README.md", "docs/first-steps.md"):
                for command in commands(block.text):
                    if "/api/ingress/" in command.text and command.program == "curl":
                        started.answers.setdefault(command.text, [started.send(command.text)[1] for _ in range(2)])
        yield started


def _opens_a_provider(block: Block) -> bool:
    return block.page == "docs/providers.md" and block.text.startswith("[providers.")
