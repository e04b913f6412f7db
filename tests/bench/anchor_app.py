"""The anchors over HTTP: Flask routes behind the same gunicorn settings as the service."""

from __future__ import annotations

import os

import redis
from flask import Flask, Response, jsonify, request

from routes.connections import Workplaces
from tests.bench.anchors import LEASE_S, take_naively

client = redis.Redis.from_url(os.environ["ANCHOR_REDIS_URL"])
app = Flask(__name__)
app.wsgi_app = Workplaces(app.wsgi_app, int(os.environ["WEB_THREADS"]))  # type: ignore[method-assign]


@app.get("/livez")
def livez() -> Response:
    return jsonify({"status": "alive"})


@app.post("/bare")
def bare() -> Response:
    email = request.get_json()
    return jsonify({"success": True, "status": "processed", "email_id": email["subject"]})


@app.post("/one-op")
def one_op() -> Response:
    email = request.get_json()
    is_new = client.set(f"one:{email['subject']}", "1", nx=True, ex=LEASE_S)
    return jsonify({"success": True, "status": "processed" if is_new else "already_processed"})


@app.post("/naive")
def naive() -> Response:
    email = request.get_json()
    is_new = take_naively(client, email["subject"], f"group of {email['subject']}")
    return jsonify({"success": True, "status": "processed" if is_new else "already_processed"})
