"""The system: the store, the queue, the disk, and who is at work now."""

from __future__ import annotations

from flask import Blueprint, render_template

from orchestrator.build import Service
from orchestrator.operations.figures import totals


def add_views(page: Blueprint, service: Service) -> None:
    @page.get("/system")
    def system() -> str:
        return render_template(
            "dashboard/system.html",
            health=service.health.report(),
            locks=service.parts.locks.active_locks(),
            workers=totals(service.parts).workers_alive,
        )
