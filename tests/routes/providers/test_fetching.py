"""orchestrator/delivery/fetching.py against real servers: how a certificate or an email is fetched."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from orchestrator.delivery.fetching import FetchFailed, fetch


class Site(BaseHTTPRequestHandler):
    seen: list[dict[str, str]]

    def do_GET(self) -> None:
        self.seen.append({name.lower(): value for name, value in self.headers.items()})
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/ok")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(int(self.path[1:]) if self.path[1:].isdigit() else 200)
        self.end_headers()
        try:
            if self.path == "/drip":
                for _ in range(100):
                    self.wfile.write(b"x")
                    self.wfile.flush()
                    time.sleep(0.1)
            elif self.path == "/endless":
                while True:
                    self.wfile.write(b"x" * 65536)
            else:
                self.wfile.write(b"content")
        except OSError:
            pass  # the client has had enough

    def log_message(self, format: str, *args: object) -> None:
        """The test looks at what came."""


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[tuple[trustme.CA, str]]:
    ca = trustme.CA()
    path = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(str(path))
    yield ca, str(path)


@pytest.fixture
def site(authority: tuple[trustme.CA, str]) -> Iterator[tuple[str, type[Site]]]:
    handler = type("Handler", (Site,), {"seen": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority[0].issue_cert("localhost").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"https://localhost:{server.server_address[1]}", handler
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def get(authority: tuple[trustme.CA, str]) -> Callable[..., bytes]:
    def get_(url: str, timeout_s: float = 5, max_bytes: int = 1000) -> bytes:
        return fetch(url, {"Authorization": "Bearer t"}, timeout_s, max_bytes, ca_file=authority[1])

    return get_


def test_a_page_is_fetched_with_the_headers_given(site: tuple[str, type[Site]], get: Callable[..., bytes]) -> None:
    address, handler = site
    assert get(f"{address}/ok") == b"content"
    assert handler.seen[0]["authorization"] == "Bearer t"


def test_proxies_of_the_environment_are_not_asked(
    site: tuple[str, type[Site]], get: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    assert get(f"{site[0]}/ok") == b"content"


@pytest.mark.parametrize("path", ["/404", "/500", "/204", "/moved"])
def test_anything_but_200_has_failed(site: tuple[str, type[Site]], get: Callable[..., bytes], path: str) -> None:
    with pytest.raises(FetchFailed, match="localhost answered"):
        get(f"{site[0]}{path}")
    assert len(site[1].seen) == 1, "no redirect is followed"


@pytest.mark.parametrize("path", ["/endless", "/ok"])
def test_a_page_over_the_limit_is_not_read(site: tuple[str, type[Site]], get: Callable[..., bytes], path: str) -> None:
    with pytest.raises(FetchFailed, match="more than 6 bytes"):
        get(f"{site[0]}{path}", max_bytes=6)


def test_a_page_that_arrives_too_slowly_is_given_up(site: tuple[str, type[Site]], get: Callable[..., bytes]) -> None:
    with pytest.raises(FetchFailed, match="localhost"):
        get(f"{site[0]}/drip", timeout_s=0.5)


def test_a_self_signed_certificate_is_not_trusted(site: tuple[str, type[Site]]) -> None:
    with pytest.raises(FetchFailed, match="localhost: SSLError"):
        fetch(f"{site[0]}/ok", {}, 5, 1000)


def test_a_refused_connection_is_a_failure(get: Callable[..., bytes]) -> None:
    with pytest.raises(FetchFailed, match="127.0.0.1: "):
        get("https://127.0.0.1:1/")


@pytest.mark.parametrize("url", ["http://localhost/", "file:///etc/passwd", "https://", "https://[", "", "localhost"])
def test_only_https_is_fetched(get: Callable[..., bytes], url: str) -> None:
    with pytest.raises(FetchFailed, match="only https is fetched|not an address"):
        get(url)


def test_a_failure_does_not_tell_what_is_private_in_the_address(get: Callable[..., bytes]) -> None:
    with pytest.raises(FetchFailed) as raised:
        get("https://user:secret@127.0.0.1:1/path?signature=sig-123")
    assert "secret" not in str(raised.value)
    assert "sig-123" not in str(raised.value)
