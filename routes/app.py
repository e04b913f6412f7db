"""The Flask application: blueprints and error answers."""

from __future__ import annotations

import logging

from flask import Flask
from werkzeug.exceptions import ClientDisconnected, HTTPException, RequestEntityTooLarge

from orchestrator.build import Service
from routes.api_admin import admin_blueprint
from routes.api_deliveries import deliveries_blueprint
from routes.api_ingress import ingress_blueprint
from routes.auth import Unauthorized
from routes.connections import PatientRequest, Workplaces
from routes.health import health_blueprint
from routes.providers.base import InvalidPayload
from routes.responses import Answer, http_error, incomplete, internal_error, invalid, too_large, unauthorized

log = logging.getLogger(__name__)


def create_app(service: Service) -> Flask:
    app = Flask(__name__)
    app.request_class = PatientRequest
    app.wsgi_app = Workplaces(app.wsgi_app, service.settings.web_threads)  # type: ignore[method-assign]
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.config["MAX_CONTENT_LENGTH"] = int(service.settings.max_body_mb * 1024 * 1024)
    app.register_blueprint(ingress_blueprint(service))
    app.register_blueprint(admin_blueprint(service))
    app.register_blueprint(deliveries_blueprint(service))
    app.register_blueprint(health_blueprint(service))
    app.register_error_handler(Unauthorized, lambda _: unauthorized())
    app.register_error_handler(InvalidPayload, invalid)
    app.register_error_handler(HTTPException, http_error)
    app.register_error_handler(RequestEntityTooLarge, lambda _: too_large(service.settings.max_body_mb))
    app.register_error_handler(ClientDisconnected, lambda _: incomplete())
    app.register_error_handler(Exception, _unexpected)
    return app


def _unexpected(error: Exception) -> Answer:
    log.error("unexpected error", exc_info=error)
    return internal_error()
