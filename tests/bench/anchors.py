"""What people write by hand: six commands for one email, a round trip each. As a step, and as a Flask app.

The app runs behind the same gunicorn settings as the service.
"""

import os
import secrets

import redis
from flask import Flask, Response, jsonify, request

from routes.connections import BoundedRequest, RequestLimit

LEASE_S = 60


def take_naively(client: redis.Redis, id_: str, group: str) -> bool:
    """Asks, locks, asks for the group, marks both, unlocks; nothing of it is atomic."""
    if client.sismember("naive:ids", id_) or not client.set(f"naive:lock:{id_}", "1", nx=True, ex=LEASE_S):
        return False
    is_new = not client.sismember("naive:groups", group)
    if is_new:
        client.sadd("naive:groups", group)
        client.sadd("naive:ids", id_)
    client.delete(f"naive:lock:{id_}")
    return is_new


def take_one_naively(client: redis.Redis) -> None:
    id_ = secrets.token_hex(16)
    assert take_naively(client, id_, f"group of {id_}")


def make_app() -> Flask:
    client = redis.Redis.from_url(os.environ["ANCHOR_REDIS_URL"])
    app = Flask(__name__)
    app.request_class = BoundedRequest
    app.config["MAX_CONTENT_LENGTH"] = 1024 * 1024
    app.wsgi_app = RequestLimit(app.wsgi_app, int(os.environ["WEB_THREADS"]))  # type: ignore[method-assign]

    @app.get("/livez")
    def livez() -> Response:
        return jsonify({"status": "alive"})

    @app.post("/<anchor>")
    def take(anchor: str) -> Response:
        subject = request.get_json()["subject"]
        is_new: object = anchor == "bare"
        if anchor == "one-op":
            is_new = client.set(f"one:{subject}", "1", nx=True, ex=LEASE_S)
        elif anchor == "naive":
            is_new = take_naively(client, subject, f"group of {subject}")
        return jsonify({"success": True, "status": "processed" if is_new else "already_processed"})

    return app
