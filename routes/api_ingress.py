"""POST /api/ingress/<provider>: receives emails."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from flask import Blueprint, jsonify, request
from werkzeug.exceptions import ClientDisconnected, HTTPException

from deduplication.errors import StoreUnavailable
from orchestrator.build import Service
from orchestrator.delivery.fetching import FetchFailed, fetch
from orchestrator.item import email_item, message_item
from orchestrator.pipeline import Outcome, ProofUsed, Status
from routes.auth import Unauthorized, require_bearer
from routes.connections import NoRoomForBody, mark_proven
from routes.providers import message
from routes.providers.base import InvalidPayload, Parsed, ProviderRequest, Surroundings, json_value
from routes.providers.options import MB
from routes.providers.registry import TYPES, AnyProvider, missing_setting, open_providers
from routes.request_ids import client_address
from routes.responses import (
    RETRY_AFTER_AN_ERROR_S,
    UNEXPECTED,
    Answer,
    described,
    incomplete,
    internal_error,
    invalid,
    no_email,
    no_room,
    not_set_up,
    outcomes,
    outcomes_of_emails,
    refused,
    retry_later,
    unauthorized,
)

log = logging.getLogger(__name__)

MESSAGE = "message"


def ingress_blueprint(service: Service) -> Blueprint:
    """Raises SettingsError if mailonce.toml opens a provider without what proves its requests' origin."""
    api_ingress = Blueprint("api_ingress", __name__, url_prefix="/api/ingress")

    max_bytes = int(service.settings.max_body_mb * MB)
    providers = open_providers(service.config, Surroundings(service.tokens.ingress, fetch, max_bytes))
    service.meter.know_providers({*providers, MESSAGE})
    for provider in providers.values():
        _add(api_ingress, service, provider)
    for name in sorted(TYPES.keys() - providers.keys()):
        _add_disabled(api_ingress, service, name)

    @api_ingress.post("/message")
    def ingest_messages() -> Answer:
        with _timed(service):
            return _answer_to_messages(service)

    return api_ingress


@contextmanager
def _timed(service: Service) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        service.meter.time_request(time.monotonic() - started)


def _add(api_ingress: Blueprint, service: Service, provider: AnyProvider) -> None:
    def ingest() -> Answer:
        with _timed(service):
            return _answer(service, provider)

    for ending in provider.endings:
        path = f"/{provider.name}{ending}"
        api_ingress.add_url_rule(path, f"POST {path}", ingest, methods=["POST"])
        if provider.answers_probes:
            api_ingress.add_url_rule(path, f"GET {path}", _answer_probe, methods=["GET"])


def _answer_probe() -> Answer:
    return jsonify({"success": True}), 200


def _add_disabled(api_ingress: Blueprint, service: Service, name: str) -> None:
    """The provider is configured to call us, but not configured here: the answer and the log say what is missing.

    Probes are answered: Mandrill shows its key only once the URL responds.
    """
    error, is_logged = missing_setting(name), False

    def refuse() -> Answer:
        nonlocal is_logged
        if not is_logged:
            log.warning("%s /api/ingress/%s: %s", request.method, name, error)
            is_logged = True
        service.providers.note_refusal(name, error)
        return not_set_up(error)

    for ending in TYPES[name].endings:
        path = f"/{name}{ending}"
        api_ingress.add_url_rule(path, f"POST {path}", refuse, methods=["POST"])
        answer_get = _answer_probe if TYPES[name].answers_probes else refuse
        api_ingress.add_url_rule(path, f"GET {path}", answer_get, methods=["GET"])


