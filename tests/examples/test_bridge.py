"""examples/bridge: what Slack and Zammad get of a webhook."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from orchestrator.item import email_item
from routes.providers import gmail
from tests.support.programs import Program
from tests.support.redis_server import free_port
from tests.support.server import email
from tests.support.sink import Reply, Sink, deliver
from tests.support.surroundings import ROOT, clean_environment

SECRET = "whsec_" + "A" * 32
REPLY: dict[str, Any] = {
    "subject": "Re: <Lot> & more",
    "message_id": "<2@example.org>",
    "references": "<1@example.org>",
    "in_reply_to": "<1@example.org>",
    "to": ["desk@ours.example", "sales@ours.example"],
    "plain": "Bonjour",
    "attachments": [{"name": "a.txt", "content_type": "text/plain", "content": "QQ=="}],
}


class Bridge(Program):
    def __init__(self, folder: Path, there: Sink) -> None:
        self.port = free_port()
        base = there.url.removesuffix("/hook")
        settings = {"SLACK_URL": f"{base}/services/T1", "ZAMMAD_URL": f"{base}/", "ZAMMAD_TOKEN": "z1"}
        env = clean_environment(PORT=str(self.port), WEBHOOK_SECRET=SECRET, **settings)
        super().__init__([sys.executable, str(ROOT / "examples/bridge/bridge.py")], folder, folder / "log", env)

    def deliver(self, target: str, webhook_id: str = "msg_1", secret: str = SECRET, **fields: Any) -> int:
        payload = email_item(gmail.parse(email(**fields), inline_bytes=100), None).payload(())
        return deliver(f"http://127.0.0.1:{self.port}/{target}", payload, secret, webhook_id=webhook_id)


@pytest.fixture
def there() -> Iterator[Sink]:
    with Sink(otherwise=Reply(201, body=json.dumps({"id": 7}).encode())) as sink:
        yield sink


@pytest.fixture
def bridge(tmp_path: Path, there: Sink) -> Iterator[Bridge]:
    with Bridge(tmp_path, there) as running:
        yield running


def test_slack_gets_a_message_once_and_again_if_it_did_not_accept_it(bridge: Bridge, there: Sink) -> None:
    for status in (500, 302):
        there.answers["/services/T1"] = Reply(status, headers={"Location": "/elsewhere"})
        assert bridge.deliver("slack", subject="<Lot> & more") == 502
    there.answers.clear()
    assert [bridge.deliver("slack", subject="<Lot> & more") for _ in range(2)] == [200, 200]
    text = "*&lt;Lot&gt; &amp; more*\nFrom Ada Lovelace &lt;Ada@Example.org&gt;\nBonjour"
    assert [each.payload for each in there.received] == [{"text": text}] * 3
    assert bridge.deliver("slack", secret="whsec_" + "B" * 32) == 401
    assert requests.post(f"http://127.0.0.1:{bridge.port}/nowhere", timeout=60).status_code == 404


def test_zammad_gets_one_ticket_for_a_conversation(bridge: Bridge, there: Sink) -> None:
    assert bridge.deliver("zammad", message_id="<1@example.org>") == 200
    assert [bridge.deliver("zammad", "msg_2", **REPLY) for _ in range(2)] == [200, 200]
    ticket, article = there.received
    assert (ticket.path, article.path) == ("/api/v1/tickets", "/api/v1/ticket_articles")
    assert ticket.headers["Authorization"] == "Token token=z1"
    head = {name: ticket.payload[name] for name in ("title", "group", "customer_id")}
    assert head == {"title": "Rapport hebdomadaire", "group": "Users", "customer_id": "guess:ada@example.org"}
    assert ticket.payload["article"].items() >= {"message_id": "<1@example.org>", "sender": "Customer"}.items()
    assert article.payload == {
        "ticket_id": 7,
        "type": "email",
        "sender": "Customer",
        "from": "Ada Lovelace <Ada@Example.org>",
        "to": "desk@ours.example, sales@ours.example",
        "cc": "",
        "reply_to": "",
        "subject": "Re: <Lot> & more",
        "body": "<p>Bonjour</p>",
        "content_type": "text/html",
        "message_id": "<2@example.org>",
        "in_reply_to": "<1@example.org>",
        "attachments": [{"filename": "a.txt", "data": "QQ==", "mime-type": "text/plain"}],
    }
