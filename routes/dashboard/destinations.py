"""Destinations: the state of each; to pause one, to resume it, to send it a test event."""

from __future__ import annotations

from flask import Blueprint, abort, flash, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from orchestrator.audit import acting_as
from orchestrator.build import Service
from orchestrator.operations.destinations import (
    InvalidPause,
    destinations,
    last_failure,
    pause,
    resume,
    send_test,
)
from orchestrator.operations.figures import Span, over_time
from routes.dashboard.access import viewer
from routes.dashboard.overview import asked_span
from routes.dashboard.words import milliseconds


def add_views(page: Blueprint, service: Service) -> None:
    @page.get("/destinations")
    def destinations_list() -> str:
        figures = over_time(service, asked_span())
        return render_template(
            "dashboard/destinations.html",
            destinations=destinations(service),
            failures={name: last_failure(service, name) for name in service.config.destinations},
            figures=figures,
            spans=list(Span),
        )

    @page.get("/destinations/<name>/<any(pause, resume, test):act>")
    def ask_destination(name: str, act: str) -> str:
        known = destinations(service)
        if name not in known:
            abort(404)
        return render_template("dashboard/ask_destination.html", name=name, act=act, known=known[name])

    @page.post("/destinations/<name>/<any(pause, resume, test):act>")
    def act_on_destination(name: str, act: str) -> Response:
        try:
            with acting_as(viewer().by):
                flash(*_act(name, act))
        except InvalidPause as error:
            flash(str(error), "error")
        return redirect(url_for("dashboard.destinations_list"), code=303)

    def _act(name: str, act: str) -> tuple[str, str]:
        by = viewer().by
        if act == "pause":
            pause(service, name, request.form.get("reason", "").strip(), by)
            return f"{name} is paused. New emails for it are queued.", "good"
        if act == "resume":
            resumed = resume(service, name, by)
            return f"{name} is resumed; what waits for it is sent." if resumed else f"{name} was not paused.", "good"
        tested = send_test(service, name, by)
        took = milliseconds(tested.latency_ms)
        if tested.error:
            return f"{name} did not accept the test event, after {took}: {tested.error}", "error"
        answered = f"answered {tested.status_code}" if tested.status_code else "printed it"
        return f"{name} accepted the test event: {answered} after {took}.", "good"
