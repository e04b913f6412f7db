"""GET /api/openapi.json: the description of this API, for machines. It is made when somebody first asks for it."""

from __future__ import annotations

from functools import cache
from typing import Any

from flask import Blueprint, current_app, jsonify

from orchestrator.config.model import Config
from routes.responses import Answer


def openapi_blueprint(config: Config) -> Blueprint:
    api_openapi = Blueprint("api_openapi", __name__)

    @cache
    def document() -> dict[str, Any]:
        from routes.openapi.document import build_document  # dozens of models: memory that only this view needs

        return build_document(current_app, config)

    @api_openapi.get("/api/openapi.json")
    def described() -> Answer:
        return jsonify(document()), 200

    return api_openapi
