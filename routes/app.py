"""The Flask application: blueprints, sessions, request ids, and the answers to errors."""

from __future__ import annotations

import itertools
import logging
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from flask import Flask, Request, Response, request
from flask.sessions import SecureCookieSession, SecureCookieSessionInterface
from werkzeug.exceptions import NotFound

from deduplication.errors import StoreUnavailable
from orchestrator.build import Service
from orchestrator.logs import request_id
from orchestrator.operations.health import note_untrusted_proxy
from orchestrator.sessions import SESSION_KEY, SIGNED_IN_FOR, shared_key
from routes.api import api, public
from routes.api_ingress import ingress_blueprint
from routes.auth import TooManyGuesses, Unauthorized, client_address, is_among, peer_address
from routes.connections import UNPROVEN_BYTES, BoundedRequest, RequestLimit
from routes.dashboard import page
from routes.dashboard.page import COOKIE, SECURITY_HEADERS, as_page
from routes.responses import answer_error

log = logging.getLogger(__name__)

A_YEAR_S = 365 * 24 * 3600
WITHOUT_SESSION = ("/api/", "/files/", "/livez", "/readyz", "/health", "/metrics")
_VALID_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")


def create_app(service: Service) -> Flask:
    trusted, max_body_bytes = service.settings.trusted_proxies, int(service.settings.max_body_mb * 1024 * 1024)
    # Request ids: random bytes for each would be a system call, at which another thread may take over.
    process, numbers = secrets.token_hex(4), itertools.count(1)
    app = Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False  # a path with two slashes is an unknown one, not a redirect to a page
    app.request_class = BoundedRequest
    app.session_interface = PageSessions()
    most_unproven = max(1, UNPROVEN_BYTES // max_body_bytes)
    app.wsgi_app = RequestLimit(  # type: ignore[method-assign]
        with_headers(app.wsgi_app), service.settings.web_threads, most_unproven, service.settings.data_dir
    )
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.config.update(
        MAX_CONTENT_LENGTH=max_body_bytes,
        SEND_FILE_MAX_AGE_DEFAULT=A_YEAR_S,  # the URL of a file of the page changes with its content
        SESSION_COOKIE_NAME=COOKIE,
        SESSION_COOKIE_SAMESITE="Lax",
        SESSION_REFRESH_EACH_REQUEST=False,  # a page that is left open does not stay signed in forever
        PERMANENT_SESSION_LIFETIME=SIGNED_IN_FOR,
    )
    app.extensions["mailonce"] = service
    for blueprint in (page, ingress_blueprint(service), api, public):
        app.register_blueprint(blueprint)

    @app.before_request
    def begin() -> None:
        """All log lines of a request, and its response, have its id: that of the client, if it is valid."""
        environ = request.environ
        given = environ.get("HTTP_X_REQUEST_ID", "")
        request_id.set(given if _VALID_ID.fullmatch(given) else f"{process}{next(numbers):04x}")
        # Werkzeug ignores how many there are, so //metrics would reach /metrics past a proxy's rule for /metrics.
        if environ["PATH_INFO"].startswith("//"):
            raise NotFound
        if "HTTP_X_FORWARDED_FOR" in environ and not is_among(peer_address(environ), trusted):
            note_untrusted_proxy(service, peer_address(environ))

    @app.errorhandler(Exception)
    def refuse(error: Exception) -> Response:
        if isinstance(error, Unauthorized | TooManyGuesses):
            what, address = str(error) or "no or wrong token", client_address(request.environ, trusted)
            log.warning("%s %s: %s, from %s", request.method, request.path, what, address)
        answer = answer_error(error)
        if answer.status_code == 500:
            log.error("unexpected error", exc_info=error)
        return as_page(answer)

    return app


def with_headers(app: WSGIApplication) -> WSGIApplication:
    """Every response has the id of its request, and security headers unless its view has set them.

    They are added as they are: werkzeug would check and convert each of them again for every response.
    """

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            known = {name for name, _ in headers}
            added = [header for header in SECURITY_HEADERS if header[0] not in known]
            return start_response(status, [*headers, *added, ("X-Request-Id", request_id.get())], *error)

        return app(environ, start)

    return answer


class PageSessions(SecureCookieSessionInterface):
    """Only pages have sessions: requests to the API and probes never read the key."""

    def open_session(self, app: Flask, request: Request) -> SecureCookieSession | None:
        if request.path.startswith(WITHOUT_SESSION):
            return None
        with suppress(StoreUnavailable):  # then the key of the last request is good enough
            app.secret_key = shared_key(app.extensions["mailonce"].journal, SESSION_KEY)
        return super().open_session(app, request)

    def get_cookie_secure(self, app: Flask) -> bool:
        """gunicorn trusts X-Forwarded-Proto from a proxy on this machine, and from those in FORWARDED_ALLOW_IPS."""
        return request.is_secure
