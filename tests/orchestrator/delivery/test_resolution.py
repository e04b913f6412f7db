"""Where a link leads, asked over real sockets; and where it is never asked."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme

from orchestrator.delivery import resolution
from orchestrator.delivery.resolution import LinkResolver, is_public_address
from tests.orchestrator.delivery.test_http import answering
from tests.support.sink import Reply, Sink

LOOPBACK = "127.0.0.1"
ELSEWHERE = "https://files.example/x"  # not on the list
PATIENT_S = 30.0

real_getaddrinfo = socket.getaddrinfo


def to(location: str, status: int = 302) -> Reply:
    return Reply(status, headers={"Location": location, "Set-Cookie": "session=1"})


class Site(Sink):
    """Answers as ``answers`` says, and 404 to the rest."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(otherwise=Reply(404), tls=tls)
        self.scheme = "https" if tls else "http"

    @property
    def lines(self) -> list[str]:
        """What it was asked."""
        return [f"{each.method} {each.path}" for each in self.received]

    def url_of(self, path: str, host: str = "short.example") -> str:
        return f"{self.scheme}://{host}{path}"

    def resolve(self, *urls: str, timeout_s: float = PATIENT_S) -> list[str]:
        """Where the URLs lead, without the site's own address; paths are those of the site."""
        own = self.url_of("/")
        full = [self.url_of(each) if each.startswith("/") else each for each in urls]
        found = LinkResolver(["short.example"], timeout_s).resolve(full)
        return [f"/{each.removeprefix(own)}" if each.startswith(own) else each for each in found]


