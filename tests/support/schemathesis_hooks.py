"""For schemathesis, which knows no raw emails and sends many wrong tokens (SCHEMATHESIS_HOOKS)."""

from __future__ import annotations

from itertools import count
from typing import Any

import schemathesis

_numbers = count()


@schemathesis.hook
def before_call(_context: Any, case: Any, _kwargs: dict[str, Any]) -> None:
    """Each request has an address of its own: otherwise 20 wrong tokens would end with 429 for everything."""
    number = next(_numbers)
    case.headers["X-Forwarded-For"] = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


@schemathesis.serializer("message/rfc822", "message/global")
def raw_email(_context: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@schemathesis.deserializer("application/openmetrics-text")
def metrics(_context: Any, response: Any) -> str:
    return str(response.text)
