"""The audit list: who did what."""

from __future__ import annotations

from flask import Blueprint, render_template

from orchestrator.build import Service
from orchestrator.operations.audit_trail import read_acts

MOST_SHOWN = 200


def add_views(page: Blueprint, service: Service) -> None:
    @page.get("/audit")
    def audit() -> str:
        return render_template("dashboard/audit.html", acts=read_acts(service.settings.data_dir, MOST_SHOWN))
