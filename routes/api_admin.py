"""/api/admin: what an operator may ask and change."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, jsonify, request

from deduplication.errors import StoreUnavailable
from deduplication.locks import PublicationLock
from orchestrator.build import Service
from orchestrator.operations.reset import InvalidReset, Reset, Scope, reset
from routes.auth import MayOnlyLook, limited, require_role
from routes.connections import mark_proven
from routes.providers.base import InvalidPayload, json_object, text_field
from routes.request_ids import client_address
from routes.responses import Answer, may_only_look, store_unavailable

BY = "api"  # the admin token is everybody's


def admins_only(name: str, service: Service) -> Blueprint:
    """A blueprint under /api/admin: the admin token, or the view token to look; it says so while the store is away."""
    blueprint = Blueprint(name, __name__, url_prefix="/api/admin")

    @blueprint.before_request
    def authenticate() -> None:
        tokens, looks = service.tokens, request.method in ("GET", "HEAD")
        given = request.headers.get("Authorization")
        address = client_address(request.environ, service.settings.trusted_proxies)
        with limited(service.parts.guesses, address, given):
            require_role(given, tokens.admin, tokens.view, looks=looks)
        mark_proven()

    blueprint.register_error_handler(StoreUnavailable, store_unavailable)
    blueprint.register_error_handler(MayOnlyLook, lambda _: may_only_look())
    return blueprint


def optional_json() -> dict[str, Any]:
    """The document of a request that may do without one."""
    body = request.get_data()
    return json_object(request.content_type, body) if body else {}


def admin_blueprint(service: Service) -> Blueprint:
    api_admin = admins_only("api_admin", service)

    @api_admin.post("/reset")
    def forget() -> Answer:
        wanted = _reset_request(json_object(request.content_type, request.get_data()))
        done = reset(service.journal, wanted)
        told = {"scope": wanted.scope, "dry_run": wanted.dry_run, "names": done.names, "kept": done.kept}
        return jsonify({"success": True, "status": "reset", **told}), 200

    @api_admin.get("/locks")
    def active_locks() -> Answer:
        locks = service.parts.locks.active_locks()
        return jsonify({"success": True, "locks": [_shown(lock) for lock in locks]}), 200

    return api_admin


def _shown(lock: PublicationLock) -> dict[str, Any]:
    """Everything but the owner token, which is the key to it."""
    return {
        "id": lock.id,
        "content_id": lock.content_id,
        "platform": lock.platform,
        "server_id": lock.server_id,
        "fence": lock.fence,
        "created": lock.created.isoformat(),
        "expires": lock.expires.isoformat(),
    }


def _reset_request(document: dict[str, Any]) -> Reset:
    unknown = set(document) - {"scope", "value", "dry_run", "confirm"}
    if unknown:
        raise InvalidPayload("the body takes scope, value, dry_run and confirm only", field=sorted(unknown)[0])
    scope = text_field(document, "scope")
    if scope not in list(Scope):
        raise InvalidPayload(f"scope takes one of {', '.join(Scope)}", field="scope")
    dry_run = document.get("dry_run", False)
    if not isinstance(dry_run, bool):
        raise InvalidPayload("dry_run takes true or false", field="dry_run")
    if scope == Scope.ALL and not dry_run and document.get("confirm") != "all":
        raise InvalidPayload('confirm takes "all" for the scope all', field="confirm")
    try:
        return Reset(Scope(scope), text_field(document, "value"), dry_run)
    except InvalidReset as error:
        raise InvalidPayload(str(error), field=error.field) from error
