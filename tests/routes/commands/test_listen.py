"""mailonce listen and mailonce send-test: a real process for what a terminal shows, the receiver alone for the rest."""

import json
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import PIPE

import pytest
import requests

from orchestrator.delivery.signing import new_secret, signature_headers
from routes.commands.listen import check_signature
from tests.routes.conftest import Run, StartApp
from tests.support.programs_loaded import MAILONCE
from tests.support.sink import deliver
from tests.support.surroundings import clean_environment
from tests.support.waiting import wait_for

SECRET, OTHER = "whsec_" + "A" * 32, "whsec_" + "B" * 32
LOT = {"subject": "Lot 1"}
NOW = datetime(2026, 11, 16, 9, 0, tzinfo=UTC)
HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202egnp.exe"


@dataclass
class Listener:
    process: subprocess.Popen[str]
    url: str
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.lines)


@contextmanager
def listening(*options: str, **settings: str) -> Iterator[Listener]:
    command = [MAILONCE, "listen", "--port", "0", *options]
    with subprocess.Popen(command, env=clean_environment(**settings), stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stdout and process.stderr
        found = re.search(r"http://\S+/", first := process.stderr.readline())
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


def test_webhooks_are_shown_checked_and_counted() -> None:
    with listening("--secret", OTHER, "--secret", SECRET) as listener:
        assert deliver(listener.url, LOT) == 401
        assert deliver(listener.url, LOT, new_secret(is_private=False)) == 401
        assert [deliver(listener.url, LOT, SECRET) for _ in range(3)] == [200, 200, 200]
        wait_for(lambda: listener.text.count("Lot 1") == 5)
        assert "signature missing: no webhook-timestamp and no webhook-signature" in listener.text
        assert "signature wrong: no signature matches a secret (2 tried)" in listener.text
        assert listener.text.count("signature good: by secret 2 of 2") == 3
        assert re.findall(r"received (\d) times", listener.text) == ["2", "3"], "a forged one makes it no repeat"
        refused = subprocess.run(
            [MAILONCE, "listen", "--port", listener.url.split(":")[2].strip("/")], capture_output=True
        )
        assert refused.returncode == 1 and b"Traceback" not in refused.stderr, "the port is in use"
        listener.process.send_signal(signal.SIGINT)
        assert listener.process.stderr
        assert listener.process.stderr.read().strip() == "5 webhooks, 2 repeats, 2 refused"
        assert listener.process.wait(60) == 0


def test_no_sender_can_control_the_terminal() -> None:
    with listening() as listener:
        headers = {"webhook-id": "\x9b2J\xe9", "Content-Type": "application/json"}
        fields = json.dumps({"subject": HOSTILE, HOSTILE: "x", "nested": {"a": [HOSTILE]}, "type": HOSTILE})
        for body in (fields.encode(), HOSTILE.encode(), b"[" * 100_000, b"\xff\x00", json.dumps([HOSTILE]).encode()):
            assert requests.post(f"{listener.url}%1b[2J%0d", data=body, headers=headers, timeout=30).ok
        wait_for(lambda: listener.text.count("answered 200") == 5)
    assert [char for char in listener.text if not char.isprintable() and char != "\n"] == []


def test_as_json_each_webhook_is_a_line() -> None:
    with listening("--json", "--status", "503") as listener:
        assert deliver(listener.url, LOT, SECRET) == 503
        assert requests.post(listener.url, data=b"no\x1b[2J json", timeout=30).status_code == 503
        wait_for(lambda: len(listener.lines) == 2)
    webhook, other = map(json.loads, listener.lines)
    assert (webhook["webhook_id"], webhook["times"], webhook["status"]) == ("msg_1", 1, 503)
    assert (webhook["signature"], webhook["path"]) == ("unchecked", "/")
    assert webhook["payload"] == LOT
    assert webhook["headers"]["content-type"] == "application/json"
    assert (other["payload"], other["body"], other["webhook_id"]) == (None, "no\x1b[2J json", None)


@pytest.mark.parametrize("is_in_file", [True, False])
def test_the_secrets_of_the_service_are_the_default(is_in_file: bool) -> None:
    settings = {"WEBHOOK_SECRET": f"{OTHER},{SECRET}", "WEBHOOK_URL": "https://crm.example/"}
    if is_in_file:
        settings = {}
        Path("mailonce.toml").write_text(
            f"[destinations.crm]\nurl = 'https://crm.example/'\nsecret = ['{OTHER}', '{SECRET}']\n"
        )
    with listening(**settings) as listener:
        assert [deliver(listener.url, LOT, *given) for given in ((SECRET,), ())] == [200, 401]


# Signatures


def signed(*secrets: str, moment: datetime = NOW) -> dict[str, str]:
    return {"webhook-id": "msg_1", **signature_headers(secrets, "msg_1", moment, "{}")}


PRIVATE = new_secret(is_private=True)


@pytest.mark.parametrize(
    ("secrets", "headers", "body", "proof", "why"),
    [
        ((SECRET,), signed(SECRET), b"{}", "good", ""),
        ((SECRET,), signed(OTHER, SECRET), b"{}", "good", ""),
        ((SECRET, PRIVATE), signed(PRIVATE), b"{}", "good", "by secret 2 of 2"),
        ((), signed(SECRET), b"{}", "unchecked", ""),
        ((SECRET,), {}, b"{}", "missing", "no webhook-id and no webhook-timestamp"),
        ((SECRET,), signed(SECRET), b"{ }", "wrong", "no signature matches"),
        ((SECRET,), signed(SECRET), b"\xff", "wrong", "no signature matches"),
        ((SECRET,), signed(SECRET) | {"webhook-id": "msg_2"}, b"{}", "wrong", "no signature matches"),
        ((SECRET,), signed(SECRET) | {"webhook-signature": "v1,\xe9 v2"}, b"{}", "wrong", "no signature matches"),
        ((SECRET,), signed(SECRET) | {"webhook-timestamp": "yesterday"}, b"{}", "wrong", "seconds since 1970"),
        ((SECRET,), signed(SECRET) | {"webhook-timestamp": "\u0661"}, b"{}", "wrong", "seconds since 1970"),
        ((SECRET,), signed(SECRET, moment=NOW - timedelta(seconds=300)), b"{}", "good", ""),
        ((SECRET,), signed(SECRET, moment=NOW - timedelta(seconds=301)), b"{}", "wrong", "301 s old"),
        ((SECRET,), signed(SECRET, moment=NOW + timedelta(seconds=301)), b"{}", "wrong", "301 s ahead"),
    ],
)
def test_a_signature_is_checked_and_the_result_explained(
    secrets: tuple[str, ...], headers: dict[str, str], body: bytes, proof: str, why: str
) -> None:
    found, reason = check_signature(secrets, headers, body, NOW)
    assert found == proof and why in reason


# A test event


def test_send_test_arrives_signed_and_fails_if_it_is_refused(
    run: Run, start_app: StartApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening("--secret", SECRET) as listener:
        monkeypatch.setenv("WEBHOOK_URL", listener.url)
        start_app(webhook_url=listener.url)
        for secret, code, shown in ((SECRET, 0, ": answered 200"), (OTHER, 1, "answered 401")):
            monkeypatch.setenv("WEBHOOK_SECRET", secret)
            sent = run("send-test", "default")
            assert (sent.exit_code, shown in sent.stdout) == (code, True), sent.output
        wait_for(lambda: listener.text.count("mailonce.test") >= 2)
        assert json.loads(run("send-test", "default", "--json").stdout)["taken"] is False
