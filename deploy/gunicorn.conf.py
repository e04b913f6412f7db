"""If you start gunicorn yourself: gunicorn -c deploy/gunicorn.conf.py wsgi:app

`mailonce serve` does the same and, on SIGHUP, also keeps the previous mailonce.toml if the new one is invalid.
"""

from routes.server import gunicorn_conf

globals().update(gunicorn_conf())
