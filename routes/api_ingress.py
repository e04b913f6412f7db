"""POST /api/ingress/<provider> receives emails, POST /api/ingress/message posts and chat messages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flask import Blueprint, Response, jsonify, request
from werkzeug.exceptions import HTTPException

from deduplication.errors import StoreUnavailable
from orchestrator.build import Service
from orchestrator.delivery.fetching import FetchFailed, fetch
from orchestrator.item import email_item, message_item
from orchestrator.metrics.meter import EMAILS, REFUSED, REQUEST_S
from orchestrator.pipeline import ProofUsed, Status
from routes.auth import Unauthorized, client_address, require_bearer
from routes.connections import NoRoomForBody, mark_proven
from routes.providers import message
from routes.providers.base import Handshake, InvalidPayload, ProviderRequest, Statuses, Surroundings, parse_json
from routes.providers.options import MB
from routes.providers.registry import TYPES, AnyProvider, missing_setting, open_providers
from routes.responses import (
    INGRESS,
    UNEXPECTED,
    NoEmail,
    Refusal,
    Verdict,
    answer_error,
    answer_items,
    failed,
    json_answer,
    refusal,
    verdict,
)

log = logging.getLogger(__name__)

MESSAGE = "message"
MESSAGE_STATUSES = Statuses(rejected=200)  # each message has a status of its own in the answer


def ingress_blueprint(service: Service) -> Blueprint:
    """Raises SettingsError if mailonce.toml opens a provider without what proves its requests' origin."""
    api_ingress = Blueprint("api_ingress", __name__, url_prefix="/api/ingress")

    def add(method: str, provider: AnyProvider | type[AnyProvider], name: str, view: Callable[[], Response]) -> None:
        for ending in provider.endings:
            api_ingress.add_url_rule(f"/{name}{ending}", f"{method} {name}{ending}", view, methods=[method])

    max_bytes = int(service.settings.max_body_mb * MB)
    providers = open_providers(service.config, Surroundings(service.tokens.ingress, fetch, max_bytes))
    for name, provider in providers.items():
        add("POST", provider, name, _ingest(service, provider))
        if provider.answers_probes:
            add("GET", provider, name, _answer_probe)
    for name in sorted(TYPES.keys() - providers.keys()):
        refuse = _refuse_disabled(service, name)
        add("POST", TYPES[name], name, refuse)
        # Mandrill shows its key only once the URL responds.
        add("GET", TYPES[name], name, _answer_probe if TYPES[name].answers_probes else refuse)
    api_ingress.add_url_rule(f"/{MESSAGE}", MESSAGE, _ingest(service), methods=["POST"])

    @api_ingress.errorhandler(Exception)
    def refuse_request(error: Exception) -> Response:
        """Which status makes a provider retry depends on the provider."""
        name = request.path.removeprefix(INGRESS).partition("/")[0]
        _note_error(service, name, error)
        return answer_error(error, providers.get(name))

    return api_ingress


def _answer_probe() -> Response:
    return jsonify({"success": True})


def _refuse_disabled(service: Service, name: str) -> Callable[[], Response]:
    """The provider is configured to call us, but not configured here: the answer and the log say what is missing."""
    error, is_logged = missing_setting(name), False

    def refuse() -> Response:
        nonlocal is_logged
        if not is_logged:
            log.warning("%s /api/ingress/%s: %s", request.method, name, error)
            is_logged = True
        service.meter.count((0, REFUSED, name, error))
        return failed(404, "invalid", error)

    return refuse


def _ingest(service: Service, provider: AnyProvider | None = None) -> Callable[[], Response]:
    """The view of a provider, or of messages."""

    def ingest() -> Response:
        started = time.monotonic()
        try:
            return _receive(service, provider) if provider else _receive_messages(service)
        finally:
            service.meter.count((time.monotonic() - started, REQUEST_S))

    return ingest


def _receive(service: Service, provider: AnyProvider) -> Response:
    """Each email of a request gets its own answer; an invalid one does not stop the others.

    If the proof of one was accepted with another email, the request is refused: the emails after it have no proof.
    """
    asked = ProviderRequest(request.headers.get, request.get_data, service.pipeline.now())
    try:
        proof = provider.verify(asked)
    except InvalidPayload:  # before there is a proof, nothing else is told about a request
        raise Unauthorized from None
    mark_proven()
    try:
        parsed = provider.parse(asked)
    except Handshake as note:
        log.info("provider %s: %s", provider.name, note)
        service.meter.count((1, EMAILS, provider.name, "no_email", ""))
        return json_answer(NoEmail(success=True, status="no_email", note=str(note)), provider.statuses.accepted)
    traceparent = request.headers.get("traceparent", "")
    results: list[Verdict | Refusal] = []
    for place, each in enumerate(parsed):
        if isinstance(each, InvalidPayload):
            _note_error(service, provider.name, each)
            results.append(refusal(each))
            continue
        item = email_item(each, service.pipeline.options.ids_kept_ms)
        if proof or traceparent:
            item = replace(item, proof=f"{proof}/{place}" if proof and place else proof, traceparent=traceparent)
        result = service.pipeline.receive(item)
        results.append(verdict(result, email_id=result.item_id))
    return answer_items(results, provider.statuses)


def _receive_messages(service: Service) -> Response:
    require_bearer(request.headers.get("Authorization"), service.tokens.ingress)
    mark_proven()
    documents = message.documents(parse_json(request.get_data(), request.content_type or ""))
    results = [_receive_message(service, document) for document in documents]
    return answer_items(results, MESSAGE_STATUSES, is_list=True)


def _receive_message(service: Service, document: Any) -> Verdict | Refusal:
    try:
        parsed = message.parse(document, service.config.destinations)
        item = replace(message_item(parsed), traceparent=request.headers.get("traceparent", ""))
        result = service.pipeline.receive(item)
    except Exception as error:  # neither an invalid message nor an internal error stops the others
        _note_error(service, MESSAGE, error)
        if isinstance(error, InvalidPayload):
            return refusal(error)
        return Refusal(success=False, status="retry_later", error=UNEXPECTED)
    return verdict(result, key=parsed.key, source=parsed.source, id=parsed.id, item_id=result.item_id)


def _note_error(service: Service, provider: str, error: Exception) -> None:
    """Logs and counts it; the page shows the last refusal of each provider."""
    status: str = Status.RETRY_LATER
    match error:
        case NoRoomForBody():
            log.warning("provider %s: asked to retry: %s", provider, error.description)
        case HTTPException():  # its sender hung up, or did not speak HTTP
            return
        case Unauthorized() | ProofUsed():
            address = client_address(request.environ, service.settings.trusted_proxies)
            status, reason = "unauthorized", f"invalid signature or credentials, from {address}"
            log.warning("provider %s: %s", provider, reason)
        case InvalidPayload():
            status, reason = "invalid", str(error)
            log.warning("provider %s: rejected for good: %s", provider, reason)
        case FetchFailed() | StoreUnavailable():
            log.error("provider %s: asked to retry: %s", provider, error)
        case _:
            log.error("provider %s: unexpected error", provider, exc_info=error)
    service.meter.count((1, EMAILS, provider, status, ""))
    if status != Status.RETRY_LATER:
        service.meter.count((0, REFUSED, provider, reason))
