"""Where a link leads, asked over real sockets; and where it is never asked."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import trustme

from orchestrator.delivery.resolution import LinkResolver, is_public_address, strict_tls

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Answer:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


def to(location: str, status: int = 302) -> Answer:
    return Answer(status, {"Location": location, "Set-Cookie": "session=1"})


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: dict[str, str]

    @property
    def line(self) -> str:
        return f"{self.method} {self.path}"


class Site:
    """Answers by path, or by method and path; 404 for the rest. Keeps what it was asked."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[Asked] = []
        self._server = ThreadingHTTPServer((LOOPBACK, 0), _handler(self))
        self._server.daemon_threads = True
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def url(self, path: str, host: str = "short.example", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    @property
    def lines(self) -> list[str]:
        return [each.line for each in self.asked]


def _handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            asked = Asked(self.command, self.path, dict(self.headers))
            site.asked.append(asked)
            answer = site.answers.get(asked.line) or site.answers.get(self.path) or Answer(404)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()

        do_HEAD = do_GET = _answer

        def log_message(self, format: str, *args: object) -> None:
            """The tests look at what was asked."""

    return Handler


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as running:
        yield running


def always(*addresses: str) -> Callable[[str, int], Sequence[str]]:
    return lambda _host, _port: addresses


def resolver(
    site: Site,
    timeout_s: float = 10,
    lookup: Callable[[str, int], Sequence[str]] | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> LinkResolver:
    """For short.example at the site's port; loopback, the only address tests have, passes for a public one."""
    return LinkResolver(
        [f"short.example:{site.port}"],
        timeout_s=timeout_s,
        lookup=lookup or always(LOOPBACK),
        is_allowed_address=lambda address: address == LOOPBACK,
        monotonic=monotonic,
    )


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_followed_to_the_final_url(site: Site, status: int) -> None:
    site.answers = {"/a": to("/b?id=1", status), "/b?id=1": to(site.url("/c"), status), "/c": Answer(200)}
    assert resolver(site).resolve([site.url("/a")])[0] == site.url("/c")
    assert site.lines == ["HEAD /a", "HEAD /b?id=1", "HEAD /c"]


@pytest.mark.parametrize("status", [200, 204, 304, 401, 403, 404])
def test_an_answer_that_is_no_redirect_is_final(site: Site, status: int) -> None:
    site.answers = {"/a": to("/b"), "/b": Answer(status, {"Location": "/c"})}
    assert resolver(site).resolve([site.url("/a")])[0] == site.url("/b")


def test_a_redirect_without_a_location_is_final(site: Site) -> None:
    site.answers = {"/a": Answer(302)}
    assert resolver(site).resolve([site.url("/a")])[0] == site.url("/a")


def test_nothing_is_asked_and_nothing_said_with_an_empty_list(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    off = LinkResolver(lookup=always(LOOPBACK), is_allowed_address=lambda _address: True)
    assert [off.resolve([url])[0] for url in (site.url("/a"), "no url")] == [site.url("/a"), "no url"]
    assert (site.asked, caplog.text) == ([], "")


@pytest.mark.parametrize(
    "host", ["other.example", "notshort.example", "short.example.evil.example", "short.example@x.example"]
)
def test_a_host_that_is_not_on_the_list_is_not_asked(site: Site, host: str) -> None:
    assert resolver(site).resolve([site.url("/a", host)])[0] == site.url("/a", host)
    assert site.asked == []


def test_a_subdomain_of_a_listed_host_is_asked_with_its_own_name(site: Site) -> None:
    site.answers = {"/a": to("https://files.example/x")}
    assert resolver(site).resolve([site.url("/a", "EU.short.example.")])[0] == "https://files.example/x"
    assert site.asked[0].headers["Host"] == f"eu.short.example:{site.port}"


def test_a_port_is_asked_only_if_it_is_listed(site: Site) -> None:
    by_name = LinkResolver(["short.example"], lookup=always(LOOPBACK), is_allowed_address=lambda _address: True)
    assert by_name.resolve([site.url("/a")])[0] == site.url("/a")
    assert site.asked == []


def test_a_redirect_to_a_host_that_is_not_on_the_list_is_final_and_not_asked(site: Site) -> None:
    looked_up = []

    def lookup(host: str, _port: int) -> list[str]:
        looked_up.append(host)
        return [LOOPBACK]

    final = site.url("/secret", "other.example")
    site.answers = {"/a": to(final)}
    assert resolver(site, lookup=lookup).resolve([site.url("/a")])[0] == final
    assert (site.lines, looked_up) == (["HEAD /a"], ["short.example"])


def test_five_redirects_are_followed(site: Site) -> None:
    site.answers = {f"/{n}": to(f"/{n + 1}") for n in range(5)}
    assert resolver(site).resolve([site.url("/0")])[0] == site.url("/5")


def test_a_sixth_redirect_leaves_the_url_as_it_was(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.answers = {f"/{n}": to(f"/{n + 1}") for n in range(6)}
    assert resolver(site).resolve([site.url("/0")])[0] == site.url("/0")
    assert len(site.asked) == 6
    assert "more than 5 redirects" in caplog.text


def test_a_loop_ends_at_the_limit(site: Site) -> None:
    site.answers = {"/a": to("/b"), "/b": to("/a")}
    assert resolver(site).resolve([site.url("/a")])[0] == site.url("/a")
    assert len(site.asked) == 6


@pytest.mark.parametrize("status", [405, 501])
def test_get_is_asked_where_head_is_refused(site: Site, status: int) -> None:
    site.answers = {"HEAD /a": Answer(status), "GET /a": to("https://files.example/x")}
    assert resolver(site).resolve([site.url("/a")])[0] == "https://files.example/x"
    assert site.lines == ["HEAD /a", "GET /a"]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_host_in_trouble_leaves_the_url_as_it_was(site: Site, status: int, caplog: pytest.LogCaptureFixture) -> None:
    site.answers = {"/a": to("/b"), "/b": Answer(status)}
    assert resolver(site).resolve([site.url("/a")])[0] == site.url("/a")
    assert f"short.example answered {status}" in caplog.text


@pytest.mark.parametrize(
    "location",
    ["javascript:alert(1)", "file:///etc/passwd", "gopher://x.example/", "http://", "http://[::1", "http://a b/"],
)
def test_a_redirect_to_no_web_address_leaves_the_url_as_it_was(site: Site, location: str) -> None:
    site.answers = {"/a": to(location)}
    assert resolver(site).resolve([site.url("/a")])[0] == site.url("/a")


@pytest.mark.parametrize("url", ["", "no url", "mailto:a@short.example", "http://short.example:99999/", "http://[::1"])
def test_what_is_no_web_address_stays_as_it_is(site: Site, url: str) -> None:
    assert resolver(site).resolve([url])[0] == url


def test_a_hash_is_handed_on_and_a_new_one_wins(site: Site) -> None:
    site.answers = {"/a": to("/b"), "/c": to("https://mega.nz/file/x#key")}
    assert resolver(site).resolve([site.url("/a#part")])[0] == site.url("/b#part")
    assert resolver(site).resolve([site.url("/c#part")])[0] == "https://mega.nz/file/x#key"


def test_a_path_beyond_ascii_is_asked_for_percent_encoded(site: Site) -> None:
    site.answers = {"/%C3%A9t%C3%A9%20a": to("/b/été".encode().decode("latin-1"))}
    assert resolver(site).resolve([site.url("/été%20a")])[0] == site.url("/b/été")
    assert site.lines == ["HEAD /%C3%A9t%C3%A9%20a", "HEAD /b/%C3%A9t%C3%A9"]


def test_no_cookie_no_credentials_and_no_proxy_are_used(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with Site() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://{LOOPBACK}:{proxy.port}")
        site.answers = {"/a": to("/b")}
        resolver(site).resolve([site.url("/a", "ada:secret@short.example")])[0]
        assert proxy.asked == []
    assert site.lines == ["HEAD /a", "HEAD /b"]
    assert not [each for each in site.asked if {"Cookie", "Authorization"} & set(each.headers)]


def test_the_log_says_host_and_reason_and_never_the_path(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.answers = {"/secret?key=1": Answer(503)}
    with caplog.at_level(logging.DEBUG):
        resolver(site).resolve([site.url("/secret?key=1")])[0]
        resolver(site, lookup=always("10.0.0.1")).resolve([site.url("/secret?key=1")])[0]
    assert "a link at short.example is left unresolved: short.example answered 503" in caplog.text
    assert "short.example has 10.0.0.1, which is not public" in caplog.text
    assert "secret" not in caplog.text


# Addresses


PUBLIC = ["8.8.8.8", "93.184.216.34", "2606:2800:220:1::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"]
NOT_PUBLIC = [
    *("127.0.0.1", "127.8.8.8", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
    *("169.254.169.254", "169.254.0.1", "100.64.0.1", "100.100.100.200", "100.127.255.255", "168.63.129.16"),
    *("192.0.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.51.100.1", "203.0.113.1"),
    *("224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("::1", "::", "fe80::1", "fe80::1%1", "2606:2800:220:1::1%1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1"),
    *("ff0e::1", "100::1", "2001::1", "2001:db8::1", "3fff::1", "5f00::1", "4000::1", "64:ff9b:1::808:808"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:100.64.0.1", "::127.0.0.1", "::8.8.8.8"),
    *("64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b::224.0.0.1"),
    *("2002:7f00:1::", "2002:a00:1::1", "2002:a9fe:a9fe::", "2002:6440:1::"),
    *("2001:0:4136:e378:8000:63bf:3fff:fdd2", "", "localhost", "127.1", "2130706433", "0x7f.0.0.1", "8.8.8.8:80"),
]


@pytest.mark.parametrize("address", PUBLIC)
def test_an_address_on_the_internet_is_public(address: str) -> None:
    assert is_public_address(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_inside_a_network_is_not_public_in_any_notation(address: str) -> None:
    assert not is_public_address(address)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "2130706433", "0x7f.1"])
def test_loopback_is_never_reached_even_if_someone_lists_it(site: Site, host: str) -> None:
    strict = LinkResolver([f"{host}:{site.port}"])
    assert strict.resolve([site.url("/a", host)])[0] == site.url("/a", host)
    assert site.asked == []


def test_one_address_that_is_not_public_spoils_all(site: Site) -> None:
    site.answers = {"/a": to("https://files.example/x")}
    assert resolver(site, lookup=always(LOOPBACK, "10.0.0.1")).resolve([site.url("/a")])[0] == site.url("/a")
    assert site.asked == []


def test_a_redirect_does_not_lead_inside(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    def lookup(host: str, _port: int) -> list[str]:
        return ["169.254.169.254" if host == "inside.short.example" else LOOPBACK]

    site.answers = {"/a": to(site.url("/latest/meta-data", "inside.short.example"))}
    assert resolver(site, lookup=lookup).resolve([site.url("/a")])[0] == site.url("/a")
    assert site.lines == ["HEAD /a"]
    assert "inside.short.example has 169.254.169.254, which is not public" in caplog.text


def test_a_host_is_looked_up_once_a_hop_and_a_later_answer_changes_nothing(site: Site) -> None:
    answers = iter([[LOOPBACK], ["10.0.0.1"]])
    asked = []

    def lookup(host: str, _port: int) -> list[str]:
        asked.append(host)
        return next(answers)

    site.answers = {"HEAD /a": Answer(405), "GET /a": to("https://files.example/x")}
    assert resolver(site, lookup=lookup).resolve([site.url("/a")])[0] == "https://files.example/x"
    assert (asked, site.lines) == (["short.example"], ["HEAD /a", "GET /a"])


def test_the_second_hop_is_looked_up_and_checked_anew(site: Site) -> None:
    answers = iter([[LOOPBACK], ["10.0.0.1"]])
    site.answers = {"/a": to("/b")}
    assert resolver(site, lookup=lambda _host, _port: next(answers)).resolve([site.url("/a")])[0] == site.url("/a")
    assert site.lines == ["HEAD /a"]


def test_the_system_is_asked_for_the_checked_address_and_nothing_else(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = socket.getaddrinfo

    def spy(host: str, *args: object, **options: object) -> object:
        asked.append(host)
        return real(host, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", spy)
    resolver(site).resolve([site.url("/a")])[0]
    assert (set(asked), len(site.asked)) == ({LOOPBACK}, 1)


@pytest.mark.parametrize("addresses", [("::1", LOOPBACK), (LOOPBACK, "::1")])
def test_the_first_address_within_reach_is_taken(site: Site, addresses: tuple[str, str]) -> None:
    site.answers = {"/a": to("https://files.example/x")}
    reachable = LinkResolver(
        [f"short.example:{site.port}"], lookup=always(*addresses), is_allowed_address=lambda _address: True
    )
    assert reachable.resolve([site.url("/a")])[0] == "https://files.example/x"


@pytest.mark.parametrize("failure", [socket.gaierror("no such host"), UnicodeError("label too long")])
def test_a_host_that_is_not_found_leaves_the_url_as_it_was(site: Site, failure: Exception) -> None:
    def lookup(_host: str, _port: int) -> list[str]:
        raise failure

    assert resolver(site, lookup=lookup).resolve([site.url("/a")])[0] == site.url("/a")
    assert site.asked == []


def test_a_host_without_an_address_leaves_the_url_as_it_was(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    assert resolver(site, lookup=always()).resolve([site.url("/a")])[0] == site.url("/a")
    assert "short.example has no address" in caplog.text


# Time


@pytest.fixture
def drip() -> Iterator[Callable[[bytes, bytes], int]]:
    """Starts a server that sends one thing, then another again and again, for ever; returns its port."""
    stop = threading.Event()
    with ExitStack() as at_the_end:

        def start(first: bytes, then: bytes) -> int:
            listener = at_the_end.enter_context(socket.create_server((LOOPBACK, 0)))
            thread = threading.Thread(target=_drip, args=(listener, first, then, stop))
            thread.start()
            at_the_end.callback(thread.join)
            at_the_end.callback(stop.set)
            return int(listener.getsockname()[1])

        yield start


def _drip(listener: socket.socket, first: bytes, then: bytes, stop: threading.Event) -> None:
    listener.settimeout(5)
    try:
        connection, _ = listener.accept()
    except TimeoutError:  # it had enough before it came
        return
    with connection:
        try:
            connection.sendall(first)
            while not stop.wait(0.02):
                connection.sendall(then)
        except OSError:  # the other side has had enough
            return


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (b"", b""),
        (b"", b"H"),
        (b"HTTP/1.1 302 Found\r\nX-Slow: ", b"x"),
        (b"HTTP/1.1 302 Found\r\nLocation: /b\r\n", b"X: 1\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"\x16\x03\x03\x40\x00", b"\x02"),
    ],
    ids=["silence", "status", "header", "headers", "continue", "handshake"],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_answer_that_drips_in_ends_at_the_deadline(
    drip: Callable[[bytes, bytes], int], first: bytes, then: bytes, scheme: str
) -> None:
    port = drip(first, then)
    slow = LinkResolver(
        [f"short.example:{port}"], timeout_s=0.4, lookup=always(LOOPBACK), is_allowed_address=lambda _address: True
    )
    assert slow.resolve([f"{scheme}://short.example:{port}/a"])[0] == f"{scheme}://short.example:{port}/a"


@pytest.mark.parametrize("answer", [b"no http\r\n\r\n", b"HTTP/1.1 302 Found\r\n" + b"X: 1\r\n" * 200])
def test_a_damaged_answer_leaves_the_url_as_it_was(
    drip: Callable[[bytes, bytes], int], answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    port = drip(answer, b"")
    confused = LinkResolver(
        [f"short.example:{port}"], timeout_s=10, lookup=always(LOOPBACK), is_allowed_address=lambda _address: True
    )
    assert confused.resolve([f"http://short.example:{port}/a"])[0] == f"http://short.example:{port}/a"
    assert "no answer" not in caplog.text


@pytest.mark.parametrize(
    ("paths", "redirects"),
    [(["/a"], {"/a": "/b", "/b": "/c", "/c": "/d"}), (["/a", "/b", "/c"], {})],
    ids=["hops of a link", "links of an email"],
)
def test_the_deadline_is_one_for_all(
    site: Site, caplog: pytest.LogCaptureFixture, paths: list[str], redirects: dict[str, str]
) -> None:
    now_s = 0.0

    def lookup(_host: str, _port: int) -> list[str]:
        nonlocal now_s
        now_s += 20
        return [LOOPBACK]

    site.answers = {path: to(location) for path, location in redirects.items()}
    slow = resolver(site, timeout_s=50, lookup=lookup, monotonic=lambda: now_s)
    urls = [site.url(path) for path in paths]
    assert slow.resolve(urls) == urls
    assert site.lines == ["HEAD /a", "HEAD /b"], "50 s are over when the third host is found"
    assert "no answer within 50 s" in caplog.text


def test_the_deadline_of_the_service_is_two_seconds() -> None:
    assert LinkResolver().timeout_s == 2


def test_a_lookup_that_hangs_ends_at_the_deadline(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    go_on, answered = threading.Event(), threading.Event()

    def lookup(_host: str, _port: int) -> list[str]:
        go_on.wait(60)
        answered.set()
        return [LOOPBACK]

    assert resolver(site, timeout_s=0.2, lookup=lookup).resolve([site.url("/a")])[0] == site.url("/a")
    assert not answered.is_set()
    go_on.set()
    assert "no answer within 0.2 s" in caplog.text


# TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    return context


def serving(authority: trustme.CA, *names: str) -> tuple[ssl.SSLContext, list[str | None]]:
    """And the server names that clients ask for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    wanted: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: wanted.append(name)
    return context, wanted


def over_tls(site: Site, tls: ssl.SSLContext) -> LinkResolver:
    return LinkResolver(
        [f"short.example:{site.port}"],
        timeout_s=10,
        lookup=always(LOOPBACK),
        is_allowed_address=lambda address: address == LOOPBACK,
        tls=tls,
    )


def test_a_certificate_is_checked_against_the_host_and_not_the_address(authority: trustme.CA) -> None:
    context, wanted = serving(authority, "short.example")
    with Site(context) as site:
        site.answers = {"/a": to("/b"), "/b": to("https://files.example/x")}
        resolved = over_tls(site, trusting(authority)).resolve([site.url("/a", scheme="https")])[0]
    assert resolved == "https://files.example/x"
    assert wanted == ["short.example", "short.example"]
    assert site.asked[0].headers["Host"] == f"short.example:{site.port}"


@pytest.mark.parametrize("names", [["other.example"], [LOOPBACK]], ids=["another name", "the address"])
def test_a_certificate_for_something_else_leaves_the_url_as_it_was(
    authority: trustme.CA, names: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with Site(serving(authority, *names)[0]) as site:
        site.answers = {"/a": to("https://files.example/x")}
        url = site.url("/a", scheme="https")
        assert over_tls(site, trusting(authority)).resolve([url])[0] == url
        assert site.asked == []
    assert "SSLCertVerificationError" in caplog.text


def test_a_certificate_that_nobody_vouches_for_leaves_the_url_as_it_was(
    authority: trustme.CA, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Site(serving(authority, "short.example")[0]) as site, authority.cert_pem.tempfile() as bundle:
        monkeypatch.setenv("SSL_CERT_FILE", bundle)  # the environment does not vouch either
        site.answers = {"/a": to("https://files.example/x")}
        url = site.url("/a", scheme="https")
        assert over_tls(site, strict_tls()).resolve([url])[0] == url
        assert site.asked == []
    assert "SSLCertVerificationError" in caplog.text
