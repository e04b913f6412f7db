"""Every request has an id, in its response and in all its log lines: the caller's own if it is a sane one."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Any

from orchestrator.logs import request_id

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

Networks = Iterable[IPv4Network | IPv6Network]

HEADER = "X-Request-Id"
_SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")


class RequestIds:
    """Wraps the whole application, so that every response has the header."""

    def __init__(self, app: WSGIApplication) -> None:
        self._app = app

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        given = environ.get("HTTP_X_REQUEST_ID", "")
        id_ = given if _SANE.fullmatch(given) else secrets.token_hex(6)

        def start_with_id(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            return start_response(status, [*headers, (HEADER, id_)], *error)

        token = request_id.set(id_)
        try:
            return self._app(environ, start_with_id)
        finally:
            request_id.reset(token)


def client_address(environ: WSGIEnvironment, trusted: Networks) -> str:
    """The address of the client: the peer of the connection, or the one that a trusted proxy names.

    Anyone can send X-Forwarded-For, so it is read from its end, only as far as trusted proxies wrote it.
    """
    address = peer_address(environ)
    forwarded = str(environ.get("HTTP_X_FORWARDED_FOR", "")).split(",")
    while forwarded and _is_among(address, trusted):
        before = _plain(forwarded.pop().strip())
        if not before:
            break
        address = before
    return address or "-"


def is_from_unknown_proxy(environ: WSGIEnvironment, trusted: Networks) -> bool:
    """Whether X-Forwarded-For came from an address that is not trusted, and is therefore ignored."""
    return "HTTP_X_FORWARDED_FOR" in environ and not _is_among(peer_address(environ), trusted)


def peer_address(environ: WSGIEnvironment) -> str:
    """The peer of the connection; empty if it has no address."""
    return _plain(str(environ.get("REMOTE_ADDR") or ""))


def _is_among(address: str, networks: Networks) -> bool:
    """A network may be given as IPv4 or in its IPv6 form, ::ffff:127.0.0.1."""
    forms = [ip_address(address)] if address else []
    forms += [IPv6Address(f"::ffff:{each}") for each in forms if each.version == 4]
    return any(form in network for form in forms for network in networks)


def _plain(text: str) -> str:
    """The address, empty if it is not one. With HOST=:: a socket reports 192.0.2.1 as ::ffff:192.0.2.1."""
    try:
        address = ip_address(text)
    except ValueError:
        return ""
    return str(getattr(address, "ipv4_mapped", None) or address)
