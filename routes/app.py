"""The Flask application: blueprints and error answers."""

from __future__ import annotations

import logging

from flask import Flask, request
from werkzeug.exceptions import ClientDisconnected, HTTPException, NotFound, RequestEntityTooLarge

from orchestrator.build import Service
from orchestrator.sessions import Sessions
from routes.api_admin import admin_blueprint
from routes.api_destinations import destinations_blueprint
from routes.api_emails import emails_blueprint
from routes.api_ingress import ingress_blueprint
from routes.api_openapi import openapi_blueprint
from routes.auth import TooManyGuesses, Unauthorized
from routes.connections import UNPROVEN_BYTES, NoRoomForBody, PatientRequest, Workplaces
from routes.dashboard import dashboard_blueprint
from routes.dashboard.access import use_sessions
from routes.dashboard.errors import or_page
from routes.dashboard.headers import protect
from routes.health import health_blueprint
from routes.metrics import metrics_blueprint
from routes.patience import WaitsOnce
from routes.providers.base import InvalidPayload
from routes.request_ids import RequestIds, client_address, is_from_unknown_proxy, peer_address
from routes.responses import (
    Answer,
    http_error,
    incomplete,
    internal_error,
    invalid,
    no_room,
    too_large,
    too_many_guesses,
    unauthorized,
)

log = logging.getLogger(__name__)


def create_app(service: Service) -> Flask:
    def refuse(_: Unauthorized) -> Answer:
        address = client_address(request.environ, service.settings.trusted_proxies)
        log.warning("%s %s: no or wrong token, from %s", request.method, request.path, address)
        return unauthorized()

    def refuse_guesser(error: TooManyGuesses) -> Answer:
        address = client_address(request.environ, service.settings.trusted_proxies)
        log.warning("%s %s: too many wrong tokens from %s", request.method, request.path, address)
        return too_many_guesses(error.wait_s)

    def note_proxy() -> None:
        if is_from_unknown_proxy(request.environ, service.settings.trusted_proxies):
            service.health.proxies.note(peer_address(request.environ))

    app = Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False  # a path with two slashes is an unknown one, not a redirect to a page
    app.before_request(_require_one_leading_slash)
    app.after_request(protect)
    app.request_class = PatientRequest
    max_body_bytes = int(service.settings.max_body_mb * 1024 * 1024)
    placed = Workplaces(app.wsgi_app, service.settings.web_threads, max(UNPROVEN_BYTES, max_body_bytes + 1))
    app.wsgi_app = RequestIds(WaitsOnce(placed))  # type: ignore[method-assign]
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.config["MAX_CONTENT_LENGTH"] = max_body_bytes
    app.register_blueprint(ingress_blueprint(service))
    app.register_blueprint(admin_blueprint(service))
    app.register_blueprint(emails_blueprint(service))
    app.register_blueprint(destinations_blueprint(service))
    app.register_blueprint(openapi_blueprint(service.config))
    app.register_blueprint(health_blueprint(service))
    app.register_blueprint(metrics_blueprint(service))
    app.register_blueprint(dashboard_blueprint(service))
    use_sessions(app, Sessions(service.journal))
    app.before_request(note_proxy)
    app.register_error_handler(Unauthorized, refuse)
    app.register_error_handler(TooManyGuesses, refuse_guesser)
    app.register_error_handler(InvalidPayload, or_page(invalid))
    app.register_error_handler(HTTPException, or_page(http_error))
    app.register_error_handler(RequestEntityTooLarge, or_page(lambda _: too_large(service.settings.max_body_mb)))
    app.register_error_handler(NoRoomForBody, or_page(no_room))
    app.register_error_handler(ClientDisconnected, lambda _: incomplete())
    app.register_error_handler(Exception, or_page(_unexpected))
    return app


def _require_one_leading_slash() -> None:
    """Werkzeug ignores how many there are, so //metrics would reach /metrics past a proxy's rule for /metrics."""
    if request.environ["PATH_INFO"].startswith("//"):
        raise NotFound


def _unexpected(error: Exception) -> Answer:
    log.error("unexpected error", exc_info=error)
    return internal_error()
