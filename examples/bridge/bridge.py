"""Passes each email on to Slack as a message, or to Zammad as a ticket: one ticket for each conversation."""

import json
import os
import sqlite3

import requests
from flask import Flask, abort, request
from standardwebhooks import Webhook, WebhookVerificationError

SECRETS = os.environ["WEBHOOK_SECRET"].split(",")  # several while a secret is changed
SLACK_URL = os.environ.get("SLACK_URL", "")  # of an incoming webhook
ZAMMAD_URL = os.environ.get("ZAMMAD_URL", "").rstrip("/")
ZAMMAD_TOKEN = os.environ.get("ZAMMAD_TOKEN", "")
ZAMMAD_GROUP = os.environ.get("ZAMMAD_GROUP", "Users")
DATABASE = os.environ.get("DATABASE", "bridge.db")

app = Flask(__name__)
app.config["MAX_CONTENT_LENGTH"] = 50 * 1024 * 1024

with sqlite3.connect(DATABASE) as db:
    db.execute("CREATE TABLE IF NOT EXISTS taken (webhook_id TEXT PRIMARY KEY)")
    db.execute("CREATE TABLE IF NOT EXISTS tickets (thread TEXT PRIMARY KEY, ticket INTEGER)")


def post(url: str, document: dict, **headers: str) -> requests.Response:
    """Raises RequestException unless the answer is 2xx."""
    answer = requests.post(url, json=document, headers=headers, timeout=10, allow_redirects=False)
    if not 200 <= answer.status_code < 300:
        raise requests.HTTPError(f"answered {answer.status_code}")
    return answer


def to_slack(email: dict, db: sqlite3.Connection) -> None:
    parts = (f"*{email['subject'] or 'No subject'}*", f"From {email['sender']}", email["body_preview"])
    escaped = "\n".join(parts).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    post(SLACK_URL, {"text": escaped})


def to_zammad(email: dict, db: sqlite3.Connection) -> None:
    files = [file for file in email["attachments"] if file.get("content")]  # attachments = "inline"
    article = {
        "type": "email",
        "sender": "Customer",  # an email of an agent would be sent
        "from": email["sender"],
        "to": ", ".join(email["to"] or ()),
        "cc": ", ".join(email["cc"] or ()),
        "reply_to": ", ".join(email["reply_to"] or ()),
        "subject": email["subject"],
        "body": email["html"] or email["text"] or "",
        "content_type": "text/html" if email["html"] else "text/plain",
        "message_id": f"<{email['message_id']}>" if email["message_id"] else "",
        "in_reply_to": f"<{email['in_reply_to']}>" if email["in_reply_to"] else "",
        "attachments": [
            {"filename": file["name"], "data": file["content"], "mime-type": file["content_type"]} for file in files
        ],
    }
    thread, token = email["thread"] or email["email_id"], f"Token token={ZAMMAD_TOKEN}"
    known = db.execute("SELECT ticket FROM tickets WHERE thread = ?", (thread,)).fetchone()
    if known:
        post(f"{ZAMMAD_URL}/api/v1/ticket_articles", {"ticket_id": known[0], **article}, Authorization=token)
        return
    ticket = {
        "title": email["subject"] or "No subject",
        "group": ZAMMAD_GROUP,
        "customer_id": f"guess:{email['sender_email']}",  # Zammad makes the customer if there is none
        "article": article,
    }
    made = post(f"{ZAMMAD_URL}/api/v1/tickets", ticket, Authorization=token).json()
    db.execute("INSERT INTO tickets VALUES (?, ?)", (thread, made["id"]))


def is_signed(body: bytes) -> bool:
    for secret in SECRETS:
        try:
            Webhook(secret).verify(body, dict(request.headers), json_parse=False)
        except (WebhookVerificationError, ValueError):
            continue
        return True
    return False


@app.post("/slack", defaults={"send": to_slack}, endpoint="slack")
@app.post("/zammad", defaults={"send": to_zammad}, endpoint="zammad")
def receive(send):
    body = request.get_data()
    if not is_signed(body):
        abort(401)
    row = (f"{request.path} {request.headers['webhook-id']}",)
    with sqlite3.connect(DATABASE, timeout=30) as db:
        if db.execute("INSERT OR IGNORE INTO taken VALUES (?)", row).rowcount == 0:
            return {"is_new": False}
        try:
            send(json.loads(body), db)
        except requests.RequestException as error:  # Mailonce tries again
            app.logger.warning("%s: %s", request.path, error)
            abort(502)
    return {"is_new": True}


if __name__ == "__main__":
    app.run(port=int(os.environ.get("PORT", "9000")))
