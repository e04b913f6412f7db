"""The Flask application: blueprints and error answers."""

from __future__ import annotations

import logging

from flask import Flask, request
from werkzeug.exceptions import ClientDisconnected, HTTPException, RequestEntityTooLarge

from orchestrator.build import Service
from routes.api_admin import admin_blueprint
from routes.api_decisions import decisions_blueprint
from routes.api_deliveries import deliveries_blueprint
from routes.api_destinations import destinations_blueprint
from routes.api_ingress import ingress_blueprint
from routes.api_openapi import openapi_blueprint
from routes.auth import Unauthorized
from routes.connections import PatientRequest, Workplaces
from routes.dashboard import dashboard_blueprint
from routes.dashboard.access import use_sessions
from routes.dashboard.errors import or_page
from routes.health import health_blueprint
from routes.metrics import metrics_blueprint
from routes.providers.base import InvalidPayload
from routes.request_ids import RequestIds, client_address
from routes.responses import Answer, http_error, incomplete, internal_error, invalid, too_large, unauthorized

log = logging.getLogger(__name__)


def create_app(service: Service) -> Flask:
    def refuse(_: Unauthorized) -> Answer:
        address = client_address(request.environ, service.settings.trusted_proxies)
        log.warning("%s %s: no or wrong token, from %s", request.method, request.path, address)
        return unauthorized()

    app = Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False  # a path with two slashes is an unknown one, not a redirect to a page
    app.request_class = PatientRequest
    app.wsgi_app = RequestIds(Workplaces(app.wsgi_app, service.settings.web_threads))  # type: ignore[method-assign]
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.config["MAX_CONTENT_LENGTH"] = int(service.settings.max_body_mb * 1024 * 1024)
    app.register_blueprint(ingress_blueprint(service))
    app.register_blueprint(admin_blueprint(service))
    app.register_blueprint(decisions_blueprint(service))
    app.register_blueprint(deliveries_blueprint(service))
    app.register_blueprint(destinations_blueprint(service))
    app.register_blueprint(openapi_blueprint(service.config))
    app.register_blueprint(health_blueprint(service))
    app.register_blueprint(metrics_blueprint(service.parts, service.queue, service.tokens))
    app.register_blueprint(dashboard_blueprint(service))
    use_sessions(app, service.tokens)
    app.register_error_handler(Unauthorized, refuse)
    app.register_error_handler(InvalidPayload, or_page(invalid))
    app.register_error_handler(HTTPException, or_page(http_error))
    app.register_error_handler(RequestEntityTooLarge, or_page(lambda _: too_large(service.settings.max_body_mb)))
    app.register_error_handler(ClientDisconnected, lambda _: incomplete())
    app.register_error_handler(Exception, or_page(_unexpected))
    return app


def _unexpected(error: Exception) -> Answer:
    log.error("unexpected error", exc_info=error)
    return internal_error()
