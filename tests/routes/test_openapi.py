"""GET /api/openapi.json: valid, complete and true. Every answer in tests/routes is compared with it, too."""

import copy
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openapi_spec_validator import validate

from deduplication.again import Refusal
from orchestrator.config.model import AlertCondition
from orchestrator.delivery.webhook import EventType
from orchestrator.operations.alarms import Alarm
from routes.openapi import PAGE, SECURITY
from routes.providers.registry import TYPES
from tests.routes.conftest import App, StartApp, bearer
from tests.routes.providers.everyone import SETTINGS
from tests.support.described import Described, described
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, email


@pytest.fixture
def everything(start_app: StartApp) -> App:
    """With all providers, and one under a name of its own."""
    return start_app(toml=f'[destinations.crm]\nurl = "log:"\n{SETTINGS}\n[providers.helpdesk]\ntype = "json"\n')


@pytest.fixture
def document(everything: App) -> dict[str, Any]:
    answer: dict[str, Any] = everything.http.get("/api/openapi.json").get_json()
    return answer


def test_it_is_valid_and_has_every_route(everything: App, document: dict[str, Any]) -> None:
    validate(document)
    routes = everything.http.application.url_map.iter_rules()
    rules = [rule for rule in routes if rule.endpoint.split(".")[0] != PAGE]
    operations = sum(len((rule.methods or set()) - {"HEAD", "OPTIONS"}) for rule in rules)
    assert sum(len(methods) for methods in document["paths"].values()) == operations > 30
    assert {path.split("/")[1] for path in document["paths"]} == {
        "api",
        "files",
        "health",
        "livez",
        "readyz",
        "metrics",
    }


def test_every_provider_is_described_by_its_class(document: dict[str, Any]) -> None:
    for name, provider in TYPES.items():
        path = document["paths"][f"/api/ingress/{name}"]
        operation = path["post"]
        expected = {200, provider.rejected_status or 400, 401, provider.retry_status, "default"}
        assert set(operation["responses"]) == set(map(str, expected))
        assert tuple(operation["requestBody"]["content"]) == provider.media_types
        assert [list(each) for each in operation.get("security", [])] == [[each] for each in provider.security]
        assert set(provider.security) <= SECURITY.keys()
        assert ("get" in path) == provider.answers_probes
    assert document["paths"]["/api/ingress/helpdesk"]["post"]["summary"].endswith("helpdesk"), "a name of its own"


def test_an_alarm_is_sent_as_described(everything: App) -> None:
    """The other webhooks are compared with the document by the sink of every test."""
    since, until = "2026-11-18T10:00:00+00:00", "2026-11-18T10:01:00+00:00"
    condition = AlertCondition.BREAKER_OPEN
    begun = Alarm(condition=condition, destination="crm", since=since, text="x", id="id")
    for alarm in (begun, begun.model_copy(update={"destination": None, "until": until})):
        sent = json.loads(json.dumps(alarm.webhook().payload))
        described(everything.http.application, everything.service.config).check_webhook(sent)


def test_every_webhook_and_refusal_is_described(document: dict[str, Any]) -> None:
    assert set(document["webhooks"]) == set(EventType)
    for path in ("decisions/{id}/release", "deliveries/{id}/replay"):
        conflict = document["paths"][f"/api/admin/{path}"]["post"]["responses"]["409"]["description"]
        assert all(f"`{code}`" in conflict for code in Refusal if code is not Refusal.UNKNOWN)


def test_an_answer_that_differs_from_the_document_is_found(everything: App) -> None:
    """All tests of the routes rely on that."""
    answer = everything.http.post("/api/ingress/gmail", json=email(), headers=bearer(INGRESS_TOKEN))
    document = described(everything.http.application, everything.service.config).document
    changes: tuple[Callable[[Any], object], ...] = (
        lambda doc: doc["paths"]["/api/ingress/gmail"]["post"]["responses"].pop("200"),
        lambda doc: doc["components"]["schemas"]["Verdict"]["properties"].pop("deliveries"),
        lambda doc: doc["components"]["schemas"]["Verdict"].update(required=["colour"]),
        lambda doc: doc["paths"].pop("/api/ingress/gmail"),
    )
    for change in changes:
        changed = copy.deepcopy(document)
        change(changed)
        with pytest.raises(AssertionError):
            Described(changed).check("POST", "/api/ingress/gmail", answer)
    Described(document).check("POST", "/api/ingress/gmail", answer)


WORDS = st.sampled_from(["crm", "all", "day", "dead", "email_id", "identity", "2026-11-16T09:00:00Z", "1"])
TEXTS = WORDS | st.text(max_size=20)
VALUES = st.none() | st.booleans() | st.integers() | TEXTS
ANYTHING = VALUES | st.lists(VALUES, max_size=2) | st.dictionaries(WORDS, VALUES, max_size=2)


@settings(max_examples=400, deadline=None, suppress_health_check=[*HealthCheck])
@given(data=st.data())
def test_any_admin_request_is_described(everything: App, document: dict[str, Any], data: st.DataObject) -> None:
    """The client compares the answer with the document."""
    path = data.draw(st.sampled_from([each for each in document["paths"] if not each.startswith("/api/ingress/")]))
    method = data.draw(st.sampled_from([*document["paths"][path]]))
    operation = document["paths"][path][method]
    names = st.sampled_from([each["name"] for each in operation["parameters"] if each["in"] == "query"] or ["x"])
    asked: dict[str, Any] = {"query_string": data.draw(st.dictionaries(names, TEXTS, max_size=3))}
    if "requestBody" in operation:
        model = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        fields = st.sampled_from([*document["components"]["schemas"][model].get("properties", {}), "x"])
        likely = st.just({"all": True}) | st.fixed_dictionaries({"q": st.just("Lot"), "dry_run": st.booleans()})
        asked["json"] = data.draw(likely | st.dictionaries(fields, ANYTHING, max_size=3) | ANYTHING)
    id_ = data.draw(st.sampled_from(["ID", "ID:crm"]) | st.text(min_size=1, max_size=20))
    name = data.draw(WORDS)
    everything.post(email(subject="Lot 456"))
    stopped = everything.post(email(subject="Lot 456 bis")).get_json()["id"]
    address = path.format(id=quote(id_.replace("ID", stopped), safe=""), name=quote(name), token=name)
    answer = everything.http.open(address, method=method.upper(), headers=bearer(ADMIN_TOKEN), **asked)
    assert answer.status_code < 500 or path in ("/health", "/readyz"), answer.text


def test_anyone_may_read_it_and_it_reveals_no_secret(everything: App) -> None:
    text = everything.http.get("/api/openapi.json").get_data(as_text=True)
    assert everything.http.get("/api/openapi.json").get_data(as_text=True) == text
    for secret in (ADMIN_TOKEN, INGRESS_TOKEN, "key-3ax6xnjp29jd6fds4gc373sgvjxteol0"):
        assert secret not in text


def test_a_problem_document_follows_the_rfc(app: App) -> None:
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
