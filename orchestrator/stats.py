"""The numbers an operator asks for."""

from __future__ import annotations

from typing import Any

from orchestrator.delivery.record import DeliveryStatus
from orchestrator.parts import Parts


def stats(parts: Parts) -> dict[str, Any]:
    """For each destination: how its breaker is, whether it is enabled, and its deliveries by status."""
    counts = parts.ledger.counts()
    names = {*parts.config.destinations, *(destination for destination, _ in counts)}
    return {"destinations": {name: _destination(parts, name, counts) for name in sorted(names)}}


def _destination(parts: Parts, name: str, counts: dict[tuple[str, DeliveryStatus], int]) -> dict[str, Any]:
    config = parts.config.destinations.get(name)
    return {
        "enabled": config.enabled if config else None,
        "breaker": parts.guard.state(name) if config else None,
        "deliveries": {status: counts.get((name, status), 0) for status in DeliveryStatus},
    }
