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
from typing import Any, Literal
from urllib.parse import urldefrag, urljoin, urlsplit

from urllib3 import HTTPConnectionPool
from urllib3.exceptions import HTTPError

from deduplication.media import ascii_host, is_under
from orchestrator.delivery.fetching import UNREAD, TimedPools

log = logging.getLogger(__name__)

MAX_REDIRECTS = 5
_HEAD_REFUSED = {405, 501}
WEB_PORTS = {"http": 80, "https": 443}

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST = (ipaddress.IPv4Network("0.0.0.0/0"), ipaddress.IPv6Network("2000::/3"))
# Not public, although "global" to some versions of Python or, like the metadata service of Azure, to all; and 6to4,
# whose addresses have those of IPv4 inside.
_REFUSED = [
    *map(ipaddress.ip_network, ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "224.0.0.0/4")),
    *map(ipaddress.ip_network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")),
]


def is_public_address(address: str) -> bool:
    """Whether it is an address on the Internet. Of a NAT64 address, the IPv4 address inside of it decides."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if ip in _NAT64:
        ip = ipaddress.IPv4Address(ip.packed[-4:])
    return ip.is_global and any(ip in net for net in _GLOBAL_UNICAST) and not any(ip in net for net in _REFUSED)


class Unresolved(Exception):
    """Why a link is left as it is; the text has hosts and addresses, never a path."""


class PublicPools(TimedPools):
    """Looks up the host once, refuses it if any of its addresses is not public, and connects to a checked address.

    A second lookup could return another address (DNS rebinding).
    """

    def connection_from_host(
        self, host: str | None, port: int | None = None, scheme: str | None = "http", pool_kwargs: Any = None
    ) -> HTTPConnectionPool:
        addresses = [str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
        for address in addresses:
            if not is_public_address(address):
                raise Unresolved(f"{host} has {address}, which is not public")
        return super().connection_from_host(addresses[0], port, scheme, {"server_hostname": host})


@dataclass(frozen=True)
class LinkResolver:
    """Follows redirects from host to host on the list, which includes their subdomains, on the usual ports.

    ``timeout_s`` is for all links of a call together.
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
        """Replaces the URLs by their final ones, as long as there is time."""
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
            if parts.scheme not in WEB_PORTS or not host:
                raise ValueError(parts.scheme)
            if not is_under(host, *self.allowed_hosts) or parts.port not in (None, WEB_PORTS[parts.scheme]):
                return url
            # Built from what was checked: another parser may find another host in the URL. Credentials are dropped.
            checked = parts._replace(netloc=f"{host}:{WEB_PORTS[parts.scheme]}", fragment="").geturl()
            try:
                location = self._location(host, checked, ends_at)
            except (OSError, HTTPError) as error:
                raise Unresolved(f"{host}: {type(error).__name__}") from error
            if not location:
                return url
            location = location.encode("latin-1").decode()  # servers write UTF-8, http.client reads Latin-1
            target, fragment = urldefrag(urljoin(url, location.strip()))
            url = f"{target}#{fragment or parts.fragment}".removesuffix("#")  # a fragment is passed on (RFC 9110)
        raise Unresolved(f"more than {MAX_REDIRECTS} redirects")

    def _location(self, host: str, url: str, ends_at: float) -> str | None | Literal[False]:
        """Where a redirect leads, if the answer is one. The body is not read."""
        headers = {**self.pools.headers, "Host": host}  # the connection knows its address only
        for method in ("HEAD", "GET"):
            left_s = max(0.001, ends_at - time.monotonic())
            with self.pools.urlopen(method, url, headers=headers, timeout=left_s, **UNREAD) as answer:
                if answer.status not in _HEAD_REFUSED:
                    break
        if answer.status >= 500 or answer.status == 429:
            raise Unresolved(f"{host} answered {answer.status}")
        return answer.get_redirect_location()
