"""The whole service behind Flask's test client: real settings, real sqlite, and a real sink where one is given.

Whatever is answered in any of these tests must be described in /api/openapi.json.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.routing import Rule
from werkzeug.test import TestResponse

from orchestrator.build import Service, build
from orchestrator.config.settings import load_settings
from orchestrator.intake import Sources
from routes.app import create_app
from tests.support.described import check_webhook, hold_to_its_description
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, PATIENT_MS
from tests.support.sink import Sink

OLD_TOKEN, NEW_TOKEN = "the-old-token-of-someone", "the-new-token-of-someone"


@dataclass(frozen=True)
class App:
    service: Service
    http: FlaskClient

    def post(self, payload: object) -> TestResponse:
        """An email, as the provider sends it."""
        return self.http.post("/api/ingress/gmail", json=payload, headers=bearer(INGRESS_TOKEN))

    def post_raw(self, body: bytes, content_type: str | None = "application/json") -> TestResponse:
        headers = bearer(INGRESS_TOKEN)
        return self.http.post("/api/ingress/gmail", data=body, content_type=content_type, headers=headers)

    def status_of(self, payload: object) -> str:
        return str(self.post(payload).get_json()["status"])

    def reset(self, payload: object) -> TestResponse:
        return self.http.post("/api/admin/reset", json=payload, headers=bearer(ADMIN_TOKEN))


StartApp = Callable[..., App]
Builder = Callable[..., tuple[str, str]]


def remember_url_builders() -> None:
    """Tests make thousands of apps with the same addresses.

    Werkzeug compiles two functions for each, which is two thirds of making an app. They depend on nothing but the
    parts of the address (and defaults, which we have none of).
    """
    compile_builder = Rule._compile_builder
    known: dict[tuple[object, ...], Builder] = {}

    def compile_or_remember(rule: Rule, append_unknown: bool = True) -> Builder:
        assert not rule.defaults
        parts = (*rule._trace, append_unknown)
        if parts not in known:
            known[parts] = compile_builder(rule, append_unknown)
        return known[parts]

    Rule._compile_builder = compile_or_remember  # type: ignore[method-assign, assignment]


remember_url_builders()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def start_app(tmp_path: Path) -> Iterator[StartApp]:
    """Builds services on one DATA_DIR; all are closed in the end."""
    built: list[Service] = []

    def start(sources: Sources | None = None, **settings: Any) -> App:
        own = {"data_dir": tmp_path / "data", "ingress_token": INGRESS_TOKEN, "admin_token": ADMIN_TOKEN}
        patient = {"redis_timeout_ms": PATIENT_MS, "memory_limit_mb": 100_000}  # this process has run many tests
        service = build(load_settings(**own | patient | settings), sources)
        built.append(service)
        return App(service, hold_to_its_description(create_app(service), service.config))

    yield start
    for service in built:
        service.close()


@pytest.fixture
def sink() -> Iterator[Sink]:
    """What it was sent in the end must be described, too."""
    with Sink() as sink:
        yield sink
    for webhook in sink.received:
        if webhook.headers.get("Content-Type") == "application/json":
            check_webhook(webhook.payload)


@pytest.fixture
def app(start_app: StartApp, sink: Sink) -> App:
    return start_app(webhook_url=sink.url)
