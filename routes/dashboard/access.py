"""Sign-in to the page with a token, and what the signed-in viewer may do."""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from flask import (
    Blueprint,
    Flask,
    Request,
    Response,
    current_app,
    flash,
    g,
    redirect,
    render_template,
    request,
    session,
    url_for,
)
from flask.sessions import SecureCookieSession, SecureCookieSessionInterface
from flask_wtf.csrf import validate_csrf
from werkzeug.exceptions import BadRequest, Forbidden
from werkzeug.wrappers import Response as AnyResponse
from wtforms import ValidationError

from orchestrator.build import Service
from orchestrator.sessions import SIGNED_IN_FOR, Sessions
from routes.auth import TooManyGuesses, Unauthorized, limited, require_token
from routes.dashboard.queries import local_path
from routes.request_ids import client_address

log = logging.getLogger(__name__)

COOKIE = "mailonce_session"
MOST_FORM_BYTES = 256 * 1024
MOST_NAME_CHARS = 40
STATIC = "dashboard.static"
WITHOUT_SESSION = ("/api/", "/livez", "/readyz", "/health", "/metrics")
OPEN = ("dashboard.sign_in", "dashboard.sign_in_form", STATIC)
FOR_ALL = ("dashboard.sign_in", "dashboard.sign_out")
FOR_ACTING = ("dashboard.ask", "dashboard.ask_destination", "dashboard.ask_to_forget", "dashboard.ingress_token")


@dataclass(frozen=True)
class Viewer:
    """``name`` is what they entered at sign-in, "" if nothing."""

    name: str
    may_act: bool

    @property
    def by(self) -> str:
        """For the audit log: a token is shared, so it names nobody."""
        return f"page, {self.name}" if self.name else "page"


