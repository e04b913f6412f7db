"""/livez: the process answers. /readyz: it can accept emails. /health: the whole picture."""

from __future__ import annotations

from flask import Blueprint, jsonify

from orchestrator.build import Service
from routes.responses import Answer, healthy


def health_blueprint(service: Service) -> Blueprint:
    health = Blueprint("health", __name__)

    @health.get("/livez")
    def livez() -> Answer:
        return jsonify({"status": "ok"}), 200

    @health.get("/readyz")
    def readyz() -> Answer:
        ready = service.health.is_ready()
        return jsonify({"status": "ok" if ready else "down"}), healthy(ready)

    @health.get("/health")
    def report() -> Answer:
        found = service.health.report()
        return jsonify(found.model_dump(mode="json")), healthy(found.status == "ok")

    return health
