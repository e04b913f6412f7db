"""What each route takes and answers, by its endpoint. The doors of providers are described in doors.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from routes.openapi import answers, requests
from routes.responses import RELEASED_STATUS, REPLAYED_STATUS

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
    "decisions": "Of the email: its `id`. To look, its email id or Message-ID will do, too.",
    "deliveries": "Of the delivery: the email's `id`, a colon and the destination.",
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
    """With what the tables of routes/responses.py refuse it for, each by its ``code``."""
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


UNKNOWN_EMAIL = "There is no such email, or it is no longer kept."
UNKNOWN_DELIVERY = "There is no such delivery, or it is no longer kept."

OPERATIONS: Mapping[str, Operation] = {
    "api_decisions.listed": _look(
        "decisions", "What became of each email and why, the newest first", answers.Decisions, requests.DecisionQuery
    ),
    "api_decisions.one": _look(
        "decisions", "All that is known of one email", answers.DecisionInFull, missing=UNKNOWN_EMAIL
    ),
    "api_decisions.release_one": _refusable(
        _act("decisions", "Let go an email that a gate stopped", answers.ReleaseAnswer, requests.ReleaseOne),
        RELEASED_STATUS,
    ),
    "api_decisions.release_many": _act(
        "decisions", "Let go all that match a filter", answers.Matched, requests.ReleaseMany, needs_body=True
    ),
    "api_deliveries.listed": _look(
        "deliveries", "What was sent where, what waits, what is dead", answers.Deliveries, requests.DeliveryQuery
    ),
    "api_deliveries.one": _look(
        "deliveries", "One delivery with its payload", answers.DeliveryInFull, missing=UNKNOWN_DELIVERY
    ),
    "api_deliveries.replay_one": _refusable(
        _act("deliveries", "Send one again", answers.ReplayAnswer, requests.ReplayOne), REPLAYED_STATUS
    ),
    "api_deliveries.replay_many": _act(
        "deliveries", "Send again all that match a filter", answers.Matched, requests.ReplayMany, needs_body=True
    ),
    "api_deliveries.numbers": _look("operations", "The figures of the fleet", answers.Stats, requests.StatsQuery),
    "api_destinations.listed": _look("destinations", "How each destination is", answers.Destinations),
    "api_destinations.pause_one": _of_destination(
        _act("destinations", "Send nothing there until it is resumed", answers.PauseAnswer, requests.Pause)
    ),
    "api_destinations.resume_one": _of_destination(
        _act("destinations", "Send there again, what waits first", answers.ResumeAnswer, requests.Nothing)
    ),
    "api_destinations.test_one": _of_destination(
        _act("destinations", "Send a test event there", answers.TestAnswer, requests.Nothing)
    ),
    "api_admin.forget": _act(
        "operations",
        "Forget names, so that the emails behind them are delivered again when they come",
        answers.ResetAnswer,
        requests.ResetRequest,
        needs_body=True,
    ),
    "api_admin.active_locks": _look("operations", "Who delivers what, where, until when", answers.Locks),
    "health.livez": _public("Whether the process answers", {200: Answer("It does.", (answers.Alive,))}),
    "health.readyz": _public(
        "Whether emails can be taken",
        {200: Answer("They can.", (answers.Ready,)), 503: Answer("They cannot.", (answers.Ready,))},
    ),
    "health.report": _public(
        "The whole picture",
        {
            200: Answer("All is well.", (answers.HealthReport,)),
            503: Answer("Something is wrong, although emails may be taken.", (answers.HealthReport,)),
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
