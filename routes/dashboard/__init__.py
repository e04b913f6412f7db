"""The web page at /: what happened to emails, why, and what can be done about it.

Like the API, its views call orchestrator/operations.
"""

from __future__ import annotations

from flask import Blueprint

from orchestrator.build import Service
from routes.dashboard.access import add_access
from routes.dashboard.actions import add_actions
from routes.dashboard.formatting import add_formatting
from routes.dashboard.views import add_views


def dashboard_blueprint(service: Service) -> Blueprint:
    page = Blueprint(
        "dashboard", __name__, template_folder="templates", static_folder="static", static_url_path="/static"
    )
    add_formatting(page)
    add_access(page, service)
    add_views(page, service)
    add_actions(page, service)
    return page
