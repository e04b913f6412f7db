"""POST /api/ingress/<provider>: an email comes in."""

from __future__ import annotations

import logging
import secrets
from typing import Any

from flask import Blueprint, Response, g, jsonify, request
from werkzeug.exceptions import ClientDisconnected, HTTPException

from deduplication.errors import StoreUnavailable
from orchestrator.build import Service
from orchestrator.delivery.fetching import FetchFailed, fetch
from orchestrator.intake import Outcome, ProofUsed
from orchestrator.item import email_item, message_item
from routes.auth import Unauthorized, require_bearer
from routes.providers import message
from routes.providers.base import InvalidPayload, Parsed, ProviderRequest, Surroundings, json_value
from routes.providers.options import MB
from routes.providers.registry import TYPES, AnyProvider, missing_setting, open_providers
from routes.responses import (
    RETRY_AFTER_AN_ERROR_S,
    UNEXPECTED,
    Answer,
    described,
    incomplete,
    internal_error,
    invalid,
    no_email,
    not_set_up,
    outcomes,
    outcomes_of_emails,
    refused,
    retry_later,
    unauthorized,
)

log = logging.getLogger(__name__)


def ingress_blueprint(service: Service) -> Blueprint:
    """Raises SettingsError if mailonce.toml opens a provider without what proves its requests' origin."""
    api_ingress = Blueprint("api_ingress", __name__, url_prefix="/api/ingress")

    @api_ingress.before_request
    def number() -> None:
        """What is refused has no email id: the log and the sender know it by this."""
        g.request_id = secrets.token_hex(6)

    @api_ingress.after_request
    def tell_number(answer: Response) -> Response:
        answer.headers["X-Request-Id"] = g.request_id
        return answer

    max_bytes = int(service.settings.max_body_mb * MB)
    providers = open_providers(service.config, Surroundings(service.tokens.ingress, fetch, max_bytes))
    for provider in providers.values():
        _add(api_ingress, service, provider)
    for name in sorted(TYPES.keys() - providers.keys()):
        _add_shut(api_ingress, name)

    @api_ingress.post("/message")
    def ingest_messages() -> Answer:
        require_bearer(request.headers.get("Authorization"), service.tokens.ingress)
        documents = message.documents(json_value(request.content_type, request.get_data()))
        answers = [_answer_to_message(service, document) for document in documents]
        return outcomes([body for body, _ in answers], [wait_s for _, wait_s in answers if wait_s])

    return api_ingress


def _add(api_ingress: Blueprint, service: Service, provider: AnyProvider) -> None:
    def ingest() -> Answer:
        return _answer(service, provider)

    for ending in provider.endings:
        path = f"/{provider.name}{ending}"
        api_ingress.add_url_rule(path, f"POST {path}", ingest, methods=["POST"])
        if provider.answers_probes:
            api_ingress.add_url_rule(path, f"GET {path}", _somebody_is_here, methods=["GET"])


def _somebody_is_here() -> Answer:
    return jsonify({"success": True}), 200


def _add_shut(api_ingress: Blueprint, name: str) -> None:
    """Somebody set the provider up at the other end only: the answer and the log say what is missing here.

    Probes are answered: Mandrill gives its key away only once it has found the URL.
    """
    error, told = missing_setting(name), False

    def refuse() -> Answer:
        nonlocal told
        if not told:
            log.warning("%s /api/ingress/%s: %s", request.method, name, error)
            told = True
        return not_set_up(error)

    for ending in TYPES[name].endings:
        path = f"/{name}{ending}"
        api_ingress.add_url_rule(path, f"POST {path}", refuse, methods=["POST"])
        probed = _somebody_is_here if TYPES[name].answers_probes else refuse
        api_ingress.add_url_rule(path, f"GET {path}", probed, methods=["GET"])


def _answer(service: Service, provider: AnyProvider) -> Answer:
    statuses = provider.statuses
    try:
        return _received(service, provider, _provider_request(service))
    except ClientDisconnected:
        return incomplete(statuses)
    except HTTPException:
        raise
    except (Unauthorized, ProofUsed):
        log.warning("provider %s: request %s does not prove its origin", provider.name, g.request_id)
        return unauthorized(provider.challenge, statuses)
    except InvalidPayload as error:
        log.warning("provider %s: request %s rejected for good: %s", provider.name, g.request_id, error)
        return invalid(error, statuses)
    except (FetchFailed, StoreUnavailable) as error:
        log.error("provider %s: request %s asked to try again: %s", provider.name, g.request_id, error)
        return retry_later("the store is away" if isinstance(error, StoreUnavailable) else str(error), statuses)
    except Exception:  # what makes a provider come back after an error of ours is its own status
        log.exception("provider %s: unexpected error at request %s", provider.name, g.request_id)
        return internal_error(statuses)


def _provider_request(service: Service) -> ProviderRequest:
    headers = {name.lower(): value for name, value in request.headers}
    return ProviderRequest(headers, request.get_data, service.intake.sources.now())


def _received(service: Service, provider: AnyProvider, asked: ProviderRequest) -> Answer:
    provider.verify(asked)
    note = provider.handshake(asked)
    if note is not None:
        log.info("provider %s: %s", provider.name, note)
        return no_email(note, provider.statuses)
    results = _results(service, provider.parse(asked), provider.once(asked))
    for position, each in enumerate(results, 1):
        if isinstance(each, InvalidPayload):
            which = (provider.name, g.request_id, position)
            log.warning("provider %s: request %s, email %d rejected for good: %s", *which, each)
    return outcomes_of_emails(results, provider.statuses)


def _results(service: Service, parsed: list[Parsed], proof: str | None) -> list[Outcome | InvalidPayload]:
    """Each email gets its own verdict; a bad one does not stop the others."""
    kept_ms = service.settings.ids_kept_ms
    results: list[Outcome | InvalidPayload] = []
    for position, each in enumerate(parsed):
        if isinstance(each, InvalidPayload):
            results.append(each)
            continue
        item = email_item(each, kept_ms)
        if proof is not None:
            item = item.proven_by(f"{proof}/{position}" if position else proof)
        results.append(service.intake.receive(item))
    return results


def _answer_to_message(service: Service, document: Any) -> tuple[dict[str, Any], int | None]:
    """Each message gets its own verdict; neither a bad one nor an error of ours stops the others."""
    try:
        parsed = message.parse(document, service.config.destinations)
        result = service.intake.receive(message_item(parsed))
    except InvalidPayload as error:
        return {**refused(error), "field": error.field}, None
    except Exception:
        log.exception("a message: unexpected error")
        return UNEXPECTED, RETRY_AFTER_AN_ERROR_S
    ids = {"key": parsed.key, "source": parsed.source, "id": parsed.id, "item_id": result.item_id}
    return described(result, **ids), result.retry_after_s
