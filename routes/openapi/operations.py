"""What each route takes and answers, by its endpoint. The doors of providers are described in doors.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from orchestrator.operations.decisions import Release
from orchestrator.operations.deliveries import Replay
from orchestrator.operations.health import Health
from routes import questions
from routes.openapi import answers

Model = type[BaseModel]
JSON = "application/json"
OPENMETRICS = ("text/plain", "application/openmetrics-text")


@dataclass(frozen=True)
class Answer:
    """One of ``models``, as one of ``media_types``; without models, text."""

    description: str
    models: tuple[Model, ...] = ()
    media_types: tuple[str, ...] = (JSON,)
    headers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Body:
    """By media type, a model or a schema."""

    content: Mapping[str, Model | dict[str, Any]]
    is_required: bool = True


@dataclass(frozen=True)
class Operation:
    """``security``: any of these will do; none: everybody may."""

    tag: str
    summary: str
    answers: Mapping[int, Answer]
    description: str = ""
    security: tuple[str, ...] = ()
    query: Model | None = None
    body: Body | None = None


def problem(description: str, *headers: str) -> Answer:
    return Answer(description, (answers.Problem,), ("application/problem+json",), headers)


EVERYWHERE = {
    404: problem("Nothing has this address."),
    405: problem("This address takes another method.", "Allow"),
    500: problem("A bug or a misconfiguration; the log says more.", "Retry-After"),
}
OF_ADMINS = {
    **EVERYWHERE,
    400: problem("The request cannot be understood: `detail` says what it takes, `field` names the part."),
    401: problem("No or a wrong token.", "WWW-Authenticate"),
    429: problem("Too many wrong tokens from this address.", "Retry-After"),
    503: problem("The store is away. Try again.", "Retry-After"),
}
OF_ACTING_ADMINS = {
    **OF_ADMINS,
    403: problem("VIEW_TOKEN may look, not act."),
    408: problem("The request did not arrive as a whole, or not in time."),
    413: problem("The request is larger than MAX_BODY_MB."),
    415: problem("The body is not JSON."),
}
PATH_WORDS = {
    "decisions": "The `id` of the email. For GET, also its email id, Message-ID or a webhook-id.",
    "deliveries": "The `id` of the delivery: the email's `id`, a colon and the destination.",
    "destinations": "Of the destination, as in mailonce.toml.",
}


def _look(tag: str, summary: str, model: Model, query: Model | None = None, missing: str = "") -> Operation:
    """A GET for admins and viewers. ``missing``: what a 404 means."""
    told = {**OF_ADMINS, 200: Answer("As asked for.", (model,))}
    if missing:
        told[404] = problem(missing)
    return Operation(tag, summary, told, security=("adminToken", "viewToken"), query=query)


def _act(tag: str, summary: str, model: Model, body: Model, *, needs_body: bool = False) -> Operation:
    """A POST for admins."""
    told = {**OF_ACTING_ADMINS, 200: Answer("Done.", (model,))}
    return Operation(tag, summary, told, security=("adminToken",), body=Body({JSON: body}, needs_body))


def _refusable(operation: Operation, refusals: Mapping[str, tuple[int, str]]) -> Operation:
    """With the refusals of routes/questions.py, each by its ``code``."""
    told = {
        status: problem(" ".join(f"`{code}`: {text}." for code, (at, text) in refusals.items() if at == status))
        for status in {at for at, _ in refusals.values()} - {200}
    }
    return replace(operation, answers={**operation.answers, **told})


def _of_destination(operation: Operation) -> Operation:
    told = {**operation.answers, 404: problem("There is no such destination; `detail` names those that there are.")}
    return replace(operation, answers=told)


def _public(summary: str, told: Mapping[int, Answer]) -> Operation:
    return Operation("operations", summary, {**EVERYWHERE, **told})


UNKNOWN_EMAIL = "There is no such email, or it is no longer stored."
UNKNOWN_DELIVERY = "There is no such delivery, or it is no longer stored."

OPERATIONS: Mapping[str, Operation] = {
    "api_emails.decisions": _look(
        "decisions", "What happened to each email and why, newest first", answers.Decisions, questions.DecisionQuery
    ),
    "api_emails.decision": _look(
        "decisions", "All that is known of one email", answers.DecisionAnswer, missing=UNKNOWN_EMAIL
    ),
    "api_emails.release_one": _refusable(
        _act("decisions", "Release an email that a gate stopped", answers.ReleaseAnswer, Release),
        questions.RELEASE_ANSWERS,
    ),
    "api_emails.release_many": _act(
        "decisions", "Release all that match a filter", answers.Matched, questions.ReleaseMany, needs_body=True
    ),
    "api_emails.deliveries": _look(
        "deliveries", "What was sent where, what waits, what is dead", answers.Deliveries, questions.DeliveryQuery
    ),
    "api_emails.delivery": _look(
        "deliveries", "One delivery with its payload", answers.DeliveryAnswer, missing=UNKNOWN_DELIVERY
    ),
    "api_emails.replay_one": _refusable(
        _act("deliveries", "Send one again", answers.ReplayAnswer, Replay), questions.REPLAY_ANSWERS
    ),
    "api_emails.replay_many": _act(
        "deliveries", "Send again all that match a filter", answers.Matched, questions.ReplayMany, needs_body=True
    ),
    "api_destinations.figures": _look("operations", "The figures of the fleet", answers.Stats, questions.StatsQuery),
    "api_destinations.listed": _look("destinations", "The state of each destination", answers.Destinations),
    "api_destinations.pause_one": _of_destination(
        _act("destinations", "Send nothing there until it is resumed", answers.PauseAnswer, questions.PauseRequest)
    ),
    "api_destinations.resume_one": _of_destination(
        _act("destinations", "Send there again, starting with what waits", answers.ResumeAnswer, questions.Nothing)
    ),
    "api_destinations.test_one": _of_destination(
        _act("destinations", "Send a test event there", answers.TestAnswer, questions.Nothing)
    ),
    "api_admin.forget": _act(
        "operations",
        "Forget names, so that the emails behind them are delivered again when they come",
        answers.ResetAnswer,
        questions.ResetRequest,
        needs_body=True,
    ),
    "api_admin.active_locks": _look("operations", "Who delivers what, where, until when", answers.Locks),
    "health.livez": _public("Whether the process answers", {200: Answer("It does.", (answers.Alive,))}),
    "health.readyz": _public(
        "Whether emails can be accepted",
        {200: Answer("They can.", (answers.Ready,)), 503: Answer("They cannot.", (answers.Ready,))},
    ),
    "health.report": _public(
        "The whole picture",
        {
            200: Answer("Everything works.", (Health,)),
            503: Answer("Something is wrong, although emails may be accepted.", (Health,)),
        },
    ),
    "metrics.scrape": replace(
        _public(
            "For Prometheus",
            {
                200: Answer("The metrics.", media_types=OPENMETRICS),
                **{status: OF_ADMINS[status] for status in (401, 429, 503)},
            },
        ),
        security=("adminToken", "metricsToken"),
    ),
    "api_openapi.described": _public("This document", {200: Answer("OpenAPI 3.1.")}),
}
