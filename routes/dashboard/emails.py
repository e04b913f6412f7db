"""The pages on emails: decisions, one email with its content, deliveries, and the audit list."""

from __future__ import annotations

from flask import Blueprint, Response, render_template, request
from werkzeug.exceptions import NotFound

from deduplication.journal.entry import DeliveryStatus
from orchestrator.audit import read_actions
from orchestrator.build import Service
from orchestrator.operations.decisions import GATES, list_decisions, read_decision
from orchestrator.operations.deliveries import list_deliveries, read_payload
from orchestrator.operations.search import DecisionFilter, DeliveryFilter
from orchestrator.pipeline import Status
from routes.dashboard.email_content import EmailContent, harmless_html
from routes.dashboard.headers import EMAIL_ONLY
from routes.dashboard.queries import PAGE_LENGTH, asked_for, filters_of
from routes.providers.registry import open_names
from routes.questions import read

TABS = ("text", "html", "headers", "json")
MOST_ACTIONS = 200


def add_views(page: Blueprint, service: Service) -> None:
    @page.get("/decisions")
    def decisions() -> str:
        wanted = read(DecisionFilter, filters_of(request.args))
        listed = list_decisions(service, wanted, PAGE_LENGTH, request.args.get("cursor") or None)
        return render_template(
            "dashboard/decisions.html",
            decisions=listed.decisions,
            following=listed.next,
            statuses=list(Status),
            gates=GATES,
            providers=sorted({*open_names(service.config), "message"}),
            destinations=list(service.config.destinations),
            filters=asked_for(request.args),
            is_empty=not listed.decisions and not request.args,
        )

    @page.get("/deliveries")
    def deliveries() -> str:
        wanted = read(DeliveryFilter, filters_of(request.args))
        listed = list_deliveries(service, wanted, PAGE_LENGTH, request.args.get("cursor") or None)
        return render_template(
            "dashboard/deliveries.html",
            deliveries=listed.deliveries,
            following=listed.next,
            statuses=list(DeliveryStatus),
            destinations=list(service.config.destinations),
            filters=asked_for(request.args),
        )

    @page.get("/decisions/<id_>")
    def decision(id_: str) -> str:
        found = read_decision(service, id_)
        if found is None:
            raise NotFound
        tab = request.args.get("tab", "")
        return render_template(
            "dashboard/decision.html",
            decision=found,
            content=EmailContent(found.payload) if found.payload else None,
            tabs=TABS,
            tab=tab if tab in TABS else "text",
        )

    @page.get("/decisions/<id_>/html")
    def email_html(id_: str) -> Response:
        """The email as it looks, for a frame of the page."""
        payload = read_payload(service, id_)
        html = EmailContent(payload).html if payload else None
        if html is None:
            raise NotFound
        headers = {"Content-Security-Policy": EMAIL_ONLY, "X-Frame-Options": "SAMEORIGIN"}
        return Response(harmless_html(html), mimetype="text/html", headers=headers)

    @page.get("/audit")
    def audit() -> str:
        return render_template("dashboard/audit.html", actions=read_actions(service.settings.data_dir, MOST_ACTIONS))
