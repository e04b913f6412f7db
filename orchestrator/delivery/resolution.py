"""Where a link really leads, asked only of hosts on a list and never of an address inside anyone's network."""

from __future__ import annotations

import contextlib
import io
import ipaddress
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING
from urllib.parse import quote, urldefrag, urljoin, urlsplit

import certifi

from deduplication.media import ascii_host, is_under

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

log = logging.getLogger(__name__)

Lookup = Callable[[str, int], Sequence[str]]

_REDIRECTS = {301, 302, 303, 307, 308}
_HEAD_REFUSED = {405, 501}
_TOO_MANY_REQUESTS = 429
_WEB_PORTS = {"http": 80, "https": 443}

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Not for us to reach, and yet "global" to some versions of Python, or, as Azure's metadata service, to all.
_REFUSED = tuple(
    map(
        ipaddress.ip_network,
        (
            "100.64.0.0/10",
            "168.63.129.16/32",
            "192.0.0.0/24",
            "192.88.99.0/24",
            "2001::/23",
            "2001:db8::/32",
            "3fff::/20",
        ),
    )
)


def is_public_address(address: str) -> bool:
    """Whether an address is out on the Internet; one with an IPv4 address inside is judged by that one."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inside = _ipv4_inside(ip)
        if inside is None:
            return ip.scope_id is None and ip in _GLOBAL_UNICAST and _is_public(ip)
        ip = inside
    return _is_public(ip)


def _ipv4_inside(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Of the IPv4-mapped, the 6to4 and the NAT64 form."""
    if ip in _NAT64:
        return ipaddress.IPv4Address(ip.packed[-4:])
    return ip.ipv4_mapped or ip.sixtofour


def _is_public(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    is_special = ip.is_multicast or ip.is_reserved or ip.is_loopback or ip.is_link_local or ip.is_unspecified
    return ip.is_global and not is_special and not any(ip in network for network in _REFUSED)


def system_lookup(host: str, port: int) -> list[str]:
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def strict_tls() -> ssl.SSLContext:
    """Verifies certificate and name. Unlike ssl.create_default_context it reads nothing from the environment."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certifi.where())
    return context


class _Unresolved(Exception):
    """Why a link stays as it is; says hosts and addresses, never a path."""


@dataclass(frozen=True)
class _Deadline:
    at_s: float
    monotonic: Callable[[], float]

    def left_s(self) -> float:
        left_s = self.at_s - self.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


@dataclass(frozen=True)
class _Target:
    """One hop: whom to ask for what."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, url: str) -> _Target:
        parts = urlsplit(url)
        host = ascii_host(parts.hostname or "")
        if parts.scheme not in _WEB_PORTS or not host:
            raise _Unresolved("it leads to something that is no web address")
        port = _WEB_PORTS[parts.scheme] if parts.port is None else parts.port
        path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        return cls(parts.scheme, host, port, quote(path, safe="/?:@!$&'()*+,;=-._~%[]"))

    @property
    def host_header(self) -> str:
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return shown if self.port == _WEB_PORTS[self.scheme] else f"{shown}:{self.port}"

    def is_on(self, allowed_hosts: Collection[str]) -> bool:
        return any(self._matches(entry) for entry in allowed_hosts)

    def _matches(self, entry: str) -> bool:
        domain, _, port = entry.partition(":")
        return is_under(self.host, domain) and (self.port == int(port) if port else self.port in _WEB_PORTS.values())


@dataclass(frozen=True)
class LinkResolver:
    """Follows redirects from host to host on the list; with an empty list, it is off.

    ``allowed_hosts`` are hosts with their subdomains, on ports 80 and 443, or "host:port". Each host is looked up once,
    all its addresses must be public, and the connection goes to one of these. ``timeout_s`` is for all links of a
    call together.
    ``is_allowed_address`` and ``tls`` are for tests, which have only loopback and their own certificates.
    """

    allowed_hosts: Collection[str] = ()
    max_redirects: int = 5
    timeout_s: float = 2.0
    lookup: Lookup = system_lookup
    is_allowed_address: Callable[[str], bool] = is_public_address
    tls: ssl.SSLContext = field(default_factory=strict_tls)
    monotonic: Callable[[], float] = time.monotonic

    def resolve(self, urls: Iterable[str]) -> list[str]:
        """The final URLs; a URL itself if its host is not on the list, on any error, or after too many redirects.

        A redirect to a host that is not on the list is final: that host is not asked.
        """
        deadline = _Deadline(self.monotonic() + self.timeout_s, self.monotonic)
        return [self._resolve(url, deadline) for url in urls]

    def _resolve(self, url: str, deadline: _Deadline) -> str:
        try:
            return self._follow(url, deadline)
        except _Unresolved as reason:
            log.warning("a link at %s is left unresolved: %s", _host_shown(url), reason)
        except TimeoutError:
            log.warning("a link at %s is left unresolved: no answer within %g s", _host_shown(url), self.timeout_s)
        except (OSError, HTTPException, ValueError) as error:
            log.warning("a link at %s is left unresolved: %s", _host_shown(url), type(error).__name__)
        return url

    def _follow(self, url: str, deadline: _Deadline) -> str:
        if not self.allowed_hosts:
            return url
        for _ in range(self.max_redirects + 1):
            target = _Target.of(url)
            if not target.is_on(self.allowed_hosts):
                return url
            location = self._location(target, deadline)
            if not location:
                return url
            url = _joined(url, location)
        raise _Unresolved(f"more than {self.max_redirects} redirects")

    def _location(self, target: _Target, deadline: _Deadline) -> str | None:
        """Where the target redirects to. HEAD and GET go to the same addresses: there is one lookup for both."""
        addresses = self._checked_addresses(target, deadline)
        answer = self._ask("HEAD", target, addresses, deadline)
        if answer.status in _HEAD_REFUSED:
            answer = self._ask("GET", target, addresses, deadline)
        if answer.status >= 500 or answer.status == _TOO_MANY_REQUESTS:
            raise _Unresolved(f"{target.host} answered {answer.status}")
        return answer.getheader("Location") if answer.status in _REDIRECTS else None

    def _checked_addresses(self, target: _Target, deadline: _Deadline) -> Sequence[str]:
        addresses = _within(deadline, lambda: self.lookup(target.host, target.port))
        refused = [address for address in addresses if not self.is_allowed_address(address)]
        if not addresses:
            raise _Unresolved(f"{target.host} has no address")
        if refused:
            raise _Unresolved(f"{target.host} has {refused[0]}, which is not public")
        return addresses

    def _ask(self, method: str, target: _Target, addresses: Sequence[str], deadline: _Deadline) -> HTTPResponse:
        """Status and headers; the body is not read."""
        connection = HTTPConnection(target.host, target.port)
        connection.sock = _TimedSocket(self._connected(target, addresses, deadline), deadline)
        try:
            headers = {"Host": target.host_header, "User-Agent": "mailonce", "Accept": "*/*", "Connection": "close"}
            connection.request(method, target.path, headers=headers)
            return connection.getresponse()
        finally:
            connection.close()

    def _connected(self, target: _Target, addresses: Sequence[str], deadline: _Deadline) -> socket.socket:
        plain = _first_connection(addresses, target.port, deadline)
        if target.scheme == "http":
            return plain
        try:
            plain.settimeout(deadline.left_s())
            return self.tls.wrap_socket(plain, server_hostname=target.host)
        except BaseException:
            plain.close()
            raise


class _TimedSocket:
    """What http.client needs of a socket. Every read has to end by the deadline, however slowly the bytes drip in."""

    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def sendall(self, request: bytes) -> None:
        self._sock.settimeout(self._deadline.left_s())
        self._sock.sendall(request)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_TimedReader(self._sock, self._deadline))

    def close(self) -> None:
        self._sock.close()


