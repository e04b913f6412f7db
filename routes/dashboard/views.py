"""The pages, and what can be done there. Of an action, a GET asks for confirmation and a POST acts; replay, release and
forget work on selected rows, or on all that match a filter.
"""

import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

from flask import abort, flash, g, redirect, render_template, request, url_for
from markupsafe import escape
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import BadRequest
from werkzeug.wrappers import Response

from deduplication.journal.entry import DeliveryStatus
from deduplication.names import Kind, Name
from orchestrator.audit import acting_as, read_actions
from orchestrator.operations import search
from orchestrator.operations.decisions import list_decisions, read_decision, read_payload
from orchestrator.operations.destinations import InvalidAction, destinations, last_failure, pause, resume, send_test
from orchestrator.operations.fleet_state import fleet_state
from orchestrator.operations.health import read_health
from orchestrator.operations.resend import RELEASED, REPLAYED, Release, Replay, replay_email, send_again
from orchestrator.operations.reset import Reset, Scope, forget_email, reset
from orchestrator.operations.search import ALL, FIELDS, DecisionFilter, EmailOutcome, count_emails, find_ids
from orchestrator.operations.stats import LENGTH_S, Span, read_providers, read_stats
from orchestrator.pipeline import Status
from routes.dashboard.formatting import counted, email_content, harmless_html, milliseconds
from routes.dashboard.page import EMAIL_POLICY, local_path, page
from routes.endpoints import service
from routes.payload import read
from routes.providers.registry import TYPES, missing_setting, open_names
from routes.schemas import RESULTS, StatsQuery

PAGE_LENGTH = 50
NEWEST = 8
MOST_ACTIONS = 200
TABS = (None, EmailOutcome.NEEDS_ATTENTION, EmailOutcome.STOPPED, EmailOutcome.WAITING, EmailOutcome.DEAD_LETTER)
SUPPRESSED = [status for status in Status if status.startswith("skipped")]
MOST_COUNTED = 10_000
SUCCESSES = {REPLAYED, RELEASED, "forgotten"}
RESULT_WORDS = {
    **RESULTS,
    "forgotten": "forgotten",
    "nothing": "had no names left to forget",
    "kept": "kept: still to be delivered",
}
RESETTABLE = {Kind.EMAIL_ID: Scope.EMAIL_ID, Kind.SUBJECT_GROUP: Scope.SUBJECT_GROUP, Kind.MEDIA: Scope.MEDIA}


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


# Emails, and single deliveries ("email:destination"), which can be replayed


@page.route("/do/<any(replay, release, forget):name>", methods=["GET", "POST"])
def act(name: str) -> str | Response:
    if request.method != "POST":
        ids = request.args.getlist("id")
        return render_template(
            "dashboard/ask.html",
            name=name,
            nouns=_nouns(ids),
            ids=ids,
            filters={} if ids else filters_of(request.args),
            count=len(_find(name, request.args, MOST_COUNTED + 1)),
            back=local_path(request.args.get("back", "")),
            most=MOST_COUNTED,
        )
    ids = _find(name, request.form)
    with acting_as(g.viewer["by"]):
        results = Counter(_act(name, id_) for id_ in ids)
    parts = [f"{counted(number, *_nouns(ids))}: {RESULT_WORDS[result]}" for result, number in results.items()]
    flash(f"{'; '.join(parts) or 'Nothing matches any more'}.", "good" if results.keys() <= SUCCESSES else "mixed")
    return _go_back()


def _nouns(ids: list[str]) -> tuple[str, str]:
    return ("delivery", "deliveries") if any(":" in id_ for id_ in ids) else ("email", "emails")


def _find(name: str, given: MultiDict[str, str], most: int = ALL) -> list[str]:
    """The selected ids, or with ``all`` those that match the filter. Only suppressed emails can be released."""
    ids = given.getlist("id")
    if not ids and "all" not in given:
        raise BadRequest("Select at least one row first.")
    wanted = read(DecisionFilter, filters_of(given))
    return ids or find_ids(service, wanted, most, has=DeliveryStatus.SKIPPED if name == "release" else None)[0]


def _act(name: str, id_: str) -> str:
    force, new_id = "force" in request.form, "new_id" in request.form
    if name == "forget":
        return forget_email(service.coordinator, id_)
    if name == "release":
        return send_again(service, id_, Release(force=force))
    how = Replay(force=force, new_id=new_id)
    if ":" in id_:
        return send_again(service, id_, how)
    return replay_email(service, id_, how, request.form.get("destination", ""))


def _go_back() -> Response:
    """htmx would follow a redirect itself and show a page inside the page."""
    path = local_path(request.form.get("back", "")) or url_for("dashboard.overview")
    return Response(headers={"HX-Redirect": path}) if "HX-Request" in request.headers else redirect(path, code=303)


# Names: a subject group, a file or an email id


@page.route("/forget", methods=["GET", "POST"])
def forget_name() -> str | Response:
    """A GET only says how many names would be forgotten."""
    given, dry_run = request.values, request.method != "POST"
    wanted = read(Reset, {"scope": given.get("scope"), "value": given.get("value", ""), "dry_run": dry_run})
    if wanted.scope not in RESETTABLE.values():
        raise BadRequest(f"scope must be one of {', '.join(RESETTABLE.values())}")
    with acting_as(g.viewer["by"]):
        done = reset(service.coordinator, wanted)
    if dry_run:
        back = local_path(given.get("back", ""))
        return render_template("dashboard/ask_to_forget.html", wanted=wanted, would=done, back=back)
    kept = f" {counted(len(done.kept), 'email')} kept: still to be delivered." if done.kept else ""
    behind = f" Not yet applied by {', '.join(done.behind)}." if done.behind else ""
    flash(f"{counted(done.names, 'name')} forgotten.{kept}{behind}", "mixed" if kept or behind else "good")
    return _go_back()


@page.app_template_filter()
def forgettable(label: str) -> dict[str, str] | None:
    """The reset that forgets a name; None if a name of its kind cannot be forgotten alone."""
    name = Name.from_label(label)
    value = f"{name.scope}:{name.value}" if name.kind is Kind.SUBJECT_GROUP else name.value
    return {"scope": RESETTABLE[name.kind], "value": value} if name.kind in RESETTABLE else None


# Destinations


@page.route("/destinations/<name>/<any(pause, resume, test):act>", methods=["GET", "POST"])
def act_on_destination(name: str, act: str) -> str | Response:
    if request.method != "POST":
        known = destinations(service).get(name) or abort(404)
        return render_template("dashboard/ask_destination.html", name=name, act=act, known=known)
    by, error = g.viewer["by"], None
    try:
        with acting_as(by):
            if act == "pause":
                pause(service, name, request.form.get("reason", "").strip(), by)
                text = "is paused. New emails for it are queued."
            elif act == "resume":
                was_paused = resume(service, name, by)
                text = "is resumed; waiting deliveries are sent." if was_paused else "was not paused."
            else:
                tested = send_test(service, name, by)
                answer = f"answered {tested.status_code}" if tested.status_code else "printed it"
                error = tested.error and f"did not accept the test event: {tested.error}"
                text = f"accepted the test event: {answer} after {milliseconds(tested.latency_ms)}."
        flash(f"{name} {error or text}", "error" if error else "good")
    except InvalidAction as refused:
        flash(str(refused), "error")
    return redirect(url_for("dashboard.destinations_list"), code=303)
