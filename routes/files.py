"""GET /files/<token>/<name>: an attachment or a raw email. The link is the only proof that is needed."""

from __future__ import annotations

import io
import logging

from flask import Blueprint, redirect, send_file
from werkzeug.wrappers import Response

from orchestrator.files import PATH, Invalid, disposition
from routes.endpoints import Operation, service
from routes.responses import RETRY_AFTER_S, failed

log = logging.getLogger(__name__)
files = Blueprint("files", __name__)

ANY_TYPE = "application/octet-stream"  # a browser saves it, whatever it is
NOTES = {
    200: "The file, always as a download; ranges are supported.",
    206: "The range that was asked for.",
    302: "With S3: its address there, for five minutes.",
    404: "Not a link of this service, or changed.",
    410: "Expired, or the file was erased.",
}


@files.get(f"/{PATH}/<token>/<name>")
@Operation("An attachment or a raw email, by the link in a webhook", {200: bytes, 206: bytes}, NOTES)
def read(token: str, name: str) -> Response:
    try:
        found = service.files.find(token, name)
        if isinstance(found.source, str):
            return redirect(found.source)
        source = io.BytesIO(found.source) if isinstance(found.source, bytes) else found.source
        answer = send_file(source, ANY_TYPE, conditional=True, etag=found.sha256, max_age=0)
    except Invalid:
        return failed(404, "invalid", "not a link of this service")
    except FileNotFoundError:
        return failed(410, "gone", "this link has expired, or its file was deleted")
    except OSError as error:
        log.error("a file cannot be read: %s", error)
        return failed(503, "retry_later", "the file cannot be read now", {"Retry-After": str(RETRY_AFTER_S)})
    answer.headers["Content-Disposition"] = disposition(name)
    answer.headers["Content-Security-Policy"] = "sandbox; default-src 'none'"
    answer.headers["Cache-Control"] = "private, no-cache"
    return answer
