"""The doors: what each provider sends, how it proves itself, and what makes it forget an email or send it again."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from routes.openapi import answers, requests
from routes.openapi.operations import JSON, Answer, Body, Operation
from routes.providers.gmail import Gmail
from routes.providers.json_mapping import JsonMapping
from routes.providers.registry import AnyProvider
from routes.responses import OUR_OWN

INGRESS = "ingress"
SECURITY: Mapping[str, dict[str, Any]] = {
    "adminToken": {"type": "http", "scheme": "bearer", "description": "ADMIN_TOKEN"},
    "viewToken": {"type": "http", "scheme": "bearer", "description": "VIEW_TOKEN: may look, not act"},
    "metricsToken": {"type": "http", "scheme": "bearer", "description": "METRICS_TOKEN"},
    "ingressToken": {
        "type": "http",
        "scheme": "bearer",
        "description": "INGRESS_TOKEN, or the token of the provider in mailonce.toml",
    },
    "login": {
        "type": "http",
        "scheme": "basic",
        "description": "username and password of the provider in mailonce.toml",
    },
    "mandrillSignature": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Mandrill-Signature",
        "description": "HMAC-SHA1, by webhook_key, of the URL and all fields",
    },
    "sendgridSignature": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Twilio-Email-Event-Webhook-Signature",
        "description": "ECDSA of X-Twilio-Email-Event-Webhook-Timestamp and the body, verified by verification_key",
    },
    "resendSignature": {
        "type": "apiKey",
        "in": "header",
        "name": "svix-signature",
        "description": "Standard Webhooks, by secret, with svix-id and svix-timestamp",
    },
}
IN_THE_BODY = "The proof of origin stands in the body."
_SCHEMAS: Mapping[str, dict[str, Any]] = {
    JSON: {"type": "object"},
    "application/x-www-form-urlencoded": {"type": "object"},
    "multipart/form-data": {"type": "object"},
}


def _refusal(description: str, *headers: str) -> Answer:
    return Answer(description, (answers.Refusal,), headers=headers)


AT_EVERY_DOOR = {
    400: _refusal("The request cannot be taken as it is."),
    405: _refusal("A door takes POST.", "Allow"),
    413: _refusal("The request is larger than MAX_BODY_MB."),
    500: _refusal("A bug or a misconfiguration; the log says more. Send it again.", "Retry-After"),
}


def door(name: str, provider: type[AnyProvider]) -> Operation:
    """Of an open one and of a shut one alike: the document is about the API, not about mailonce.toml."""
    statuses = provider.statuses
    words = (inspect.getdoc(sys.modules[provider.__module__]) or "").replace("``", "`")
    kinds: tuple[type[BaseModel], ...] = (answers.EmailVerdict, answers.EmailVerdicts)
    told = {
        **AT_EVERY_DOOR,
        404: _refusal("It is not set up: `error` says which settings are missing."),
        statuses.unauthorized: _refusal("The request does not prove its origin.", "WWW-Authenticate"),
        statuses.accepted: Answer("It is safe: forget it.", (*kinds, answers.NoEmail)),
        statuses.retry: Answer(
            "Not now, or another request is at it: send it again.", (*kinds, answers.Refusal), headers=("Retry-After",)
        ),
    }
    if statuses.rejected is None:
        told[400] = Answer("It can never be taken as it is.", (answers.Refusal, answers.EmailVerdicts))
        told[415] = _refusal(f"Content-Type takes {' or '.join(provider.media_types)}.")
    else:
        told[statuses.rejected] = Answer("It can never be taken as it is.", (answers.Refusal, answers.EmailVerdicts))
    proof = "" if provider.security else IN_THE_BODY
    content = {each: _SCHEMAS.get(each, {"type": "string"}) for each in provider.media_types}
    if provider is JsonMapping:  # one email or a list, wherever mailonce.toml says
        content = {JSON: {"type": ["object", "array"]}}
    return Operation(
        INGRESS,
        f"An email comes in from {name}",
        told,
        description="\n\n".join(filter(None, (words, proof))),
        security=provider.security,
        body=Body({JSON: requests.EmailIn} if provider is Gmail else content),
    )


PROBE = Operation(
    INGRESS,
    "Whether anybody is here",
    {
        405: AT_EVERY_DOOR[405],
        500: AT_EVERY_DOOR[500],
        200: Answer("Yes.", (answers.Here,)),
        404: _refusal("It is not set up: `error` says which settings are missing."),
    },
)

MESSAGES = Operation(
    INGRESS,
    "Posts and chat messages come in, one or a list",
    {
        **AT_EVERY_DOOR,
        200: Answer("All that can be taken are safe.", (answers.MessageVerdicts,)),
        401: _refusal("No or a wrong token.", "WWW-Authenticate"),
        404: _refusal("Nothing has this address."),
        408: _refusal("The request did not arrive as a whole, or not in time."),
        415: _refusal("Content-Type takes application/json."),
        OUR_OWN.retry: Answer(
            "Some are not safe yet: send all again.",
            (answers.MessageVerdicts, answers.Refusal),
            headers=("Retry-After",),
        ),
    },
    security=("ingressToken",),
    body=Body({JSON: requests.one_or_many({"$ref": "#/components/schemas/MessageIn"})}),
)
