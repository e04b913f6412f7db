"""The web page at /: what happened to emails, why, and what can be done about it."""

from routes.dashboard import formatting, views
from routes.dashboard.page import page

__all__ = ["formatting", "page", "views"]
