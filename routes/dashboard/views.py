"""The pages that only show: overview, emails, destinations, providers, servers and audit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime

from flask import Response, abort, g, render_template, request
from markupsafe import escape

from orchestrator.audit import read_actions
from orchestrator.operations import search
from orchestrator.operations.decisions import list_decisions, read_decision, read_payload
from orchestrator.operations.destinations import destinations, last_failure
from orchestrator.operations.fleet_state import fleet_state
from orchestrator.operations.health import read_health
from orchestrator.operations.search import FIELDS, DecisionFilter, EmailOutcome, count_emails
from orchestrator.operations.stats import LENGTH_S, Span, read_providers, read_stats
from orchestrator.pipeline import Status
from routes.dashboard.formatting import email_content, harmless_html
from routes.dashboard.page import EMAIL_POLICY, page
from routes.endpoints import service
from routes.payload import read
from routes.providers.registry import TYPES, missing_setting, open_names
from routes.schemas import StatsQuery

PAGE_LENGTH = 50
NEWEST = 8
MOST_ACTIONS = 200
TABS = (None, EmailOutcome.NEEDS_ATTENTION, EmailOutcome.STOPPED, EmailOutcome.WAITING, EmailOutcome.DEAD_LETTER)
SUPPRESSED = [status for status in Status if status.startswith("skipped")]


def filters_of(given: Mapping[str, str]) -> dict[str, str]:
    """The filter in a URL or form, without empty fields; ``last`` (hour, day, week, month) becomes ``since``."""
    chosen = {name: given[name] for name in FIELDS if given.get(name)}
    if given.get("last") in LENGTH_S and "since" not in chosen:
        since = time.time() - LENGTH_S[Span(given["last"])]
        chosen["since"] = datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds")
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
        "timezone": service.settings.timezone,
    }


@page.get("/decisions")
def decisions() -> str:
    wanted = read(DecisionFilter, filters_of(request.args))
    listed = list_decisions(service, wanted, PAGE_LENGTH, request.args.get("cursor") or None)
    tabs = TABS if wanted.outcome in TABS else (*TABS, wanted.outcome)
    is_search = bool(wanted.q or wanted.sender)  # of which counting each tab would take long
    counted = [wanted.outcome] if is_search else tabs
    return render_template(
        "dashboard/decisions.html",
        listed=listed,
        tabs=dict.fromkeys(tabs) | dict(zip(counted, count_emails(service, wanted, counted), strict=True)),
        outcome=wanted.outcome,
        most=search.MOST_COUNTED if is_search else None,
        outcomes=list(EmailOutcome),
        suppressed=SUPPRESSED,
        providers=sorted({*open_names(service.config), "message"}),
    )


@page.get("/decisions/<id_>")
def decision(id_: str) -> str:
    found = read_decision(service, id_) or abort(404)
    content = email_content(found.payload) if found.payload else None
    return render_template("dashboard/decision.html", decision=found, content=content)


@page.get("/decisions/<id_>/html")
def email_html(id_: str) -> Response:
    """The email as it looks, for a frame of the page."""
    payload = read_payload(service, id_)
    html = email_content(payload)["html"] if payload else None
    if html is None:
        abort(404)
    headers = {"Content-Security-Policy": EMAIL_POLICY, "X-Frame-Options": "SAMEORIGIN"}
    return Response(harmless_html(html), mimetype="text/html", headers=headers)


@page.get("/")
def overview() -> str:
    """What is counted over a span is that of emails first received in it; what waits or is dead, that of all."""
    found = read_stats(service, _span())
    received = read(DecisionFilter, filters_of({"last": found.over_time.span}))
    outcomes = (None, EmailOutcome.DELIVERED, EmailOutcome.SUPPRESSED, EmailOutcome.DUPLICATE)
    undone = (EmailOutcome.WAITING, EmailOutcome.DEAD_LETTER)
    counts = [*count_emails(service, received, outcomes), *count_emails(service, DecisionFilter(), undone)]
    tagged = count_emails(service, received.model_copy(update={"status": Status.ALREADY_PROCESSED}), [None])
    return render_template(
        "dashboard/overview.html",
        health=read_health(service),
        totals=found.totals,
        figures=found.over_time,
        counts=dict(zip(("received", *outcomes[1:], *undone), counts, strict=True)),
        repeats=search.count_repeats(service, received.since),
        tagged=tagged[0],  # duplicates that are emails of their own
        states=found.destinations,
        newest=list_decisions(service, DecisionFilter(), NEWEST).decisions,
    )


@page.get("/notices")
def notices() -> str:
    found = read_health(service).problems
    failing = [problem.destination for problem in found if problem.is_bad and problem.destination]
    failures = {name: last_failure(service, name) for name in failing}
    return render_template("dashboard/_notices.html", banners=found, failures=failures)


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
    opened = open_names(service.config)
    missing = {name: missing_setting(name).partition(": ")[2] for name in sorted(TYPES.keys() - set(opened))}
    names, seen = [*opened, "message"], read_providers(service)
    return render_template("dashboard/providers.html", names=names, seen=seen, missing=missing)


@page.get("/ingress-token")
def ingress_token() -> str:
    """Only on request, and only for those who may act: with it, one can send emails in."""
    return escape(service.tokens.ingress[0])


@page.get("/servers")
def servers() -> str:
    health, locks = read_health(service), service.locks.active_locks()
    return render_template("dashboard/servers.html", health=health, state=fleet_state(service), locks=locks)


@page.get("/audit")
def audit() -> str:
    actions = read_actions(service.journal, service.settings.data_dir, MOST_ACTIONS)
    return render_template("dashboard/audit.html", actions=actions, members=fleet_state(service).members)


def _span() -> Span:
    return read(StatsQuery, {"span": request.args.get("span") or Span.DAY}).span
