"""The only table from what happened to what is answered."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from flask import Response, jsonify, request
from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.http import HTTP_STATUS_CODES

from deduplication.errors import StoreUnavailable
from deduplication.journal.entry import Stop
from orchestrator.operations.deliveries import delivery_id
from orchestrator.operations.words import shown_moment
from orchestrator.pipeline import Outcome, Status
from routes.providers.base import InvalidPayload, Statuses

Answer = tuple[Response, int] | tuple[Response, int, dict[str, str]]

HTTP_STATUS = {
    Status.PROCESSED: 200,
    Status.QUEUED: 200,
    Status.DEAD_LETTERED: 200,
    Status.ALREADY_PROCESSED: 200,
    Status.SKIPPED_SUBJECT_GROUP: 200,
    Status.SKIPPED_MEDIA: 200,
    Status.SKIPPED_CONTENT: 200,
    Status.SKIPPED_OLD: 200,
    Status.ALREADY_PROCESSING: 503,
    Status.RETRY_LATER: 503,
}
PROOFS = {
    "Bearer": "Authorization takes Bearer and a valid token",
    'Basic realm="mailonce"': "Authorization takes Basic and a valid username and password",
    "": "the request takes a valid signature",
}
OUR_OWN = Statuses()
DOORS = "/api/ingress/"
PROBLEM = "application/problem+json"
_ENCODER = json.JSONEncoder(separators=(",", ":"))
UNEXPECTED: dict[str, Any] = {"success": False, "status": "retry_later", "error": "internal error; the log says more"}
RETRY_AFTER_AN_ERROR_S = 60
NOTHING_HERE = "nothing has this address; a provider has /api/ingress/ and its name in mailonce.toml"


def failed(http_status: int, status: str, error: str, headers: dict[str, str] | None = None, **more: str) -> Answer:
    """At a door as it was promised to providers, everywhere else as a problem document (RFC 9457), whose ``code`` is
    what ``status`` is at the doors."""
    if request.path.startswith(DOORS):
        body: dict[str, Any] = {"success": False, "status": status, "error": error, **more}
        return jsonify(body), http_status, headers or {}
    body = {
        "type": "about:blank",
        "title": HTTP_STATUS_CODES.get(http_status, "Error"),
        "status": http_status,
        "detail": error,
        "instance": quote(request.path),
        "code": status,
        **more,
    }
    return Response(f"{_ENCODER.encode(body)}\n", mimetype=PROBLEM), http_status, headers or {}


def is_accepted(result: Outcome) -> bool:
    """Whether the sender may forget the item."""
    return HTTP_STATUS[result.status] == 200


def outcomes(results: list[dict[str, Any]], waits_s: list[int]) -> Answer:
    """Of several items; accepted only if all are safe, and a retry of all repeats nothing."""
    success = all(each["success"] or each["status"] == "invalid" for each in results)
    body = {"success": all(each["success"] for each in results), "results": results}
    return _with_retry_after(body, 200 if success else 503, max(waits_s, default=None))


def outcomes_of_emails(results: list[Outcome | InvalidPayload], statuses: Statuses) -> Answer:
    """To a provider: accepted only if all are safe, rejected if what is not can never be. One alone is not listed."""
    bodies = [refused(r) if isinstance(r, InvalidPayload) else described(r, email_id=r.item_id) for r in results]
    waits_s = [each.retry_after_s for each in results if isinstance(each, Outcome) and each.retry_after_s]
    body = {"success": all(each["success"] for each in bodies), "results": bodies} if len(bodies) != 1 else bodies[0]
    return _with_retry_after(body, _status_of_all(results, statuses), max(waits_s, default=None))


def _status_of_all(results: list[Outcome | InvalidPayload], statuses: Statuses) -> int:
    invalid_ones = [each for each in results if isinstance(each, InvalidPayload)]
    if not all(is_accepted(each) for each in results if isinstance(each, Outcome)):
        return statuses.retry
    return _rejection(invalid_ones[0], statuses) if invalid_ones else statuses.accepted


def described(result: Outcome, **ids: str) -> dict[str, Any]:
    """What became of one item, under the ids its sender knows it by."""
    body: dict[str, Any] = {"success": is_accepted(result), "status": result.status, **ids}
    if result.id:
        body["id"] = result.id
    if result.subject_group:
        body["subject_group"] = result.subject_group
    if result.reason:
        body["reason"] = _reason(result.reason)
    if result.error:
        body["error"] = f"{result.error}; send it again"
    if result.retry_after_s is not None:
        body["retry_after_s"] = result.retry_after_s
    if result.warnings:
        body["warnings"] = result.warnings
    if result.deliveries:
        body["deliveries"] = {
            each.destination: {"id": delivery_id(result.id, each.destination), "status": each.status}
            for each in result.deliveries
        }
    return body


def _with_retry_after(body: dict[str, Any], status: int, retry_after_s: int | None) -> Answer:
    """As jsonify has it, which makes an encoder for each answer."""
    answer = Response(f"{_ENCODER.encode(body)}\n", mimetype="application/json")
    if retry_after_s is None or status == 200:
        return answer, status
    return answer, status, {"Retry-After": str(retry_after_s)}


def _reason(stop: Stop) -> dict[str, str | None]:
    seen_ms = stop.first_seen_ms
    first_seen = None if seen_ms is None else shown_moment(seen_ms)
    return {
        "gate": stop.gate,
        "name": stop.name.label,
        "original": stop.original,
        "first_seen": first_seen,
    }


def invalid(error: InvalidPayload, statuses: Statuses = OUR_OWN) -> Answer:
    status = _rejection(error, statuses)
    if error.field:
        return failed(status, "invalid", str(error), field=error.field)
    return failed(status, "invalid", str(error))


def refused(error: InvalidPayload) -> dict[str, Any]:
    body = {"success": False, "status": "invalid", "error": str(error)}
    return body | {"field": error.field} if error.field else body


def _rejection(error: InvalidPayload, statuses: Statuses) -> int:
    return error.http_status if statuses.rejected is None else statuses.rejected


def unauthorized(challenge: str = "Bearer", statuses: Statuses = OUR_OWN) -> Answer:
    """The same words whatever was wrong: they must not help anybody to guess."""
    headers = {"WWW-Authenticate": challenge} if challenge else {}
    return failed(statuses.unauthorized, "unauthorized", PROOFS[challenge], headers)


def too_many_guesses(wait_s: int) -> Answer:
    return failed(429, "too_many_guesses", "too many wrong tokens from this address", {"Retry-After": str(wait_s)})


def may_only_look() -> Answer:
    return failed(403, "forbidden", "VIEW_TOKEN may look, not act")


def no_email(note: str, statuses: Statuses) -> Answer:
    """The provider wanted to know or to tell something else."""
    return jsonify({"success": True, "status": "no_email", "note": note}), statuses.accepted


def not_set_up(error: str) -> Answer:
    return failed(404, "invalid", error)


def retry_later(error: str, statuses: Statuses) -> Answer:
    return failed(statuses.retry, "retry_later", f"{error}; send it again", {"Retry-After": "10"})


def no_room(error: HTTPException, statuses: Statuses = OUR_OWN) -> Answer:
    """The request has to wait for others."""
    return retry_later(error.description or error.name, statuses)


def http_error(error: HTTPException) -> Answer:
    """404, 405 and whatever else Flask itself refuses."""
    text = NOTHING_HERE if isinstance(error, NotFound) else error.description or error.name
    headers = {name: value for name, value in error.get_headers() if name in ("Allow", "Connection", "Retry-After")}
    return failed(error.code or 500, "invalid", text, headers)


def too_large(most_mb: float) -> Answer:
    return failed(413, "invalid", f"the request takes at most {most_mb:g} MB (MAX_BODY_MB)")


def incomplete(statuses: Statuses | None = None) -> Answer:
    """Half a request says nothing of the email: its sender must keep it."""
    error = "the request did not arrive as a whole, or not in time"
    return failed(statuses.retry if statuses else 408, "retry_later", error, {"Connection": "close"})


def store_unavailable(error: StoreUnavailable) -> Answer:
    return failed(503, "retry_later", str(error), {"Retry-After": "10"})


def healthy(is_so: bool) -> int:
    return 200 if is_so else 503


def internal_error(statuses: Statuses = OUR_OWN) -> Answer:
    """Nothing is known of the email's fate, so the provider must keep it; some do not after a 5xx."""
    status = statuses.retry if statuses.retry < 500 else 500
    return failed(status, "retry_later", UNEXPECTED["error"], {"Retry-After": str(RETRY_AFTER_AN_ERROR_S)})