class Names:
    """Replaces the system's lookup of names by these addresses, one list after the other, and remembers the names.

    Loopback, the only address that tests have, passes for a public one.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[list[str] | Exception] = [[LOOPBACK]]
        self.hosts: list[str] = []
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)
        monkeypatch.setattr(resolution, "is_public_address", LOOPBACK.__eq__)

    def _look_up(self, host: str, port: int, *args: Any, **options: Any) -> Any:
        self.hosts.append(host)
        if not host.endswith(".example"):
            return real_getaddrinfo(host, port, *args, **options)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answer]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


@pytest.fixture
def site(names: Names, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with Site() as running:
        monkeypatch.setitem(resolution.WEB_PORTS, "http", running.port)
        yield running


# Following


@pytest.mark.parametrize(
    ("answers", "path", "final"),
    [
        *(({"/a": to("/b?id=1", n), "/b?id=1": to("/c", n)}, "/a", "/c") for n in (301, 302, 303, 307, 308)),
        *(
            ({"/a": to("/b"), "/b": Reply(status, headers={"Location": "/c"})}, "/a", "/b")
            for status in (200, 204, 304, 404)
        ),
        ({"/a": Reply(302)}, "/a", "/a"),
        ({"HEAD /a": Reply(405), "GET /a": to(ELSEWHERE)}, "/a", ELSEWHERE),
        ({"HEAD /a": Reply(501), "GET /a": to(ELSEWHERE)}, "/a", ELSEWHERE),
        ({f"/{n}": to(f"/{n + 1}") for n in range(5)}, "/0", "/5"),
        ({"/a": to("/b")}, "/a#part", "/b#part"),
        ({"/a": to(f"{ELSEWHERE}#key")}, "/a#part", f"{ELSEWHERE}#key"),
        ({"/%C3%A9t%C3%A9%20a": to("/b/été")}, "/été%20a", "/b/été"),
    ],
)
def test_where_a_link_leads(site: Site, answers: dict[str, Reply], path: str, final: str) -> None:
    site.answers = answers
    assert site.resolve(path) == [final]


NO_ADDRESS = "it is not a web address"


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({f"/{n}": to(f"/{n + 1}") for n in range(6)}, "more than 5 redirects"),
        ({"/0": to("/1"), "/1": to("/0")}, "more than 5 redirects"),
        *(({"/0": to("/1"), "/1": Reply(n)}, f"short.example answered {n}") for n in (429, 500, 503)),
        *(({"/0": to(url)}, NO_ADDRESS) for url in ("javascript:alert(1)", "file:///etc/passwd", "gopher://x/")),
        *(({"/0": to(url)}, NO_ADDRESS) for url in ("http://[::1", "http://short.example:99999/", "/\udcff")),
    ],
)
def test_what_leaves_a_link_as_it_is(
    site: Site, caplog: pytest.LogCaptureFixture, answers: dict[str, Reply], reason: str
) -> None:
    site.answers = answers
    assert site.resolve("/0") == ["/0"]
    assert len(site.lines) <= 6
    assert caplog.messages == [f"a link is left unresolved: {reason}"]


@pytest.mark.parametrize("url", ["", "no url", "mailto:a@short.example", "http://short.example:99999/", "http://[::1"])
def test_what_is_no_web_address_stays_as_it_is(site: Site, url: str) -> None:
    assert site.resolve(url) == [url]


def test_neither_cookies_nor_credentials_are_sent(site: Site) -> None:
    site.answers = {"/a": to("/b")}
    site.resolve(site.url_of("/a", "ada:secret@short.example"))
    assert site.lines == ["HEAD /a", "HEAD /b"]
    assert not [each for each in site.received if {"Cookie", "Authorization"} & set(each.headers)]


def test_the_log_never_has_the_path(site: Site, names: Names, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="orchestrator")
    names.answers = [[LOOPBACK], ["10.0.0.1"], socket.gaierror("/secret")]
    site.answers = {"/secret?key=1": Reply(503)}
    site.resolve(*["/secret?key=1"] * 3)
    assert "secret" not in caplog.text and len(caplog.messages) == 3


# Hosts


@pytest.mark.parametrize(
    "host",
    [
        *("other.example", "notshort.example", "short.example.evil.example", "short.example@x.example"),
        *(f"short.example{sign}@x.example" for sign in "\\;%&"),
    ],
)
def test_a_host_that_is_not_on_the_list_is_neither_looked_up_nor_asked(site: Site, names: Names, host: str) -> None:
    site.answers = {"/a": to(site.url_of("/secret", host))}
    assert site.resolve("/a", site.url_of("/b", host)) == [site.url_of("/secret", host), site.url_of("/b", host)]
    assert (site.lines, set(names.hosts)) == (["HEAD /a"], {"short.example", LOOPBACK})


def test_parsers_that_find_another_host_in_a_url_do_not_decide_where_it_leads(site: Site, names: Names) -> None:
    site.resolve("http://x.example\\@short.example/a")
    assert "x.example" not in names.hosts


def test_a_subdomain_of_a_listed_host_is_asked_with_its_own_name(site: Site) -> None:
    site.answers = {"/a": to(ELSEWHERE)}
    assert site.resolve(site.url_of("/a", "EU.short.example.")) == [ELSEWHERE]
    assert site.received[0].headers["Host"] == "eu.short.example"


def test_only_the_usual_ports_are_asked(site: Site) -> None:
    site.answers = {"/a": to(ELSEWHERE)}
    for port in (22, 8080):
        url = site.url_of("/a", f"short.example:{port}")
        assert site.resolve(url, site.url_of("/a", f"short.example:{site.port}")) == [url, ELSEWHERE]
    assert site.lines == ["HEAD /a"] * 2


# Addresses


PUBLIC = ["8.8.8.8", "93.184.216.34", "2606:2800:220:1::1", "64:ff9b::808:808"]
NOT_PUBLIC = [
    *("127.0.0.1", "127.8.8.8", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
    *("169.254.169.254", "169.254.0.1", "100.64.0.1", "100.100.100.200", "100.127.255.255", "168.63.129.16"),
    *("192.0.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.51.100.1", "203.0.113.1"),
    *("224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("::1", "::", "fe80::1", "fe80::1%1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1"),
    *("ff0e::1", "100::1", "2001::1", "2001:db8::1", "3fff::1", "5f00::1", "4000::1", "64:ff9b:1::808:808"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:100.64.0.1", "::127.0.0.1", "::8.8.8.8"),
    *("64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b::224.0.0.1"),
    *("2002:7f00:1::", "2002:a00:1::1", "2002:a9fe:a9fe::", "2002:6440:1::", "2002:808:808::1", "::ffff:8.8.8.8"),
    *("2001:0:4136:e378:8000:63bf:3fff:fdd2", "", "localhost", "127.1", "2130706433", "0x7f.0.0.1", "8.8.8.8:80"),
]


@pytest.mark.parametrize(("addresses", "is_public"), [(PUBLIC, True), (NOT_PUBLIC, False)])
def test_an_address_inside_a_network_is_not_public_in_any_notation(addresses: list[str], is_public: bool) -> None:
    assert [address for address in addresses if is_public_address(address) != is_public] == []


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "2130706433", "0x7f.1"])
def test_loopback_is_never_reached_even_if_someone_lists_it(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    with Site() as site:
        monkeypatch.setitem(resolution.WEB_PORTS, "http", site.port)
        assert LinkResolver([host]).resolve([site.url_of("/a", host)]) == [site.url_of("/a", host)]
        assert site.lines == []


@pytest.mark.parametrize(
    ("answers", "lines", "reason"),
    [
        ([[LOOPBACK, "10.0.0.1"]], [], "short.example has 10.0.0.1, which is not public"),
        ([[LOOPBACK], ["169.254.169.254"]], ["HEAD /a"], "in.short.example has 169.254.169.254, which is not public"),
        ([socket.gaierror("no such host")], [], "short.example: gaierror"),
        ([UnicodeError("label too long")], [], NO_ADDRESS),
    ],
    ids=["one of two is inside", "a redirect leads inside", "unknown host", "no host"],
)
def test_a_host_without_a_public_address_is_not_asked(
    site: Site,
    names: Names,
    caplog: pytest.LogCaptureFixture,
    answers: list[list[str] | Exception],
    lines: list[str],
    reason: str,
) -> None:
    names.answers = answers
    site.answers = {"/a": to(site.url_of("/latest/meta-data", "in.short.example"))}
    assert site.resolve("/a") == ["/a"]
    assert (site.lines, caplog.messages) == (lines, [f"a link is left unresolved: {reason}"])


def test_a_connection_goes_to_the_address_that_was_checked_and_a_later_lookup_is_checked_again(
    site: Site, names: Names
) -> None:
    names.answers = [[LOOPBACK], ["10.0.0.1"]]
    site.answers = {"HEAD /a": Reply(405), "GET /a": to(ELSEWHERE)}
    assert site.resolve("/a") == ["/a"]
    assert names.hosts == ["short.example", LOOPBACK, "short.example"]
    assert site.lines == ["HEAD /a"]


# Time; test_http.py has more on what is too slow


def test_an_answer_that_is_not_http_leaves_the_url_as_it_was(
    names: Names, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with answering([b"no http\r\n\r\n"]) as given:
        monkeypatch.setitem(resolution.WEB_PORTS, "http", urlsplit(given).port)
        url = "http://short.example/"
        assert LinkResolver(["short.example"], PATIENT_S).resolve([url]) == [url]
    assert caplog.messages == ["a link is left unresolved: short.example: ProtocolError"]


def test_the_deadline_is_one_for_all_links_and_those_that_were_followed_before_it_are_kept(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server((LOOPBACK, 0)) as silent:
        monkeypatch.setitem(resolution.WEB_PORTS, "https", silent.getsockname()[1])
        urls = [site.url_of("/a"), "https://short.example/", site.url_of("/b")]
        site.answers = {"/a": to(ELSEWHERE), "/b": to(ELSEWHERE)}
        assert LinkResolver(["short.example"]).resolve(urls) == [ELSEWHERE, *urls[1:]]
    assert site.lines == ["HEAD /a"]
    assert "left unresolved" in caplog.text


def test_a_lookup_that_hangs_ends_at_the_deadline(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def look_up(*_: object, **__: object) -> None:
        go_on.wait(60)
        raise socket.gaierror("too late")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert site.resolve("/a", timeout_s=0.2) == ["/a"]
    go_on.set()


# TLS


@pytest.mark.parametrize(
    ("name", "is_trusted", "final"),
    [
        ("short.example", True, ELSEWHERE),
        ("other.example", True, "/a"),
        (LOOPBACK, True, "/a"),
        ("short.example", False, "/a"),
    ],
    ids=["the host", "another name", "the address", "an unknown authority"],
)
def test_a_certificate_must_be_of_the_host(
    names: Names, monkeypatch: pytest.MonkeyPatch, name: str, is_trusted: bool, final: str
) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    wanted: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: wanted.append(name)
    with Site(context) as site, authority.cert_pem.tempfile() as bundle:
        monkeypatch.setenv("SSL_CERT_FILE", bundle)  # the environment does not count
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", bundle)
        if is_trusted:
            monkeypatch.setattr("certifi.where", lambda: bundle)
        monkeypatch.setitem(resolution.WEB_PORTS, "https", site.port)
        site.answers = {"/a": to(ELSEWHERE)}
        assert site.resolve("/a") == [final]
        assert len(site.lines) == (final == ELSEWHERE)
    assert wanted == ["short.example"]
