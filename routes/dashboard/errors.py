"""Errors as HTML pages for browsers; the API answers with problem documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from flask import Response, render_template, request

from routes.responses import Answer

E = TypeVar("E", bound=Exception)

WORDS = {
    404: ("Not found", "There is no page at this address, or it is no longer kept."),
    405: ("Method not allowed", "This address expects another kind of request."),
    413: ("Too large", "A form may have at most 256 KB. Select fewer rows, or all that match a filter."),
    500: ("Something went wrong", "This is an error in Mailonce. The log has the details."),
    503: ("Unavailable", "The journal cannot answer right now. Providers are asked to retry meanwhile."),
}


def or_page(respond: Callable[[E], Answer]) -> Callable[[E], Answer | Response]:
    """Browsers get the same error as a page with the same status."""

    def answer(error: E) -> Answer | Response:
        as_json = respond(error)
        return error_page(as_json) if wants_page() else as_json

    return answer


def wants_page() -> bool:
    if request.path.startswith("/api/"):
        return False
    is_ours = request.blueprint == "dashboard" or "HX-Request" in request.headers
    return is_ours or "text/html" in request.headers.get("Accept", "")


def error_page(as_json: Answer) -> Response:
    status = as_json[1]
    detail = as_json[0].get_json()["detail"]
    title, text = WORDS.get(status, ("That did not work", detail))
    page = Response(render_template("dashboard/error.html", title=title, text=text, status=status), status)
    for name, value in as_json[2].items() if len(as_json) == 3 else ():
        page.headers[name] = value
    return page
