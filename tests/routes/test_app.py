"""Headers of all answers, the spelling of paths, the id of a request in its log lines, and the client's address."""

import io
import logging
from collections.abc import Iterator
from http.client import HTTPConnection
from ipaddress import ip_network
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.logs import FORMAT, LineFormatter
from routes.auth import client_address
from tests.routes.conftest import App, StartApp, bearer
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, Server, email
from tests.support.sink import Reply, Sink

PROXIES = [ip_network("10.0.0.0/8"), ip_network("::1"), ip_network("::ffff:127.0.0.1")]


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

    monkeypatch.setattr(app.service.journal, "reading", Mock(side_effect=RuntimeError))
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


# Request ids, and the address of the client


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """The log as it is written."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(LineFormatter(FORMAT))
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield written
    root.removeHandler(handler)
    root.setLevel(level)


def test_an_id_of_the_client_is_used_if_it_is_valid(app: App) -> None:
    valid = ("a", "5f0c-11", "01JD/x_y:z.1+2=", "a" * 128, "Root=1-67-ab")
    invalid = ("", "a" * 129, "a b", "é", "a,b", "ada@example.org", "-a", '{"a"}', "a\tb", "%0a")
    for id_ in (*valid, *invalid):
        (answered,) = app.http.get("/livez", headers={"X-Request-Id": id_}).headers.getlist("X-Request-Id")
        assert answered == id_ if id_ in valid else answered.isalnum()


def test_log_lines_carry_the_request_id_and_no_contents(start_with: StartApp, lines: io.StringIO) -> None:
    """One line for each attempt at each of two destinations, and one for the decision."""
    with Sink(Reply(503)) as first, Sink() as second:
        app = start_with(a=first, b=second)
        lines.truncate(0)
        headers = bearer(INGRESS_TOKEN) | {"X-Request-Id": "mine-1"}
        new, again = (app.http.post("/api/ingress/gmail", json=email(), headers=headers).get_json() for _ in range(2))
    logging.getLogger("another").warning("afterwards")
    *during, afterwards = lines.getvalue().splitlines()
    assert all(" [mine-1]: " in line for line in during) and "mine-1" not in afterwards
    *attempts, decision, repeat = (line.split("]: ")[1] for line in during)
    assert len([line for line in attempts if line.startswith(f"entry {new['id']}: to ")]) == 3
    assert decision.startswith(f"item {new['email_id']}: processed, entry {new['id']}, by gmail in ")
    assert repeat.startswith(f"item {again['email_id']}: already_processed, entry {new['id']}, by gmail in ")
    assert not [word for word in ("Rapport", "Bonjour", "Ada", "example.org") if word in lines.getvalue()]


@pytest.mark.parametrize("path", ["/api/admin/stats", "/api/ingress/gmail", "/api/ingress/message"])
def test_a_401_is_logged_with_its_id_and_the_address(start_app: StartApp, lines: io.StringIO, path: str) -> None:
    method = "GET" if "admin" in path else "POST"
    headers = {"X-Forwarded-For": "203.0.113.9"}
    for trusted, address in (("", "192.0.2.7"), ("192.0.2.0/24", "203.0.113.9")):
        http = start_app(trusted_proxies=trusted).http
        answer = http.open(path, method=method, json={}, headers=headers, environ_base={"REMOTE_ADDR": "192.0.2.7"})
        line = lines.getvalue().splitlines()[-1]
        assert line.endswith(f", from {address}")
        assert f" [{answer.headers['X-Request-Id']}]: " in line


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("192.0.2.7", "203.0.113.9", "192.0.2.7"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "1.1.1.1, 203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "1.1.1.1, 203.0.113.9, 10.2.3.4", "203.0.113.9"),
        ("::1", "2001:db8::5", "2001:db8::5"),
        ("::ffff:10.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "::ffff:203.0.113.9", "203.0.113.9"),
        ("::ffff:192.0.2.7", "", "192.0.2.7"),
        ("127.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("::ffff:127.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "203.0.113.9, unknown", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.2", "10.0.0.2"),
        ("", "203.0.113.9", "-"),
    ],
)
def test_only_trusted_proxies_may_name_the_client(peer: str, forwarded: str, address: str) -> None:
    assert client_address({"REMOTE_ADDR": peer, "HTTP_X_FORWARDED_FOR": forwarded}, PROXIES) == address


@given(st.text())
def test_any_header_yields_a_valid_address(forwarded: str) -> None:
    address = client_address({"REMOTE_ADDR": "10.0.0.1", "HTTP_X_FORWARDED_FOR": forwarded}, PROXIES)
    assert address == "10.0.0.1" or address in forwarded
