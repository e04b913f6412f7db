"""The API's description, held against what the service really answers and sends."""

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
from werkzeug.wrappers import Request

from orchestrator.config.model import Config
from routes.openapi.document import THE_PAGE, build_document
from routes.providers.registry import known_providers

HTML = "text/html"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
_known: dict[frozenset[Any], Described] = {}


class Described:
    """``check`` fails for a status, a content type, a header or a field that the document does not have."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._paths = [
            (re.compile(re.sub(r"{[a-z]+}", "[^/]+", path)), path, methods)
            for path, methods in document["paths"].items()
        ]
        self._validators: dict[str, jsonschema_rs.Draft202012Validator] = {}

    def check(self, method: str, path: str, answer: TestResponse) -> None:
        operation = self.operation(method, path)
        where = f"{method} {path}: {answer.status_code}"
        if operation is None:
            assert answer.status_code in (404, 405), f"{where}, of a route that is not described"
            model = "Refusal" if path.startswith("/api/ingress/") else "Problem"
            self.validate({"$ref": f"#/components/schemas/{model}"}, answer.get_json(), where)
            return
        told = operation["responses"].get(str(answer.status_code))
        assert told, f"{where} is not described; {sorted(operation['responses'])} are"
        assert answer.mimetype in told["content"], f"{where} as {answer.mimetype} is not described"
        for header in ("Retry-After", "WWW-Authenticate", "Allow"):
            assert header not in answer.headers or header in told["headers"], f"{where}: {header} is not described"
        if answer.is_json:
            self.validate(told["content"][answer.mimetype]["schema"], answer.get_json(), where)

    def check_webhook(self, payload: dict[str, Any]) -> None:
        event = payload["type"]
        schema = self.document["webhooks"][event]["post"]["requestBody"]["content"]["application/json"]["schema"]
        self.validate(schema, payload, f"webhook {event}")

    def operation(self, method: str, path: str) -> dict[str, Any] | None:
        method = method.lower()
        found = [(name, methods) for regex, name, methods in self._paths if regex.fullmatch(path) and method in methods]
        found.sort(key=lambda each: "{" in each[0])
        operation: dict[str, Any] | None = found[0][1][method] if found else None
        return operation

    def validate(self, schema: dict[str, Any], value: Any, where: str) -> None:
        key = repr(schema)
        if key not in self._validators:
            whole = {"$schema": DIALECT, **schema, "components": {"schemas": self._closed_schemas}}
            self._validators[key] = jsonschema_rs.Draft202012Validator(whole, validate_formats=True)
        errors = [f"{each.message} at {each.instance_path}" for each in self._validators[key].iter_errors(value)]
        assert not errors, f"{where}: {errors} in {value}"

    @cached_property
    def _closed_schemas(self) -> Any:
        """With no room for fields that nobody described. Receivers must not rely on that: fields may be added."""
        schemas = copy.deepcopy(self.document["components"]["schemas"])
        for schema in schemas.values():
            if "properties" in schema:
                schema.setdefault("additionalProperties", False)
        return schemas


def described(app: Flask, config: Config) -> Described:
    """Made once for all applications that have the same routes."""
    key = frozenset(known_providers(config).items())
    if key not in _known:
        _known[key] = Described(build_document(app, config))
    return _known[key]


def _is_of_the_page(app: Flask, asked: Request) -> bool:
    try:
        endpoint, _ = app.url_map.bind("").match(asked.path, method=asked.method)
    except HTTPException:
        return False
    return str(endpoint).startswith(f"{THE_PAGE}.")


def hold_to_its_description(app: Flask, config: Config) -> FlaskClient:
    """A client that checks each answer."""

    class CheckingClient(FlaskClient):
        def open(self, *args: Any, **kwargs: Any) -> TestResponse:
            answer = super().open(*args, **kwargs)
            asked = answer.request
            if asked.method in ("GET", "POST") and not _is_of_the_page(app, asked) and answer.mimetype != HTML:
                described(app, config).check(asked.method, asked.path, answer)
            return answer

    app.test_client_class = CheckingClient
    return app.test_client()


def check_webhook(payload: dict[str, Any]) -> None:
    """By the description of whichever application: they all send the same."""
    if "type" in payload and _known:
        next(iter(_known.values())).check_webhook(payload)
