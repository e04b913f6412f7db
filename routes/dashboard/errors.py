"""Errors as pages, for whoever looks with a browser; the API answers with problem documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from flask import Response, render_template, request

from routes.responses import Answer

E = TypeVar("E", bound=Exception)

WORDS = {
    404: ("Not here", "Nothing has this address, or it is no longer kept."),
    405: ("Not like this", "This address takes another kind of request."),
    413: ("Too much", "A form of this page takes at most 256 KB. Choose fewer, or all that match a filter."),
    500: ("Something went wrong", "It is our fault, and the log says more."),
    503: ("Not now", "The store cannot answer at the moment. Emails are answered with retry-later meanwhile."),
}


def or_page(told: Callable[[E], Answer]) -> Callable[[E], Answer | Response]:
    """The same error, for a browser as a page with the same status."""

    def answer(error: E) -> Answer | Response:
        as_json = told(error)
        return error_page(as_json) if wants_page() else as_json

    return answer


def wants_page() -> bool:
    if request.path.startswith("/api/"):
        return False
    is_ours = request.blueprint == "dashboard" or "HX-Request" in request.headers
    return is_ours or "text/html" in request.headers.get("Accept", "")


def error_page(as_json: Answer) -> Response:
    status = as_json[1]
    said = as_json[0].get_json()["detail"]
    title, text = WORDS.get(status, ("That did not work", said))
    page = Response(render_template("dashboard/error.html", title=title, text=text, status=status), status)
    for name, value in as_json[2].items() if len(as_json) == 3 else ():
        page.headers[name] = value
    return page
