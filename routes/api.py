"""/api/admin, /metrics, and what needs no token: files by their links, /api/openapi.json, /livez, /readyz, /health.

Views call orchestrator/operations, and their annotations describe the API.
"""

import io
import logging
from typing import Any, Literal, NoReturn, cast

from flask import Blueprint, abort, current_app, jsonify, redirect, request, send_file
from msgspec.structs import asdict
from werkzeug.wrappers import Response

from deduplication.again import Refusal
from orchestrator.files import PATH, Invalid, disposition
from orchestrator.operations import decisions, destinations, resend
from orchestrator.operations.decisions import DecisionInFull, DecisionPage, DeliveryInFull, DeliveryPage
from orchestrator.operations.health import Health, is_ready, read_health
from orchestrator.operations.resend import Release, Replay
from orchestrator.operations.reset import Erase, erase, reset
from orchestrator.operations.stats import Stats, read_stats
from routes import schemas
from routes.auth import bearer_token, equals_any, require_operator_token
from routes.connections import BoundedRequest
from routes.endpoints import Operation, admin_endpoint, service
from routes.responses import RETRY_AFTER_S, Answer, failed

log = logging.getLogger(__name__)
api = Blueprint("api", __name__, url_prefix="/api/admin")
public = Blueprint("public", __name__)

BY = "api"  # all callers share the admin token
REFUSED = {409: " ".join(f"`{code}`: {schemas.RESULTS[code]}." for code in Refusal if code is not Refusal.UNKNOWN)}


@api.before_request
def authenticate() -> Answer | None:
    """The admin token for everything, the view token for GET."""
    tokens, given = service.tokens, bearer_token(request.headers.get("Authorization"))
    require_operator_token(service, request.environ, given, (*tokens.admin, *tokens.view))
    if request.method not in ("GET", "HEAD") and not equals_any(given, tokens.admin):
        return failed(403, "forbidden", "VIEW_TOKEN may look, not act")
    cast(BoundedRequest, request).mark_proven()
    return None


@api.get("/decisions")
@admin_endpoint("What happened to each email and why, newest first")
def list_decisions(query: schemas.DecisionQuery) -> DecisionPage:
    return decisions.list_decisions(service, query, query.limit, query.cursor)


@api.get("/decisions/<id_>")
@admin_endpoint("All that is known of one email")
def read_decision(id_: str) -> DecisionInFull:
    return decisions.read_decision(service, id_) or _refuse(id_, Refusal.UNKNOWN)


@api.post("/decisions/<id_>/release")
@admin_endpoint("Release an email that a gate stopped", REFUSED)
def release(id_: str, body: Release) -> schemas.ReleaseAnswer:
    return schemas.ReleaseAnswer(**_send_again(id_, body), decision=decisions.read_decision(service, id_))


@api.post("/decisions/release")
@admin_endpoint("Release all emails that match a filter")
def release_matching(body: schemas.ReleaseMany) -> schemas.Matched:
    return _send_many(body)


@api.get("/deliveries")
@admin_endpoint("What was sent where, what waits, what is dead")
def list_deliveries(query: schemas.DeliveryQuery) -> DeliveryPage:
    return decisions.list_deliveries(service, query, query.limit, query.cursor)


@api.get("/deliveries/<id_>")
@admin_endpoint("One delivery with its payload")
def read_delivery(id_: str) -> DeliveryInFull:
    return decisions.read_delivery(service, id_) or _refuse(id_, Refusal.UNKNOWN)


@api.post("/deliveries/<id_>/replay")
@admin_endpoint("Send a delivery again", REFUSED)
def replay(id_: str, body: Replay) -> schemas.ReplayAnswer:
    return schemas.ReplayAnswer(**_send_again(id_, body), delivery=decisions.read_delivery(service, id_))


@api.post("/deliveries/replay")
@admin_endpoint("Send all deliveries that match a filter again")
def replay_matching(body: schemas.ReplayMany) -> schemas.Matched:
    return _send_many(body)


def _send_again(id_: str, how: Release | Replay) -> dict[str, Any]:
    result = resend.send_again(service, id_, how)
    if result in set(Refusal):
        _refuse(id_, result)
    return {"status": result, "id": id_, "message": schemas.RESULTS[result], "dry_run": how.dry_run}


def _refuse(id_: str, code: str) -> NoReturn:
    abort(failed(404 if code == Refusal.UNKNOWN else 409, code, schemas.RESULTS[code], id=id_))


def _send_many(wanted: schemas.ReleaseMany | schemas.ReplayMany) -> schemas.Matched:
    results = resend.send_many(service, wanted, wanted)
    return schemas.Matched(dry_run=wanted.dry_run, matched=results.total(), **results)


@api.get("/destinations")
@admin_endpoint("The state of each destination")
def list_destinations() -> schemas.Destinations:
    return schemas.Destinations(destinations=destinations.destinations(service))


