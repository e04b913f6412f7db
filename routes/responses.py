"""The only place that turns what happened into an HTTP answer."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

from flask import Response, request
from pydantic import BaseModel, Field
from werkzeug.exceptions import ClientDisconnected, HTTPException, NotFound, RequestEntityTooLarge
from werkzeug.http import HTTP_STATUS_CODES

from deduplication.errors import StoreUnavailable
from deduplication.journal.entry import DeliveryStatus
from deduplication.message import Message
from deduplication.names import Gate
from orchestrator.config.settings import MB
from orchestrator.delivery.fetching import FetchFailed
from orchestrator.operations.decisions import Time
from orchestrator.operations.destinations import InvalidAction
from orchestrator.operations.search import InvalidCursor
from orchestrator.pipeline import Outcome, ProofUsed, Status
from routes.auth import TooManyGuesses, Unauthorized
from routes.connections import NoRoomForBody
from routes.payload import InvalidPayload
from routes.providers.base import BASIC, BEARER, Parsed, Provider

Answer = Response | tuple[Response, int]

INGRESS = "/api/ingress/"
PROOFS = {
    BEARER: "Authorization must be Bearer with a valid token",
    BASIC: "Authorization must be Basic with a valid username and password",
    "": "the request must have a valid signature",
}
RETRY = (Status.RETRY_LATER, Status.ALREADY_PROCESSING)
RETRY_AFTER_S = 10
RETRY_AFTER_AN_ERROR_S = 60
UNKNOWN_PATH = "nothing has this address; a provider has /api/ingress/ and its name in mailonce.toml"
UNEXPECTED = "internal error; the log has details"


class Problem(BaseModel):
    """What went wrong, by RFC 9457 (application/problem+json)."""

    type: Literal["about:blank"]
    title: str = Field(description="The words of the HTTP status.")
    status: int
    detail: str = Field(description="What is wrong with this request, for a person.")
    instance: str = Field(description="The path that was asked for.", json_schema_extra={"format": "uri-reference"})
    code: str = Field(description="The same for a program, where one HTTP status has several reasons.")
    field: str = Field(default="", description="The part of the request that is wrong, if it is one.")
    id: str = Field(default="", description="Of the email or delivery that was asked for.")


class Refusal(BaseModel):
    success: Literal[False]
    status: Literal["invalid", "unauthorized", "retry_later"]
    error: str
    field: str = Field(default="", description="The part of the request that is wrong, if it is one.")


class Reason(BaseModel):
    """Why an email was not sent: the gate, the name that was already taken there, and the email that has it."""

    gate: Gate
    name: str
    original: str | None
    first_seen: Time | None


class DeliveryStub(BaseModel):
    id: str
    status: DeliveryStatus


class Verdict(BaseModel):
    """What happened to an email or a message."""

    success: bool = Field(description="Whether the sender may forget it.")
    status: Status
    email_id: str | None = Field(default=None, description="Of an email.")
    key: str | None = Field(default=None, description="Of a message.")
    source: str | None = Field(default=None, description="Of a message.")
    item_id: str | None = Field(default=None, description="Of a message: its id in log lines and records.")
    id: str | None = Field(default=None, description="Of its entry in the journal; of a message without one, its own.")
    subject_group: str | None = None
    reason: Reason | None = None
    error: str = Field(default="", description="Why it has to be sent again.")
    retry_after_s: int | None = None
    warnings: tuple[str, ...] = Field(default=(), description="What could not be read, or was ignored.")
    deliveries: dict[str, DeliveryStub] = Field(default={}, description="By destination.")
    had_already: tuple[str, ...] = Field(default=(), description="Destinations that an earlier copy went to.")


class Verdicts(BaseModel):
    """For messages, and for a request with several emails: one result for each, in order."""

    success: bool
    results: Sequence[Verdict | Refusal]


class NoEmail(BaseModel):
    """The request was valid but had no email, such as the confirmation of a subscription."""

    success: Literal[True]
    status: Literal["no_email"]
    note: str


def json_answer(
    body: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None, mimetype: str = "application/json"
) -> Response:
    """Without the fields that have their defaults."""
    return Response(f"{body.model_dump_json(exclude_defaults=True)}\n", status, headers, mimetype=mimetype)


# Emails and messages


def verdict(result: Outcome, received: Parsed) -> Verdict:
    """With the ids that its sender knows it by."""
    ids = {"email_id": result.item_id}
    if isinstance(received, Message):
        ids = {"key": received.key, "source": received.source, "id": received.id, "item_id": result.item_id}
    if result.id:
        ids["id"] = result.id
    stop, reason = result.reason, None
    if stop:
        reason = Reason(gate=stop.gate, name=stop.name.label, original=stop.original, first_seen=stop.first_seen_ms)
    return Verdict(
        success=result.status not in RETRY,
        status=result.status,
        **ids,
        subject_group=result.subject_group,
        reason=reason,
        error=result.error and f"{result.error}; send it again",
        retry_after_s=result.retry_after_s,
        warnings=result.warnings,
        had_already=result.had_already,
        deliveries={
            delivery.destination: DeliveryStub(id=f"{result.id}:{delivery.destination}", status=delivery.status)
            for delivery in result.deliveries
        },
    )


def refusal(error: Exception) -> Refusal:
    if isinstance(error, InvalidPayload):
        return Refusal(success=False, status="invalid", error=str(error), field=error.field)
    return Refusal(success=False, status="retry_later", error=UNEXPECTED)


def answer_items(results: Sequence[Verdict | Refusal], provider: Provider[Any]) -> Response:
    """Accepted only if all are safe, rejected if the others can never be accepted. Sending all again repeats nothing.

    Where the provider reads the result of each, those that can never be accepted do not reject the request.
    """
    is_list = provider.answers_lists
    is_alone = len(results) == 1 and not is_list
    body = results[0] if is_alone else Verdicts(success=all(result.success for result in results), results=results)
    waits_s = [
        getattr(result, "retry_after_s", 0) or RETRY_AFTER_AN_ERROR_S for result in results if result.status in RETRY
    ]
    if waits_s:
        return json_answer(body, provider.retry_status, {"Retry-After": str(max(waits_s))})
    is_rejected = not is_list and any(isinstance(result, Refusal) for result in results)
    return json_answer(body, provider.rejected_status or 400 if is_rejected else 200)


# Errors


def failed(http_status: int, code: str, text: str, headers: Mapping[str, str] | None = None, **more: str) -> Response:
    """Under /api/ingress as promised to providers, where ``code`` is the status; elsewhere a problem document."""
    if request.path.startswith(INGRESS):
        body = Refusal.model_validate({"success": False, "status": code, "error": text, **more})
        return json_answer(body, http_status, headers)
    problem = Problem(
        type="about:blank",
        title=HTTP_STATUS_CODES.get(http_status, "Error"),
        status=http_status,
        detail=text,
        instance=quote(request.path),
        code=code,
        **more,
    )
    return json_answer(problem, http_status, headers, "application/problem+json")


def too_large() -> str:
    most_mb = round((request.max_content_length or 0) / MB, 2)
    return f"the request must have at most {most_mb:g} MB (MAX_BODY_MB)"


def answer_error(error: Exception, provider: Provider[Any] | None = None) -> Response:
    """Which status makes a sender retry depends on the provider."""
    retry_status = provider.retry_status if provider else 503
    match error:
        case Unauthorized() | ProofUsed():  # the same text whatever was wrong, so that it helps no one to guess
            challenge = provider.challenge if provider else BEARER
            headers = {"WWW-Authenticate": challenge} if challenge else {}
            return failed(401, "unauthorized", PROOFS[challenge], headers)
        case TooManyGuesses():
            text = "too many wrong tokens from this address"
            return failed(429, "too_many_guesses", text, {"Retry-After": str(error.wait_s)})
        case InvalidPayload():
            status = (provider and provider.rejected_status) or error.http_status
            return failed(status, "invalid", str(error), field=error.field)
        case InvalidAction():
            return failed(404 if error.field == "destination" else 400, "invalid", str(error), field=error.field)
        case InvalidCursor():
            text = "cursor must be the `next` of an earlier answer to the same question"
            return failed(400, "invalid", text, field="cursor")
        case ClientDisconnected():  # half a request says nothing about the email: its sender must keep it
            text = "the request did not arrive completely, or not in time"
            return failed(retry_status if provider else 408, "retry_later", text, {"Connection": "close"})
        case RequestEntityTooLarge():
            return failed(413, "invalid", too_large())
        case NoRoomForBody() | StoreUnavailable() | FetchFailed():
            text = str(getattr(error, "description", error))
            if provider and isinstance(error, StoreUnavailable):
                text = "the store is unavailable"  # the error may name an internal address
            return failed(retry_status, "retry_later", text, {"Retry-After": str(RETRY_AFTER_S)})
        case HTTPException():
            text = UNKNOWN_PATH if isinstance(error, NotFound) else error.description or error.name
            headers = {name: value for name, value in error.get_headers() if name in ("Allow", "Connection")}
            return failed(error.code or 500, "invalid", text, headers)
    # Nothing is known of what happened to the email, so its provider must keep it; some do not after a 5xx.
    status = retry_status if retry_status < 500 else 500
    return failed(status, "retry_later", UNEXPECTED, {"Retry-After": str(RETRY_AFTER_AN_ERROR_S)})
