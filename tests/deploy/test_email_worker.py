"""The Email Worker of deploy/cloudflare, run by node with stand-ins for Cloudflare's objects."""

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

from tests.support.programs import program
from tests.support.redis_server import free_port
from tests.support.server import INGRESS_TOKEN, Server
from tests.support.sink import Reply, Sink
from tests.support.surroundings import ROOT

EMAIL = (
    b"From: Ada <ada@example.org>\r\nTo: somebody@example.com\r\nSubject: By a worker\r\n"
    b"Date: Mon, 16 Nov 2026 09:00:00 +0000\r\nMessage-ID: <w1@example.org>\r\n\r\nHello \xff\r\n"
)
ACCEPTED = {"rejected": None, "thrown": None}


def message(raw: bytes = EMAIL, sender: str = "bounce@mail.example.org", to: str = "sales@ours.example") -> str:
    return json.dumps({"from": sender, "to": to, "raw": base64.b64encode(raw).decode()})


def work(url: str, *messages: str, token: str = INGRESS_TOKEN) -> list[dict[str, Any]]:
    """What happened to each message: rejected with a reason, or thrown with an error, or neither."""
    files = [str(ROOT / path) for path in ("tests/deploy/email_worker.mjs", "deploy/cloudflare/worker.js")]
    command = [program("node", "nodejs"), *files, url, token]
    ran = subprocess.run(command, input="\n".join(messages), capture_output=True, text=True, timeout=120, check=True)
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_an_email_by_the_worker_is_delivered_once_with_its_envelope(tmp_path: Path) -> None:
    with Sink() as sink, Server(tmp_path / "data", WEBHOOK_URL=sink.url, MAX_BODY_MB="1") as server:
        notice = message(EMAIL.replace(b"w1@", b"w2@").replace(b"worker", b"program"), "", "jürgen@ours.example")
        assert work(f"{server.url}/", message(), message(), notice) == [ACCEPTED] * 3
        first, second = (webhook.payload for webhook in sink.received)
        assert (first["subject"], first["delivered_to"]) == ("By a worker", ["sales@ours.example"])
        assert (first["return_path"], first["envelope_recipient"]) == ("bounce@mail.example.org", "sales@ours.example")
        assert (second["delivered_to"], second["return_path"]) == (["jürgen@ours.example"], "")
        no_email, too_large = work(server.url, message(b"nothing"), message(EMAIL + b"x" * 2**20))
        assert (no_email["rejected"], no_email["thrown"]) == ("The message cannot be accepted (400)", None)
        assert (too_large["rejected"], too_large["thrown"]) == ("The message cannot be accepted (413)", None)
        (refused,) = work(server.url, message(), token="wrong-token-of-tests")
        assert refused == {"rejected": None, "thrown": "Mailonce answered 401"}, "our mistake bounces no email"
    (away,) = work(f"http://127.0.0.1:{free_port()}", message())
    assert away["thrown"] and not away["rejected"]


def test_the_sending_server_gets_what_mailonce_answers() -> None:
    rejected, thrown = (400, 413, 415, 422), (201, 302, 401, 403, 404, 408, 429, 500, 502, 503, 504)
    statuses = (*rejected, *thrown)
    with Sink(*(Reply(status, headers={"Location": "/elsewhere"}) for status in statuses)) as sink:
        outcomes = work(sink.url.rstrip("/"), *[message(b"{}")] * len(statuses))
        assert len(sink.received) == len(statuses), "redirects are not followed"
    assert [status for status, each in zip(statuses, outcomes, strict=True) if each["rejected"]] == list(rejected)
    assert [status for status, each in zip(statuses, outcomes, strict=True) if each["thrown"]] == list(thrown)
