"""The system: Redis, the fleet, the journal, the queue, the disk, and active locks."""

from __future__ import annotations

from flask import Blueprint, render_template

from orchestrator.build import Service


def add_views(page: Blueprint, service: Service) -> None:
    @page.get("/system")
    def system() -> str:
        health = service.health.report()
        return render_template(
            "dashboard/system.html",
            health=health,
            checks={name: each.model_dump() for name, each in health.checks.items()},
            locks=service.locks.active_locks(),
        )
