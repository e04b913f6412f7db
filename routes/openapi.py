"""Builds /api/openapi.json, an OpenAPI 3.1 document, from the routes of the application and their operations.

Tests compare every response and webhook with it. It is imported when the document is first requested.
"""

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from flask import Flask
from pydantic import TypeAdapter, ValidationError

from orchestrator.config.model import Config
from orchestrator.version import our_version
from routes.endpoints import JSON, Model, Operation, Success
from routes.providers.message import Messages
from routes.providers.registry import AnyProvider, known_providers
from routes.responses import INGRESS, NoEmail, Problem, Refusal, Verdict, Verdicts
from routes.webhooks import WEBHOOKS

PAGE = "dashboard"  # for people; it is not part of the API
ADMIN = "/api/admin/"
PROBE = Operation("Whether the URL responds", {200: Success})
DESCRIPTION = """\
Every inbound email fires its downstream webhooks once.

Errors are problem documents (RFC 9457), except under /api/ingress, where the answers are promised to providers.
Fields may be added to answers and webhooks at any time; none is renamed or removed without a new major version.
"""
BEARER = {"type": "http", "scheme": "bearer"}
SIGNATURES = {
    "mandrillSignature": ("X-Mandrill-Signature", "HMAC-SHA1, by webhook_key, of the URL and all fields"),
    "sendgridSignature": ("X-Twilio-Email-Event-Webhook-Signature", "ECDSA of timestamp and body, by verification_key"),
    "resendSignature": ("svix-signature", "Standard Webhooks, by secret, with svix-id and svix-timestamp"),
}
SECURITY = {
    "adminToken": BEARER | {"description": "ADMIN_TOKEN"},
    "viewToken": BEARER | {"description": "VIEW_TOKEN: may look, not act"},
    "metricsToken": BEARER | {"description": "METRICS_TOKEN"},
    "ingressToken": BEARER | {"description": "INGRESS_TOKEN, or the token of the provider in mailonce.toml"},
    "login": BEARER | {"scheme": "basic", "description": "username and password of the provider in mailonce.toml"},
    **{
        name: {"type": "apiKey", "in": "header", "name": header, "description": text}
        for name, (header, text) in SIGNATURES.items()
    },
}
TEXT = {"type": "string"}
SOME_TEXT = TEXT | {"minLength": 1}
HEADERS = {
    "X-Request-Id": {"description": "In all log lines of the request; the caller's own if valid.", "schema": TEXT},
    "Retry-After": {"description": "Seconds. With 429, 500 and 503.", "schema": TEXT | {"pattern": "^[0-9]+$"}},
    "WWW-Authenticate": {"description": "The expected kind of credentials. With 401.", "schema": TEXT},
    "Allow": {"description": "The allowed methods. With 405.", "schema": TEXT},
}
MEDIA_TYPES = {
    str: ("text/plain", "application/openmetrics-text"),
    bytes: ("application/octet-stream",),
    Problem: ("application/problem+json",),
}
PATH_PARAMETERS = {
    "decisions": "The `id` of the email. For GET, also its email id, Message-ID or a webhook-id.",
    "deliveries": "The `id` of the delivery: the email's `id`, a colon and the destination.",
    "destinations": "The name of the destination, as in mailonce.toml.",
    "operations": "As in the link.",
}
SIGNED = [
    ("webhook-id", True, "The same for all attempts of one webhook: a receiver that remembers it accepts each once."),
    ("Idempotency-Key", True, "The same as webhook-id."),
    ("webhook-timestamp", False, "When this attempt was made, in seconds since 1970. With a secret."),
    ("webhook-signature", False, "Standard Webhooks: v1 (HMAC-SHA256) or v1a (ed25519), several while rotating."),
]
WEBHOOK_ANSWERS = {
    "2XX": "Delivered; `id` or `postId` of a JSON answer is stored.",
    "410": "The destination is paused until an operator resumes it.",
    **dict.fromkeys(("3XX", "4XX", "5XX"), "Tried again; Retry-After is honoured."),
}


def build_document(app: Flask, config: Config) -> dict[str, Any]:
    """Raises LookupError for a route without an operation."""
    operations = dict(_operations(app, config))
    types: list[Any] = [Problem, Refusal, *(model for model, _ in WEBHOOKS.values())]
    types += [type_ for one in operations.values() for type_ in (*one.answers.values(), *one.body.values())]
    by_type, definitions = TypeAdapter.json_schemas(
        ((type_, "validation", TypeAdapter(type_)) for type_ in dict.fromkeys(types)),
        ref_template="#/components/schemas/{model}",
    )
    schemas = {type_: schema for (type_, _), schema in by_type.items()}
    paths: dict[str, dict[str, Any]] = {}
    for (path, method), operation in operations.items():
        paths.setdefault(path, {})[method] = _describe(operation, path, method, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Mailonce", "version": our_version(), "description": DESCRIPTION, "license": {"name": "MIT"}},
        "servers": [{"url": "/"}],
        "paths": paths,
        "webhooks": {
            event: {"post": _webhook(event, schemas[model], text)} for event, (model, text) in WEBHOOKS.items()
        },
        "components": {"schemas": definitions["$defs"], "headers": HEADERS, "securitySchemes": SECURITY},
    }


