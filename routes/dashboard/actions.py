"""What is done to one, some or all that match: first what will happen, and to how many; then a few at a time."""

from __future__ import annotations

from collections import Counter

from flask import Blueprint, flash, redirect, render_template, request, url_for
from werkzeug.exceptions import BadRequest, NotFound
from werkzeug.wrappers import Response

from orchestrator.audit import acting_as
from orchestrator.build import Service
from routes.dashboard.access import viewer
from routes.dashboard.action_kinds import MOST_COUNTED, Action, Found, Wish, all_actions
from routes.dashboard.queries import filters_of, local_path
from routes.dashboard.words import counted

AT_ONCE = 50  # in one request, so that the progress can be seen and nothing times out
MOST_CHOSEN = 200


def add_views(page: Blueprint, service: Service) -> None:
    actions = all_actions(service.parts)

    def known(name: str) -> Action:
        if name not in actions:
            raise NotFound
        return actions[name]

    @page.get("/do/<name>")
    def ask(name: str) -> str:
        """What will happen, and to how many."""
        action, ids = known(name), request.args.getlist("id")
        filters = filters_of(request.args, action.things.filters) if "all" in request.args else {}
        if not ids and "all" not in request.args:
            raise BadRequest(f"Choose at least one of the {action.things.many} first.")
        if len(ids) > MOST_CHOSEN:
            raise BadRequest(f"Choose up to {MOST_CHOSEN}, or all that match a filter.")
        count = len(ids) or action.things.count(filters)
        back = local_path(request.args.get("back", ""))
        return render_template(
            "dashboard/ask.html",
            action=action,
            name=name,
            ids=ids,
            filters=filters,
            count=count,
            back=back,
            most=MOST_COUNTED,
        )

    @page.post("/do/<name>")
    def act(name: str) -> Response | str:
        action, given = known(name), request.form
        back = local_path(given.get("back", "")) or url_for("dashboard.overview")
        ids = given.getlist("id")[:MOST_CHOSEN]
        if not ids and "all" not in given:
            raise BadRequest(f"Choose at least one of the {action.things.many} first.")
        filters = {each: given[each] for each in (*action.things.filters, "cursor") if given.get(each)}
        found = Found(ids, None) if ids else action.things.find(filters, AT_ONCE)
        options = frozenset(each for each in action.options if given.get(each))
        with acting_as(viewer().by):
            became = Counter(action.act_on(id_, Wish(options, len(ids) == 1, viewer().by)) for id_ in found.ids)
        became.update({answer: given.get(f"so_far_{answer}", 0, type=int) for answer in action.answers})
        became = +became
        if found.following is None:
            flash(*_summary(action, became))
            return go_to(back)
        total = max(given.get("total", 0, type=int), became.total())
        return render_template(
            "dashboard/progress.html",
            action=action,
            name=name,
            filters=filters,
            options=options,
            became=became,
            total=total,
            cursor=found.following,
            back=back,
        )


def go_to(path: str) -> Response:
    """A fragment's request would follow a redirect by itself, and get a page where the fragment was."""
    return Response(headers={"HX-Redirect": path}) if "HX-Request" in request.headers else redirect(path, code=303)


def _summary(action: Action, became: Counter[str]) -> tuple[str, str]:
    if not became:
        return f"None of the {action.things.many} match any more.", "good"
    told = "; ".join(
        f"{counted(count, action.things.one, action.things.many)} {action.answers[each]}"
        for each, count in became.items()
    )
    return f"{told}.", "good" if len(became) == 1 and next(iter(became)) == next(iter(action.answers)) else "mixed"
