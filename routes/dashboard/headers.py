"""Security headers: nothing from other origins, nothing inline, nothing cached."""

from __future__ import annotations

from flask import Response, request

OURS_ONLY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "frame-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)
# The HTML of an email: its own styles, no script, no network, and an opaque origin.
EMAIL_ONLY = "; ".join(
    [
        "sandbox",
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        "img-src data:",
        "form-action 'none'",
        "base-uri 'none'",
        "frame-ancestors 'self'",
    ]
)
A_YEAR = "public, max-age=31536000, immutable"


def protect(answer: Response) -> Response:
    """Adds them to every response, including those of the API. Headers set by a view stay, except Cache-Control."""
    headers = answer.headers
    headers.setdefault("Content-Security-Policy", OURS_ONLY)
    headers.setdefault("X-Frame-Options", "DENY")
    headers.setdefault("X-Content-Type-Options", "nosniff")
    headers.setdefault("Referrer-Policy", "same-origin")
    headers.setdefault("Cross-Origin-Opener-Policy", "same-origin")
    headers.setdefault("X-DNS-Prefetch-Control", "off")
    if request.endpoint == "dashboard.static" and "v" in request.args and answer.status_code in (200, 304):
        headers["Cache-Control"] = A_YEAR  # its URL changes with its content
    else:
        headers["Cache-Control"] = "no-store"
    return answer
