"""What holds for every route of the page and of /api/admin: who may use it, and that any query is answered."""

from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from werkzeug.routing import Rule

from orchestrator.operations.search import FIELDS
from tests.routes.conftest import App, bearer
from tests.routes.dashboard.conftest import FRAGMENT, HTML, VIEW_TOKEN, Visitor, signed_in
from tests.support.server import email

ACTIONS = ("replay", "release", "forget")
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
        for name in ACTIONS if rule.endpoint == "dashboard.act" else ("default",):
            built = rule.build({part: PARTS.get(part, name) for part in rule.arguments})
            assert built is not None
            found.add(built[1])
    return {path for path in found if path.startswith(start)}


def acts_of_the_page(app: App) -> set[str]:
    posts = paths(app, "POST", "/")
    return {path for path in posts if not path.startswith("/api/")} - OF_ANYBODY


def test_the_routes_are_found(app: App) -> None:
    assert {"/do/release", "/forget", "/destinations/default/pause"} <= acts_of_the_page(app)
    assert {"/api/admin/reset", "/api/admin/decisions/release"} <= paths(app, "POST", "/api/admin/")


def test_a_view_token_can_post_to_none_of_them(app: App, onlooker: Visitor) -> None:
    app.post(email())
    for path in acts_of_the_page(app):
        answer = onlooker.post(path, **SOME_WISH)
        assert (answer.status_code, "This token is read-only" in answer.text) == (403, True), path
    for path in paths(app, "POST", "/api/admin/"):
        assert app.http.post(path, json={}, headers=bearer(VIEW_TOKEN)).status_code == 403, path
    assert app.status_of(email()) == "already_processed", "nothing was forgotten"
    assert not app.service.guard.pause_of("default").is_paused


def test_a_form_of_another_site_reaches_none_of_them(app: App, operator: Visitor) -> None:
    app.post(email())
    token_of_another_session = signed_in(app).csrf_token("/")
    assert token_of_another_session != operator.csrf_token("/")
    for path in acts_of_the_page(app) | OF_ANYBODY:
        for token in ({}, {"csrf_token": "x"}, {"csrf_token": token_of_another_session}):
            answer = operator.http.post(path, data=SOME_WISH | token, headers=HTML)
            assert (answer.status_code, "Load the page again" in answer.text) == (400, True), path
    assert app.status_of(email()) == "already_processed"
    assert operator.get("/").status_code == 200, "nor was the operator signed out"


def test_a_get_changes_nothing(app: App, operator: Visitor) -> None:
    """A GET only asks for confirmation."""
    app.post(email())
    for path in acts_of_the_page(app):
        assert operator.get(f"{path}?all=yes&scope=email_id&value=x").status_code in (200, 404, 405), path
    assert app.status_of(email()) == "already_processed"
    assert not app.service.guard.pause_of("default").is_paused


def test_without_a_session_every_page_redirects_to_the_sign_in(app: App) -> None:
    stranger = Visitor(app)
    seen = paths(app, "GET", "/") - paths(app, "GET", "/api/") - paths(app, "GET", "/files/")
    for path in seen - {"/sign-in", "/livez", "/readyz", "/health", "/metrics", "/static/default"}:
        answer = stranger.get(path)
        assert (answer.status_code, answer.location.partition("?")[0]) == (302, "/sign-in"), path
    for path in acts_of_the_page(app):
        assert stranger.post(path, **SOME_WISH).location == "/sign-in", path
    fragment = stranger.get("/notices", **FRAGMENT)  # htmx has to load the whole page
    assert (fragment.status_code, fragment.text, fragment.headers["HX-Redirect"]) == (401, "", "/sign-in")


def test_without_a_token_every_endpoint_for_operators_refuses(app: App) -> None:
    for method in ("GET", "POST"):
        for path in paths(app, method, "/api/admin/"):
            assert app.http.open(path, method=method).status_code == 401, path


# Any query and any form gets an answer: a page, or an error that says what is wrong, never a 5xx


NAMES = sorted({*FIELDS, "cursor", "last", "span", "tab", "id", "all", "back"})
VALUES = st.one_of(
    st.sampled_from(["dead", "skipped_media", "identity", "day", "json", "yes", "9999-12-31T23:59:59Z", "W10", "-1"]),
    st.text(max_size=40),
    st.binary(max_size=20),
)
QUERIES = st.dictionaries(st.sampled_from([*NAMES, "scope", "value", "next", "reason"]), VALUES, max_size=5)
FORMS = (*(f"/do/{name}" for name in ACTIONS), "/forget")
PATHS = ("/", "/decisions", "/destinations", "/sign-in", *FORMS)
MANY = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture
def busy(app: App, operator: Visitor) -> Visitor:
    app.post(email(subject="Lot 1", body="first"))
    app.post(email(subject="Again lot 1", body="second"))
    return operator


@pytest.mark.parametrize("query", ["all=x", "back=x", "name=x", "id=1&id=2", "self=x", "_external=1", "_anchor=x"])
def test_links_contain_only_filters(busy: Visitor, query: str) -> None:
    links = busy.text(f"/decisions?status=&q=lot&{query}").partition('class="group all"')[2]
    assert links and query.partition("&")[0] not in links


@MANY
@given(st.sampled_from(PATHS), QUERIES)
def test_any_query_is_shown_or_refused(busy: Visitor, path: str, query: dict[str, str | bytes]) -> None:
    encoded = {name: each if isinstance(each, bytes) else each.encode(errors="replace") for name, each in query.items()}
    assert busy.get(f"{path}?{urlencode(encoded)}").status_code in (200, 400, 404)
    if path in FORMS:
        fields = {name: value.decode("latin-1") for name, value in encoded.items()}
        assert busy.post(path, **fields).status_code in (303, 400)


@given(st.text(max_size=60))
@MANY
def test_any_id_is_found_or_not(busy: Visitor, id_: str) -> None:
    path = id_.encode(errors="replace").decode().replace("/", "").replace("?", "").replace("#", "").replace("\\", "")
    assert busy.get(f"/decisions/{path}").status_code in (200, 404)
