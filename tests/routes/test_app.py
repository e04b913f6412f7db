"""Headers of all answers, and the spelling of paths."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from tests.routes.conftest import StartApp, bearer
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, Server, email


def test_every_answer_has_an_id_is_not_cached_and_not_sniffed(
    start_app: StartApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = start_app(max_body_mb=0.01)
    operator, provider = {"headers": bearer(ADMIN_TOKEN)}, {"headers": bearer(INGRESS_TOKEN)}
    answers = [
        app.http.open(path, method=method, **given)
        for method, path, given in (
            ("POST", "/api/ingress/gmail", {"json": email(), **provider}),
            ("POST", "/api/ingress/gmail", {"json": {}, **provider}),
            ("POST", "/api/ingress/gmail", {"data": b" " * 20_000, **provider}),
            ("POST", "/api/ingress/message", {"json": []}),
            ("POST", "/api/ingress/mailgun", {}),
            ("GET", "/api/admin/stats", operator),
            ("GET", "/metrics", operator),
            ("GET", "/sign-in", {}),
            ("GET", "/nothing", {}),
            ("PUT", "/health", {}),
        )
    ]
    assert [answer.status_code for answer in answers] == [200, 400, 413, 401, 404, 200, 200, 200, 404, 405]

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(app.service.journal, "reading", fail)
    answers.append(app.http.get("/api/admin/deliveries", **operator))
    assert answers[-1].status_code == 500
    for answer in answers:
        assert answer.headers.getlist("Cache-Control") == ["no-store"]
        assert answer.headers.getlist("X-Content-Type-Options") == ["nosniff"]
    assert len({answer.headers["X-Request-Id"] for answer in answers}) == len(answers)


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
