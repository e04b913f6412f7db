"""The blueprint of the page, and the service that its views ask."""

from __future__ import annotations

from typing import cast

from flask import Blueprint, current_app
from werkzeug.local import LocalProxy

from orchestrator.build import Service

page = Blueprint("dashboard", __name__, template_folder="templates", static_folder="static", static_url_path="/static")
service = cast(Service, LocalProxy(lambda: current_app.extensions["mailonce"]))
"""The service of the application that handles the current request."""
