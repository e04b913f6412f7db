"""Decisions: what became of each email and why; one of them with all that is known of it."""

from __future__ import annotations

from flask import Blueprint, Response, render_template, request
from werkzeug.exceptions import NotFound

from orchestrator.build import Service
from orchestrator.intake import Status
from orchestrator.operations.decisions import Decision, gate_reports, list_decisions, read_decision
from orchestrator.operations.deliveries import read_payload
from routes.api_decisions import FILTERS, GATES, read_filter
from routes.dashboard.email_content import EmailContent, harmless_html
from routes.dashboard.headers import EMAIL_ONLY
from routes.dashboard.queries import PAGE_LENGTH, asked_for, filters_of
from routes.providers.base import InvalidPayload
from routes.providers.registry import open_names
from routes.questions import OF_ANOTHER

TABS = ("text", "html", "headers", "json")


def add_views(page: Blueprint, service: Service) -> None:
    parts = service.parts
    providers = sorted({*open_names(service.config), "message"})

    @page.get("/decisions")
    def decisions() -> str:
        wanted = read_filter(filters_of(request.args, FILTERS))
        try:
            listed = list_decisions(parts, wanted, PAGE_LENGTH, request.args.get("cursor") or None)
        except ValueError as error:
            raise InvalidPayload(OF_ANOTHER, field="cursor") from error
        return render_template(
            "dashboard/decisions.html",
            decisions=listed.decisions,
            following=listed.next,
            statuses=list(Status),
            gates=GATES,
            providers=providers,
            destinations=list(parts.config.destinations),
            filters=asked_for(request.args, FILTERS),
            is_empty=not listed.decisions and not request.args,
        )

    def found(id_: str) -> Decision:
        decision = read_decision(parts, id_)
        if decision is None:
            raise NotFound
        return decision

    def content_of(decision: Decision) -> EmailContent | None:
        payload = read_payload(parts.journal, decision.entry.id)
        return EmailContent(payload) if payload else None

    @page.get("/decisions/<id_>")
    def decision(id_: str) -> str:
        one = found(id_)
        tab = request.args.get("tab", "")
        return render_template(
            "dashboard/decision.html",
            decision=one,
            gates=gate_reports(one.entry),
            content=content_of(one),
            tabs=TABS,
            tab=tab if tab in TABS else "text",
        )

    @page.get("/decisions/<id_>/html")
    def email_html(id_: str) -> Response:
        """The email as it would look, in a frame of the page alone."""
        content = content_of(found(id_))
        if content is None or content.html is None:
            raise NotFound
        headers = {"Content-Security-Policy": EMAIL_ONLY, "X-Frame-Options": "SAMEORIGIN"}
        return Response(harmless_html(content.html), mimetype="text/html", headers=headers)
