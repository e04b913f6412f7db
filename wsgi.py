"""The WSGI entry point, for servers other than `mailonce serve`."""

from routes.server import load_app

app = load_app()
