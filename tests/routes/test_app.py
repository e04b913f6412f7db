"""Headers of all answers, and the spelling of paths."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

from tests.routes.conftest import App, StartApp, bearer
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, Server, email


@pytest.mark.parametrize(
    ("method", "path", "given", "status"),
    [
        ("POST", "/api/ingress/gmail", {"json": email(), "headers": bearer(INGRESS_TOKEN)}, 200),
        ("POST", "/api/ingress/gmail", {"json": {}, "headers": bearer(INGRESS_TOKEN)}, 400),
        ("POST", "/api/ingress/gmail", {"json": email()}, 401),
        ("POST", "/api/ingress/gmail", {"data": b" " * 20_000, "headers": bearer(INGRESS_TOKEN)}, 413),
        ("POST", "/api/ingress/message", {"json": []}, 401),
        ("POST", "/api/ingress/mailgun", {}, 404),
        ("GET", "/api/ingress/gmail", {}, 405),
        ("GET", "/api/admin/stats", {"headers": bearer(ADMIN_TOKEN)}, 200),
        ("GET", "/api/admin/stats", {}, 401),
        ("GET", "/api/admin/nothing", {}, 404),
        ("PUT", "/api/admin/stats", {}, 405),
        ("POST", "/api/admin/reset", {"data": b" " * 20_000, "headers": bearer(ADMIN_TOKEN)}, 413),
        ("GET", "/api/openapi.json", {}, 200),
        ("GET", "/health", {}, 200),
        ("GET", "/metrics", {"headers": bearer(ADMIN_TOKEN)}, 200),
        ("GET", "/metrics", {}, 401),
        ("GET", "/nothing", {}, 404),
    ],
)
def test_no_answer_is_cached_or_sniffed(
    start_app: StartApp, method: str, path: str, given: dict[str, Any], status: int
) -> None:
    answer = start_app(max_body_mb=0.01).http.open(path, method=method, **given)
    assert answer.status_code == status
    assert answer.headers.getlist("Cache-Control") == ["no-store"]
    assert answer.headers.getlist("X-Content-Type-Options") == ["nosniff"]


def test_an_internal_error_is_not_cached_either(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(app.service.journal, "reading", fail)
    answer = app.http.get("/api/admin/deliveries", headers=bearer(ADMIN_TOKEN))
    assert answer.status_code == 500
    assert (answer.headers["Cache-Control"], answer.headers["X-Content-Type-Options"]) == ("no-store", "nosniff")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server"), WEB_CONCURRENCY="1") as server:
        yield server


@pytest.mark.parametrize("path", ["/metrics", "/api/admin/stats", "/health", "/sign-in"])
def test_only_one_spelling_of_a_path_reaches_its_view(server: Server, path: str) -> None:
    """A proxy may have a rule for it, which another spelling would pass by."""
    before = ("/", "//", "/%2F", "/.", "/x/..", "/x")
    others = [f"/%2f{path[1:]}", f"{path}/", *(f"{each}{path}" for each in before)]
    connection = HTTPConnection("127.0.0.1", server.port)
    statuses = {}
    for each in (path, *others):
        connection.putrequest("GET", each)
        connection.putheader("SCRIPT_NAME", "/x")
        connection.putheader("Authorization", f"Bearer {ADMIN_TOKEN}")
        connection.endheaders()
        with connection.getresponse() as answer:
            answer.read()
        statuses[each] = answer.status
    connection.close()
    assert statuses == {path: 200} | dict.fromkeys(others, 404)
