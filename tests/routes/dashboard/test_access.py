"""Who may see the page, who may act, and the security headers."""

from collections.abc import Callable
from pathlib import Path

import pytest
import requests
from flask import session
from flask.sessions import NullSession

from orchestrator.delivery.counters import GUESS_RATE
from routes.dashboard.page import COOKIE
from tests.routes.conftest import App, StartApp, bearer
from tests.routes.dashboard.conftest import VIEW_TOKEN, Visitor, signed_in
from tests.support.page import PageVisitor
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, Server, email
from tests.support.waiting import wait_for

VIEWS = ("/", "/destinations", "/providers", "/servers", "/audit")
WRONG = "wrong-token-of-some-length"


def with_cookie_of(visitor: Visitor, app: App) -> Visitor:
    """Another browser that has got hold of the cookie."""
    cookie = visitor.http.get_cookie(COOKIE)
    assert cookie
    other = Visitor(app)
    other.http.set_cookie(COOKIE, cookie.value)
    return other


@pytest.mark.parametrize("token", [ADMIN_TOKEN, VIEW_TOKEN])
def test_both_tokens_sign_in_and_see_every_view_but_only_one_sees_buttons(app: App, token: str) -> None:
    visitor = signed_in(app, token)
    assert ("Show the token" in visitor.text("/")) == (token == ADMIN_TOKEN), "for the first steps"
    app.post(email())
    pages = [visitor.text(path) for path in VIEWS]
    assert all("Sign out" in page for page in pages)
    assert not any(INGRESS_TOKEN in page for page in pages)
    has_buttons = any(each in page for page in pages for each in ('class="pick"', "/do/", "/pause"))
    assert has_buttons == (token == ADMIN_TOKEN)
    for path in ("deliveries", "destinations", "stats", "locks"):
        assert app.http.get(f"/api/admin/{path}", headers=bearer(token)).status_code == 200
    assert app.http.post("/api/ingress/gmail", json=email(), headers=bearer(token)).status_code == 401
    for path in ("/ingress-token", "/do/replay?all=yes", "/destinations/default/pause"):
        assert visitor.get(path).status_code == (200 if token == ADMIN_TOKEN else 403), path


@pytest.mark.parametrize("token", ["", WRONG, INGRESS_TOKEN, f"{ADMIN_TOKEN}x", "ünïcödé" * 4])
def test_a_wrong_token_does_not_sign_in(app: App, token: str) -> None:
    visitor = Visitor(app)
    answer = visitor.sign_in(token)
    assert (answer.status_code, "neither ADMIN_TOKEN nor VIEW_TOKEN" in answer.text) == (401, True)
    assert visitor.get("/").status_code == 302


GUESSES: tuple[Callable[[App, str], int], ...] = (
    lambda app, token: Visitor(app).sign_in(token).status_code,
    lambda app, token: app.http.get("/api/admin/stats", headers=bearer(token)).status_code,
    lambda app, token: app.http.get("/metrics", headers=bearer(token)).status_code,
)


@pytest.mark.parametrize("guess", GUESSES, ids=("page", "api", "metrics"))
def test_after_too_many_wrong_tokens_at_one_place_all_places_refuse_whatever_the_address_sends(
    start_app: StartApp, guess: Callable[[App, str], int]
) -> None:
    app, other_process = start_app(), start_app()
    operator = signed_in(app)
    for number in range(GUESS_RATE.amount):
        assert guess(app, f"wrong token number {number}") == 401
    assert [each(other_process, ADMIN_TOKEN) for each in GUESSES] == [429] * 3
    assert app.http.get("/api/admin/stats").headers["Retry-After"].isdigit()
    assert app.status_of(email()) == "processed", "emails are never limited"
    assert "Sign out" in operator.text("/"), "nor is a session"
    app.http.environ_base["REMOTE_ADDR"] = "192.0.2.7"
    assert app.http.get("/metrics", headers=bearer(ADMIN_TOKEN)).status_code == 200


def test_a_right_token_is_not_counted_and_does_not_clear_the_count_of_wrong_ones(app: App) -> None:
    guess = GUESSES[0]
    for _ in range(GUESS_RATE.amount):
        assert guess(app, ADMIN_TOKEN) == 303
        assert app.http.get("/api/admin/stats").status_code == app.http.get("/metrics").status_code == 401
        assert guess(app, WRONG) == 401
    assert guess(app, ADMIN_TOKEN) == 429


def test_the_session_is_a_cookie_that_no_script_reads_and_no_other_site_sends(app: App) -> None:
    plain = Visitor(app).sign_in(ADMIN_TOKEN).headers["Set-Cookie"]
    assert all(each in plain for each in ("HttpOnly", "SameSite=Lax", "Path=/", "Expires="))
    assert "Secure" not in plain and ADMIN_TOKEN not in plain
    assert "Secure" in Visitor(app, "https://localhost").sign_in(ADMIN_TOKEN).headers["Set-Cookie"]


