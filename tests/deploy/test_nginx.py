"""deploy/nginx.conf in a real nginx, in front of a real server: what it publishes, and the page behind it."""

import json
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests

from orchestrator.config.settings import Settings
from orchestrator.delivery.counters import GUESS_RATE
from tests.support.nginx_server import SHIPPED, NginxServer
from tests.support.page import PageVisitor
from tests.support.programs import program
from tests.support.redis_server import free_port
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, Server, email
from tests.support.waiting import wait_for

FOR_OPERATORS = ("/api/admin/decisions", "/api/admin/stats", "/metrics", "/health")
ODD_WAYS = ("//api/admin/stats", "/x/../api/admin/stats", "/api%2fadmin/stats", "/./metrics", "/%68ealth", "//metrics")
THE_PAGE = ("/", "/sign-in", "/decisions", "/static/page.js")
ALLOWED, NOT_ALLOWED = "127.0.0.2", "127.0.0.9"
MB = 1024 * 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """As env.example says behind a proxy on the same machine."""
    program("nginx", "nginx")
    settings = {"TRUSTED_PROXIES": "127.0.0.1", "PUBLIC_URL": "https://mail.example.org"}
    with Server(tmp_path_factory.mktemp("server"), **settings) as server:
        yield server


@pytest.fixture(scope="module")
def shipped(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NginxServer]:
    with NginxServer(tmp_path_factory.mktemp("shipped") / "nginx", server.port) as nginx:
        yield nginx


@pytest.fixture(scope="module")
def with_page(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NginxServer]:
    with NginxServer(tmp_path_factory.mktemp("page") / "nginx", server.port, page_allowed="127.0.0.0/30") as nginx:
        yield nginx


def get(nginx: NginxServer, path: str, address: str = ALLOWED, **headers: str) -> requests.Response:
    """Sends the path unchanged: requests would normalise it."""
    asked = requests.Request("GET", nginx.url, headers={"Authorization": f"Bearer {ADMIN_TOKEN}", **headers}).prepare()
    asked.url = f"{nginx.url}{path}"
    return nginx.http(address).send(asked, timeout=60, allow_redirects=False)


def post_email(nginx: NginxServer, body: bytes, token: str = INGRESS_TOKEN, **headers: str) -> requests.Response:
    given = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}
    return nginx.http(ALLOWED).post(f"{nginx.url}/api/ingress/gmail", data=body, headers=given, timeout=300)


def lines_of(server: Server, text: str) -> list[str]:
    return [line for line in server.log.read_text().splitlines() if text in line]


def test_only_the_endpoints_of_providers_and_readyz_are_published(shipped: NginxServer) -> None:
    assert post_email(shipped, json.dumps(email()).encode()).json()["status"] == "processed"
    assert get(shipped, "/readyz").json() == {"status": "ok"}
    assert get(shipped, "/files/not/a.link").json()["detail"] == "not a link of this service"
    for path in (*FOR_OPERATORS, *THE_PAGE):
        answer = get(shipped, path)
        assert (answer.status_code, "nginx" in answer.text) == (404, True), path


def test_the_page_is_for_those_who_are_allowed_and_takes_nothing_along(with_page: NginxServer) -> None:
    assert get(with_page, "/sign-in").status_code == 200
    assert get(with_page, "/sign-in", NOT_ALLOWED).status_code == 403
    for path in (*FOR_OPERATORS, *ODD_WAYS):
        answer = get(with_page, path)
        assert (answer.status_code, "nginx" in answer.text) == (404, True), path


def test_one_signs_in_by_tls_and_the_cookie_is_for_tls_alone(with_page: NginxServer, server: Server) -> None:
    visitor = PageVisitor(with_page.url, http=with_page.http(ALLOWED))
    assert visitor.signed_in.status_code == 303
    cookie = visitor.signed_in.headers["Set-Cookie"]
    assert "Secure" in cookie and "HttpOnly" in cookie
    assert visitor.signed_in.headers["Location"] == "/"
    for path in ("/", "/decisions", "/destinations", "/servers", "/audit"):
        assert "Sign out" in visitor.text(path)
    assert "https://mail.example.org/api/ingress/gmail" in visitor.text("/providers"), "what one tells a provider"
    assert "Secure" not in PageVisitor(server.url).signed_in.headers["Set-Cookie"]


