"""Actions on emails, deliveries, names and destinations. Each is confirmed in a dialog first.

Replay, release and forget work on selected rows, or on all that match a filter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from flask import Blueprint, flash, redirect, render_template, request, url_for
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import BadRequest, NotFound
from werkzeug.wrappers import Response

from deduplication.journal.entry import DeliveryStatus
from deduplication.names import Kind, Name
from orchestrator.audit import acting_as
from orchestrator.build import Service
from orchestrator.operations.destinations import InvalidPause, destinations, pause, resume, send_test
from orchestrator.operations.resend import RELEASED, REPLAYED, Release, Replay, release, replay, replay_email
from orchestrator.operations.reset import Forgot, Forgotten, Reset, Scope, forget_email, reset
from orchestrator.operations.search import ALL, DecisionFilter, DeliveryFilter, find_ids
from routes.dashboard.access import local_path, viewer
from routes.dashboard.formatting import counted, milliseconds
from routes.dashboard.views import filters_of
from routes.payload import read
from routes.schemas import RESULTS

MOST_COUNTED = 10_000
RESETTABLE = {Kind.EMAIL_ID: Scope.EMAIL_ID, Kind.SUBJECT_GROUP: Scope.SUBJECT_GROUP, Kind.MEDIA: Scope.MEDIA}
RESULT_WORDS = {
    **RESULTS,
    Forgot.FORGOTTEN: "forgotten",
    Forgot.NOTHING: "had no names left to forget",
    Forgot.KEPT: "kept: still to be delivered",
}


class Action(NamedTuple):
    """``done`` is the result that counts as success. ``has``: for emails with a delivery of this status only."""

    done: str
    nouns: tuple[str, str] = ("email", "emails")
    wanted: type[DecisionFilter | DeliveryFilter] = DecisionFilter
    has: DeliveryStatus | None = None


ACTIONS = {
    "replay": Action(REPLAYED, ("delivery", "deliveries"), DeliveryFilter),
    "replay-emails": Action(REPLAYED),
    "release": Action(RELEASED, has=DeliveryStatus.SKIPPED),
    "forget": Action(Forgot.FORGOTTEN),
}
ANY_ACTION = '<any(replay, "replay-emails", release, forget):name>'


def add_actions(page: Blueprint, service: Service) -> None:
    _add_email_actions(page, service)
    _add_name_action(page, service)
    _add_destination_actions(page, service)


def _add_email_actions(page: Blueprint, service: Service) -> None:
    @page.get(f"/do/{ANY_ACTION}")
    def ask(name: str) -> str:
        """Says what will happen, and to how many."""
        action, ids = ACTIONS[name], request.args.getlist("id")
        filters = {} if ids else filters_of(request.args)
        return render_template(
            "dashboard/ask.html",
            name=name,
            nouns=action.nouns,
            ids=ids,
            filters=filters,
            count=len(_find(service, action, request.args, MOST_COUNTED + 1)),
            back=local_path(request.args.get("back", "")),
            most=MOST_COUNTED,
        )

    @page.post(f"/do/{ANY_ACTION}")
    def act(name: str) -> Response:
        action, given = ACTIONS[name], request.form
        ids = _find(service, action, given)
        with acting_as(viewer().by):
            results = Counter(_act(service, name, id_, given, at_once=len(ids) == 1) for id_ in ids)
        parts = [f"{counted(number, *action.nouns)}: {RESULT_WORDS[result]}" for result, number in results.items()]
        is_good = set(results) <= {action.done}
        flash(f"{'; '.join(parts) or 'Nothing matches any more'}.", "good" if is_good else "mixed")
        return _go_back()


def _find(service: Service, action: Action, given: MultiDict[str, str], most: int = ALL) -> list[str]:
    """The selected ids, or with ``all`` those that match the filter."""
    ids = given.getlist("id")
    if not ids and "all" not in given:
        raise BadRequest("Select at least one row first.")
    return ids or find_ids(service, read(action.wanted, filters_of(given)), most, has=action.has)[0]


def _act(service: Service, name: str, id_: str, given: Mapping[str, str], *, at_once: bool) -> str:
    force, new_id = bool(given.get("force")), bool(given.get("new_id"))
    if name == "forget":
        return forget_email(service.coordinator, id_)
    if name == "release":
        return release(service, id_, Release(force=force), at_once=at_once)
    send = replay if name == "replay" else replay_email
    return send(service, id_, Replay(force=force, new_id=new_id), at_once=at_once)


def _go_back() -> Response:
    """htmx would follow a redirect itself and show a page inside the page."""
    path = local_path(request.form.get("back", "")) or url_for("dashboard.overview")
    return Response(headers={"HX-Redirect": path}) if "HX-Request" in request.headers else redirect(path, code=303)


def _add_name_action(page: Blueprint, service: Service) -> None:
    """Forgets one name: a subject group, a file or an email id."""
    page.add_app_template_filter(forgettable)

    def forget_name(given: Mapping[str, str], dry_run: bool) -> tuple[Reset, Forgotten]:
        wanted = read(Reset, {"scope": given.get("scope"), "value": given.get("value", ""), "dry_run": dry_run})
        if wanted.scope not in RESETTABLE.values():
            raise BadRequest(f"scope must be one of {', '.join(RESETTABLE.values())}")
        with acting_as(viewer().by):
            return wanted, reset(service.coordinator, wanted)

    @page.get("/forget")
    def ask_to_forget() -> str:
        wanted, would = forget_name(request.args, dry_run=True)
        back = local_path(request.args.get("back", ""))
        return render_template("dashboard/ask_to_forget.html", wanted=wanted, would=would, back=back)

    @page.post("/forget")
    def forget() -> Response:
        _, done = forget_name(request.form, dry_run=False)
        kept = f" {counted(len(done.kept), 'email')} kept: still to be delivered." if done.kept else ""
        behind = f" Not yet applied by {', '.join(done.behind)}." if done.behind else ""
        flash(f"{counted(done.names, 'name')} forgotten.{kept}{behind}", "mixed" if kept or behind else "good")
        return _go_back()


def forgettable(label: str) -> dict[str, str] | None:
    """The reset that forgets a name; None if a name of its kind cannot be forgotten alone."""
    name = Name.from_label(label)
    scope = RESETTABLE.get(name.kind)
    if scope is None:
        return None
    return {"scope": scope, "value": f"{name.scope}:{name.value}" if scope is Scope.SUBJECT_GROUP else name.value}


def _add_destination_actions(page: Blueprint, service: Service) -> None:
    @page.get("/destinations/<name>/<any(pause, resume, test):act>")
    def ask_destination(name: str, act: str) -> str:
        known = destinations(service)
        if name not in known:
            raise NotFound
        return render_template("dashboard/ask_destination.html", name=name, act=act, known=known[name])

    @page.post("/destinations/<name>/<any(pause, resume, test):act>")
    def act_on_destination(name: str, act: str) -> Response:
        try:
            with acting_as(viewer().by):
                flash(*_act_on_destination(service, name, act))
        except InvalidPause as error:
            flash(str(error), "error")
        return redirect(url_for("dashboard.destinations_list"), code=303)


def _act_on_destination(service: Service, name: str, act: str) -> tuple[str, str]:
    """A message, and its category."""
    by = viewer().by
    if act == "pause":
        pause(service, name, request.form.get("reason", "").strip(), by)
        return f"{name} is paused. New emails for it are queued.", "good"
    if act == "resume":
        was_paused = resume(service, name, by)
        return f"{name} is resumed; what waits for it is sent." if was_paused else f"{name} was not paused.", "good"
    tested = send_test(service, name, by)
    took = milliseconds(tested.latency_ms)
    if tested.error:
        return f"{name} did not accept the test event, after {took}: {tested.error}", "error"
    answered = f"answered {tested.status_code}" if tested.status_code else "printed it"
    return f"{name} accepted the test event: {answered} after {took}.", "good"
