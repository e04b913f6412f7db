"""Bearer tokens, compared in constant time, before anything of the body is looked at."""

from __future__ import annotations

import hmac
from collections.abc import Iterable


class Unauthorized(Exception):
    """The request carries no token, or one that is not ours."""


def require_bearer(authorization: str | None, tokens: Iterable[str]) -> None:
    scheme, _, given = (authorization or "").partition(" ")
    matches = [hmac.compare_digest(given.strip().encode(), token.encode()) for token in tokens]
    if scheme.lower() != "bearer" or not any(matches):
        raise Unauthorized
