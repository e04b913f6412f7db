"""Limits how many wrong tokens an address may send, counted across all processes and servers."""

from __future__ import annotations

import hashlib
import ipaddress
import math
from dataclasses import dataclass

from orchestrator.delivery.counters import Counters, Rate

LIMIT = Rate(20, 60)
IPV6_PREFIX_BITS = 64  # whoever has one IPv6 address has a whole network of them


@dataclass(frozen=True)
class GuessLimit:
    """For the page, the admin API and the metrics. Only time lifts it, a correct token does not.

    Ingress is never limited: behind a shared proxy, one guesser would stop all emails.
    """

    counters: Counters

    def wait_s(self, address: str) -> int:
        """0 if the address may send a token, otherwise the seconds until it may."""
        return math.ceil(self.counters.wait_s(LIMIT, _key(address), counts=False))

    def count(self, address: str) -> None:
        """Counts a wrong token."""
        self.counters.wait_s(LIMIT, _key(address))


def _key(address: str) -> str:
    """A digest, because an address is personal data."""
    try:
        width = f"/{IPV6_PREFIX_BITS}" if ":" in address else ""
        network = str(ipaddress.ip_network(f"{address}{width}", strict=False))
    except ValueError:
        network = address
    return f"guesses/{hashlib.sha256(network.encode()).hexdigest()[:16]}"
