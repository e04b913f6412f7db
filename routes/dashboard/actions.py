"""Actions on emails, deliveries, names and destinations. A GET asks for confirmation, a POST acts.

Replay, release and forget work on selected rows, or on all that match a filter.
"""

from __future__ import annotations

from collections import Counter

from flask import abort, flash, g, redirect, render_template, request, url_for
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import BadRequest
from werkzeug.wrappers import Response

from deduplication.journal.entry import DeliveryStatus
from deduplication.names import Kind, Name
from orchestrator.audit import acting_as
from orchestrator.operations.destinations import InvalidAction, destinations, pause, resume, send_test
from orchestrator.operations.resend import RELEASED, REPLAYED, Release, Replay, replay_email, send_again
from orchestrator.operations.reset import Reset, Scope, forget_email, reset
from orchestrator.operations.search import ALL, DecisionFilter, find_ids
from routes.dashboard.access import local_path
from routes.dashboard.formatting import counted, milliseconds
from routes.dashboard.page import page
from routes.dashboard.views import filters_of
from routes.endpoints import service
from routes.payload import read
from routes.schemas import RESULTS

MOST_COUNTED = 10_000
SUCCESSES = {REPLAYED, RELEASED, "forgotten"}
RESULT_WORDS = {
    **RESULTS,
    "forgotten": "forgotten",
    "nothing": "had no names left to forget",
    "kept": "kept: still to be delivered",
}
RESETTABLE = {Kind.EMAIL_ID: Scope.EMAIL_ID, Kind.SUBJECT_GROUP: Scope.SUBJECT_GROUP, Kind.MEDIA: Scope.MEDIA}


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
    with acting_as(g.viewer.by):
        results = Counter(_act(name, id_, at_once=len(ids) == 1) for id_ in ids)
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


def _act(name: str, id_: str, *, at_once: bool) -> str:
    force, new_id = "force" in request.form, "new_id" in request.form
    if name == "forget":
        return forget_email(service.coordinator, id_)
    if name == "release":
        return send_again(service, id_, Release(force=force), at_once=at_once)
    how = Replay(force=force, new_id=new_id)
    if ":" in id_:
        return send_again(service, id_, how, at_once=at_once)
    return replay_email(service, id_, how, request.form.get("destination", ""), at_once=at_once)


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
    with acting_as(g.viewer.by):
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
    scope = RESETTABLE.get(name.kind)
    if scope is None:
        return None
    return {"scope": scope, "value": f"{name.scope}:{name.value}" if scope is Scope.SUBJECT_GROUP else name.value}


# Destinations


@page.route("/destinations/<name>/<any(pause, resume, test):act>", methods=["GET", "POST"])
def act_on_destination(name: str, act: str) -> str | Response:
    if request.method != "POST":
        known = destinations(service).get(name) or abort(404)
        return render_template("dashboard/ask_destination.html", name=name, act=act, known=known)
    by, error = g.viewer.by, None
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
