"""A page puts many questions to Redis, and so does a probe: one that keeps silent is waited for once a request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from deduplication.silence import waiting_once

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

INGRESS = "/api/ingress/"


class WaitsOnce:
    """Around all but the doors of emails: those wait for each step."""

    def __init__(self, app: WSGIApplication) -> None:
        self._app = app

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"].startswith(INGRESS):
            return self._app(environ, start_response)
        with waiting_once():
            return self._app(environ, start_response)
