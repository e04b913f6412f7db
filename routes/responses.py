"""The only table from what happened to what is answered."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from flask import Response, jsonify
from werkzeug.exceptions import HTTPException

from deduplication.claims import Duplicate
from deduplication.errors import StoreUnavailable
from orchestrator.intake import Outcome, Status
from routes.providers.base import InvalidPayload

Answer = tuple[Response, int] | tuple[Response, int, dict[str, str]]

HTTP_STATUS = {
    Status.PROCESSED: 200,
    Status.ALREADY_PROCESSED: 200,
    Status.SKIPPED_SUBJECT_GROUP: 200,
    Status.SKIPPED_MEDIA: 200,
    Status.SKIPPED_CONTENT: 200,
    Status.SKIPPED_OLD: 200,
    Status.ALREADY_PROCESSING: 503,
    Status.RETRY_LATER: 503,
}


def outcome(result: Outcome) -> Answer:
    body = described(result, email_id=result.item_id)
    return _with_retry_after(body, HTTP_STATUS[result.status], result.retry_after_s)


def outcomes(results: list[dict[str, Any]], waits_s: list[int]) -> Answer:
    """Of several items; accepted only if all are safe, and a retry of all repeats nothing."""
    success = all(each["success"] or each["status"] == "invalid" for each in results)
    body = {"success": all(each["success"] for each in results), "results": results}
    return _with_retry_after(body, 200 if success else 503, max(waits_s, default=None))


def described(result: Outcome, **ids: str) -> dict[str, Any]:
    """What became of one item, under the ids its sender knows it by."""
    body: dict[str, Any] = {"success": HTTP_STATUS[result.status] == 200, "status": result.status, **ids}
    if result.subject_group:
        body["subject_group"] = result.subject_group
    if isinstance(result.reason, Duplicate):
        body["reason"] = _reason(result.reason)
    if result.retry_after_s is not None:
        body["retry_after_s"] = result.retry_after_s
    return body


def _with_retry_after(body: dict[str, Any], status: int, retry_after_s: int | None) -> Answer:
    if retry_after_s is None or status == 200:
        return jsonify(body), status
    return jsonify(body), status, {"Retry-After": str(retry_after_s)}


def _reason(duplicate: Duplicate) -> dict[str, str | None]:
    seen_ms = duplicate.first_seen_ms
    first_seen = None if seen_ms is None else datetime.fromtimestamp(seen_ms / 1000, UTC).isoformat(timespec="seconds")
    return {
        "gate": duplicate.gate,
        "name": duplicate.name,
        "original": duplicate.original,
        "first_seen": first_seen,
    }


def invalid(error: InvalidPayload) -> Answer:
    body = {"success": False, "status": "invalid", "error": str(error)}
    if error.field:
        body["field"] = error.field
    return jsonify(body), error.http_status


def unauthorized() -> Answer:
    body = {"success": False, "status": "unauthorized", "error": "Authorization takes Bearer and a valid token"}
    return jsonify(body), 401, {"WWW-Authenticate": "Bearer"}


def http_error(error: HTTPException) -> Answer:
    """404, 405, 413 and whatever else Flask itself refuses."""
    body = {"success": False, "status": "invalid", "error": error.description or error.name}
    headers = {name: value for name, value in error.get_headers() if name in ("Allow", "Retry-After")}
    return jsonify(body), error.code or 500, headers


def store_unavailable(error: StoreUnavailable) -> Answer:
    body = {"success": False, "status": "retry_later", "error": str(error)}
    return jsonify(body), 503, {"Retry-After": "10"}


def healthy(is_so: bool) -> int:
    return 200 if is_so else 503


def internal_error() -> Answer:
    """Nothing is known of the email's fate, so the provider must keep it."""
    body = {"success": False, "status": "retry_later", "error": "internal error; the log says more"}
    return jsonify(body), 500, {"Retry-After": "60"}
