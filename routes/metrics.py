"""GET /metrics, for Prometheus: of a server, and of a worker on a machine of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flask import Blueprint, Flask, Response, request
from werkzeug.serving import WSGIRequestHandler, make_server

from orchestrator.build import Service, build_service
from orchestrator.config.model import Config
from orchestrator.config.settings import Settings, SettingsError
from orchestrator.operations.exposition import Exposition
from routes.auth import TooManyGuesses, Unauthorized, limited, require_bearer
from routes.request_ids import client_address
from routes.responses import too_many_guesses, unauthorized


def metrics_blueprint(service: Service) -> Blueprint:
    metrics = Blueprint("metrics", __name__)
    exposition = Exposition(service)

    @metrics.get("/metrics")
    def scrape() -> Response:
        given = request.headers.get("Authorization")
        with limited(service.guesses, client_address(request.environ, service.settings.trusted_proxies), given):
            require_bearer(given, (*service.tokens.admin, *service.tokens.metrics))
        text, content_type = exposition.render(request.headers.get("Accept", ""))
        return Response(text, content_type=content_type)

    return metrics


@contextmanager
def serving_metrics(settings: Settings, config: Config) -> Iterator[None]:
    """On WORKER_METRICS_PORT, for as long as the worker runs: its processes count in the journal of their machine."""
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
    except (OSError, SystemExit) as error:  # werkzeug ends the process if the port is in use
        raise SettingsError(f"WORKER_METRICS_PORT must be a free port, got {settings.worker_metrics_port}") from error
    service = build_service(settings, config)
    app.register_blueprint(metrics_blueprint(service))
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        service.close()


class _WithoutAccessLog(WSGIRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """A line every few seconds would help nobody."""
