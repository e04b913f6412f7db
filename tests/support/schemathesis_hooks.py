"""For schemathesis, which knows no raw emails (SCHEMATHESIS_HOOKS)."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.serializer("message/rfc822", "message/global")
def raw_email(_context: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@schemathesis.deserializer("application/openmetrics-text")
def metrics(_context: Any, response: Any) -> str:
    return str(response.text)
