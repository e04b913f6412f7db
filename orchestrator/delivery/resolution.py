"""Follows links to where they lead, only through hosts on a list and never to an address inside anyone's network."""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Collection, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urldefrag, urljoin, urlsplit

from urllib3 import HTTPConnectionPool
from urllib3.exceptions import HTTPError

from deduplication.media import ascii_host, is_under
from orchestrator.delivery.client import TimedPools

log = logging.getLogger(__name__)

MAX_REDIRECTS = 5
_REDIRECTS = {301, 302, 303, 307, 308}
_HEAD_REFUSED = {405, 501}
_WEB_PORTS = {"http": 80, "https": 443}

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Not public, although "global" to some versions of Python or, like the metadata service of Azure, to all.
_REFUSED = [
    *map(ipaddress.ip_network, ("100.64.0.0/10", "168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24")),
    *map(ipaddress.ip_network, ("2001::/23", "2001:db8::/32", "3fff::/20")),
]


def is_public_address(address: str) -> bool:
    """Whether it is an address on the Internet. The IPv4 address inside of an IPv6 address decides, if there is one."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inside = ipaddress.IPv4Address(ip.packed[-4:]) if ip in _NAT64 else ip.ipv4_mapped or ip.sixtofour
        if inside is None and (ip.scope_id is not None or ip not in _GLOBAL_UNICAST):
            return False
        ip = inside or ip
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _REFUSED)


class Unresolved(Exception):
    """Why a link is left as it is; the text has hosts and addresses, never a path."""


class PublicPools(TimedPools):
    """Looks up the host once, refuses it if any of its addresses is not public, and connects to a checked address.

    A second lookup could return another address (DNS rebinding).
    """

    def connection_from_host(
        self, host: str | None, port: int | None = None, scheme: str | None = "http", pool_kwargs: Any = None
    ) -> HTTPConnectionPool:
        addresses = [str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
        for address in addresses:
            if not is_public_address(address):
                raise Unresolved(f"{host} has {address}, which is not public")
        return super().connection_from_host(addresses[0], port, scheme, {"server_hostname": host})


@dataclass(frozen=True)
class LinkResolver:
    """Follows redirects from host to host on the list.

    ``allowed_hosts`` are hosts with their subdomains, on ports 80 and 443, or "host:port". ``timeout_s`` is for all
    links of a call together.
    """

    allowed_hosts: Collection[str]
    timeout_s: float = 2.0
    pools: PublicPools = field(default_factory=lambda: PublicPools(pool_size=16))  # of each address

    def resolve(self, urls: Sequence[str]) -> list[str]:
        """The final URLs; a URL itself if its host is not on the list, on any error, or after too many redirects.

        A redirect to a host that is not on the list is final: that host is not asked.
        """
        final = list(urls)
        # A thread, because the system's lookup has no timeout: if it is late, the thread is left behind.
        thread = threading.Thread(target=copy_context().run, args=(self._follow_all, final), name="links", daemon=True)
        thread.start()
        thread.join(self.timeout_s)
        if thread.is_alive():
            log.warning("links are left unresolved: no answer within %g s", self.timeout_s)
        return list(final)

    def _follow_all(self, urls: list[str]) -> None:
        """Replaces each by its final URL, as long as there is time."""
        ends_at = time.monotonic() + self.timeout_s
        for index, url in enumerate(urls):
            try:
                urls[index] = self._follow(url, ends_at)
            except Unresolved as error:
                log.warning("a link is left unresolved: %s", error)
            except ValueError:
                log.warning("a link is left unresolved: it is not a web address")
            if time.monotonic() > ends_at:
                return

    def _follow(self, url: str, ends_at: float) -> str:
        for _ in range(MAX_REDIRECTS + 1):
            parts = urlsplit(url)
            host = ascii_host(parts.hostname or "")
            if parts.scheme not in _WEB_PORTS or not host:
                raise ValueError(parts.scheme)
            port = _WEB_PORTS[parts.scheme] if parts.port is None else parts.port
            if not any(_matches(entry, host, port) for entry in self.allowed_hosts):
                return url
            # Built from what was checked: another parser may find another host in the URL. Credentials are dropped.
            netloc = host if port == _WEB_PORTS[parts.scheme] else f"{host}:{port}"
            checked = parts._replace(netloc=netloc, fragment="").geturl()
            try:
                status, location = self._ask("HEAD", checked, ends_at)
                if status in _HEAD_REFUSED:
                    status, location = self._ask("GET", checked, ends_at)
            except (OSError, HTTPError) as error:
                raise Unresolved(f"{host}: {type(error).__name__}") from error
            if status >= 500 or status == 429:
                raise Unresolved(f"{host} answered {status}")
            if status not in _REDIRECTS or not location:
                return url
            location = location.encode("latin-1").decode()  # servers write UTF-8, http.client reads Latin-1
            target, fragment = urldefrag(urljoin(url, location.strip()))
            url = f"{target}#{fragment or parts.fragment}".removesuffix("#")  # a fragment is passed on (RFC 9110)
        raise Unresolved(f"more than {MAX_REDIRECTS} redirects")

    def _ask(self, method: str, url: str, ends_at: float) -> tuple[int, str | None]:
        """Status and Location; the body is not read."""
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        headers = {**self.pools.headers, "Host": urlsplit(url).netloc}  # the connection knows its address only
        with self.pools.ask(method, url, headers, left_s) as answer:
            return answer.status, answer.headers.get("Location")


def _matches(entry: str, host: str, port: int) -> bool:
    domain, _, listed_port = entry.partition(":")
    return is_under(host, domain) and (port == int(listed_port) if listed_port else port in _WEB_PORTS.values())
