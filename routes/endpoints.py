"""Views whose annotations are pydantic models: these validate requests, serialise answers, and describe both."""

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cache, wraps
from typing import Any, Literal, TypeVar, cast, get_type_hints

from flask import current_app, jsonify, request
from pydantic import BaseModel, create_model
from werkzeug.local import LocalProxy

from deduplication.values import frozen
from orchestrator.build import Service
from routes.payload import parse_json, read
from routes.responses import Answer

JSON = "application/json"
Model = type[BaseModel]
View = TypeVar("View", bound=Callable[..., Any])

service = cast(Service, LocalProxy(lambda: current_app.extensions["mailonce"]))
"""The service of the application that handles the current request."""


@frozen
class Operation:
    """What routes/openapi.py says about a view. ``answers`` are types by HTTP status, ``body`` types by media type.

    ``notes`` describe statuses; one without an answer is an error. Any one of ``security`` is enough.
    """

    summary: str
    answers: Mapping[int, Any]
    notes: Mapping[int, str] = field(default_factory=dict)
    query: Model | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    security: tuple[str, ...] = ()
    description: str = ""

    def __call__(self, view: View) -> View:
        """As a decorator of the view."""
        view.operation = self  # type: ignore[attr-defined]
        return view


def admin_endpoint(
    summary: str, notes: Mapping[int, str] | None = None
) -> Callable[[Callable[..., BaseModel]], Callable[..., Answer]]:
    """For a view under /api/admin that returns a model. It gets the parts of the path, and ``query`` or ``body`` if it
    has such a parameter. A missing body counts as an empty object; the answer begins with `"success": true`."""

    def decorate(view: Callable[..., BaseModel]) -> Callable[..., Answer]:
        models: dict[str, Model] = get_type_hints(view)
        query, body = models.get("query"), models.get("body")

        @wraps(view)
        def respond(**arguments: Any) -> Answer:
            if query:
                arguments["query"] = read(query, request.args.to_dict())
            if body:
                sent = request.get_data()
                document = parse_json(sent, request.content_type or "") if sent else {}
                arguments["body"] = read(body, document, "body")
            return jsonify({"success": True} | view(**arguments).model_dump(mode="json")), 200

        answers, bodies = {200: _with_success(models["return"])}, {JSON: body} if body else {}
        security = ("adminToken",) if body else ("adminToken", "viewToken")
        return Operation(summary, answers, notes or {}, query, bodies, security)(respond)

    return decorate


class Success(BaseModel):
    success: Literal[True]


@cache
def _with_success(model: Model) -> Model:
    return create_model(model.__name__, __base__=(model, Success), __doc__=model.__doc__)
