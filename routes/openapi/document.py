"""The document, assembled from the routes of the application and what the other modules here say of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from flask import Flask
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from werkzeug.routing import Rule

from orchestrator.config.model import Config
from orchestrator.version import our_version
from routes.openapi import requests
from routes.openapi.doors import MESSAGES, PROBE, SECURITY, door
from routes.openapi.operations import OPERATIONS, PATH_WORDS, Answer, Body, Operation
from routes.openapi.webhooks import WEBHOOKS
from routes.providers.registry import AnyProvider, known_providers

THE_PAGE = "dashboard"  # for people; it is no part of the API
NOT_TOLD = {"HEAD", "OPTIONS"}  # Flask adds them to every route
REF = "#/components/schemas/{model}"
DESCRIPTION = """\
Every inbound email fires its downstream webhooks once.

Errors are problem documents (RFC 9457), but at the doors below /api/ingress, whose answers are promised to providers.
Fields may be added to answers and webhooks at any time; none is renamed or taken away without a new major version.
"""
HEADERS: Mapping[str, dict[str, Any]] = {
    "X-Request-Id": {
        "description": "In all log lines of the request; the caller's own where it sent a sane one.",
        "schema": {"type": "string"},
    },
    "Retry-After": {"description": "Seconds.", "schema": {"type": "string", "pattern": "^[0-9]+$"}},
    "WWW-Authenticate": {"description": "What is asked for.", "schema": {"type": "string"}},
    "Allow": {"description": "The methods it takes.", "schema": {"type": "string"}},
}
SIGNED = [
    ("webhook-id", True, "The same over all attempts of one webhook: a receiver that remembers it takes each once."),
    ("Idempotency-Key", True, "The same as webhook-id."),
    ("webhook-timestamp", False, "When this attempt was made, in seconds since 1970. With a secret."),
    ("webhook-signature", False, "Standard Webhooks: v1 (HMAC-SHA256) or v1a (ed25519), several while rotating."),
]


def build_document(app: Flask, config: Config) -> dict[str, Any]:
    """Raises KeyError for a route that nobody described."""
    doors = {
        f"/api/ingress/{name}{ending}": (name, provider)
        for name, provider in known_providers(config).items()
        for ending in provider.endings
    }
    paths: dict[str, dict[str, Any]] = {}
    models: dict[type[BaseModel], None] = dict.fromkeys([*WEBHOOKS.values(), requests.MessageIn])
    for rule in sorted(app.url_map.iter_rules(), key=lambda each: each.rule):
        if rule.endpoint.split(".")[0] == THE_PAGE:
            continue
        path = re.sub("<([a-z]+)_?>", r"{\1}", rule.rule)
        for method in sorted((rule.methods or set()) - NOT_TOLD):
            operation = _operation(rule, method, doors)
            models |= dict.fromkeys(_models(operation))
            paths.setdefault(path, {})[method.lower()] = _described(operation, path, method)
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=REF)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Mailonce", "version": our_version(), "description": DESCRIPTION, "license": {"name": "MIT"}},
        "servers": [{"url": "/"}],
        "paths": paths,
        "webhooks": {event: {"post": _webhook(event, model)} for event, model in WEBHOOKS.items()},
        "components": {"schemas": schemas["$defs"], "headers": dict(HEADERS), "securitySchemes": dict(SECURITY)},
    }


def _operation(rule: Rule, method: str, doors: Mapping[str, tuple[str, type[AnyProvider]]]) -> Operation:
    if rule.rule in doors:
        return PROBE if method == "GET" else door(*doors[rule.rule])
    return MESSAGES if rule.endpoint == "api_ingress.ingest_messages" else OPERATIONS[rule.endpoint]


def _models(operation: Operation) -> Iterator[type[BaseModel]]:
    for answer in operation.answers.values():
        yield from answer.models
    for content in operation.body.content.values() if operation.body else ():
        if not isinstance(content, dict):
            yield content


def _described(operation: Operation, path: str, method: str) -> dict[str, Any]:
    told: dict[str, Any] = {
        "tags": [operation.tag],
        "summary": operation.summary,
        "operationId": f"{method.lower()}{re.sub('[^a-zA-Z0-9]+', '_', path).rstrip('_')}",
        "parameters": [*_path_parameters(path, operation.tag), *_query_parameters(operation.query)],
        "responses": {str(status): _response(each) for status, each in sorted(operation.answers.items())},
    }
    if operation.description:
        told["description"] = operation.description
    if operation.security:
        told["security"] = [{name: []} for name in operation.security]
    if operation.body:
        told["requestBody"] = _body(operation.body)
    return told


def _path_parameters(path: str, tag: str) -> Iterator[dict[str, Any]]:
    for name in re.findall("{([a-z]+)}", path):
        schema = {"type": "string", "minLength": 1}
        yield {"name": name, "in": "path", "required": True, "description": PATH_WORDS[tag], "schema": schema}


def _query_parameters(query: type[BaseModel] | None) -> Iterator[dict[str, Any]]:
    if query is None:
        return
    _, schemas = models_json_schema([(query, "validation")], ref_template=REF)
    known = schemas["$defs"]
    for name, field in known[query.__name__]["properties"].items():
        schema = field["anyOf"][0] if "anyOf" in field else field  # no query can say null
        schema = known[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        schema = {key: value for key, value in schema.items() if key not in ("title", "description")}
        default = {"default": field["default"]} if field.get("default") is not None else {}
        yield {"name": name, "in": "query", "description": field.get("description", ""), "schema": schema | default}


def _body(body: Body) -> dict[str, Any]:
    return {"required": body.is_required, "content": {kind: {"schema": _schema(m)} for kind, m in body.content.items()}}


def _schema(model: type[BaseModel] | dict[str, Any]) -> dict[str, Any]:
    return model if isinstance(model, dict) else {"$ref": REF.format(model=model.__name__)}


def _response(answer: Answer) -> dict[str, Any]:
    schemas = [_schema(model) for model in answer.models] or [{}]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return {
        "description": answer.description,
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in ("X-Request-Id", *answer.headers)},
        "content": {media_type: {"schema": schema} for media_type in answer.media_types},
    }


def _webhook(event: str, model: type[BaseModel]) -> dict[str, Any]:
    return {
        "tags": ["webhooks"],
        "summary": event,
        "description": model.__doc__,
        "operationId": event,
        "parameters": [_signed(*each) for each in SIGNED],
        "requestBody": _body(Body({"application/json": model, "application/x-www-form-urlencoded": model})),
        "responses": _judged(),
    }


def _signed(name: str, required: bool, description: str) -> dict[str, Any]:
    schema = {"type": "string"}
    return {"name": name, "in": "header", "required": required, "description": description, "schema": schema}


def _judged() -> dict[str, dict[str, str]]:
    return {
        "2XX": {"description": "Delivered; `id` or `postId` of a JSON answer is kept."},
        "408": {"description": "Tried again."},
        "409": {"description": "Tried again."},
        "410": {"description": "The destination is paused until somebody resumes it."},
        "425": {"description": "Tried again."},
        "429": {"description": "Tried again; Retry-After is honoured."},
        "4XX": {"description": "Refused for good: a dead letter."},
        "5XX": {"description": "Tried again; Retry-After is honoured."},
    }
