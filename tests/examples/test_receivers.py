"""The receivers of examples/, each against real webhooks of our own sender."""

import json
import sqlite3
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import requests

from orchestrator.delivery.signing import signature_headers
from tests.payload_page import payloads
from tests.support.programs import Program, program
from tests.support.redis_server import free_port
from tests.support.server import Server, email
from tests.support.sink import deliver
from tests.support.surroundings import ROOT, clean_environment

EXAMPLES = ROOT / "examples"
WHOLE = payloads()["mime"]
SECRET, OLD_SECRET, OTHER = ("whsec_" + letter * 32 for letter in "ABC")


def command(name: str, port: int) -> list[str]:
    """As its README starts it."""
    if name == "python":
        return [sys.executable, str(EXAMPLES / "receiver-python" / "receiver.py")]
    if name == "node":
        return [program("node", "nodejs"), str(EXAMPLES / "receiver-node" / "receiver.mjs")]
    script = str(EXAMPLES / "receiver-php" / "receiver.php")
    return [program("php", "php-cli"), "-d", "post_max_size=50M", "-S", f"127.0.0.1:{port}", script]


class Receiver(Program):
    """It keeps the webhooks that it accepted in ``folder``."""

    def __init__(self, name: str, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/hooks/mail"
        settings = {"PORT": str(self.port), "WEBHOOK_SECRET": f"{OLD_SECRET},{SECRET}"}
        super().__init__(command(name, self.port), folder, folder / "receiver.log", clean_environment(**settings))

    def taken(self) -> list[str]:
        """The subject of each that had an effect."""
        if (self.folder / "taken.db").exists():
            with sqlite3.connect(self.folder / "taken.db") as db:
                return sorted(subject for (subject,) in db.execute("SELECT subject FROM taken"))
        bodies = [path.read_bytes() for path in (self.folder / "taken").glob("*")]
        return sorted(json.loads(body)["subject"] for body in bodies)


@pytest.fixture(scope="module", params=["python", "node", "php"])
def process(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    with Receiver(request.param, tmp_path_factory.mktemp(request.param)) as receiver:
        yield receiver


@pytest.fixture
def receiver(process: Receiver) -> Receiver:
    """As if it had just been started: it remembers by files alone."""
    for path in (process.folder / "taken").glob("*"):
        path.unlink()
    if (process.folder / "taken.db").exists():
        with sqlite3.connect(process.folder / "taken.db") as db:
            db.execute("DELETE FROM taken")
    return process


def send(receiver: Receiver, *secrets: str, webhook_id: str = "msg_1", subject: str = "Lot 1", body: str = "") -> int:
    return deliver(receiver.url, {**WHOLE, "subject": subject, "body": body}, *secrets, webhook_id=webhook_id)


def post(receiver: Receiver, headers: dict[str, str], body: bytes = b'{"subject": "forged"}') -> int:
    content = {"Content-Type": "application/json"}
    return requests.post(receiver.url, data=body, headers=headers | content, timeout=60).status_code


def signed(moment: datetime, body: bytes = b'{"subject": "forged"}', webhook_id: str = "msg_1") -> dict[str, str]:
    return {"webhook-id": webhook_id, **signature_headers((SECRET,), webhook_id, moment, body.decode())}


def test_a_webhook_is_taken_once_and_its_repeat_answered_200(receiver: Receiver) -> None:
    assert [send(receiver, SECRET) for _ in range(3)] == [200] * 3
    assert send(receiver, SECRET, webhook_id="msg_2", subject="Lot 2 é") == 200
    assert receiver.taken() == ["Lot 1", "Lot 2 é"]


def test_of_many_at_once_one_is_taken(receiver: Receiver) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: send(receiver, SECRET), range(16)))
    assert answers == [200] * 16
    assert receiver.taken() == ["Lot 1"]


def test_while_secrets_are_changed_the_old_and_the_new_one_are_good(receiver: Receiver) -> None:
    assert send(receiver, OLD_SECRET, webhook_id="msg_1") == 200
    assert send(receiver, OTHER, SECRET, webhook_id="msg_2") == 200
    assert len(receiver.taken()) == 2


def test_a_wrong_or_missing_signature_is_refused(receiver: Receiver) -> None:
    assert send(receiver, OTHER) == 401
    assert send(receiver) == 401
    now = datetime.now(UTC)
    good = signed(now)
    for changes in (
        {"webhook-id": "msg_2"},
        {"webhook-timestamp": str(int(now.timestamp()) + 1)},
        {"webhook-timestamp": "now"},
        {"webhook-timestamp": "1e9"},
        {"webhook-signature": ""},
        {"webhook-signature": "v1"},
        {"webhook-signature": "v1,"},
        {"webhook-signature": "v1,%%%"},
        {"webhook-signature": good["webhook-signature"].replace("v1,", "v1a,")},
        {"webhook-signature": good["webhook-signature"].replace("v1,", "")},
    ):
        assert post(receiver, good | changes) == 401, changes
    assert post(receiver, good, b'{"subject": "changed"}') == 401
    assert receiver.taken() == []


def test_other_versions_beside_ours_are_passed_over(receiver: Receiver) -> None:
    headers = signed(datetime.now(UTC))
    headers["webhook-signature"] = f"v1a,bm90IG91cnM= {headers['webhook-signature']} v9,AAAA"
    assert post(receiver, headers) == 200


def test_an_old_timestamp_and_one_ahead_are_refused(receiver: Receiver) -> None:
    for minutes in (-6, 6):
        assert post(receiver, signed(datetime.now(UTC) + timedelta(minutes=minutes))) == 401
    assert receiver.taken() == []
    assert post(receiver, signed(datetime.now(UTC) - timedelta(minutes=3))) == 200


def test_a_webhook_id_is_no_path(receiver: Receiver) -> None:
    evil = "../../evil/../\\x"
    assert post(receiver, signed(datetime.now(UTC), webhook_id=evil)) == 200
    assert receiver.taken() == ["forged"]
    assert not list(receiver.folder.parent.glob("evil*"))


def test_a_large_webhook_is_taken(receiver: Receiver) -> None:
    assert send(receiver, SECRET, body="x" * 20_000_000) == 200


@pytest.mark.parametrize("name", ["python", "node", "php"])
def test_what_was_taken_is_known_after_a_restart(name: str, tmp_path: Path) -> None:
    for _ in range(2):
        with Receiver(name, tmp_path) as receiver:
            assert send(receiver, SECRET) == 200
    assert receiver.taken() == ["Lot 1"]


def test_an_email_goes_all_the_way(receiver: Receiver) -> None:
    with Server(receiver.folder / "data", WEBHOOK_URL=receiver.url, WEBHOOK_SECRET=SECRET) as server:
        statuses = [server.post(email(subject="All the way")).json()["status"] for _ in range(2)]
    assert statuses == ["processed", "already_processed"]
    assert receiver.taken() == ["All the way"]
