"""Release, replay and forget: one, some, or all that match. First a question, then a few at a time with progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flask import Blueprint, flash, redirect, render_template, request, url_for
from werkzeug.exceptions import BadRequest, NotFound
from werkzeug.wrappers import Response

from deduplication.journal.entry import DeliveryStatus
from deduplication.names import Kind, Name
from orchestrator.audit import acting_as
from orchestrator.build import Service
from orchestrator.operations.decisions import Release, count_decisions, find_entries, release
from orchestrator.operations.deliveries import (
    Replay,
    count_deliveries,
    delivery_id,
    find_deliveries,
    replay,
    replay_email,
)
from orchestrator.operations.reset import Forgot, Reset, Scope, forget_email, reset
from orchestrator.operations.search import DecisionFilter, DeliveryFilter
from routes.dashboard.access import viewer
from routes.dashboard.queries import filters_of, local_path
from routes.dashboard.words import counted
from routes.questions import RELEASE_ANSWERS, REPLAY_ANSWERS, read

AT_ONCE = 50  # in one request, so that there is progress to see and nothing times out
MOST_CHOSEN = 200
MOST_COUNTED = 10_000
FORGET_ANSWERS = {
    Forgot.FORGOTTEN: "forgotten",
    Forgot.NOTHING: "had no names left to forget",
    Forgot.KEPT: "kept: still to be delivered",
    Forgot.UNKNOWN: "unknown, or no longer stored",
}
RESETTABLE = {Kind.EMAIL_ID: Scope.EMAIL_ID, Kind.SUBJECT_GROUP: Scope.SUBJECT_GROUP, Kind.MEDIA: Scope.MEDIA}


@dataclass(frozen=True)
class Action:
    """``effect`` says what will happen. ``act`` gets an id, the chosen options, and whether it is the only one; it
    returns one of ``answers``, of which the first is the good one. ``skipped_only``: emails without a skipped delivery
    are left out."""

    verb: str
    effect: str
    options: Mapping[str, str]
    answers: Mapping[str, str]
    act: Callable[[str, frozenset[str], bool], str]
    on_deliveries: bool = False
    skipped_only: bool = False

    @property
    def one(self) -> str:
        return "delivery" if self.on_deliveries else "email"

    @property
    def many(self) -> str:
        return "deliveries" if self.on_deliveries else "emails"


def make_actions(service: Service) -> dict[str, Action]:
    def act_replay(id_: str, options: frozenset[str], is_alone: bool) -> str:
        how, act = Replay(**dict.fromkeys(options, True)), replay if ":" in id_ else replay_email
        return act(service, id_, how, at_once=is_alone)

    def act_release(id_: str, options: frozenset[str], is_alone: bool) -> str:
        return release(service, id_, Release(**dict.fromkeys(options, True)), viewer().by, at_once=is_alone)

    again = {
        "verb": "Replay",
        "effect": "Dead and waiting deliveries are sent again, past all gates, with the same webhook-id. Deliveries "
        "that were received, are in progress or have lost their payload are left alone.",
        "options": {
            "force": "Include deliveries already received",
            "new_id": "With a new webhook-id: the receiver sees another event",
        },
        "answers": {answer: text for answer, (_, text) in REPLAY_ANSWERS.items()},
        "act": act_replay,
    }
    return {
        "replay": Action(**again, on_deliveries=True),  # type: ignore[arg-type]
        "replay-emails": Action(**again),  # type: ignore[arg-type]
        "release": Action(
            verb="Release",
            effect="Emails that were stopped by their subject group, files or text are delivered, once, to the "
            "destinations that they were stopped from.",
            options={"force": "Even if the same email was delivered"},
            answers={answer: text for answer, (_, text) in RELEASE_ANSWERS.items()},
            act=act_release,
            skipped_only=True,
        ),
        "forget": Action(
            verb="Forget",
            effect="All names of these emails are forgotten, on every server. Nothing is sent now; if such an email is "
            "received again, it is new and is delivered. Emails that still wait are delivered anyway.",
            options={},
            answers={str(answer): text for answer, text in FORGET_ANSWERS.items()},
            act=lambda id_, *_: forget_email(service.coordinator, id_),
        ),
    }


def add_views(page: Blueprint, service: Service) -> None:
    actions = make_actions(service)

    def known(name: str) -> Action:
        if name not in actions:
            raise NotFound
        return actions[name]

    def count(action: Action, filters: Mapping[str, str]) -> int:
        if action.on_deliveries:
            return count_deliveries(service, read(DeliveryFilter, filters), MOST_COUNTED + 1)
        has = DeliveryStatus.SKIPPED if action.skipped_only else None
        return count_decisions(service, read(DecisionFilter, filters), MOST_COUNTED + 1, has)

    def find(action: Action, filters: Mapping[str, str], cursor: str | None) -> tuple[list[str], str | None]:
        if action.on_deliveries:
            rows, following = find_deliveries(service, read(DeliveryFilter, filters), AT_ONCE, cursor)
            return [delivery_id(entry.id, delivery.destination) for entry, delivery in rows], following
        has = DeliveryStatus.SKIPPED if action.skipped_only else None
        entries, following = find_entries(service, read(DecisionFilter, filters), AT_ONCE, cursor, has)
        return [entry.id for entry in entries], following

    @page.get("/do/<name>")
    def ask(name: str) -> str:
        """Says what will happen, and to how many."""
        action, ids = known(name), request.args.getlist("id")
        filters = filters_of(request.args) if "all" in request.args else {}
        if not ids and "all" not in request.args:
            raise BadRequest(f"Select at least one of the {action.many} first.")
        if len(ids) > MOST_CHOSEN:
            raise BadRequest(f"Select up to {MOST_CHOSEN}, or all that match a filter.")
        return render_template(
            "dashboard/ask.html",
            action=action,
            name=name,
            ids=ids,
            filters=filters,
            count=len(ids) or count(action, filters),
            back=local_path(request.args.get("back", "")),
            most=MOST_COUNTED,
        )

    @page.post("/do/<name>")
    def act(name: str) -> Response | str:
        action, given = known(name), request.form
        back = local_path(given.get("back", "")) or url_for("dashboard.overview")
        ids, following, filters = given.getlist("id")[:MOST_CHOSEN], None, filters_of(given)
        if not ids and "all" not in given:
            raise BadRequest(f"Select at least one of the {action.many} first.")
        is_alone = len(ids) == 1
        if not ids:
            ids, following = find(action, filters, given.get("cursor") or None)
        options = frozenset(each for each in action.options if given.get(each))
        with acting_as(viewer().by):
            results = Counter(action.act(id_, options, is_alone) for id_ in ids)
        results.update({answer: given.get(f"so_far_{answer}", 0, type=int) for answer in action.answers})
        results = +results
        if following is None:
            flash(*_summary(action, results))
            return _go_to(back)
        return render_template(
            "dashboard/progress.html",
            action=action,
            name=name,
            filters=filters,
            options=options,
            results=results,
            total=max(given.get("total", 0, type=int), results.total()),
            cursor=following,
            back=back,
        )

    # One name: a subject group, a file, an email id

    page.add_app_template_filter(forgettable)

    @page.get("/forget")
    def ask_to_forget() -> str:
        wanted = _wanted(request.args, dry_run=True)
        with acting_as(viewer().by):
            would = reset(service.coordinator, wanted)
        back = local_path(request.args.get("back", ""))
        return render_template("dashboard/ask_to_forget.html", wanted=wanted, would=would, back=back)

    @page.post("/forget")
    def forget() -> Response:
        wanted = _wanted(request.form, dry_run=False)
        with acting_as(viewer().by):
            done = reset(service.coordinator, wanted)
        kept = f" {counted(len(done.kept), 'email')} kept: still to be delivered." if done.kept else ""
        behind = f" Not yet applied by {', '.join(done.behind)}." if done.behind else ""
        flash(f"{counted(done.names, 'name')} forgotten.{kept}{behind}", "mixed" if kept or behind else "good")
        return _go_to(local_path(request.form.get("back", "")) or url_for("dashboard.overview"))


def forgettable(label: str) -> dict[str, str] | None:
    """The reset that forgets a name; None if a name of its kind cannot be forgotten alone."""
    name = Name.from_label(label)
    scope = RESETTABLE.get(name.kind)
    if scope is None:
        return None
    return {"scope": scope, "value": f"{name.scope}:{name.value}" if scope is Scope.SUBJECT_GROUP else name.value}


def _wanted(given: Mapping[str, str], *, dry_run: bool) -> Reset:
    wanted = read(Reset, {"scope": given.get("scope"), "value": given.get("value", ""), "dry_run": dry_run})
    if wanted.scope not in RESETTABLE.values():
        raise BadRequest(f"scope must be one of {', '.join(RESETTABLE.values())}")
    return wanted


def _go_to(path: str) -> Response:
    """A fragment's request would follow a redirect by itself, and show a page inside the page."""
    return Response(headers={"HX-Redirect": path}) if "HX-Request" in request.headers else redirect(path, code=303)


def _summary(action: Action, results: Counter[str]) -> tuple[str, str]:
    if not results:
        return f"None of the {action.many} match any more.", "good"
    parts = [f"{counted(count, action.one, action.many)}: {action.answers[each]}" for each, count in results.items()]
    is_good = len(results) == 1 and next(iter(results)) == next(iter(action.answers))
    return f"{'; '.join(parts)}.", "good" if is_good else "mixed"