class PageSessions(SecureCookieSessionInterface):
    """Only pages have sessions: requests to the API and probes never read the key."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def open_session(self, app: Flask, request: Request) -> SecureCookieSession | None:
        if request.path.startswith(WITHOUT_SESSION):
            return None
        app.secret_key = self._sessions.key()
        return super().open_session(app, request)

    def get_cookie_secure(self, app: Flask) -> bool:
        """gunicorn trusts X-Forwarded-Proto from a proxy on this machine, and from those in FORWARDED_ALLOW_IPS."""
        return request.is_secure


def use_sessions(app: Flask, sessions: Sessions) -> None:
    """A session is valid on every server of the fleet."""
    app.session_interface = PageSessions(sessions)
    app.config.update(
        SESSION_COOKIE_NAME=COOKIE,
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Lax",
        SESSION_REFRESH_EACH_REQUEST=False,  # a page that is left open does not stay signed in forever
        PERMANENT_SESSION_LIFETIME=SIGNED_IN_FOR,
        WTF_CSRF_TIME_LIMIT=None,  # as long as the session
    )


def viewer() -> Viewer:
    """The viewer of this request. Requests without a session are redirected before they reach a view."""
    return cast(Viewer, g.viewer)


def add_access(page: Blueprint, service: Service) -> None:
    sessions = Sessions(service.journal)

    @page.before_request
    def admit() -> AnyResponse | None:
        """None if the request may go on. With a view token, the only POST allowed is the sign-out."""
        request.max_content_length = MOST_FORM_BYTES
        g.viewer = _signed_in(service, sessions) if request.endpoint != STATIC else None
        if g.viewer is None and request.endpoint not in OPEN:
            return _to_sign_in()
        if request.method == "POST":
            request.get_data()  # read it completely, within its deadline, before anything parses it
            _check_form_is_ours()
        acts = request.endpoint in FOR_ACTING or (request.method == "POST" and request.endpoint not in FOR_ALL)
        if acts and not g.viewer.may_act:
            raise Forbidden("This token is read-only. Sign in with the admin token to do that.")
        return None

    @page.get("/sign-in")
    def sign_in_form() -> str:
        return render_template("dashboard/sign_in.html", next=local_path(request.args.get("next", "")))

    @page.post("/sign-in")
    def sign_in() -> AnyResponse:
        return _sign_in(service, sessions)

    @page.post("/sign-out")
    def sign_out() -> AnyResponse:
        _end_session(sessions)
        return redirect(url_for("dashboard.sign_in_form"))


def _sign_in(service: Service, sessions: Sessions) -> AnyResponse:
    address = client_address(request.environ, service.settings.trusted_proxies)
    next_path = local_path(request.form.get("next", ""))
    token = request.form.get("token", "").strip()
    try:
        with limited(service.guesses, address, token):
            require_token(token, (*service.tokens.admin, *service.tokens.view))
    except TooManyGuesses as error:
        log.warning("page: too many wrong tokens from %s", address)
        return _refused(f"Too many tries. Try again in {error.wait_s} seconds.", 429, next_path)
    except Unauthorized:
        log.warning("page: wrong token from %s", address)
        return _refused("That token is neither ADMIN_TOKEN nor VIEW_TOKEN.", 401, next_path)
    _end_session(sessions)
    session.permanent = True
    session["id"] = secrets.token_urlsafe(9)
    session["token"] = _digest(token)
    session["name"] = _plain_name(request.form.get("name", ""))
    return redirect(next_path or url_for("dashboard.overview"), code=303)


def _refused(words: str, status: int, next_path: str) -> Response:
    flash(words, "error")
    answer = Response(render_template("dashboard/sign_in.html", next=next_path), status)
    if status == 401:
        answer.headers["WWW-Authenticate"] = "Form"  # HTTP requires a challenge; browsers open no dialog for this one
    return answer


def _end_session(sessions: Sessions) -> None:
    """Ends it in this browser and for every copy of its cookie."""
    if "id" in session:
        sessions.end(session["id"])
    session.clear()


def _signed_in(service: Service, sessions: Sessions) -> Viewer | None:
    """A session names its token and nothing else: it ends when the token does, and permissions come from the token."""
    id_, digest, tokens = session.get("id"), session.get("token"), service.tokens
    if not id_ or not isinstance(digest, str) or sessions.has_ended(id_):
        return None
    if _is_among(digest, tokens.admin):
        return Viewer(session.get("name", ""), may_act=True)
    return Viewer(session.get("name", ""), may_act=False) if _is_among(digest, tokens.view) else None


def _is_among(digest: str, tokens: Iterable[str]) -> bool:
    return any([hmac.compare_digest(digest, _digest(each)) for each in tokens])


def _digest(token: str) -> str:
    """Keyed, because a cookie can be read by its owner and must not help to guess the token."""
    return hmac.digest(cast(bytes, current_app.secret_key), token.encode(), "sha256").hex()


def _to_sign_in() -> AnyResponse:
    """A fragment of a page cannot show the form, so htmx is told to load the whole page."""
    if request.headers.get("HX-Request"):
        shown = local_path(request.headers.get("HX-Current-URL", "").removeprefix(request.host_url.rstrip("/")))
        return Response(status=401, headers={"HX-Redirect": url_for("dashboard.sign_in_form", next=shown or None)})
    asked = request.full_path.rstrip("?") if request.method == "GET" else ""
    return redirect(url_for("dashboard.sign_in_form", next=asked if asked not in ("", "/") else None))


def _check_form_is_ours() -> None:
    try:
        validate_csrf(request.headers.get("X-CSRFToken") or request.form.get("csrf_token"))
    except ValidationError as error:
        raise BadRequest("This form has expired or is not from this page. Load the page again.") from error


def _plain_name(text: str) -> str:
    """It goes into audit.log: one line, without the commas and colons that separate fields there."""
    return "".join(char for char in text if char.isalnum() or char in " .-_@").strip()[:MOST_NAME_CHARS]
