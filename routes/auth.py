"""The Authorization header: bearer tokens and basic auth, compared in constant time before the body is looked at."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable


class Unauthorized(Exception):
    """The request carries no proof of where it comes from, or one that is not ours."""


class MayOnlyLook(Exception):
    """The token is a VIEW_TOKEN, and the request would change something."""


def require_bearer(authorization: str | None, tokens: Iterable[str]) -> None:
    scheme, given = _parts(authorization)
    if scheme != "bearer" or not equals_any(given.encode(), (token.encode() for token in tokens)):
        raise Unauthorized


def require_role(authorization: str | None, admin: Iterable[str], view: Iterable[str], *, looks: bool) -> None:
    """The admin token for anything, the view token only to look."""
    try:
        require_bearer(authorization, admin)
    except Unauthorized:
        require_bearer(authorization, view)
        if not looks:
            raise MayOnlyLook from None


def require_basic(authorization: str | None, username: str, passwords: Iterable[str]) -> None:
    """Providers send what stands in the URL they were given: https://username:password@host/path."""
    scheme, given = _parts(authorization)
    try:
        credentials = base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        raise Unauthorized from None
    expected = (f"{username}:{password}".encode() for password in passwords)
    if scheme != "basic" or not equals_any(credentials, expected):
        raise Unauthorized


def equals_any(given: bytes, expected: Iterable[bytes]) -> bool:
    """Looks at all of them, so that the time taken says nothing."""
    return any([hmac.compare_digest(given, each) for each in expected])


def _parts(authorization: str | None) -> tuple[str, str]:
    scheme, _, given = (authorization or "").partition(" ")
    return scheme.lower(), given.strip()
