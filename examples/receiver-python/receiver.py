"""A receiver that accepts each webhook once: Flask, and SQLite for the webhooks it has accepted."""

import json
import os
import sqlite3

from flask import Flask, abort, request
from standardwebhooks import Webhook, WebhookVerificationError

# As at the other end. Several with commas: while a secret is changed, the old one and the new one are good.
SECRETS = os.environ["WEBHOOK_SECRET"].split(",")
DATABASE = os.environ.get("DATABASE", "taken.db")

app = Flask(__name__)
app.config["MAX_CONTENT_LENGTH"] = 50 * 1024 * 1024

with sqlite3.connect(DATABASE) as db:
    db.execute("CREATE TABLE IF NOT EXISTS taken (webhook_id TEXT PRIMARY KEY, subject TEXT, payload TEXT)")


def is_signed(body: bytes) -> bool:
    """By one of the secrets, within five minutes; the library compares in constant time."""
    for secret in SECRETS:
        try:
            Webhook(secret).verify(body, dict(request.headers), json_parse=False)
        except (WebhookVerificationError, ValueError):
            continue
        return True
    return False


@app.post("/hooks/mail")
def receive():
    body = request.get_data()
    if not is_signed(body):
        abort(401)
    email = json.loads(body)
    webhook_id = request.headers["webhook-id"]
    with sqlite3.connect(DATABASE, timeout=30) as db:  # one transaction: the id, and what you do with the email
        row = (webhook_id, email.get("subject", ""), body.decode())
        is_new = db.execute("INSERT OR IGNORE INTO taken VALUES (?, ?, ?)", row).rowcount == 1
    return {"id": webhook_id, "is_new": is_new}


if __name__ == "__main__":
    app.run(port=int(os.environ.get("PORT", "9000")))
