"""Notices a proxy that is missing from TRUSTED_PROXIES."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

SHOWN_FOR_S = 3600.0
WARNING = (
    "X-Forwarded-For came from an address that is not in TRUSTED_PROXIES: all clients behind that proxy count as one, "
    "and the wrong tokens of one lock out all"
)


class ProxyWatch:
    """The log names the address; /health, which anyone may read, does not."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._shown_until = float("-inf")

    def note(self, address: str) -> None:
        """X-Forwarded-For came from this address. Logged again only after an hour without any."""
        if not self.warnings():
            log.warning("WARNING: %s (%s)", WARNING, address)
        self._shown_until = self._monotonic() + SHOWN_FOR_S

    def warnings(self) -> list[str]:
        return [WARNING] if self._monotonic() < self._shown_until else []
