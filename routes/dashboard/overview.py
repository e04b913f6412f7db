"""The first page: what was received, delivered, stopped and failed over an hour, a day, a week or a month."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, render_template, request

from orchestrator.build import Service
from orchestrator.operations.figures import OverTime, Span, over_time, totals
from orchestrator.operations.health import banners
from routes.questions import StatsQuery, read

SERIES = ("received", "delivered", "stopped", "failed")


def add_views(page: Blueprint, service: Service) -> None:
    @page.get("/")
    def overview() -> str:
        figures = over_time(service, asked_span())
        return render_template(
            "dashboard/overview.html",
            health=service.health.report(),
            totals=totals(service),
            figures=figures,
            plot=plotted(figures),
            spans=list(Span),
        )

    @page.get("/notices")
    def notices() -> str:
        return render_template("dashboard/_notices.html", banners=banners(service.health.report()))


def asked_span() -> Span:
    return read(StatsQuery, {"span": request.args.get("span") or Span.DAY}).span


def plotted(figures: OverTime) -> dict[str, Any]:
    """As uPlot wants it: the times, then the values of each series."""
    times = [point.start_s for point in figures.points]
    return {
        "labels": list(SERIES),
        "data": [times, *([getattr(point, name) for point in figures.points] for name in SERIES)],
    }
