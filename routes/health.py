"""/livez: the process responds. /readyz: it can accept emails. /health: the state of everything."""

from __future__ import annotations

from flask import Blueprint, jsonify

from orchestrator.operations.health import Health, is_ready, read_health
from routes.endpoints import Operation, service
from routes.responses import Answer
from routes.schemas import Probe

health = Blueprint("health", __name__)


@health.get("/livez")
@Operation("Whether the process responds", {200: Probe})
def livez() -> Answer:
    return jsonify({"status": "ok"}), 200


@health.get("/readyz")
@Operation("Whether emails can be accepted", {200: Probe, 503: Probe})
def readyz() -> Answer:
    ready = is_ready(service)
    return jsonify({"status": "ok" if ready else "down"}), 200 if ready else 503


@health.get("/health")
@Operation(
    "The state of everything",
    {200: Health, 503: Health},
    {200: "Everything works.", 503: "Something is wrong, although emails may be accepted."},
)
def report() -> Answer:
    found = read_health(service)
    return jsonify(found.model_dump(mode="json")), 200 if found.status == "ok" else 503
