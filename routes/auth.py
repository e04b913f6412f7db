"""Who sent a request: the Authorization header, compared in constant time before the body is read, and the address."""

import hmac
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from wsgiref.types import WSGIEnvironment

from orchestrator.build import Service

Networks = Iterable[IPv4Network | IPv6Network]


class Unauthorized(Exception):
    """The request has no proof of its origin, or a wrong one."""


class TooManyGuesses(Exception):
    """The address has sent too many wrong tokens; it may try again in ``wait_s`` seconds."""

    def __init__(self, wait_s: int) -> None:
        super().__init__(f"too many wrong tokens; try again in {wait_s} seconds")
        self.wait_s = wait_s


def require_operator_token(service: Service, environ: WSGIEnvironment, token: str, accepted: Iterable[str]) -> None:
    """Raises Unauthorized without a right token, and TooManyGuesses after too many wrong ones. None is no guess."""
    address = client_address(environ, service.settings.trusted_proxies)
    wait_s = service.counters.guess_wait_s(address)
    if wait_s:
        raise TooManyGuesses(wait_s)
    if not equals_any(token, accepted):
        if token:
            service.counters.guess_wait_s(address, counts=True)
        raise Unauthorized


def bearer_token(authorization: str | None) -> str:
    """Empty if there is none."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def equals_any(given: str | bytes, expected: Iterable[str | bytes]) -> bool:
    """Compares with all of them, so that the time taken reveals nothing."""
    first, *others = (
        candidate.encode() if isinstance(candidate, str) else candidate for candidate in (given, *expected)
    )
    return any([hmac.compare_digest(first, candidate) for candidate in others])


def client_address(environ: WSGIEnvironment, trusted: Networks) -> str:
    """The address of the client: the peer of the connection, or the one that a trusted proxy names.

    Anyone can send X-Forwarded-For, so it is read from its end, only as far as trusted proxies wrote it.
    """
    address = peer_address(environ)
    forwarded = str(environ.get("HTTP_X_FORWARDED_FOR", "")).split(",")
    while forwarded and is_among(address, trusted) and (before := _plain(forwarded.pop().strip())):
        address = before
    return address or "-"


def peer_address(environ: WSGIEnvironment) -> str:
    """The peer of the connection; empty if it has no address."""
    return _plain(str(environ.get("REMOTE_ADDR") or ""))


def is_among(address: str, networks: Networks) -> bool:
    """A network may be written as IPv4 or in its IPv6 form, ::ffff:127.0.0.1."""
    forms = [ip_address(address)] if address else []
    forms += [IPv6Address(f"::ffff:{form}") for form in forms if form.version == 4]
    return any(form in network for form in forms for network in networks)


def _plain(text: str) -> str:
    """The address, empty if it is not one. With HOST=:: a socket reports 192.0.2.1 as ::ffff:192.0.2.1."""
    try:
        address = ip_address(text)
    except ValueError:
        return ""
    return str(getattr(address, "ipv4_mapped", None) or address)
