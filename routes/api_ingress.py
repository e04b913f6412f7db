"""POST /api/ingress/<provider> receives emails, POST /api/ingress/message posts and chat messages."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import cast

from flask import Blueprint, Response, jsonify, request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from deduplication.errors import StoreUnavailable
from deduplication.message import Message
from orchestrator.build import Service
from orchestrator.config.settings import MB
from orchestrator.delivery.fetching import FetchFailed, fetch
from orchestrator.item import MESSAGE, email_item, message_item
from orchestrator.metrics.meter import EMAILS, REFUSED, REQUEST_S
from orchestrator.pipeline import ProofUsed, Status
from routes import responses
from routes.auth import Unauthorized, client_address
from routes.connections import BoundedRequest, NoRoomForBody
from routes.payload import InvalidPayload
from routes.providers.base import Handshake, NoOptions, ProviderRequest, Surroundings
from routes.providers.message import Messages
from routes.providers.registry import TYPES, AnyProvider, missing_setting, open_providers

log = logging.getLogger(__name__)


def ingress_blueprint(service: Service) -> Blueprint:
    """Raises SettingsError if mailonce.toml opens a provider without what proves its requests' origin."""
    api_ingress = Blueprint("api_ingress", __name__, url_prefix="/api/ingress")

    def add(method: str, provider: AnyProvider | type[AnyProvider], name: str, view: Callable[[], Response]) -> None:
        for ending in provider.endings:
            api_ingress.add_url_rule(f"/{name}{ending}", f"{method} {name}{ending}", view, methods=[method])

    settings = service.settings
    max_bytes, fetch_here = int(settings.max_body_mb * MB), partial(fetch, folder=settings.data_dir)
    known, has_links = service.config.destinations, settings.links_reach_files
    surroundings = Surroundings(service.tokens.ingress, fetch_here, max_bytes, known, has_links, settings.data_dir)
    providers = open_providers(service.config, surroundings) | {MESSAGE: Messages(MESSAGE, NoOptions(), surroundings)}
    for name, provider in providers.items():
        add("POST", provider, name, partial(_ingest, service, provider))
        if provider.answers_probes:
            add("GET", provider, name, _answer_probe)
    for name in sorted(TYPES.keys() - providers.keys()):
        refuse = _refuse_disabled(service, name)
        add("POST", TYPES[name], name, refuse)
        # Mandrill shows its key only once the URL responds.
        add("GET", TYPES[name], name, _answer_probe if TYPES[name].answers_probes else refuse)

    @api_ingress.errorhandler(Exception)
    def refuse_request(error: Exception) -> Response:
        """Which status makes a provider retry depends on the provider."""
        name = request.path.removeprefix(responses.INGRESS).partition("/")[0]
        if isinstance(error, RequestEntityTooLarge):
            error = InvalidPayload(responses.too_large(), http_status=413)
        elif isinstance(error, FetchFailed) and error.permanent:
            error = InvalidPayload(str(error))
        _note_error(service, name, error)
        return responses.answer_error(error, providers.get(name))

    return api_ingress


def _answer_probe() -> Response:
    return jsonify({"success": True})


def _refuse_disabled(service: Service, name: str) -> Callable[[], Response]:
    """The provider is configured to call us, but not configured here: the answer and the log say what is missing."""
    error = missing_setting(name)
    warn_once = cache(partial(log.warning, "/api/ingress/%s: %s", name, error))

    def refuse() -> Response:
        warn_once()
        service.meter.count((0, REFUSED, name, error))
        return responses.failed(404, "invalid", error)

    return refuse


def _ingest(service: Service, provider: AnyProvider) -> Response:
    """The view of a provider."""
    started = time.monotonic()
    try:
        return _receive(service, provider)
    except Handshake as note:
        log.info("provider %s: %s", provider.name, note)
        service.meter.count((1, EMAILS, provider.name, "no_email", ""))
        return responses.json_answer(responses.NoEmail(success=True, status="no_email", note=str(note)))
    finally:
        service.meter.count((time.monotonic() - started, REQUEST_S))


def _receive(service: Service, provider: AnyProvider) -> Response:
    """Each item of a request gets its own answer, and none stops the others.

    If the proof of one was accepted with another email, the request is refused: the emails after it have no proof.
    """
    pipeline = service.pipeline
    # Without Flask's proxy, which takes a microsecond each time.
    received = cast(BoundedRequest, request._get_current_object())  # type: ignore[attr-defined]
    sent = ProviderRequest(received.headers, received.content, pipeline.now())
    try:
        proof = provider.verify(sent) or ""
    except InvalidPayload:  # before there is a proof, the answer says nothing else about a request
        raise Unauthorized from None
    received.mark_proven()
    traceparent = received.environ.get("HTTP_TRACEPARENT", "")
    results: list[responses.Verdict | responses.Refusal] = []
    items = provider.parse(sent)
    is_alone = len(items) == 1 and not provider.answers_lists  # then an error of ours is that of the request
    for place, parsed in enumerate(items):
        try:
            if isinstance(parsed, InvalidPayload):
                raise parsed
            if isinstance(parsed, Message):
                item = message_item(parsed)
            else:
                item = email_item(parsed, pipeline.settings.ids_kept_ms)
            if proof or traceparent:
                item = replace(item, proof=f"{proof}/{place}" if proof and place else proof, traceparent=traceparent)
            results += [responses.verdict(pipeline.receive(part), parsed) for part in pipeline.router.split(item)]
        except Exception as error:  # whatever is wrong with one item, the others are received
            if isinstance(error, ProofUsed) or (is_alone and not isinstance(error, InvalidPayload)):
                raise
            _note_error(service, provider.name, error)
            results.append(responses.refusal(error))
    return responses.answer_items(results, provider)


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
