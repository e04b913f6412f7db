"""Forgetting one name: a subject group, a file, an email id. The question says how many names that takes with it."""

from __future__ import annotations

from flask import Blueprint, flash, render_template, request, url_for
from werkzeug.exceptions import BadRequest
from werkzeug.wrappers import Response

from deduplication.claims import Kind, Name
from orchestrator.audit import acting_as
from orchestrator.build import Service
from orchestrator.operations.reset import InvalidReset, Reset, Scope, reset
from routes.dashboard.access import viewer
from routes.dashboard.actions import go_to
from routes.dashboard.queries import local_path
from routes.dashboard.words import counted

SCOPES = {Kind.EMAIL_ID: Scope.EMAIL_ID, Kind.SUBJECT_GROUP: Scope.SUBJECT_GROUP, Kind.MEDIA: Scope.MEDIA}


def forgettable(name: Name) -> dict[str, str] | None:
    """What a reset takes for it; None: it cannot be forgotten by itself."""
    scope = SCOPES.get(name.kind)
    if scope is None:
        return None
    return {"scope": scope, "value": f"{name.scope}:{name.value}" if scope is Scope.SUBJECT_GROUP else name.value}


def add_views(page: Blueprint, service: Service) -> None:
    page.add_app_template_filter(forgettable)

    @page.get("/forget")
    def ask_to_forget() -> str:
        wanted = _wanted(request.args.get("scope", ""), request.args.get("value", ""), dry_run=True)
        with acting_as(viewer().by):
            would = reset(service.journal, wanted)
        back = local_path(request.args.get("back", ""))
        return render_template("dashboard/ask_to_forget.html", wanted=wanted, would=would, back=back)

    @page.post("/forget")
    def forget() -> Response:
        wanted = _wanted(request.form.get("scope", ""), request.form.get("value", ""), dry_run=False)
        with acting_as(viewer().by):
            done = reset(service.journal, wanted)
        kept = f" {counted(len(done.kept), 'email')} kept: still to be delivered." if done.kept else ""
        flash(f"{counted(done.names, 'name')} forgotten.{kept}", "mixed" if kept else "good")
        return go_to(local_path(request.form.get("back", "")) or url_for("dashboard.overview"))


def _wanted(scope: str, value: str, *, dry_run: bool) -> Reset:
    if scope not in SCOPES.values():
        raise BadRequest(f"scope takes one of {', '.join(SCOPES.values())}")
    try:
        return Reset(Scope(scope), value, dry_run)
    except InvalidReset as error:
        raise BadRequest(str(error)) from error