def test_tries_to_sign_in_are_counted_for_who_asks_and_not_for_nginx(with_page: NginxServer, server: Server) -> None:
    guesser = PageVisitor(with_page.url, "wrong-token-of-some-length", with_page.http("127.0.0.3"))
    for number in range(GUESS_RATE.amount):
        guesser.http.headers["X-Forwarded-For"] = f"198.51.100.{number}"  # whatever one says of oneself
        refused = guesser.sign_in("wrong-token-of-some-length")
    assert (guesser.signed_in.status_code, refused.status_code) == (401, 429)
    assert len(lines_of(server, "page: wrong token from 127.0.0.3")) == GUESS_RATE.amount
    assert PageVisitor(with_page.url, http=with_page.http(ALLOWED)).signed_in.status_code == 303


def test_a_refusal_is_logged_with_the_client_and_the_request_id(shipped: NginxServer, server: Server) -> None:
    given = {"X-Request-Id": "provider-4711", "X-Forwarded-For": "198.51.100.9"}
    answer = post_email(shipped, b"{}", "wrong-token-of-some-length", **given)
    assert (answer.status_code, answer.headers["X-Request-Id"]) == (401, "provider-4711")
    (line,) = lines_of(server, "provider-4711")
    assert line.endswith("invalid signature or credentials, from 127.0.0.2")


RETRY = {"gmail": 503, "brevo": 429}


def post_to(nginx: NginxServer, provider: str, address: str) -> int:
    url = f"{nginx.url}/api/ingress/{provider}"
    return nginx.http(address).post(url, json={}, headers={"Connection": "close"}, timeout=60).status_code


@pytest.mark.parametrize("provider", RETRY)
def test_one_address_holds_so_many_requests_and_no_more(shipped: NginxServer, provider: str) -> None:
    (most,) = re.findall(r"limit_conn mailonce_client (\d+);", SHIPPED.read_text())
    guesser = {"gmail": "127.0.0.4", "brevo": "127.0.0.5"}[provider]
    trusting = ssl.create_default_context(cafile=shipped.authority)
    with ExitStack() as open_ones:
        for _ in range(int(most)):
            plain = socket.create_connection(("127.0.0.1", shipped.port), 60, source_address=(guesser, 0))
            client = open_ones.enter_context(trusting.wrap_socket(plain, server_hostname="localhost"))
            client.sendall(b"POST /api/ingress/mailgun HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
        wait_for(lambda: post_to(shipped, provider, guesser) == RETRY[provider])
        assert post_email(shipped, b"{}").status_code == 400, "others are not held up"


def test_requests_that_arrive_too_fast_are_returned_for_retry(server: Server, tmp_path: Path) -> None:
    slow = (("rate=50r/s", "rate=1r/m"), ("burst=500", "burst=1 nodelay"))
    with NginxServer(tmp_path / "nginx", server.port, changes=slow) as nginx:
        for address, (provider, status) in zip(("127.0.0.4", "127.0.0.5"), RETRY.items(), strict=True):
            answers = [post_to(nginx, provider, address) for _ in range(3)]
            assert (status in answers[:2], answers[2]) == (False, status)


def test_while_the_server_is_down_brevo_is_asked_to_retry(tmp_path: Path) -> None:
    program("nginx", "nginx")
    with NginxServer(tmp_path / "nginx", free_port()) as nginx:
        assert post_to(nginx, "brevo", ALLOWED) == 429
        assert post_to(nginx, "gmail", ALLOWED) == 502


def test_the_largest_email_goes_through_and_one_just_too_large_gets_our_own_answer(shipped: NginxServer) -> None:
    most_bytes = int(Settings.model_fields["max_body_mb"].default * MB)

    def of_length(length: int) -> bytes:
        start = json.dumps(email(subject=f"{length} bytes", body="")).encode()
        body = start.replace(b'"body": ""', b'"body": "' + b"x" * (length - len(start)) + b'"')
        assert len(body) == length
        return body

    assert post_email(shipped, of_length(most_bytes)).json()["status"] == "processed"
    too_large = post_email(shipped, of_length(most_bytes + 1))
    assert (too_large.status_code, too_large.headers["Content-Type"].partition(";")[0][-4:]) == (413, "json")
    by_nginx = post_email(shipped, of_length(most_bytes + 2 * MB))
    assert (by_nginx.status_code, "nginx" in by_nginx.text) == (413, True)
