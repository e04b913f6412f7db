"""The pages that only show: overview, decisions, deliveries, destinations, providers, system and audit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime

from flask import Response, abort, g, render_template, request
from markupsafe import escape

from deduplication.journal.entry import DeliveryStatus
from orchestrator.audit import read_actions
from orchestrator.operations.decisions import GATES, list_decisions, list_deliveries, read_decision, read_payload
from orchestrator.operations.destinations import destinations, last_failure
from orchestrator.operations.health import banners, read_health
from orchestrator.operations.search import FIELDS, DecisionFilter, DeliveryFilter
from orchestrator.operations.stats import Span, read_providers, read_stats
from orchestrator.pipeline import Status
from routes.dashboard.browser import EMAIL_POLICY
from routes.dashboard.formatting import email_content, harmless_html
from routes.dashboard.page import page, service
from routes.payload import read
from routes.providers.registry import TYPES, missing_setting, open_names
from routes.schemas import StatsQuery

PAGE_LENGTH = 50
MOST_ACTIONS = 200
LAST_S = {"hour": 3600, "day": 24 * 3600, "week": 7 * 24 * 3600}
SERIES = ("received", "delivered", "stopped", "failed")


def filters_of(given: Mapping[str, str]) -> dict[str, str]:
    """The filter in a URL or form, without empty fields; ``last`` (hour, day, week) becomes ``since``."""
    chosen = {name: given[name] for name in FIELDS if given.get(name)}
    length_s = LAST_S.get(given.get("last", ""))
    if length_s and "since" not in chosen:
        chosen["since"] = datetime.fromtimestamp(time.time() - length_s, UTC).isoformat(timespec="seconds")
    return chosen


@page.context_processor
def add_shared_values() -> dict[str, object]:
    return {
        "address": service.settings.public_url or service.settings.address,  # a client chooses the Host of its request
        "configured": list(service.config.destinations),
        "is_fragment": "HX-Request" in request.headers,
        "viewer": g.get("viewer"),
        "filters": {name: request.args[name] for name in (*FIELDS, "last") if request.args.get(name)},
        "spans": list(Span),
    }


@page.get("/decisions")
def decisions() -> str:
    wanted = read(DecisionFilter, filters_of(request.args))
    listed = list_decisions(service, wanted, PAGE_LENGTH, request.args.get("cursor") or None)
    providers = sorted({*open_names(service.config), "message"})
    return render_template(
        "dashboard/decisions.html", listed=listed, statuses=list(Status), gates=GATES, providers=providers
    )


@page.get("/deliveries")
def deliveries() -> str:
    wanted = read(DeliveryFilter, filters_of(request.args))
    listed = list_deliveries(service, wanted, PAGE_LENGTH, request.args.get("cursor") or None)
    return render_template("dashboard/deliveries.html", listed=listed, statuses=list(DeliveryStatus))


@page.get("/decisions/<id_>")
def decision(id_: str) -> str:
    found = read_decision(service, id_) or abort(404)
    content = email_content(found.payload) if found.payload else None
    return render_template("dashboard/decision.html", decision=found, content=content)


@page.get("/decisions/<id_>/html")
def email_html(id_: str) -> Response:
    """The email as it looks, for a frame of the page."""
    payload = read_payload(service, id_)
    html = email_content(payload).html if payload else None
    if html is None:
        abort(404)
    headers = {"Content-Security-Policy": EMAIL_POLICY, "X-Frame-Options": "SAMEORIGIN"}
    return Response(harmless_html(html), mimetype="text/html", headers=headers)


@page.get("/")
def overview() -> str:
    found = read_stats(service, _span())
    points = [[getattr(point, name) for point in found.over_time.points] for name in ("start_s", *SERIES)]
    return render_template(
        "dashboard/overview.html",
        health=read_health(service),
        totals=found.totals,
        figures=found.over_time,
        plot={"labels": SERIES, "data": points},  # as uPlot expects it
    )


@page.get("/notices")
def notices() -> str:
    return render_template("dashboard/_notices.html", banners=banners(read_health(service)))


@page.get("/destinations")
def destinations_list() -> str:
    return render_template(
        "dashboard/destinations.html",
        destinations=destinations(service),
        failures={name: last_failure(service, name) for name in service.config.destinations},
        figures=read_stats(service, _span()).over_time,
    )


@page.get("/providers")
def providers() -> str:
    configured = open_names(service.config)
    missing = {
        name: missing_setting(name).removeprefix(f"{name} is not set up: ")
        for name in sorted(TYPES.keys() - set(configured))
    }
    return render_template(
        "dashboard/providers.html", names=[*configured, "message"], seen=read_providers(service), missing=missing
    )


@page.get("/ingress-token")
def ingress_token() -> str:
    """Only on request, and only for those who may act: with it, one can send emails in."""
    return escape(service.tokens.ingress[0])


@page.get("/system")
def system() -> str:
    return render_template("dashboard/system.html", health=read_health(service), locks=service.locks.active_locks())


@page.get("/audit")
def audit() -> str:
    return render_template("dashboard/audit.html", actions=read_actions(service.settings.data_dir, MOST_ACTIONS))


def _span() -> Span:
    return read(StatsQuery, {"span": request.args.get("span") or Span.DAY}).span