def test_the_key_of_sessions_is_no_function_of_the_tokens(start_app: StartApp, tmp_path: Path) -> None:
    """Two installations with the same tokens: a cookie of one is worth nothing to the other, not even its digest."""
    one, other = start_app(), start_app(data_dir=tmp_path / "other")
    visitors = [signed_in(one), signed_in(other)]
    assert with_cookie_of(visitors[0], other).get("/").status_code == 302
    digests = set()
    for visitor in visitors:
        with visitor.http.session_transaction() as kept:
            digests.add(kept["token"])
    assert len(digests) == 2


@pytest.mark.parametrize("setting", ["admin_token", "view_token"])
def test_a_session_ends_with_its_token_and_outlives_the_rotation_of_another(start_app: StartApp, setting: str) -> None:
    first, second, third = "first-of-three-tokens", "second-of-three-tokens", "third-of-three-tokens"
    visitor = signed_in(start_app(**{setting: f"{first},{second}"}), second)
    for tokens, status in ((f"{second},{first}", 200), (second, 200), (first, 302), (f"{third},{first}", 302)):
        assert with_cookie_of(visitor, start_app(**{setting: tokens})).get("/").status_code == status, tokens


def test_a_new_sign_in_ends_the_session_before_it_and_all_copies_of_its_cookie(app: App) -> None:
    visitor = signed_in(app)
    copy = with_cookie_of(visitor, app)
    assert copy.get("/").status_code == 200
    visitor.sign_in(ADMIN_TOKEN)
    assert (copy.get("/").status_code, visitor.get("/").status_code) == (302, 200)


@pytest.mark.parametrize(
    ("path", "goes_to"),
    [
        ("/decisions?outcome=waiting", "/decisions?outcome=waiting"),
        ("//evil.example/x", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example/", "/"),
        ("", "/"),
    ],
)
def test_the_sign_in_leads_to_where_one_wanted_to_go_within_this_service(app: App, path: str, goes_to: str) -> None:
    assert Visitor(app).sign_in(ADMIN_TOKEN, next=path).location == goes_to


def test_every_response_has_the_security_headers(operator: Visitor) -> None:
    for path in (*VIEWS, "/sign-in", "/notices", "/nothing/here", "/static/none.js"):
        headers = operator.get(path).headers
        policy = dict(each.split(" ", 1) for each in headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == "'self'"
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert (headers["X-Frame-Options"], headers["X-Content-Type-Options"]) == ("DENY", "nosniff")
        assert headers["Cache-Control"] == "no-store"
    versioned = operator.get("/static/page.css?v=1")
    assert (versioned.status_code, versioned.headers["Cache-Control"]) == (200, "public, max-age=31536000")


def test_a_form_that_is_too_large_is_refused(operator: Visitor) -> None:
    answer = operator.post("/destinations/default/pause", reason="x" * 300_000)
    assert answer.status_code == 413
    assert "at most 256 KB" in answer.text and "MAX_BODY_MB" not in answer.text, "that is for emails"
    assert not operator.app.service.guard.pause_of("default").is_paused


def test_a_request_with_an_email_gets_no_session(operator: Visitor) -> None:
    answer = operator.http.post("/api/ingress/gmail", json=email(), headers=bearer(INGRESS_TOKEN))
    assert answer.status_code == 200
    assert "Set-Cookie" not in answer.headers and "Vary" not in answer.headers
    for path, has_session in (("/api/ingress/gmail", False), ("/decisions", True)):
        with operator.http.application.test_request_context(path):
            assert isinstance(session, NullSession) != has_session


# With real processes


def statuses(url: str, cookie: str) -> set[int]:
    """What a copy of the cookie gets, over twelve connections of its own: each process takes some of them."""
    headers = {"Cookie": f"{COOKIE}={cookie}", "Accept": "text/html", "Connection": "close"}
    answers = (requests.get(f"{url}/notices", headers=headers, timeout=60, allow_redirects=False) for _ in range(12))
    return {answer.status_code for answer in answers}


def test_a_copied_cookie_is_worth_nothing_on_any_process_or_server_once_its_owner_signed_out(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    settings = {"REDIS_URL": redis_server.url, "WEB_CONCURRENCY": "2"}
    with Server(tmp_path / "one", **settings) as one, Server(tmp_path / "other", **settings) as other:
        owner, colleague = PageVisitor(one.url), PageVisitor(one.url)
        copied = owner.http.cookies[COOKIE]
        assert statuses(one.url, copied) == {200}
        wait_for(lambda: statuses(other.url, copied) == {200})  # the key is shared within a second
        assert owner.post("/sign-out", form_on="/").status_code == 302
        assert statuses(one.url, copied) == {302}
        wait_for(lambda: statuses(other.url, copied) == {302})
        assert statuses(other.url, colleague.http.cookies[COOKIE]) == {200}, "others stay signed in"
