"""Deliveries: what was sent where, what waits and why, what is dead."""

from __future__ import annotations

from flask import Blueprint, render_template, request

from deduplication.journal.entry import DeliveryStatus
from orchestrator.build import Service
from orchestrator.operations.deliveries import find_page
from routes.api_deliveries import FILTERS, read_after, read_wanted
from routes.dashboard.queries import PAGE_LENGTH, asked_for, filters_of


def add_views(page: Blueprint, service: Service) -> None:
    parts = service.parts

    @page.get("/deliveries")
    def deliveries() -> str:
        wanted = read_wanted(filters_of(request.args, FILTERS))
        seen, following = find_page(parts, wanted, PAGE_LENGTH, read_after(wanted, request.args))
        return render_template(
            "dashboard/deliveries.html",
            seen=seen,
            following=following,
            statuses=list(DeliveryStatus),
            destinations=list(parts.config.destinations),
            filters=asked_for(request.args, FILTERS),
        )
