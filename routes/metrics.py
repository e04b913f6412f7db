"""GET /metrics, for Prometheus: of a server, and of a worker on a machine of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flask import Blueprint, Flask, Response, request
from werkzeug.serving import WSGIRequestHandler, make_server

from orchestrator.build import Parts, build_parts, build_queue
from orchestrator.config.model import Config
from orchestrator.config.settings import Settings, SettingsError
from orchestrator.delivery.queue import Queue
from orchestrator.operations.exposition import Exposition
from orchestrator.tokens import Tokens, ensure_tokens
from routes.auth import TooManyGuesses, Unauthorized, limited, require_bearer
from routes.request_ids import client_address
from routes.responses import too_many_guesses, unauthorized


def metrics_blueprint(parts: Parts, queue: Queue | None, tokens: Tokens) -> Blueprint:
    metrics = Blueprint("metrics", __name__)
    exposition = Exposition(parts, queue)

    @metrics.get("/metrics")
    def scrape() -> Response:
        given = request.headers.get("Authorization")
        with limited(parts.guesses, client_address(request.environ, parts.settings.trusted_proxies), given):
            require_bearer(given, (*tokens.admin, *tokens.metrics))
        text, content_type = exposition.render(request.headers.get("Accept", ""))
        return Response(text, content_type=content_type)

    return metrics


@contextmanager
def serving_metrics(settings: Settings, config: Config) -> Iterator[None]:
    """On WORKER_METRICS_PORT, for as long as the worker runs: its processes count into files of their machine."""
    if not settings.worker_metrics_port:
        yield
        return
    app = Flask(__name__)
    app.register_error_handler(Unauthorized, lambda _: unauthorized())
    app.register_error_handler(TooManyGuesses, lambda error: too_many_guesses(error.wait_s))
    try:
        server = make_server(
            settings.host, settings.worker_metrics_port, app, threaded=True, request_handler=_WithoutAccessLog
        )
    except (OSError, SystemExit) as error:  # werkzeug ends the process where the port is taken
        raise SettingsError(f"WORKER_METRICS_PORT takes a free port; {settings.worker_metrics_port} is not") from error
    queue, parts = build_queue(settings), build_parts(settings, config)
    app.register_blueprint(metrics_blueprint(parts, queue, ensure_tokens(settings)))
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        parts.close()
        if queue:
            queue.close()


class _WithoutAccessLog(WSGIRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """A line every few seconds would tell nobody anything."""