def _answer(service: Service, provider: AnyProvider) -> Answer:
    statuses, count_email = provider.statuses, service.meter.count_email
    try:
        return _received(service, provider, _provider_request(service))
    except ClientDisconnected:
        return incomplete(statuses)
    except NoRoomForBody as error:
        log.warning("provider %s: asked to try again: %s", provider.name, error.description)
        count_email(provider.name, Status.RETRY_LATER)
        return no_room(error, statuses)
    except HTTPException:
        raise
    except (Unauthorized, ProofUsed):
        address = client_address(request.environ, service.settings.trusted_proxies)
        log.warning("provider %s: the request does not prove its origin, from %s", provider.name, address)
        _note_refusal(service, provider.name, "unauthorized", f"it does not prove its origin, from {address}")
        return unauthorized(provider.challenge, statuses)
    except InvalidPayload as error:
        log.warning("provider %s: rejected for good: %s", provider.name, error)
        _note_refusal(service, provider.name, "invalid", str(error))
        return invalid(error, statuses)
    except (FetchFailed, StoreUnavailable) as error:
        log.error("provider %s: asked to try again: %s", provider.name, error)
        count_email(provider.name, Status.RETRY_LATER)
        return retry_later("the store is away" if isinstance(error, StoreUnavailable) else str(error), statuses)
    except Exception:  # which status makes a provider retry depends on the provider
        log.exception("provider %s: unexpected error", provider.name)
        count_email(provider.name, Status.RETRY_LATER)
        return internal_error(statuses)


def _note_refusal(service: Service, provider: str, status: str, why: str) -> None:
    service.meter.count_email(provider, status)
    service.providers.note_refusal(provider, why)


def _provider_request(service: Service) -> ProviderRequest:
    return ProviderRequest(request.headers, request.get_data, service.pipeline.now())


def _received(service: Service, provider: AnyProvider, asked: ProviderRequest) -> Answer:
    provider.verify(asked)
    mark_proven()
    note = provider.handshake(asked)
    if note is not None:
        log.info("provider %s: %s", provider.name, note)
        service.meter.count_email(provider.name, "no_email")
        return no_email(note, provider.statuses)
    results = _results(service, provider.parse(asked), provider.once(asked))
    for position, each in enumerate(results, 1):
        if isinstance(each, InvalidPayload):
            log.warning("provider %s: email %d rejected for good: %s", provider.name, position, each)
            _note_refusal(service, provider.name, "invalid", str(each))
        else:
            service.providers.note_email(provider.name, each.status)
    return outcomes_of_emails(results, provider.statuses)


def _results(service: Service, parsed: list[Parsed], proof: str | None) -> list[Outcome | InvalidPayload]:
    """Each email gets its own answer; an invalid one does not stop the others.

    If the proof of one was accepted with another email, the request is refused: the emails after it have no proof.
    """
    kept_ms = service.settings.ids_kept_ms
    results: list[Outcome | InvalidPayload] = []
    for place, each in enumerate(parsed):
        if isinstance(each, InvalidPayload):
            results.append(each)
        else:
            item = email_item(each, kept_ms)
            proven = replace(item, proof=f"{proof}/{place}" if place else proof) if proof else item
            results.append(service.pipeline.receive(proven))
    return results


def _answer_to_messages(service: Service) -> Answer:
    try:
        require_bearer(request.headers.get("Authorization"), service.tokens.ingress)
    except Unauthorized:
        address = client_address(request.environ, service.settings.trusted_proxies)
        _note_refusal(service, MESSAGE, "unauthorized", f"no or wrong token, from {address}")
        raise
    mark_proven()
    documents = message.documents(json_value(request.content_type, request.get_data()))
    answers = [_answer_to_message(service, document) for document in documents]
    return outcomes([body for body, _ in answers], [wait_s for _, wait_s in answers if wait_s])


def _answer_to_message(service: Service, document: Any) -> tuple[dict[str, Any], int | None]:
    """Each message gets its own answer; neither an invalid one nor an internal error stops the others."""
    try:
        parsed = message.parse(document, service.config.destinations)
        result = service.pipeline.receive(message_item(parsed))
    except Exception as error:  # the other messages get their own answers
        return _refusal(service, error)
    service.providers.note_email(MESSAGE, result.status)
    ids = {"key": parsed.key, "source": parsed.source, "id": parsed.id, "item_id": result.item_id}
    return described(result, **ids), result.retry_after_s


def _refusal(service: Service, error: Exception) -> tuple[dict[str, Any], int | None]:
    if isinstance(error, InvalidPayload):
        _note_refusal(service, MESSAGE, "invalid", str(error))
        return {**refused(error), "field": error.field}, None
    log.error("a message: unexpected error", exc_info=error)
    service.meter.count_email(MESSAGE, Status.RETRY_LATER)
    return UNEXPECTED, RETRY_AFTER_AN_ERROR_S
