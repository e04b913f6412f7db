"""GET /metrics for Prometheus, on a server and on a worker."""

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
from routes.auth import TooManyGuesses, Unauthorized, bearer_token, require_operator_token
from routes.endpoints import Operation, documented
from routes.responses import answer_error

SECURITY = ("adminToken", "metricsToken")


def metrics_blueprint(service: Service) -> Blueprint:
    metrics = Blueprint("metrics", __name__)
    exposition = Exposition(service)

    @metrics.get("/metrics")
    @documented(Operation("Metrics for Prometheus", {200: str}, security=SECURITY))
    def scrape() -> Response:
        token = bearer_token(request.headers.get("Authorization"))
        require_operator_token(service, request.environ, token, (*service.tokens.admin, *service.tokens.metrics))
        text, content_type = exposition.render(request.headers.get("Accept", ""))
        return Response(text, content_type=content_type)

    return metrics


@contextmanager
def serving_metrics(settings: Settings, config: Config) -> Iterator[None]:
    """Serves them on WORKER_METRICS_PORT while the worker runs; its processes count in the journal of their machine."""
    if not settings.worker_metrics_port:
        yield
        return
    app = Flask(__name__)
    app.register_error_handler(Unauthorized, answer_error)
    app.register_error_handler(TooManyGuesses, answer_error)
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
        """No line in the log for each scrape."""
