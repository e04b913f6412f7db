"""Who may see the page, who may act, and what a browser is told to refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from flask import session
from flask.sessions import NullSession

from orchestrator.guesses import LIMIT
from tests.routes.conftest import App, StartApp, bearer
from tests.routes.dashboard.conftest import FRAGMENT, VIEW_TOKEN, Visitor, signed_in
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, email

VIEWS = ("/", "/deliveries", "/destinations", "/providers", "/system", "/audit")
ACTS = ("/do/replay", "/destinations/default/pause", "/destinations/default/resume", "/destinations/default/test")


@pytest.mark.parametrize("path", [*VIEWS, "/notices", "/ingress-token", "/do/replay", "/destinations/default/pause"])
def test_whoever_is_not_signed_in_sees_the_sign_in_and_nothing_else(app: App, path: str) -> None:
    visitor = Visitor(app)
    answer = visitor.get(path)
    assert answer.status_code == 302
    assert answer.location.startswith("/sign-in")
    fragment = visitor.get(path, **FRAGMENT)
    assert (fragment.status_code, fragment.text) == (401, "")
    assert fragment.headers["HX-Redirect"].startswith("/sign-in")


@pytest.mark.parametrize("path", ACTS)
def test_whoever_is_not_signed_in_can_do_nothing(app: App, path: str) -> None:
    visitor = Visitor(app)
    answer = visitor.post(path)
    assert (answer.status_code, answer.location) == (302, "/sign-in")


@pytest.mark.parametrize("token", [ADMIN_TOKEN, VIEW_TOKEN])
def test_both_tokens_sign_in_and_see_every_view(app: App, token: str) -> None:
    visitor = signed_in(app, token)
    for path in VIEWS:
        assert "Sign out" in visitor.text(path)


@pytest.mark.parametrize("token", ["", "wrong-token-of-some-length", INGRESS_TOKEN, f"{ADMIN_TOKEN}x", "ünïcödé" * 4])
def test_a_wrong_token_is_told_apart_from_nothing(app: App, token: str) -> None:
    visitor = Visitor(app)
    answer = visitor.sign_in(token)
    assert answer.status_code == 401
    assert "neither ADMIN_TOKEN nor VIEW_TOKEN" in answer.text
    assert visitor.get("/").status_code == 302


def guess_at_the_page(app: App, token: str) -> int:
    return Visitor(app).sign_in(token).status_code


def guess_at_the_api(app: App, token: str) -> int:
    return app.http.get("/api/admin/stats", headers=bearer(token)).status_code


def guess_at_the_metrics(app: App, token: str) -> int:
    return app.http.get("/metrics", headers=bearer(token)).status_code


GUESSES = (guess_at_the_page, guess_at_the_api, guess_at_the_metrics)
RIGHT = {guess_at_the_page: 303, guess_at_the_api: 200, guess_at_the_metrics: 200}


@pytest.mark.parametrize("guess", GUESSES)
def test_after_too_many_wrong_tokens_at_one_place_all_places_refuse_whatever_the_address_sends(
    start_app: StartApp, guess: Callable[[App, str], int]
) -> None:
    app, other_process = start_app(view_token=VIEW_TOKEN), start_app(view_token=VIEW_TOKEN)
    for number in range(LIMIT.amount):
        assert guess(app, f"wrong token number {number}") == 401
    assert [each(other_process, ADMIN_TOKEN) for each in GUESSES] == [429] * 3
    assert app.http.get("/api/admin/stats").headers["Retry-After"].isdigit()
    assert app.status_of(email()) == "processed", "emails are never limited"
    app.http.environ_base["REMOTE_ADDR"] = "192.0.2.7"
    assert app.http.get("/metrics", headers=bearer(ADMIN_TOKEN)).status_code == 200


@pytest.mark.parametrize("token", [ADMIN_TOKEN, VIEW_TOKEN])
def test_a_right_token_does_not_clear_the_count_of_wrong_ones(app: App, token: str) -> None:
    for _ in range(LIMIT.amount - 1):
        assert guess_at_the_page(app, "wrong-token-of-some-length") == 401
        assert guess_at_the_page(app, token) == 303
    assert guess_at_the_page(app, "wrong-token-of-some-length") == 401
    assert guess_at_the_page(app, token) == 429


def test_right_tokens_and_requests_without_one_are_not_counted(app: App) -> None:
    for _ in range(LIMIT.amount + 1):
        assert [each(app, ADMIN_TOKEN) for each in GUESSES] == [RIGHT[each] for each in GUESSES]
        assert app.http.get("/api/admin/stats").status_code == app.http.get("/metrics").status_code == 401


def test_whoever_is_signed_in_stays_so_while_others_at_their_address_guess(operator: Visitor) -> None:
    for _ in range(LIMIT.amount + 1):
        guess_at_the_api(operator.app, "wrong-token-of-some-length")
    assert "Sign out" in operator.text("/")


def test_the_session_is_a_cookie_that_no_script_reads_and_no_other_site_sends(app: App) -> None:
    visitor = Visitor(app)
    plain = visitor.sign_in(ADMIN_TOKEN).headers["Set-Cookie"]
    assert all(each in plain for each in ("HttpOnly", "SameSite=Lax", "Path=/", "Expires="))
    assert "Secure" not in plain
    assert ADMIN_TOKEN not in plain
    behind_tls = Visitor(app, "https://localhost")
    assert "Secure" in behind_tls.sign_in(ADMIN_TOKEN).headers["Set-Cookie"]


def test_a_session_of_one_server_is_good_at_another_with_the_same_token(start_app: StartApp) -> None:
    one, other = start_app(), start_app()
    visitor = signed_in(one)
    cookie = visitor.http.get_cookie("mailonce_session")
    assert cookie
    there = Visitor(other)
    there.http.set_cookie("mailonce_session", cookie.value)
    assert "Ada" in there.text("/")


def test_the_key_of_sessions_is_no_function_of_the_tokens(start_app: StartApp, tmp_path: Path) -> None:
    """Two installations with the same tokens: a cookie of one says nothing to the other, not even a digest."""
    one, other = start_app(), start_app(data_dir=tmp_path / "other")
    cookies = [signed_in(each).http.get_cookie("mailonce_session") for each in (one, other)]
    assert cookies[0] and cookies[1]
    there = Visitor(other)
    there.http.set_cookie("mailonce_session", cookies[0].value)
    assert there.get("/").status_code == 302
    digests = []
    for app in (one, other):
        visitor = signed_in(app)
        with visitor.http.session_transaction() as kept:
            digests.append(kept["token"])
    assert digests[0] != digests[1]


@pytest.mark.parametrize("setting", ["admin_token", "view_token"])
def test_a_session_ends_with_its_token_and_outlives_the_rotation_of_another(start_app: StartApp, setting: str) -> None:
    first, second, third = "first-of-three-tokens", "second-of-three-tokens", "third-of-three-tokens"
    cookie = signed_in(start_app(**{setting: f"{first},{second}"}), second).http.get_cookie("mailonce_session")
    assert cookie
    for tokens, status in ((f"{second},{first}", 200), (second, 200), (first, 302), (f"{third},{first}", 302)):
        there = Visitor(start_app(**{setting: tokens}))
        there.http.set_cookie("mailonce_session", cookie.value)
        assert there.get("/").status_code == status, tokens


def test_signing_out_ends_the_session(operator: Visitor) -> None:
    assert operator.post("/sign-out").location == "/sign-in"
    assert operator.get("/").status_code == 302


@pytest.mark.parametrize("token", ["", "x", "ImZvcmdlZCI.YQ.YQ"])
@pytest.mark.parametrize("path", ["/sign-in", "/sign-out", *ACTS])
def test_a_form_that_is_not_from_this_page_does_nothing(operator: Visitor, path: str, token: str) -> None:
    answer = operator.http.post(path, data={"csrf_token": token, "token": ADMIN_TOKEN}, headers={"Accept": "text/html"})
    assert answer.status_code == 400
    assert "Load the page again" in answer.text
    assert operator.get("/").status_code == 200


@pytest.mark.parametrize("path", ACTS)
def test_whoever_may_only_look_can_post_nothing_by_hand_either(app: App, onlooker: Visitor, path: str) -> None:
    answer = onlooker.post(path, reason="x", all="yes")
    assert answer.status_code == 403
    assert "This token is read-only" in answer.text
    assert not app.service.states.of("default").is_paused
    for page in VIEWS:
        shown = onlooker.text(page)
        assert 'class="pick"' not in shown and "/do/" not in shown and "/pause" not in shown


def test_whoever_may_only_look_is_neither_asked_nor_given_the_token_that_sends_emails_in(
    operator: Visitor, onlooker: Visitor
) -> None:
    for path in ("/ingress-token", "/do/replay?all=yes", "/destinations/default/pause"):
        assert onlooker.get(path).status_code == 403
    assert operator.text("/ingress-token") == INGRESS_TOKEN
    assert not any(INGRESS_TOKEN in operator.text(page) for page in VIEWS)


def test_the_view_token_may_get_from_the_api_and_not_post_to_it(app: App) -> None:
    app.post(email())
    for path in ("deliveries", "destinations", "stats", "locks"):
        assert app.http.get(f"/api/admin/{path}", headers=bearer(VIEW_TOKEN)).status_code == 200
    for path in ("reset", "deliveries/replay", "destinations/default/pause", "destinations/default/test"):
        answer = app.http.post(f"/api/admin/{path}", json={}, headers=bearer(VIEW_TOKEN))
        assert (answer.status_code, answer.get_json()["detail"]) == (403, "VIEW_TOKEN may look, not act")
    assert app.http.post("/api/ingress/gmail", json=email(), headers=bearer(VIEW_TOKEN)).status_code == 401


@pytest.mark.parametrize(
    ("path", "goes_to"),
    [
        ("/deliveries?status=dead", "/deliveries?status=dead"),
        ("//evil.example/x", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example/", "/"),
        ("", "/"),
    ],
)
def test_the_sign_in_leads_to_where_one_wanted_to_go_within_this_service(app: App, path: str, goes_to: str) -> None:
    assert Visitor(app).sign_in(ADMIN_TOKEN, next=path).location == goes_to


def test_every_answer_tells_the_browser_to_refuse_what_is_not_ours(operator: Visitor) -> None:
    for path in (*VIEWS, "/sign-in", "/notices", "/nothing/here", "/static/page.js", "/static/none.js"):
        headers = operator.get(path).headers
        policy = dict(each.split(" ", 1) for each in headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == "'self'"
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert (headers["X-Frame-Options"], headers["X-Content-Type-Options"]) == ("DENY", "nosniff")
        assert headers["Cache-Control"] == "no-store"


def test_what_never_changes_under_its_address_may_be_kept(operator: Visitor) -> None:
    answer = operator.get("/static/page.css?v=1")
    assert (answer.status_code, answer.headers["Cache-Control"]) == (200, "public, max-age=31536000, immutable")


def test_a_form_that_is_too_large_is_refused(operator: Visitor) -> None:
    answer = operator.post("/destinations/default/pause", reason="x" * 300_000)
    assert answer.status_code == 413
    assert "at most 256 KB" in answer.text and "MAX_BODY_MB" not in answer.text, "that is for emails"
    assert not operator.app.service.states.of("default").is_paused


def test_an_email_on_its_way_gets_no_session(operator: Visitor) -> None:
    answer = operator.http.post("/api/ingress/gmail", json=email(), headers=bearer(INGRESS_TOKEN))
    assert answer.status_code == 200
    assert "Set-Cookie" not in answer.headers and "Vary" not in answer.headers
    application = operator.http.application
    with application.test_request_context("/api/ingress/gmail"):
        assert isinstance(session, NullSession)
    with application.test_request_context("/decisions"):
        assert not isinstance(session, NullSession)
