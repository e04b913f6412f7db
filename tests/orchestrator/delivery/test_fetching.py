"""orchestrator/delivery/fetching.py against a real server: how a certificate or an email is fetched."""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from orchestrator.delivery.fetching import FetchFailed, fetch

Get = Callable[..., bytes]


class Site(BaseHTTPRequestHandler):
    authorizations: list[str]

    def do_GET(self) -> None:
        self.authorizations.append(self.headers["Authorization"])
        self.send_response(int(self.path[1:]) if self.path[1:].isdigit() else 200)
        self.send_header("Location", "/ok")
        self.end_headers()
        content, times, pause_s = {"/drip": (b"x", 100, 0.1), "/long": (b"x" * 65536, 10_000, 0)}.get(
            self.path, (b"content", 1, 0)
        )
        with contextlib.suppress(OSError):  # the client has had enough
            for _ in range(times):
                self.wfile.write(content)
                time.sleep(pause_s)

    def log_message(self, format: str, *args: object) -> None:
        """The test looks at what came."""


@pytest.fixture
def authorizations() -> list[str]:
    """One for each request that the site received."""
    return []


@pytest.fixture
def get(tmp_path: Path, authorizations: list[str]) -> Iterator[Get]:
    """Fetches a path of the site, or any other URL."""
    authority, ca_file = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Site,), {"authorizations": authorizations}))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()

    def get_(url: str, timeout_s: float = 5, max_bytes: int = 1000, trusted: str | None = str(ca_file)) -> bytes:
        url = f"https://localhost:{server.server_address[1]}{url}" if url.startswith("/") else url
        return fetch(url, {"Authorization": "Bearer t"}, timeout_s, max_bytes, ca_file=trusted)

    yield get_
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_page_is_fetched_with_the_headers_given_and_by_no_proxy_of_the_environment(
    get: Get, authorizations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    assert get("/ok") == b"content"
    assert authorizations == ["Bearer t"]


@pytest.mark.parametrize("path", ["/404", "/500", "/204", "/302"])
def test_anything_but_200_has_failed(get: Get, authorizations: list[str], path: str) -> None:
    with pytest.raises(FetchFailed, match="localhost answered"):
        get(path)
    assert len(authorizations) == 1, "no redirect is followed"


@pytest.mark.parametrize(
    ("url", "limits", "error"),
    [
        ("/ok", {"max_bytes": 6}, "more than 6 bytes"),
        ("/long", {"max_bytes": 6}, "more than 6 bytes"),
        ("/drip", {"timeout_s": 0.5}, "localhost"),
        ("/ok", {"trusted": None}, "localhost: SSLError"),
        ("https://127.0.0.1:1/", {}, "127.0.0.1: "),
        *((url, {}, "only https is fetched") for url in ("http://localhost/", "file:///etc/passwd", "https://", "")),
        ("https://[", {}, "not an address"),
    ],
)
def test_a_page_that_is_too_long_or_slow_or_not_trusted_is_not_fetched(
    get: Get, url: str, limits: dict[str, float], error: str
) -> None:
    with pytest.raises(FetchFailed, match=error):
        get(url, **limits)


def test_a_failure_does_not_tell_what_is_private_in_the_address(get: Get) -> None:
    with pytest.raises(FetchFailed) as raised:
        get("https://user:secret@127.0.0.1:1/path?signature=sig-123")
    assert "secret" not in str(raised.value) and "sig-123" not in str(raised.value)
