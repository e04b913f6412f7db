"""Every webhook says what it is, and when that happened: the same over all its attempts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deduplication.claims import Kind, Name
from deduplication.journal.entry import Delivery, Entry, State, Stop
from orchestrator.delivery.webhook import pack, stored_event
from tests.routes.conftest import App, StartApp, bearer
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, email
from tests.support.sink import Received, Reply, Sink

Eventually = Callable[[Callable[[], bool]], None]
LOT = "Lot 456 : nouvelle mission"


def told(webhook: Received) -> tuple[str, str]:
    return webhook.payload["type"], webhook.payload["timestamp"]


def act(app: App, path: str) -> Any:
    return app.http.post(f"/api/admin/{path}", json={}, headers=bearer(ADMIN_TOKEN)).get_json()


def test_an_email_is_received_and_every_attempt_says_the_same(app: App, sink: Sink, eventually: Eventually) -> None:
    sink.otherwise = Reply(422)
    answer = app.post(email()).get_json()
    sink.otherwise = Reply()
    act(app, f"deliveries/{answer['id']}:default/replay")
    eventually(lambda: len(sink.accepted) == 1)
    first, second = sink.received
    assert first.webhook_id == second.webhook_id
    assert told(first) == told(second) == ("email.received", first.payload["received_at"])
    assert datetime.fromisoformat(told(first)[1]).tzinfo is UTC


def test_a_message_is_received(app: App, sink: Sink) -> None:
    document = {"source": "tg:news", "id": 1, "text": "Hello"}
    app.http.post("/api/ingress/message", json=document, headers=bearer(INGRESS_TOKEN))
    (webhook,) = sink.received
    assert told(webhook) == ("message.received", webhook.payload["received_at"])


def test_what_a_person_released_says_so_in_every_attempt(app: App, sink: Sink, eventually: Eventually) -> None:
    app.post(email(subject=LOT))
    id_ = app.post(email(subject=f"{LOT} bis")).get_json()["id"]
    sink.otherwise = Reply(422)
    released_at = act(app, f"decisions/{id_}/release")["decision"]["released_at"]
    eventually(lambda: len(sink.received) == 2)
    sink.otherwise = Reply()
    eventually(lambda: act(app, f"deliveries/{id_}:default/replay")["status"] == "replayed")
    eventually(lambda: len(sink.accepted) == 2)
    _, refused, taken = sink.received
    assert told(refused) == told(taken) == ("email.released", f"{released_at[:19]}Z")
    assert taken.payload["subject"] == f"{LOT} bis"


def test_a_form_says_it_too(start_app: StartApp, sink: Sink, tmp_path: Path) -> None:
    file = tmp_path / "mailonce.toml"
    file.write_text(f"[destinations.crm]\nurl = {json.dumps(sink.url)}\nformat = 'form'")
    start_app(mailonce_config=file).post(email())
    assert told(sink.received[0]) == ("email.received", sink.received[0].payload["received_at"])


# What was stored, as it is sent

DELIVERY = Delivery("crm", "msg_1", generation=1)
STOP = Stop(Name(Kind.SUBJECT_GROUP, "2026-11", "lot_456"))
ENTRY = Entry("e1", (), (), "", State.DONE, "", 0, 0, 0, deliveries=(DELIVERY,), stop=STOP, released_ms=1_000)
KEPT = {"type": "email.received", "timestamp": "2026-11-16T09:00:00Z", "subject": "x"}


def sent(kept: dict[str, Any], change: Callable[[Entry], Entry] = lambda entry: entry, generation: int = 1) -> str:
    return str(stored_event(pack(kept), change(ENTRY), replace(DELIVERY, generation=generation))["type"])


def test_only_what_a_person_let_go_is_released() -> None:
    assert sent(KEPT) == "email.released"
    assert sent(KEPT, lambda entry: replace(entry, released_ms=None)) == "email.received"
    assert sent(KEPT, lambda entry: replace(entry, stop=replace(STOP, follows=True))) == "email.received", "by itself"
    assert sent(KEPT, generation=0) == "email.received", "another destination of it was stopped, not this one"
    assert sent(KEPT | {"type": "message.received"}) == "message.received"


@pytest.mark.parametrize(
    ("kept", "event"), [({"email_id": "a"}, "email.received"), ({"message_key": "a"}, "message.received")]
)
def test_what_an_older_version_stored_says_what_it_is(kept: dict[str, Any], event: str) -> None:
    payload = stored_event(pack(kept | {"received_at": "x"}), replace(ENTRY, released_ms=None), DELIVERY)
    assert (payload["type"], payload["timestamp"]) == (event, "x")