def _operations(app: Flask, config: Config) -> Iterator[tuple[tuple[str, str], Operation]]:
    """All but those of the page, by path and method."""
    ingress = {
        f"{INGRESS}{name}{ending}": _provider_operation(name, provider)
        for name, provider in known_providers(config).items()
        for ending in provider.endings
    }
    for rule in sorted(app.url_map.iter_rules(), key=lambda rule: rule.rule):
        if rule.endpoint.split(".")[0] == PAGE:
            continue
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):  # Flask adds these two to every route
            operation = getattr(app.view_functions[rule.endpoint], "operation", None)
            if rule.rule in ingress:
                operation = PROBE if method == "GET" else ingress[rule.rule]
            if operation is None:
                raise LookupError(f"{method} {rule.rule} ({rule.endpoint}) has no operation")
            yield (re.sub("<([a-z]+)_?>", r"{\1}", rule.rule), method.lower()), operation


def _provider_operation(name: str, provider: type[AnyProvider]) -> Operation:
    """Whether or not the provider is configured: the document is about the API, not about mailonce.toml."""
    retry, rejected = provider.retry_status, provider.rejected_status or 400
    text = inspect.getdoc(sys.modules[provider.__module__]) or ""
    answers = {200: Verdict | Verdicts | NoEmail, retry: Verdict | Verdicts | Refusal, rejected: Refusal | Verdicts}
    notes = {
        401: "Invalid signature or credentials.",
        200: "Accepted: the sender may forget it.",
        retry: "Not accepted now, or another request is processing it: send it again.",
        rejected: "The request can never be accepted as it is.",
    }
    if not provider.security:
        text += "\n\nThe proof of origin is in the body."
    what = "posts and chat messages" if provider is Messages else f"an email from {name}"
    body = dict.fromkeys(provider.media_types, provider.body_type)
    description = text.strip().replace("``", "`")
    return Operation(f"Receive {what}", answers, notes, None, body, provider.security, description)


def _describe(operation: Operation, path: str, method: str, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    resource = path.removeprefix(ADMIN).partition("/")[0]
    tag = "ingress" if path.startswith(INGRESS) else resource if resource in PATH_PARAMETERS else "operations"
    described: dict[str, Any] = {
        "tags": [tag],
        "summary": operation.summary,
        "operationId": f"{method}{re.sub('[^a-zA-Z0-9]+', '_', path).rstrip('_')}",
        "parameters": [
            *(_parameter(name, "path", PATH_PARAMETERS[tag], SOME_TEXT) for name in re.findall("{([a-z]+)}", path)),
            *_query_parameters(operation.query),
        ],
        "responses": _responses(operation, Refusal if tag == "ingress" else Problem, schemas),
    }
    if operation.description:
        described["description"] = operation.description
    if operation.security:
        described["security"] = [{name: []} for name in operation.security]
    if operation.body:
        content = {media_type: {"schema": schemas[model]} for media_type, model in operation.body.items()}
        is_optional = tag != "ingress" and all(map(_may_be_empty, operation.body.values()))
        described["requestBody"] = {"required": not is_optional, "content": content}
    return described


def _responses(operation: Operation, error: Model, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    """Errors that any operation may answer are one ``default``; docs/api.md lists their statuses."""
    notes = {status: HTTPStatus(status).phrase for status in operation.answers} | dict(operation.notes)
    answers = {str(status): (text, operation.answers.get(status, error)) for status, text in sorted(notes.items())}
    return {
        status: {
            "description": text,
            "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in HEADERS},
            "content": {media_type: {"schema": schemas[answer]} for media_type in MEDIA_TYPES.get(answer, (JSON,))},
        }
        for status, (text, answer) in (answers | {"default": ("An error.", error)}).items()
    }


def _may_be_empty(body: Model) -> bool:
    """Under /api/admin, no body counts as an empty object."""
    try:
        return bool(body.model_validate({}))
    except ValidationError:
        return False


def _query_parameters(query: Model | None) -> Iterator[dict[str, Any]]:
    schema = query.model_json_schema() if query else {}
    for name, field in schema.get("properties", {}).items():
        kind = field["anyOf"][0] if "anyOf" in field else field  # without null, which no query can express
        kind = schema["$defs"][kind["$ref"].rpartition("/")[2]] if "$ref" in kind else kind
        kind = {key: value for key, value in kind.items() if key not in ("title", "description")}
        default = {"default": field["default"]} if field.get("default") is not None else {}
        yield _parameter(name, "query", field.get("description", ""), kind | default, is_required=False)


def _parameter(name: str, place: str, text: str, schema: Mapping[str, Any], is_required: bool = True) -> dict[str, Any]:
    return {"name": name, "in": place, "required": is_required, "description": text, "schema": schema}


def _webhook(event: str, schema: Mapping[str, Any], description: str) -> dict[str, Any]:
    media_types = (JSON, "application/x-www-form-urlencoded")
    return {
        "tags": ["webhooks"],
        "summary": event,
        "description": description,
        "operationId": event,
        "parameters": [_parameter(name, "header", text, TEXT, is_required=must) for name, must, text in SIGNED],
        "requestBody": {"required": True, "content": {media_type: {"schema": schema} for media_type in media_types}},
        "responses": {status: {"description": text} for status, text in WEBHOOK_ANSWERS.items()},
    }
