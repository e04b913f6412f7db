"""GET /api/openapi.json: valid, complete, and true, which it also has to be of every answer in tests/routes."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask import Blueprint
from openapi_spec_validator import validate

from orchestrator.delivery.webhook import EventType
from orchestrator.operations.alarms import Alarm, Phase
from routes.app import create_app
from routes.openapi.document import THE_PAGE, build_document
from routes.openapi.doors import SECURITY
from routes.openapi.operations import OPERATIONS
from routes.providers.registry import TYPES
from routes.questions import RELEASE_ANSWERS, REPLAY_ANSWERS
from routes.responses import HTTP_STATUS
from tests.routes.conftest import App, StartApp, bearer
from tests.routes.providers.everyone import SETTINGS
from tests.support.described import Described, described
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, email
from tests.support.surroundings import ROOT


@pytest.fixture
def everything(start_app: StartApp, tmp_path: Path) -> App:
    """All doors open, and one under a name of its own."""
    file = tmp_path / "mailonce.toml"
    file.write_text(f'[destinations.crm]\nurl = "log:"\n{SETTINGS}\n[providers.helpdesk]\ntype = "json"\n')
    return start_app(mailonce_config=file)


@pytest.fixture
def document(everything: App) -> dict[str, Any]:
    answer: dict[str, Any] = everything.http.get("/api/openapi.json").get_json()
    return answer


def test_it_is_valid(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    validate(document)


def test_every_route_is_described(everything: App, document: dict[str, Any]) -> None:
    routes = everything.http.application.url_map.iter_rules()
    rules = [rule for rule in routes if rule.endpoint.split(".")[0] != THE_PAGE]
    operations = sum(len((rule.methods or set()) - {"HEAD", "OPTIONS"}) for rule in rules)
    assert sum(len(methods) for methods in document["paths"].values()) == operations > 30
    assert {path.split("/")[1] for path in document["paths"]} == {"api", "health", "livez", "readyz", "metrics"}
    used = {rule.endpoint for rule in rules}
    assert OPERATIONS.keys() <= used, "what is described and not there"


def test_a_route_that_nobody_described_is_an_error(everything: App) -> None:
    app = create_app(everything.service)
    more = Blueprint("more", __name__)
    more.add_url_rule("/api/more", "secret", lambda: "")
    app.register_blueprint(more)
    with pytest.raises(KeyError, match=r"more\.secret"):
        build_document(app, everything.service.config)


@pytest.mark.parametrize("name", TYPES)
def test_a_door_tells_what_its_provider_needs(document: dict[str, Any], name: str) -> None:
    provider = TYPES[name]
    door = document["paths"][f"/api/ingress/{name}"]["post"]
    statuses = provider.statuses
    expected = {200, 400, 404, 405, 413, 500, statuses.unauthorized, statuses.retry, statuses.rejected or 415}
    assert {int(each) for each in door["responses"]} == expected
    assert tuple(door["requestBody"]["content"]) == provider.media_types
    assert [list(each) for each in door.get("security", [])] == [[each] for each in provider.security]
    assert set(provider.security) <= SECURITY.keys()
    assert ("get" in document["paths"][f"/api/ingress/{name}"]) == provider.answers_probes


def test_a_door_under_a_name_of_its_own_is_described(document: dict[str, Any]) -> None:
    assert document["paths"]["/api/ingress/helpdesk"]["post"]["summary"].endswith("helpdesk")


def test_all_five_webhooks_are_described(document: dict[str, Any]) -> None:
    assert set(document["webhooks"]) == set(EventType)
    for event, told in document["webhooks"].items():
        schema = told["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        model = document["components"]["schemas"][schema]
        assert model["properties"]["type"]["const"] == event
        assert {"type", "timestamp"} <= set(model["required"])


def test_an_alarm_is_sent_as_described(everything: App) -> None:
    """The others are held against the document by the sink of every test."""
    begun = Alarm(key="breaker_open:crm", text="crm keeps failing", began_ms=1_000, id="id", pending=(Phase.BEGUN,))
    for alarm in (begun, begun.model_copy(update={"key": "no_worker", "ended_ms": 2_000, "pending": (Phase.ENDED,)})):
        sent = json.loads(json.dumps(alarm.webhook().payload))
        described(everything.http.application, everything.service.config).check_webhook(sent)


def test_every_refusal_is_described_by_its_code(document: dict[str, Any]) -> None:
    for path, table in (("decisions/{id}/release", RELEASE_ANSWERS), ("deliveries/{id}/replay", REPLAY_ANSWERS)):
        told = document["paths"][f"/api/admin/{path}"]["post"]["responses"]
        for code, (status, _) in table.items():
            assert status == 200 or f"`{code}`" in told[str(status)]["description"]
    assert set(HTTP_STATUS.values()) == {200, 503}, "of our own doors; each provider's are described"


def test_what_is_not_described_is_found(everything: App) -> None:
    """What all tests of the routes rely on."""
    answer = everything.http.post("/api/ingress/gmail", json=email(), headers=bearer(INGRESS_TOKEN))
    document = described(everything.http.application, everything.service.config).document
    changes: tuple[Callable[[Any], object], ...] = (
        lambda doc: doc["paths"]["/api/ingress/gmail"]["post"]["responses"].pop("200"),
        lambda doc: doc["components"]["schemas"]["EmailVerdict"]["properties"].pop("deliveries"),
        lambda doc: doc["components"]["schemas"]["EmailVerdict"].update(required=["colour"]),
        lambda doc: doc["paths"].pop("/api/ingress/gmail"),
    )
    for change in changes:
        changed = copy.deepcopy(document)
        change(changed)
        with pytest.raises(AssertionError):
            Described(changed).check("POST", "/api/ingress/gmail", answer)
    Described(document).check("POST", "/api/ingress/gmail", answer)


def test_an_email_pays_nothing_for_the_description(tmp_path: Path) -> None:
    """It is loaded when somebody asks for it, not with the application."""
    script = "import sys, routes.app, routes.server; print([m for m in sys.modules if m.startswith('routes.openapi')])"
    shown = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_anybody_may_read_it_and_it_tells_no_secret(everything: App) -> None:
    text = everything.http.get("/api/openapi.json").get_data(as_text=True)
    for secret in (ADMIN_TOKEN, INGRESS_TOKEN, "key-3ax6xnjp29jd6fds4gc373sgvjxteol0"):
        assert secret not in text


def test_a_problem_is_one_by_the_rfc(app: App) -> None:
    answer = app.http.get("/api/admin/decisions/no body?x", headers=bearer(ADMIN_TOKEN))
    assert answer.mimetype == "application/problem+json"
    assert answer.get_json() == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "unknown, or no longer stored",
        "instance": "/api/admin/decisions/no%20body",
        "code": "unknown",
        "id": "no body",
    }


def test_the_document_is_made_once(everything: App, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def count(*_: object) -> dict[str, Any]:
        made.append(1)
        return {}

    monkeypatch.setattr("routes.openapi.document.build_document", count)
    client = create_app(everything.service).test_client()
    assert [client.get("/api/openapi.json").status_code for _ in range(3)] == [200, 200, 200]
    assert len(made) == 1
