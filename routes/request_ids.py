"""Every request has an id, in its answer and in all its log lines: the caller's own, where that is a sane one."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import TYPE_CHECKING, Any

from orchestrator.logs import request_id

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

Networks = Iterable[IPv4Network | IPv6Network]

HEADER = "X-Request-Id"
_SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")


class RequestIds:
    """Around the whole application, so that whatever answers carries it."""

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
    """Who asked: the one at the other end of the connection, or whom a proxy that we trust says that it asks for.

    Anybody can write X-Forwarded-For, so it is read from its end, as far as trusted proxies have written it.
    """
    address = peer_address(environ)
    told = str(environ.get("HTTP_X_FORWARDED_FOR", "")).split(",")
    while told and _is_among(address, trusted):
        before = _plain(told.pop().strip())
        if not before:
            break
        address = before
    return address or "-"


def is_from_unknown_proxy(environ: WSGIEnvironment, trusted: Networks) -> bool:
    """Whether X-Forwarded-For came from an address that is not trusted: then it is not read."""
    return "HTTP_X_FORWARDED_FOR" in environ and not _is_among(peer_address(environ), trusted)


def peer_address(environ: WSGIEnvironment) -> str:
    """The other end of the connection; empty if it has no address."""
    return _plain(str(environ.get("REMOTE_ADDR") or ""))


def _is_among(address: str, networks: Networks) -> bool:
    return bool(address) and any(ip_address(address) in network for network in networks)


def _plain(text: str) -> str:
    """An address, and empty if it is none. A socket for IPv4 and IPv6 (HOST=::) calls 192.0.2.1 ::ffff:192.0.2.1."""
    try:
        address = ip_address(text)
    except ValueError:
        return ""
    return str(getattr(address, "ipv4_mapped", None) or address)
