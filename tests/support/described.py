"""Compares responses and webhooks of the service with /api/openapi.json."""

from __future__ import annotations

import copy
import re
from functools import cached_property
from typing import Any

import jsonschema_rs
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.exceptions import HTTPException
from werkzeug.test import TestResponse

from orchestrator.config.model import Config
from routes.openapi import PAGE, build_document
from routes.providers.registry import known_providers

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_known: dict[frozenset[Any], Described] = {}


class Described:
    """``check`` fails for a status, a content type or a field that the document does not have."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._validators: dict[str, jsonschema_rs.Draft202012Validator] = {}

    def check(self, method: str, path: str, answer: TestResponse) -> None:
        operation, status = self._operation(method, path), answer.status_code
        where = f"{method} {path}: {answer.status}"
        if operation is None:
            assert status in (404, 405), f"{where}, of a route that is not described"
            model = "Refusal" if path.startswith("/api/ingress/") else "Problem"
            self.validate({"$ref": f"#/components/schemas/{model}"}, answer.get_json(), where)
            return
        responses = operation["responses"]
        assert status >= 400 or str(status) in responses, f"{where} is not described"
        content = responses.get(str(status), responses["default"])["content"]
        assert answer.mimetype in content, f"{where} as {answer.mimetype} is not described"
        if answer.is_json:
            self.validate(content[answer.mimetype]["schema"], answer.get_json(), where)

    def check_webhook(self, payload: dict[str, Any]) -> None:
        webhook = self.document["webhooks"][payload["type"]]["post"]
        self.validate(webhook["requestBody"]["content"]["application/json"]["schema"], payload, payload["type"])

    def _operation(self, method: str, path: str) -> Any:
        """A path without parameters comes first."""
        for name in sorted(self.document["paths"], key=lambda each: "{" in each):
            methods = self.document["paths"][name]
            if method.lower() in methods and re.fullmatch(re.sub(r"{[a-z]+}", "[^/]+", name), path):
                return methods[method.lower()]
        return None

    def validate(self, schema: dict[str, Any], value: Any, where: str) -> None:
        key = repr(schema)
        if key not in self._validators:
            whole = {"$schema": DIALECT, **schema, "components": {"schemas": self._closed_schemas}}
            self._validators[key] = jsonschema_rs.Draft202012Validator(whole, validate_formats=True)
        errors = [f"{each.message} at {each.instance_path}" for each in self._validators[key].iter_errors(value)]
        assert not errors, f"{where}: {errors} in {value}"

    @cached_property
    def _closed_schemas(self) -> Any:
        """Without additional fields. Receivers must not rely on that: fields may be added."""
        schemas = copy.deepcopy(self.document["components"]["schemas"])
        for schema in schemas.values():
            if "properties" in schema:
                schema.setdefault("additionalProperties", False)
        return schemas


def described(app: Flask, config: Config) -> Described:
    """Built once for all applications with the same routes."""
    key = frozenset(known_providers(config).items())
    if key not in _known:
        _known[key] = Described(build_document(app, config))
    return _known[key]


def _is_of_the_page(app: Flask, method: str, path: str) -> bool:
    try:
        return str(app.url_map.bind("").match(path, method=method)[0]).startswith(f"{PAGE}.")
    except HTTPException:
        return False


def checking_client(app: Flask, config: Config) -> FlaskClient:
    """Compares each answer with the document."""

    class CheckingClient(FlaskClient):
        def open(self, *args: Any, **kwargs: Any) -> TestResponse:
            answer = super().open(*args, **kwargs)
            method, path = answer.request.method, answer.request.path
            if method in ("GET", "POST") and answer.mimetype != "text/html" and not _is_of_the_page(app, method, path):
                described(app, config).check(method, path, answer)
            return answer

    app.test_client_class = CheckingClient
    return app.test_client()


def check_webhook(payload: dict[str, Any]) -> None:
    """By the document of any application: all send the same webhooks."""
    if "type" in payload and _known:
        next(iter(_known.values())).check_webhook(payload)
