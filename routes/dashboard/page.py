"""The blueprint of the page: who may see it and act on it, its security headers, and errors as HTML pages."""

import hmac
import logging
import secrets
from typing import Any, cast

from flask import Blueprint, Response, current_app, flash, g, redirect, render_template, request, session, url_for
from werkzeug.exceptions import BadRequest, Forbidden
from werkzeug.wrappers import Response as AnyResponse

from orchestrator.sessions import end_session, has_ended
from routes.auth import TooManyGuesses, Unauthorized, client_address, equals_any, require_operator_token
from routes.endpoints import service

log = logging.getLogger(__name__)
page = Blueprint("dashboard", __name__, template_folder="templates", static_folder="static", static_url_path="/static")

COOKIE = "mailonce_session"
MOST_FORM_BYTES = 256 * 1024
MOST_NAME_CHARS = 40
STATIC = "dashboard.static"
WITHOUT_SIGN_IN = ("dashboard.sign_in", STATIC)
FOR_ALL = ("dashboard.sign_in", "dashboard.sign_out")
FOR_ADMINS = ("dashboard.act", "dashboard.act_on_destination", "dashboard.forget_name", "dashboard.ingress_token")
OWN_ORIGIN_ONLY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; frame-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# The HTML of an email: its own styles, no script, no network, and an opaque origin.
EMAIL_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'self'"
)
ERRORS = {
    404: ("Not found", "There is no page at this address, or it is no longer kept."),
    413: ("Too large", "A form may have at most 256 KB. Select fewer rows, or all that match a filter."),
    500: ("Something went wrong", "This is an error in Mailonce. The log has the details."),
    503: ("Unavailable", "The journal cannot answer right now. Providers are asked to retry meanwhile."),
}
SECURITY_HEADERS = (
    ("Content-Security-Policy", OWN_ORIGIN_ONLY),
    ("X-Frame-Options", "DENY"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("X-DNS-Prefetch-Control", "off"),
    ("Cache-Control", "no-store"),
)
"""Of every response, even of the API, unless its view has set them."""


# Responses


def as_page(problem: Response) -> Response:
    """Browsers get an error as a page with the same status and headers; everything under /api/ stays JSON."""
    is_ours = request.blueprint == "dashboard" or "HX-Request" in request.headers
    if request.path.startswith("/api/") or not (is_ours or "text/html" in request.headers.get("Accept", "")):
        return problem
    status = problem.status_code
    title, text = ERRORS.get(status) or ("That did not work", problem.get_json()["detail"])
    problem.set_data(render_template("dashboard/error.html", title=title, text=text, status=status))
    problem.mimetype = "text/html"
    return problem


# Who may see it


@page.app_template_global()
def csrf_token() -> str:
    """The secret of this session that its forms contain: another site can send a form, but cannot know the secret."""
    return cast(str, session.setdefault("csrf_token", secrets.token_urlsafe(24)))


@page.before_request
def admit() -> AnyResponse | None:
    """None if the request may go on. With a view token, the only POST allowed is the sign-out."""
    request.max_content_length = MOST_FORM_BYTES
    g.viewer = _signed_in() if request.endpoint != STATIC else None
    if g.viewer is None and request.endpoint not in WITHOUT_SIGN_IN:
        return _to_sign_in()
    if request.method == "POST":
        request.get_data()  # read it completely, within its deadline, before anything parses it
        if not equals_any(request.form.get("csrf_token", ""), [csrf_token()]):
            raise BadRequest("This form has expired or is not from this page. Load the page again.")
    acts = request.endpoint in FOR_ADMINS or (request.method == "POST" and request.endpoint not in FOR_ALL)
    if acts and not g.viewer["may_act"]:
        raise Forbidden("This token is read-only. Sign in with the admin token to do that.")
    return None


@page.route("/sign-in", methods=["GET", "POST"])
def sign_in() -> AnyResponse | str:
    token, next_path = request.form.get("token", "").strip(), local_path(request.values.get("next", ""))
    if request.method != "POST":
        return render_template("dashboard/sign_in.html", next=next_path)
    try:
        require_operator_token(service, request.environ, token, (*service.tokens.admin, *service.tokens.view))
    except Unauthorized:
        reason, text = "wrong token", "That token is neither ADMIN_TOKEN nor VIEW_TOKEN."
        status, headers = 401, {"WWW-Authenticate": "Form"}  # HTTP requires one; browsers open no dialog for this one
    except TooManyGuesses as error:
        reason, text = str(error), f"Too many tries. Try again in {error.wait_s} seconds."
        status, headers = 429, {"Retry-After": str(error.wait_s)}
    else:
        _end_session()
        session.permanent = True
        session["id"] = secrets.token_urlsafe(9)
        session["token"] = _digest(token)
        # It goes into audit.log: one line, without the commas and colons that separate fields there.
        plain = "".join(char for char in request.form.get("name", "") if char.isalnum() or char in " .-_@")
        session["name"] = plain.strip()[:MOST_NAME_CHARS]
        return redirect(next_path or url_for("dashboard.overview"), code=303)
    log.warning("page: %s from %s", reason, client_address(request.environ, service.settings.trusted_proxies))
    flash(text, "error")
    return Response(render_template("dashboard/sign_in.html", next=next_path), status, headers)


@page.post("/sign-out")
def sign_out() -> AnyResponse:
    _end_session()
    return redirect(url_for("dashboard.sign_in"))


def _end_session() -> None:
    """Ends it in this browser and for every copy of its cookie."""
    if "id" in session:
        end_session(service.journal, session["id"])
    session.clear()


def _signed_in() -> dict[str, Any] | None:
    """``g.viewer`` of views behind the sign-in; ``by`` is for the audit log, since several people may share a token.

    A session names its token and nothing else: it ends when the token does, and permissions come from the token.
    """
    id_, digest, tokens = session.get("id"), session.get("token"), service.tokens
    if not id_ or not isinstance(digest, str) or has_ended(service.journal, id_):
        return None
    may_act = equals_any(digest, map(_digest, tokens.admin))
    is_known = may_act or equals_any(digest, map(_digest, tokens.view))
    name = session.get("name", "")
    return {"name": name, "by": f"page, {name}" if name else "page", "may_act": may_act} if is_known else None


def _digest(token: str) -> str:
    """Keyed, because a cookie can be read by its owner and must not help to guess the token."""
    return hmac.digest(cast(bytes, current_app.secret_key), token.encode(), "sha256").hex()


def _to_sign_in() -> AnyResponse:
    """A fragment of a page cannot show the form, so htmx is made to load the whole page."""
    if request.headers.get("HX-Request"):
        shown = local_path(request.headers.get("HX-Current-URL", "").removeprefix(request.host_url.rstrip("/")))
        return Response(status=401, headers={"HX-Redirect": url_for("dashboard.sign_in", next=shown or None)})
    asked = request.full_path.rstrip("?") if request.method == "GET" else ""
    return redirect(url_for("dashboard.sign_in", next=asked if asked not in ("", "/") else None))


def local_path(text: str) -> str:
    """The path, empty if it is not one of this service: a link to the sign-in must not lead to another site."""
    is_local = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if is_local else ""
