"""/api/admin: access for operators, reset and locks."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, jsonify, request

from deduplication.errors import StoreUnavailable
from deduplication.locks import PublicationLock
from orchestrator.build import Service
from orchestrator.operations.cursors import InvalidCursor
from orchestrator.operations.reset import Reset, reset
from routes.auth import MayOnlyLook, limited, require_role
from routes.connections import mark_proven
from routes.providers.base import json_object
from routes.questions import ResetRequest, only, read, wrong_cursor
from routes.request_ids import client_address
from routes.responses import Answer, invalid, may_only_look, store_unavailable

BY = "api"  # all callers share the admin token


def admins_only(name: str, service: Service) -> Blueprint:
    """A blueprint under /api/admin: for the admin token, and for GET also the view token."""
    blueprint = Blueprint(name, __name__, url_prefix="/api/admin")

    @blueprint.before_request
    def authenticate() -> None:
        tokens, looks = service.tokens, request.method in ("GET", "HEAD")
        given = request.headers.get("Authorization")
        address = client_address(request.environ, service.settings.trusted_proxies)
        with limited(service.guesses, address, given):
            require_role(given, tokens.admin, tokens.view, looks=looks)
        mark_proven()

    blueprint.register_error_handler(StoreUnavailable, store_unavailable)
    blueprint.register_error_handler(InvalidCursor, lambda error: invalid(wrong_cursor(error)))
    blueprint.register_error_handler(MayOnlyLook, lambda _: may_only_look())
    return blueprint


def json_body() -> dict[str, Any]:
    return json_object(request.content_type, request.get_data())


def optional_json() -> dict[str, Any]:
    """The body of a request that may have none."""
    return json_body() if request.get_data() else {}


def admin_blueprint(service: Service) -> Blueprint:
    api_admin = admins_only("api_admin", service)

    @api_admin.post("/reset")
    def forget() -> Answer:
        wanted = only(Reset, read(ResetRequest, json_body(), "body"))
        done = reset(service.coordinator, wanted).model_dump()
        return jsonify(
            {"success": True, "status": "reset", "scope": wanted.scope, "dry_run": wanted.dry_run, **done}
        ), 200

    @api_admin.get("/locks")
    def active_locks() -> Answer:
        return jsonify({"success": True, "locks": [_shown(lock) for lock in service.locks.active_locks()]}), 200

    return api_admin


def _shown(lock: PublicationLock) -> dict[str, Any]:
    """Everything but the owner token, which allows to release it."""
    return {
        "id": lock.id,
        "content_id": lock.content_id,
        "platform": lock.platform,
        "server_id": lock.server_id,
        "fence": lock.fence,
        "created": lock.created.isoformat(),
        "expires": lock.expires.isoformat(),
    }
