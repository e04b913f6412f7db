"""What a browser is told to refuse: anything from elsewhere, anything inline, and to keep what it saw."""

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
# An email's HTML: styles of its own, no script, nothing fetched, and an origin that is nobody's.
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
    """Adds them to every answer, of the API too; a header that the view has set stays, except Cache-Control."""
    headers = answer.headers
    headers.setdefault("Content-Security-Policy", OURS_ONLY)
    headers.setdefault("X-Frame-Options", "DENY")
    headers.setdefault("X-Content-Type-Options", "nosniff")
    headers.setdefault("Referrer-Policy", "same-origin")
    headers.setdefault("Cross-Origin-Opener-Policy", "same-origin")
    headers.setdefault("X-DNS-Prefetch-Control", "off")
    if request.endpoint == "dashboard.static" and "v" in request.args and answer.status_code in (200, 304):
        headers["Cache-Control"] = A_YEAR  # its address changes with its contents
    else:
        headers["Cache-Control"] = "no-store"
    return answer
