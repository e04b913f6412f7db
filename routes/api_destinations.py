"""/api/admin/destinations: how each destination is; to pause one, to resume it, and to send it a test event."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, jsonify

from orchestrator.build import Service
from orchestrator.delivery.destination_states import shown_pause
from orchestrator.operations.destinations import InvalidPause, destinations, pause, resume, send_test
from routes.api_admin import BY, admins_only, optional_json
from routes.providers.base import InvalidPayload, text_field
from routes.responses import Answer, invalid


def destinations_blueprint(service: Service) -> Blueprint:
    api, parts = admins_only("api_destinations", service), service.parts

    @api.get("/destinations")
    def listed() -> Answer:
        return jsonify({"success": True, "destinations": destinations(parts)}), 200

    @api.post("/destinations/<name>/pause")
    def pause_one(name: str) -> Answer:
        state = pause(parts, name, text_field(_body({"reason"}), "reason"), BY)
        return jsonify({"success": True, "status": "paused", "destination": name, "paused": shown_pause(state)}), 200

    @api.post("/destinations/<name>/resume")
    def resume_one(name: str) -> Answer:
        _body(set())
        status = "resumed" if resume(parts, name, BY) else "not_paused"
        return jsonify({"success": True, "status": status, "destination": name, "paused": None}), 200

    @api.post("/destinations/<name>/test")
    def test_one(name: str) -> Answer:
        _body(set())
        tested = send_test(parts, name, BY)
        status = "refused" if tested.error else "taken"
        return jsonify({"success": not tested.error, "status": status, "destination": name, **vars(tested)}), 200

    @api.errorhandler(InvalidPause)
    def refused(error: InvalidPause) -> Answer:
        http_status = 404 if error.field == "destination" else 400
        return invalid(InvalidPayload(str(error), field=error.field, http_status=http_status))

    return api


def _body(fields: set[str]) -> dict[str, Any]:
    document = optional_json()
    unknown = sorted(set(document) - fields)
    if unknown:
        raise InvalidPayload(f"the body takes {', '.join(fields) or 'nothing'}", field=unknown[0])
    return document
