"""The page at /: what happens, why, and what can be done about it. Views are thin: they ask what the API asks."""

from __future__ import annotations

from flask import Blueprint

from deduplication.errors import StoreUnavailable
from orchestrator.build import Service
from orchestrator.operations.cursors import InvalidCursor
from routes.dashboard import actions, destinations, emails, overview, providers, system
from routes.dashboard.access import add_access
from routes.dashboard.errors import or_page
from routes.dashboard.words import add_words
from routes.questions import wrong_cursor
from routes.responses import invalid, store_unavailable

VIEWS = (overview, emails, destinations, providers, system, actions)


def dashboard_blueprint(service: Service) -> Blueprint:
    page = Blueprint(
        "dashboard", __name__, template_folder="templates", static_folder="static", static_url_path="/static"
    )
    add_words(page)
    add_access(page, service)
    for view in VIEWS:
        view.add_views(page, service)
    page.register_error_handler(StoreUnavailable, or_page(store_unavailable))
    page.register_error_handler(InvalidCursor, or_page(lambda error: invalid(wrong_cursor(error))))
    return page
