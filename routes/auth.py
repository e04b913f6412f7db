"""The Authorization header: bearer tokens and basic auth, compared in constant time before the body is looked at."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from orchestrator.guesses import GuessLimit


class Unauthorized(Exception):
    """The request carries no proof of where it comes from, or one that is not ours."""


class TooManyGuesses(Exception):
    """The address has sent too many wrong tokens; it may try again in ``wait_s`` seconds."""

    def __init__(self, wait_s: int) -> None:
        super().__init__(f"too many wrong tokens; try again in {wait_s} seconds")
        self.wait_s = wait_s


class MayOnlyLook(Exception):
    """The token is a VIEW_TOKEN, and the request would change something."""


@contextmanager
def limited(guesses: GuessLimit, address: str, given: str | None) -> Iterator[None]:
    """Around the check of a person's token: a wrong one is counted, and after too many none is looked at.

    A request without a token is no guess.
    """
    wait_s = guesses.wait_s(address)
    if wait_s:
        raise TooManyGuesses(wait_s)
    try:
        yield
    except Unauthorized:
        if given:
            guesses.count(address)
        raise


def require_bearer(authorization: str | None, tokens: Iterable[str]) -> None:
    scheme, given = _parts(authorization)
    if scheme != "bearer":
        raise Unauthorized
    require_token(given, tokens)


def require_token(given: str, tokens: Iterable[str]) -> None:
    if not equals_any(given.encode(), (token.encode() for token in tokens)):
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
