"""POST /api/ingress/<provider>: an email comes in."""

from __future__ import annotations

from flask import Blueprint, request

from orchestrator.wiring import Service
from routes.auth import require_bearer
from routes.providers import gmail
from routes.providers.base import json_object
from routes.responses import Answer, outcome


def ingress_blueprint(service: Service) -> Blueprint:
    api_ingress = Blueprint("api_ingress", __name__, url_prefix="/api/ingress")

    @api_ingress.post("/gmail")
    def ingest_gmail() -> Answer:
        require_bearer(request.headers.get("Authorization"), service.tokens.ingress)
        email = gmail.parse(json_object(request.content_type, request.get_data()))
        return outcome(service.intake.receive(email))

    return api_ingress