@api.post("/destinations/<name>/pause")
@admin_endpoint("Send nothing there until it is resumed")
def pause(name: str, body: schemas.PauseRequest) -> schemas.PauseAnswer:
    paused = destinations.pause(service, name, body.reason or "", BY)
    return schemas.PauseAnswer(status="paused", destination=name, paused=paused)


@api.post("/destinations/<name>/resume")
@admin_endpoint("Send there again, starting with what waits")
def resume(name: str, body: schemas.EmptyRequest) -> schemas.PauseAnswer:
    was_paused = destinations.resume(service, name, BY)
    return schemas.PauseAnswer(status="resumed" if was_paused else "not_paused", destination=name, paused=None)


@api.post("/destinations/<name>/test")
@admin_endpoint("Send a test event there")
def send_test(name: str, body: schemas.EmptyRequest) -> schemas.TestAnswer:
    tested = destinations.send_test(service, name, BY)
    status: Literal["taken", "refused"] = "refused" if tested.error else "taken"
    return schemas.TestAnswer(success=not tested.error, status=status, destination=name, **asdict(tested))


@api.get("/stats")
@admin_endpoint("The figures of the fleet")
def stats(query: schemas.StatsQuery) -> Stats:
    return read_stats(service, query.span)


@api.get("/locks")
@admin_endpoint("Active locks: who delivers what, where, until when")
def active_locks() -> schemas.Locks:
    return schemas.Locks.model_validate({"locks": service.locks.active_locks()})


@api.post("/reset")
@admin_endpoint("Forget names, so that their emails are delivered again when they are received again")
def forget(body: schemas.ResetRequest) -> schemas.ResetAnswer:
    forgotten = reset(service.coordinator, body)
    return schemas.ResetAnswer(status="reset", scope=body.scope, dry_run=body.dry_run, **dict(forgotten))


@api.post("/erase")
@admin_endpoint("Erase the emails of a person, on every machine")
def erase_emails(body: Erase) -> schemas.EraseAnswer:
    return schemas.EraseAnswer(status="erased", dry_run=body.dry_run, **dict(erase(service, body)))


# Without an operator's token

FILE_NOTES = {
    200: "The file, always as a download; ranges are supported.",
    206: "The range that was asked for.",
    302: "With S3: its address there, for five minutes.",
    404: "Not a link of this service, or changed.",
    410: "Expired, or the file was erased.",
}


@public.get(f"/{PATH}/<token>/<name>")
@Operation("An attachment or a raw email, by the link in a webhook", {200: bytes, 206: bytes}, FILE_NOTES)
def read_file(token: str, name: str) -> Response:
    """The link is the only proof that is needed. A browser saves the file, whatever it is."""
    try:
        sha256, found = service.files.find(token, name)
        if isinstance(found, str):
            return redirect(found)
        source = io.BytesIO(found) if isinstance(found, bytes) else found
        answer = send_file(source, "application/octet-stream", conditional=True, etag=sha256, max_age=0)
    except Invalid:
        return failed(404, "invalid", "not a link of this service")
    except FileNotFoundError:
        return failed(410, "gone", "this link has expired, or its file was deleted")
    except OSError as error:
        log.error("a file cannot be read: %s", error)
        return failed(503, "retry_later", "the file cannot be read now", {"Retry-After": str(RETRY_AFTER_S)})
    answer.headers["Content-Disposition"] = disposition(name)
    answer.headers["Content-Security-Policy"] = "sandbox; default-src 'none'"
    answer.headers["Cache-Control"] = "private, no-cache"
    return answer


@public.get("/api/openapi.json")
@Operation("This document", {200: dict[str, Any]})
def read_document() -> Answer:
    kept = current_app.extensions
    if "openapi" not in kept:
        from routes.openapi import build_document  # its models cost memory that only this view needs

        kept["openapi"] = build_document(current_app, service.config)
    return jsonify(kept["openapi"]), 200


@public.get("/metrics")
@Operation("Metrics for Prometheus", {200: str}, security=("adminToken", "metricsToken"))
def scrape() -> Response:
    token = bearer_token(request.headers.get("Authorization"))
    require_operator_token(service, request.environ, token, (*service.tokens.admin, *service.tokens.metrics))
    from routes.metrics import exposition  # its library costs memory that only this view needs

    return exposition(service, request.headers.get("Accept", ""))


@public.get("/livez")
@Operation("Whether the process responds", {200: schemas.Probe})
def livez() -> Answer:
    return jsonify({"status": "ok"}), 200


@public.get("/readyz")
@Operation("Whether emails can be accepted", {200: schemas.Probe, 503: schemas.Probe})
def readyz() -> Answer:
    ready = is_ready(service)
    return jsonify({"status": "ok" if ready else "down"}), 200 if ready else 503


@public.get("/health")
@Operation("The state of everything, with 503 if something is wrong", {200: Health, 503: Health})
def report() -> Answer:
    found = read_health(service)
    return jsonify(found.model_dump(mode="json")), 200 if found.status == "ok" else 503
