"""What no view may forget, asked of each that there is: also of one that is added tomorrow."""

from __future__ import annotations

from collections.abc import Iterator

from werkzeug.routing import Rule

from tests.routes.conftest import App, bearer
from tests.routes.dashboard.conftest import HTML, VIEW_TOKEN, Visitor
from tests.support.server import email

ACTIONS = ("replay", "replay-emails", "release", "forget")
OF_ANYBODY = {"/sign-in", "/sign-out"}
PARTS = {"id_": "nobody", "act": "pause"}
SOME_WISH = {"all": "yes", "reason": "x", "scope": "email_id", "value": "x"}


def rules(app: App, method: str) -> Iterator[Rule]:
    for rule in app.http.application.url_map.iter_rules():
        if method in (rule.methods or ()):
            yield rule


def paths(app: App, method: str, start: str) -> set[str]:
    """All that take it below ``start``, with a value for each of their parts; of the page's actions, every one."""
    found = set()
    for rule in rules(app, method):
        for name in ACTIONS if rule.endpoint in ("dashboard.ask", "dashboard.act") else ("default",):
            built = rule.build({part: PARTS.get(part, name) for part in rule.arguments})
            assert built is not None
            found.add(built[1])
    return {path for path in found if path.startswith(start)}


def acts_of_the_page(app: App) -> set[str]:
    posts = paths(app, "POST", "/")
    return {path for path in posts if not path.startswith("/api/")} - OF_ANYBODY


def test_there_is_something_to_ask(app: App) -> None:
    assert {"/do/release", "/forget", "/destinations/default/pause"} <= acts_of_the_page(app)
    assert {"/api/admin/reset", "/api/admin/decisions/release"} <= paths(app, "POST", "/api/admin/")


def test_whoever_may_only_look_can_post_to_none_of_them(app: App, onlooker: Visitor) -> None:
    app.post(email())
    for path in acts_of_the_page(app):
        answer = onlooker.post(path, **SOME_WISH)
        assert (answer.status_code, "This token is read-only" in answer.text) == (403, True), path
    for path in paths(app, "POST", "/api/admin/"):
        assert app.http.post(path, json={}, headers=bearer(VIEW_TOKEN)).status_code == 403, path
    assert app.status_of(email()) == "already_processed", "nothing was forgotten"
    assert not app.service.states.of("default").is_paused


def test_a_form_of_another_site_reaches_none_of_them(app: App, operator: Visitor) -> None:
    app.post(email())
    for path in acts_of_the_page(app) | OF_ANYBODY:
        for token in ({}, {"csrf_token": "x"}):
            answer = operator.http.post(path, data=SOME_WISH | token, headers=HTML)
            assert (answer.status_code, "Load the page again" in answer.text) == (400, True), path
    assert app.status_of(email()) == "already_processed"
    assert operator.get("/").status_code == 200, "nor was anybody signed out"


def test_none_of_them_does_anything_by_a_link(app: App, operator: Visitor) -> None:
    """A GET is a question, if it is anything: whoever is led to it has done nothing."""
    app.post(email())
    for path in acts_of_the_page(app):
        assert operator.get(f"{path}?all=yes&scope=email_id&value=x").status_code in (200, 404, 405), path
    assert app.status_of(email()) == "already_processed"
    assert not app.service.states.of("default").is_paused


def test_without_a_session_nothing_but_the_sign_in_is_there(app: App) -> None:
    stranger = Visitor(app)
    seen = paths(app, "GET", "/") - paths(app, "GET", "/api/")
    for path in seen - {"/sign-in", "/livez", "/readyz", "/health", "/metrics", "/static/default"}:
        answer = stranger.get(path)
        assert (answer.status_code, answer.location.partition("?")[0]) == (302, "/sign-in"), path
    for path in acts_of_the_page(app):
        assert stranger.post(path, **SOME_WISH).location == "/sign-in", path
