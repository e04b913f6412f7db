"""Every answer and every log line of a request has its id; refused requests are logged with their address."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.logs import LineFormatter
from routes.request_ids import client_address
from tests.routes.conftest import App, StartApp, bearer
from tests.support.server import INGRESS_TOKEN, email
from tests.support.sink import Reply, Sink

PROXIES = [ip_network("10.0.0.0/8"), ip_network("::1"), ip_network("::ffff:127.0.0.1")]


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """The log as it is written."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(LineFormatter())
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield written
    root.removeHandler(handler)
    root.setLevel(level)


@pytest.mark.parametrize(
    "path", ["/livez", "/readyz", "/health", "/nowhere", "/api/admin/stats", "/api/ingress/gmail", "/api/ingress/ses"]
)
def test_every_answer_has_a_request_id(app: App, path: str) -> None:
    first, second = app.http.get(path), app.http.get(path)
    assert first.headers["X-Request-Id"] != second.headers["X-Request-Id"]
    assert app.http.get(path, headers={"X-Request-Id": "abc-1"}).headers.getlist("X-Request-Id") == ["abc-1"]


@pytest.mark.parametrize(
    ("given", "is_used"),
    [(each, True) for each in ("a", "5f0c-11", "01JD/x_y:z.1+2=", "a" * 128, "Root=1-67-ab")]
    + [(each, False) for each in ("", "a" * 129, "a b", "é", "a,b", "ada@example.org", "-a", '{"a"}', "a\tb", "%0a")],
)
def test_an_id_of_the_client_is_used_if_it_is_valid(app: App, given: str, is_used: bool) -> None:
    answered = app.http.get("/livez", headers={"X-Request-Id": given}).headers["X-Request-Id"]
    assert (answered == given) == is_used
    assert is_used or answered.isalnum()


def test_all_log_lines_of_a_request_carry_its_id(app: App, lines: io.StringIO) -> None:
    headers = bearer(INGRESS_TOKEN) | {"X-Request-Id": "mine-1"}
    app.http.post("/api/ingress/gmail", json=email(), headers=headers)
    logging.getLogger("another").warning("afterwards")
    *during, afterwards = lines.getvalue().splitlines()
    assert len(during) == 2, "an attempt and a decision"
    assert all(" [mine-1]: " in line for line in during)
    assert "mine-1" not in afterwards


def test_attempts_at_several_destinations_carry_the_request_id(
    start_app: StartApp, sink: Sink, lines: io.StringIO, tmp_path: Path
) -> None:
    file = tmp_path / "two.toml"
    file.write_text(
        f'[destinations.a]\nurl = "{sink.url}"\n[destinations.b]\nurl = "{sink.url}"\n'
        '[[routes]]\nname = "all"\ndestinations = ["a", "b"]\n'
    )
    app = start_app(mailonce_config=file)
    app.http.post("/api/ingress/gmail", json=email(), headers=bearer(INGRESS_TOKEN) | {"X-Request-Id": "mine-2"})
    attempts = [line for line in lines.getvalue().splitlines() if "orchestrator.delivery.sender" in line]
    assert len(attempts) == 2
    assert all(" [mine-2]: entry " in line for line in attempts)


def test_a_rejected_request_is_logged_with_its_id(app: App, lines: io.StringIO) -> None:
    answer = app.post(email(sender="nobody"))
    assert answer.status_code == 400
    (line,) = lines.getvalue().splitlines()
    assert f" [{answer.headers['X-Request-Id']}]: provider gmail: rejected for good: sender takes" in line


def test_a_decision_is_one_log_line_without_contents(app: App, sink: Sink, lines: io.StringIO) -> None:
    first, again = (app.post(email()).get_json() for _ in range(2))
    decisions = [line for line in lines.getvalue().splitlines() if "orchestrator.pipeline" in line]
    new, repeat = (line.split("]: ")[1] for line in decisions)
    assert new.startswith(f"item {first['email_id']}: processed, entry {first['id']}, by gmail in ")
    assert repeat.startswith(f"item {again['email_id']}: already_processed, entry {first['id']}, by gmail in ")
    assert repeat.endswith(f" ms, at identity, repeats {first['id']}")
    for content in ("Rapport", "Bonjour", "Ada", "example.org"):
        assert content not in lines.getvalue()


def test_an_attempt_is_one_log_line_even_if_it_fails(start_app: StartApp, lines: io.StringIO) -> None:
    with Sink(Reply(503)) as sink:
        entry = start_app(webhook_url=sink.url).post(email()).get_json()["id"]
    attempts = [line for line in lines.getvalue().splitlines() if "orchestrator.delivery.sender" in line]
    failed, delivered = (line.split("]: ")[1] for line in attempts)
    assert failed.startswith(f"entry {entry}: to default as msg_")
    assert failed.endswith(" ms, failed: default: answered 503")
    assert delivered.startswith(f"entry {entry}: to default as msg_")
    assert delivered.endswith(" ms, delivered")


@pytest.mark.parametrize("path", ["/api/admin/stats", "/api/ingress/gmail", "/api/ingress/message"])
def test_a_401_is_logged_with_the_address(start_app: StartApp, lines: io.StringIO, path: str) -> None:
    method = "GET" if "admin" in path else "POST"
    headers = {"X-Forwarded-For": "203.0.113.9"}
    for trusted, address in (("", "192.0.2.7"), ("192.0.2.0/24", "203.0.113.9")):
        app = start_app(trusted_proxies=trusted)
        app.http.open(path, method=method, json={}, headers=headers, environ_base={"REMOTE_ADDR": "192.0.2.7"})
        assert lines.getvalue().splitlines()[-1].endswith(f", from {address}")


@pytest.mark.parametrize(
    ("peer", "told", "address"),
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
def test_only_trusted_proxies_are_believed(peer: str, told: str, address: str) -> None:
    assert client_address({"REMOTE_ADDR": peer, "HTTP_X_FORWARDED_FOR": told}, PROXIES) == address


@given(st.text())
def test_any_header_yields_a_valid_address(told: str) -> None:
    address = client_address({"REMOTE_ADDR": "10.0.0.1", "HTTP_X_FORWARDED_FOR": told}, PROXIES)
    assert address == "10.0.0.1" or address in told
