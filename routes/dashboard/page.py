"""The blueprint of the page, and its responses for browsers: security headers, and errors as HTML pages."""

from __future__ import annotations

from flask import Blueprint, Response, render_template, request

page = Blueprint("dashboard", __name__, template_folder="templates", static_folder="static", static_url_path="/static")

OWN_ORIGIN_ONLY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; frame-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# The HTML of an email: its own styles, no script, no network, and an opaque origin.
EMAIL_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'self'"
)
ERRORS = {
    404: ("Not found", "There is no page at this address, or it is no longer kept."),
    405: ("Method not allowed", "This address expects another kind of request."),
    413: ("Too large", "A form may have at most 256 KB. Select fewer rows, or all that match a filter."),
    500: ("Something went wrong", "This is an error in Mailonce. The log has the details."),
    503: ("Unavailable", "The journal cannot answer right now. Providers are asked to retry meanwhile."),
}
SECURITY_HEADERS = (
    ("Content-Security-Policy", OWN_ORIGIN_ONLY),
    ("X-Frame-Options", "DENY"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("X-DNS-Prefetch-Control", "off"),
    ("Cache-Control", "no-store"),
)
"""Of every response, even of the API, unless its view has set them."""


def as_page(problem: Response) -> Response:
    """Browsers get an error as a page with the same status and headers; everything under /api/ stays JSON."""
    is_ours = request.blueprint == "dashboard" or "HX-Request" in request.headers
    if request.path.startswith("/api/") or not (is_ours or "text/html" in request.headers.get("Accept", "")):
        return problem
    status = problem.status_code
    title, text = ERRORS.get(status) or ("That did not work", problem.get_json()["detail"])
    problem.set_data(render_template("dashboard/error.html", title=title, text=text, status=status))
    problem.mimetype = "text/html"
    return problem
