"""orchestrator/delivery/fetching.py against a real server: how a certificate or an email is fetched."""

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import certifi
import pytest
import trustme

from deduplication.spool import read_all
from orchestrator.delivery.fetching import FetchFailed, fetch
from tests.support.sink import Reply, Sink

Get = Callable[..., bytes]


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def site(authority: trustme.CA) -> Iterator[Sink]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with Sink(otherwise=Reply(body=b"content"), tls=context) as site:
        site.answers = {f"/{status}": Reply(status, headers={"Location": "/ok"}) for status in (204, 302, 404, 500)}
        site.answers |= {"/drip": Reply(body=b"x" * 100, body_drip_s=0.1), "/long": Reply(body=b"x" * 10_000_000)}
        yield site


@pytest.fixture
def get(tmp_path: Path, authority: trustme.CA, site: Sink, monkeypatch: pytest.MonkeyPatch) -> Get:
    """Fetches a path of the site, or any other URL."""
    ca_file, trusted_by_all = str(tmp_path / "ca.pem"), certifi.where
    authority.cert_pem.write_to_path(ca_file)

    def get(url: str, timeout_s: float = 5, max_bytes: int = 1000, trusts: bool = True) -> bytes:
        monkeypatch.setattr("certifi.where", (lambda: ca_file) if trusts else trusted_by_all)
        url = f"https://localhost:{site.port}{url}" if url.startswith("/") else url
        return read_all(fetch(url, {"Authorization": "Bearer t"}, timeout_s, max_bytes))

    return get


def test_a_page_is_fetched_with_its_headers_and_no_proxy(get: Get, site: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    assert get("/ok") == b"content"
    assert [each.headers["Authorization"] for each in site.received] == ["Bearer t"]


@pytest.mark.parametrize("path", ["/404", "/500", "/204", "/302"])
def test_anything_but_200_has_failed(get: Get, site: Sink, path: str) -> None:
    with pytest.raises(FetchFailed, match="localhost answered"):
        get(path)
    assert len(site.received) == 1, "no redirect is followed"


@pytest.mark.parametrize(
    ("url", "limits", "error"),
    [
        ("/ok", {"max_bytes": 6}, "more than 6 bytes"),
        ("/long", {"max_bytes": 6}, "more than 6 bytes"),
        ("/drip", {"timeout_s": 0.5}, "localhost"),
        ("/ok", {"trusts": False}, "localhost: SSLError"),
        ("https://127.0.0.1:1/", {}, "127.0.0.1: "),
        *((url, {}, "only https is fetched") for url in ("http://localhost/", "file:///etc/passwd", "https://", "")),
        ("https://[", {}, "not an address"),
    ],
)
def test_long_slow_or_untrusted_pages_are_refused(get: Get, url: str, limits: dict[str, float], error: str) -> None:
    with pytest.raises(FetchFailed, match=error):
        get(url, **limits)


def test_a_failure_does_not_tell_what_is_private_in_the_address(get: Get) -> None:
    with pytest.raises(FetchFailed) as raised:
        get("https://user:secret@127.0.0.1:1/path?signature=sig-123")
    assert "secret" not in str(raised.value) and "sig-123" not in str(raised.value)
