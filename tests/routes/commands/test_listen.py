"""mailonce listen, as a destination of our own sender and of whoever else posts to it: a real process each time."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from click.testing import CliRunner

import routes.commands.listen as listen
from orchestrator.delivery.http import HttpDestination, HttpOptions
from orchestrator.delivery.signing import Signer, new_secret
from orchestrator.delivery.webhook import DeliveryFailed, Webhook
from routes.command_line import main
from routes.commands.signatures import Proof, check_signature
from tests.support.programs_loaded import MAILONCE
from tests.support.server import Server, email
from tests.support.surroundings import clean_environment

SECRET, OTHER = "whsec_" + "A" * 32, "whsec_" + "B" * 32
NOW = datetime(2026, 11, 16, 9, 0, tzinfo=UTC)

Eventually = Callable[[Callable[[], bool]], None]


@dataclass
class Listener:
    process: subprocess.Popen[str]
    url: str
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def interrupt(self) -> tuple[int, str]:
        """How it ended by Ctrl+C, and what it said then."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.stderr
        said = self.process.stderr.read()
        return self.process.wait(60), said


@contextmanager
def listening(folder: Path, *options: str, **settings: str) -> Iterator[Listener]:
    process = subprocess.Popen(
        [MAILONCE, "listen", "--port", "0", *options],
        cwd=folder,
        env=clean_environment(**settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stderr
    first = process.stderr.readline()
    found = re.search(r"http://\S+/", first)
    assert found, first + process.stderr.read()
    listener = Listener(process, found[0])
    reader = threading.Thread(target=lambda: listener.lines.extend(process.stdout))  # type: ignore[arg-type]
    reader.start()
    try:
        yield listener
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()
        process.stderr.close()


def deliver(url: str, secrets: tuple[str, ...], webhook_id: str = "msg_1", **payload: Any) -> int | None:
    """By our own sender; what was answered."""
    destination = HttpDestination("here", HttpOptions(f"{url}hook", secrets), pool_size=1)
    try:
        return destination.deliver(Webhook(webhook_id, {"subject": "Lot 1", **payload}), 30).status_code
    except DeliveryFailed as error:
        return error.status_code


def test_a_webhook_is_shown_checked_and_counted(tmp_path: Path, eventually: Eventually) -> None:
    with listening(tmp_path, "--secret", OTHER, "--secret", SECRET) as listener:
        assert [deliver(listener.url, (SECRET,)) for _ in range(3)] == [200, 200, 200]
        eventually(lambda: listener.text.count("Lot 1") == 3)
        assert listener.text.count("signature good: by secret 2 of 2") == 3
        assert re.findall(r"again: (\w+) time", listener.text) == ["2nd", "3rd"]
        code, said = listener.interrupt()
    assert (code, said.strip()) == (0, "3 webhooks, 2 again, 0 refused")


def test_a_missing_or_wrong_signature_is_refused_and_explained(tmp_path: Path, eventually: Eventually) -> None:
    with listening(tmp_path, "--secret", SECRET) as listener:
        assert deliver(listener.url, ()) == 401
        assert deliver(listener.url, (OTHER,)) == 401
        assert deliver(listener.url, (SECRET,)) == 200, "a forged one before it makes it no repeat"
        eventually(lambda: listener.text.count("Lot 1") == 3)
    assert "signature missing: no webhook-timestamp and no webhook-signature" in listener.text
    assert "signature wrong: the secret does not match" in listener.text
    assert "again" not in listener.text


def test_in_json_each_webhook_is_a_line(tmp_path: Path, eventually: Eventually) -> None:
    with listening(tmp_path, "--json", "--status", "503") as listener:
        assert deliver(listener.url, (SECRET,), body="a\nb") == 503
        assert requests.post(listener.url, data=b"no\x1b[2J json", timeout=30).status_code == 503
        eventually(lambda: len(listener.lines) == 2)
    webhook, other = map(json.loads, listener.lines)
    assert (webhook["webhook_id"], webhook["times"], webhook["status"]) == ("msg_1", 1, 503)
    assert (webhook["signature"], webhook["path"]) == ("unchecked", "/hook")
    assert webhook["payload"] == {"subject": "Lot 1", "body": "a\nb"}
    assert webhook["headers"]["content-type"] == "application/json"
    assert (other["payload"], other["body"], other["webhook_id"]) == (None, "no\x1b[2J json", None)
    assert "\x1b" not in listener.text


def test_the_secrets_of_the_service_are_taken_by_default(tmp_path: Path) -> None:
    (tmp_path / "mailonce.toml").write_text(
        f"[destinations.crm]\nurl = 'https://crm.example/'\nsecret = ['{OTHER}', '{SECRET}']\n"
        "[[routes]]\nname = 'all'\n"
    )
    with listening(tmp_path) as listener:
        assert deliver(listener.url, (SECRET,)) == 200
        assert deliver(listener.url, ()) == 401
    (tmp_path / "mailonce.toml").unlink()
    with listening(tmp_path, WEBHOOK_SECRET=SECRET, WEBHOOK_URL="https://crm.example/") as listener:
        assert deliver(listener.url, (OTHER,)) == 401


def test_what_a_sender_chose_does_not_reach_the_terminal(tmp_path: Path, eventually: Eventually) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202egnp.exe"
    with listening(tmp_path) as listener:
        headers = {"webhook-id": "\x9b2J\xe9", "Content-Type": "application/json"}
        body = json.dumps({"subject": evil, evil: "x", "nested": {"a": [evil]}, "type": evil}, ensure_ascii=False)
        assert requests.post(f"{listener.url}%1b[2J%0d", data=body.encode(), headers=headers, timeout=30).ok
        assert requests.post(listener.url, data=evil.encode(), timeout=30).ok
        assert requests.post(listener.url, data=b"[" * 100_000, timeout=30).ok
        assert requests.post(listener.url, data=b"\xff\x00", timeout=30).ok
        eventually(lambda: listener.text.count("answered 200") == 4)
    assert [each for each in listener.text if not each.isprintable() and each != "\n"] == []


def test_other_requests_are_told_what_it_takes(tmp_path: Path) -> None:
    with listening(tmp_path) as listener:
        assert requests.get(listener.url, timeout=30).status_code == 405


def test_two_listeners_do_not_share_a_port(tmp_path: Path) -> None:
    with listening(tmp_path) as listener:
        port = listener.url.rsplit(":", 1)[1].strip("/")
        refused = subprocess.run([MAILONCE, "listen", "--port", port], cwd=tmp_path, capture_output=True, timeout=60)
    assert refused.returncode == 1
    assert b"Traceback" not in refused.stderr


def test_a_reader_that_leaves_ends_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [MAILONCE, "listen", "--port", "0", "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr
        assert process.stdout
        url = re.findall(r"http://\S+/", process.stderr.readline())[0]
        process.stdout.close()
        with suppress(requests.RequestException):  # it may end before it has answered
            requests.post(url, data=b"{}", timeout=30)
        assert process.wait(60) == 1
        assert "Traceback" not in process.stderr.read()


def test_send_test_arrives_signed_and_fails_where_it_is_refused(tmp_path: Path, eventually: Eventually) -> None:
    with listening(tmp_path, "--secret", SECRET) as listener:
        where = {"WEBHOOK_URL": listener.url, "DATA_DIR": str(tmp_path / "data")}
        for secret, code, said in ((SECRET, 0, "default accepted it: answered 200"), (OTHER, 1, "answered 401")):
            settings = where | {"WEBHOOK_SECRET": secret}
            with Server(tmp_path / "data", **settings):
                sent = subprocess.run(
                    [MAILONCE, "send-test", "default"],
                    cwd=tmp_path / "data",
                    env=clean_environment(**settings),
                    capture_output=True,
                    text=True,
                    timeout=60,
                )
            assert (sent.returncode, said in sent.stdout) == (code, True), sent
        eventually(lambda: listener.text.count("mailonce.test") >= 2)


def test_send_test_names_the_destinations_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    with Server(tmp_path) as server:
        assert server.post(email()).ok
        shown = CliRunner().invoke(main, ["send-test", "nowhere"])
        printed = CliRunner().invoke(main, ["send-test", "default", "--json"])
    assert shown.exit_code == 1
    assert "destination must be one of default" in shown.output
    told = json.loads(printed.stdout.splitlines()[-1])
    assert (told["taken"], told["status_code"]) == (True, None)


# Signatures


def signed(*secrets: str, moment: datetime = NOW, body: str = "{}") -> dict[str, str]:
    return {"webhook-id": "msg_1", **Signer(secrets).headers("msg_1", moment, body)}


def test_a_good_signature_is_good_whatever_stands_beside_it() -> None:
    headers = signed(OTHER, SECRET)
    headers["webhook-signature"] = f"v1a,bm90IG91cnM= v2 {headers['webhook-signature']} junk"
    assert check_signature((SECRET,), headers, b"{}", NOW).proof is Proof.GOOD


def test_one_that_a_private_key_signed_is_checked_with_that_key() -> None:
    private, other = new_secret(is_private=True), new_secret(is_private=True)
    assert check_signature((SECRET, private), signed(private), b"{}", NOW).proof is Proof.GOOD
    assert check_signature((other,), signed(private), b"{}", NOW).proof is Proof.WRONG


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"webhook-id": "msg_2"}, "does not match"),
        ({"webhook-signature": "v1a,AAAA"}, "none of version v1"),
        ({"webhook-signature": "v1,\xe9"}, "does not match"),
        ({"webhook-timestamp": "yesterday"}, "seconds since 1970"),
        ({"webhook-timestamp": "9" * 5000}, "seconds since 1970"),
        ({"webhook-timestamp": "\u0661"}, "seconds since 1970"),
        ({"webhook-timestamp": str(int(NOW.timestamp()) + 1)}, "does not match"),
    ],
)
def test_a_wrong_signature_says_why(changes: dict[str, str], why: str) -> None:
    checked = check_signature((SECRET,), signed(SECRET) | changes, b"{}", NOW)
    assert checked.proof is Proof.WRONG
    assert why in checked.why


def test_a_signature_is_good_for_five_minutes_either_way() -> None:
    for seconds, proof in ((-300, Proof.GOOD), (300, Proof.GOOD), (-301, Proof.WRONG), (301, Proof.WRONG)):
        headers = signed(SECRET, moment=NOW + timedelta(seconds=seconds))
        assert check_signature((SECRET,), headers, b"{}", NOW).proof is proof


def test_a_changed_body_is_refused() -> None:
    assert check_signature((SECRET,), signed(SECRET), b"{ }", NOW).proof is Proof.WRONG
    assert check_signature((SECRET,), signed(SECRET), b"\xff", NOW).proof is Proof.WRONG


def test_only_the_last_ids_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "MOST_IDS", 2)
    receiver = listen.Receiver((), 200, lambda _taken: None)
    assert [receiver._count(each) for each in ("a", "b", "a", "c", "b", "a")] == [1, 1, 2, 1, 1, 1]
