"""/api/admin/destinations and /api/admin/stats: how the service and each destination is doing."""

from __future__ import annotations

from flask import Blueprint, jsonify, request

from orchestrator.build import Service
from orchestrator.operations.destinations import InvalidPause, destinations, pause, resume, send_test
from orchestrator.operations.figures import stats
from routes.api_admin import BY, admins_only, optional_json
from routes.providers.base import InvalidPayload
from routes.questions import Nothing, PauseRequest, StatsQuery, read
from routes.responses import Answer, invalid


def destinations_blueprint(service: Service) -> Blueprint:
    api = admins_only("api_destinations", service)

    @api.get("/stats")
    def figures() -> Answer:
        return jsonify({"success": True, **stats(service, read(StatsQuery, request.args).span)}), 200

    @api.get("/destinations")
    def listed() -> Answer:
        found = {name: each.model_dump(mode="json") for name, each in destinations(service).items()}
        return jsonify({"success": True, "destinations": found}), 200

    @api.post("/destinations/<name>/pause")
    def pause_one(name: str) -> Answer:
        reason = read(PauseRequest, optional_json(), "body").reason or ""
        paused = pause(service, name, reason, BY).model_dump(mode="json")
        return jsonify({"success": True, "status": "paused", "destination": name, "paused": paused}), 200

    @api.post("/destinations/<name>/resume")
    def resume_one(name: str) -> Answer:
        read(Nothing, optional_json(), "body")
        status = "resumed" if resume(service, name, BY) else "not_paused"
        return jsonify({"success": True, "status": status, "destination": name, "paused": None}), 200

    @api.post("/destinations/<name>/test")
    def test_one(name: str) -> Answer:
        read(Nothing, optional_json(), "body")
        tested = send_test(service, name, BY)
        status = "refused" if tested.error else "taken"
        return jsonify({"success": not tested.error, "status": status, "destination": name, **vars(tested)}), 200

    @api.errorhandler(InvalidPause)
    def refused(error: InvalidPause) -> Answer:
        http_status = 404 if error.field == "destination" else 400
        return invalid(InvalidPayload(str(error), field=error.field, http_status=http_status))

    return api
