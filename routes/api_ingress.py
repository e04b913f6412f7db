"""POST /api/ingress/<provider>: an email comes in."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, request

from orchestrator.item import email_item, message_item
from orchestrator.wiring import Service
from routes.auth import require_bearer
from routes.providers import gmail, message
from routes.providers.base import InvalidPayload, json_object, json_value
from routes.responses import Answer, described, outcome, outcomes


def ingress_blueprint(service: Service) -> Blueprint:
    api_ingress = Blueprint("api_ingress", __name__, url_prefix="/api/ingress")

    @api_ingress.post("/gmail")
    def ingest_gmail() -> Answer:
        require_bearer(request.headers.get("Authorization"), service.tokens.ingress)
        email = gmail.parse(json_object(request.content_type, request.get_data()))
        return outcome(service.intake.receive(email_item(email, service.settings.ids_kept_ms)))

    @api_ingress.post("/message")
    def ingest_messages() -> Answer:
        require_bearer(request.headers.get("Authorization"), service.tokens.ingress)
        documents = message.documents(json_value(request.content_type, request.get_data()))
        answers = [_answer_to_message(service, document) for document in documents]
        return outcomes([body for body, _ in answers], [wait_s for _, wait_s in answers if wait_s])

    return api_ingress


def _answer_to_message(service: Service, document: Any) -> tuple[dict[str, Any], int | None]:
    """Each message gets its own verdict; a bad one does not stop the others."""
    try:
        parsed = message.parse(document, service.intake.dispatcher.places)
    except InvalidPayload as error:
        return {"success": False, "status": "invalid", "error": str(error), "field": error.field}, None
    result = service.intake.receive(message_item(parsed))
    return described(result, key=result.item_id, source=parsed.source, id=parsed.id), result.retry_after_s
