"""Errors: pages for browsers, JSON for everyone else, and below /api always."""

from __future__ import annotations

import pytest

from deduplication.errors import StoreUnavailable
from deduplication.journal.sqlite import Step
from tests.routes.conftest import App
from tests.routes.dashboard.conftest import HTML, Visitor


def test_an_unknown_address_is_a_page_for_a_browser_and_json_for_a_program(app: App) -> None:
    page = app.http.get("/nothing/here", headers=HTML)
    assert (page.status_code, page.mimetype) == (404, "text/html")
    assert "There is no page at this address" in page.text
    assert "Set-Cookie" not in page.headers
    program = app.http.get("/nothing/here")
    assert (program.status_code, program.get_json()["code"]) == (404, "invalid")


@pytest.mark.parametrize("path", ["/api/nothing", "/api/ingress/nobody", "/api/admin/deliveries"])
def test_below_api_every_error_is_json(app: App, path: str) -> None:
    answer = app.http.get(path, headers=HTML)
    promised = path.startswith("/api/ingress")
    assert answer.mimetype == ("application/json" if promised else "application/problem+json")
    assert (answer.get_json()["success"] is False) if promised else (answer.get_json()["status"] == answer.status_code)


def test_a_wrong_filter_is_named_on_a_page(operator: Visitor) -> None:
    answer = operator.get("/deliveries?status=lost")
    assert answer.status_code == 400
    assert "status must be one of" in answer.text


def test_a_store_that_is_away_is_a_page_that_says_so(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(Step, "query", away)
    answer = operator.get("/deliveries")
    assert (answer.status_code, answer.mimetype) == (503, "text/html")
    assert "The journal cannot answer" in answer.text
    assert answer.headers["Retry-After"]


def test_an_error_of_ours_is_a_page_that_tells_nothing(
    operator: Visitor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("inner details")

    monkeypatch.setattr(Step, "query", fail)
    answer = operator.get("/deliveries")
    assert (answer.status_code, answer.mimetype) == (500, "text/html")
    assert "inner details" not in answer.text
    assert "inner details" in caplog.text
