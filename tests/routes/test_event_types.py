"""Every webhook says what it is, and when that happened: the same in all its attempts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deduplication.journal.entry import Delivery, Entry
from orchestrator.delivery.webhook import pack, stored_event
from tests.routes.conftest import App, StartApp, bearer, impatient
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, email
from tests.support.sink import Received, Reply, Sink

Eventually = Callable[[Callable[[], bool]], None]
LOT = "Lot 456 : nouvelle mission"


def event(webhook: Received) -> tuple[str, str]:
    return webhook.payload["type"], webhook.payload["timestamp"]


def act(app: App, path: str) -> Any:
    return app.http.post(f"/api/admin/{path}", json={}, headers=bearer(ADMIN_TOKEN)).get_json()


@pytest.fixture
def app(start_app: StartApp, sink: Sink, tmp_path: Path) -> App:
    return start_app(mailonce_config=impatient(tmp_path, sink))


def test_a_replay_sends_the_same_event_again(app: App, sink: Sink) -> None:
    sink.otherwise = Reply(422)
    answer = app.post(email()).get_json()
    sink.otherwise = Reply()
    act(app, f"deliveries/{answer['id']}:default/replay")
    first, second = sink.received
    assert first.webhook_id == second.webhook_id
    assert event(first) == event(second) == ("email.received", first.payload["received_at"])
    assert datetime.fromisoformat(event(first)[1]).tzinfo is UTC


def test_messages_and_forms_have_an_event_type(start_app: StartApp, sink: Sink, tmp_path: Path) -> None:
    file = tmp_path / "mailonce.toml"
    file.write_text(f"[destinations.crm]\nurl = {json.dumps(sink.url)}\nformat = 'form'")
    app = start_app(mailonce_config=file)
    app.post(email())
    document = {"source": "tg:news", "id": 1, "text": "Hello"}
    app.http.post("/api/ingress/message", json=document, headers=bearer(INGRESS_TOKEN))
    assert [event(each) for each in sink.received] == [
        ("email.received", sink.received[0].payload["received_at"]),
        ("message.received", sink.received[1].payload["received_at"]),
    ]


def test_every_attempt_of_a_released_email_says_that_it_was_released(app: App, sink: Sink) -> None:
    app.post(email(subject=LOT))
    id_ = app.post(email(subject=f"{LOT} bis")).get_json()["id"]
    sink.otherwise = Reply(422)
    released_at = act(app, f"decisions/{id_}/release")["decision"]["released_at"]
    sink.otherwise = Reply()
    assert act(app, f"deliveries/{id_}:default/replay")["status"] == "replayed"
    _, refused, accepted = sink.received
    assert event(refused) == event(accepted) == ("email.released", f"{released_at[:19]}Z")
    assert accepted.payload["subject"] == f"{LOT} bis"


@pytest.mark.parametrize(
    ("kept", "released_ms", "generation", "sent"),
    [
        ("email.received", 1_000, 1, "email.released"),
        ("email.received", None, 1, "email.received"),
        ("email.received", 1_000, 0, "email.received"),  # another destination of it was released
        ("message.received", 1_000, 1, "message.received"),
    ],
)
def test_the_type_of_a_stored_event(kept: str, released_ms: int | None, generation: int, sent: str) -> None:
    delivery = Delivery("crm", "msg_1", generation=generation)
    entry = replace(Entry("e1", "m", (), deliveries=(delivery,)), released_ms=released_ms)
    stored = pack({"type": kept, "timestamp": "2026-11-16T09:00:00Z", "subject": "x"})
    assert stored_event(stored, entry, delivery)[0]["type"] == sent