class _TimedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        self._sock.settimeout(self._deadline.left_s())
        return self._sock.recv_into(buffer)


def _first_connection(addresses: Sequence[str], port: int, deadline: _Deadline) -> socket.socket:
    """To the first address that takes it, as a host's IPv6 address may be out of reach where its IPv4 one is not."""
    *others, last = addresses
    for tried, address in enumerate(others):
        with contextlib.suppress(OSError):
            return socket.create_connection((address, port), timeout=deadline.left_s() / (len(addresses) - tried))
    return socket.create_connection((last, port), timeout=deadline.left_s())


def _within(deadline: _Deadline, look_up: Callable[[], Sequence[str]]) -> Sequence[str]:
    """The system's lookup takes no timeout, so it is left behind in its thread when it is late."""
    answers: SimpleQueue[Sequence[str] | Exception] = SimpleQueue()

    def answer() -> None:
        try:
            answers.put(look_up())
        except Exception as error:  # handed over, to be raised where it is waited for
            answers.put(error)

    threading.Thread(target=answer, name="link-lookup", daemon=True).start()
    try:
        found = answers.get(timeout=deadline.left_s())
    except Empty:
        raise TimeoutError from None
    if isinstance(found, Exception):
        raise found
    return found


def _joined(url: str, location: str) -> str:
    """The redirect's target. Headers arrive as Latin-1, though servers write UTF-8; a hash is handed on (RFC 9110)."""
    with contextlib.suppress(UnicodeError):
        location = location.encode("latin-1").decode()
    target, fragment = urldefrag(urljoin(url, location.strip()))
    handed_on = fragment or urldefrag(url).fragment
    return f"{target}#{handed_on}" if handed_on else target


def _host_shown(url: str) -> str:
    """For the log, which a sender must not be able to write."""
    with contextlib.suppress(ValueError):
        return ascii_host(urlsplit(url).hostname or "") or "?"
    return "?"
