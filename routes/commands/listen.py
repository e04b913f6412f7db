"""mailonce listen: a test receiver in the terminal, which shows what a destination would get."""

import json
import logging
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

import click
from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

from orchestrator.config.model import load_config
from orchestrator.delivery.signing import check_secret, sign_with
from routes.auth import equals_any
from routes.commands.service import one_line, read_settings
from routes.payload import InvalidPayload, parse_json

TOLERANCE_S = 5 * 60
MOST_BODY_BYTES = 100 * 1024 * 1024
MOST_SHOWN_CHARS = 120
FORM = "application/x-www-form-urlencoded"
SIGNED_HEADERS = ("webhook-id", "webhook-timestamp", "webhook-signature")


def check_signature(secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: datetime) -> tuple[str, str]:
    """Checks a webhook as a receiver does (Standard Webhooks): good, unchecked, missing or wrong, and why.

    A secret verifies HMAC signatures (v1), a private key ed25519 ones (v1a). ``headers`` have lower-case names.
    """
    webhook_id, timestamp, signatures = (headers.get(name, "") for name in SIGNED_HEADERS)
    if not secrets:
        return "unchecked", "there is no --secret to check it with"
    if absent := [name for name in SIGNED_HEADERS if not headers.get(name)]:
        return "missing", f"no {' and no '.join(absent)}: does its destination have a secret?"
    if not re.fullmatch("[0-9]{1,11}", timestamp):  # up to the year 5138
        return "wrong", "webhook-timestamp must be in seconds since 1970"
    age_s = now.timestamp() - int(timestamp)
    if abs(age_s) > TOLERANCE_S:
        off = f"{abs(age_s):.0f} s {'old' if age_s > 0 else 'ahead'}"
        return "wrong", f"webhook-timestamp is {off}, more than {TOLERANCE_S} s: replayed, or a clock is off"
    message = f"{webhook_id}.{int(timestamp)}.".encode() + body
    for number, secret in enumerate(secrets, 1):
        if equals_any(sign_with(secret)(message), signatures.split()):
            return "good", f"by secret {number} of {len(secrets)}"
    return "wrong", f"no signature matches a secret ({len(secrets)} tried): signed with another one, or changed"


@dataclass
class Receiver:
    """Accepts every POST, at any path, and shows it.

    A missing or wrong signature is answered with 401, as a real receiver should; everything else with ``status``.
    """

    secrets: Sequence[str]
    status: int
    as_json: bool
    counts: Counter[str] = field(default_factory=Counter)
    times: Counter[str] = field(default_factory=Counter)  # how often each webhook-id was received
    lock: threading.Lock = field(default_factory=threading.Lock)

    def receive(self, request: Request) -> Response:
        if request.method != "POST":
            return Response("mailonce listen accepts webhooks: POST them here.\n", 405, {"Allow": "POST"})
        request.max_content_length = MOST_BODY_BYTES
        body, now = request.get_data(), datetime.now(UTC)
        headers = {name.lower(): value for name, value in request.headers.items()}
        signature, why = check_signature(self.secrets, headers, body, now)
        is_refused = signature in ("missing", "wrong")
        status = 401 if is_refused else self.status
        webhook_id, payload = headers.get("webhook-id"), read_payload(body, request.mimetype)
        received = {
            "at": now.isoformat(timespec="milliseconds"),
            "path": request.path,
            "webhook_id": webhook_id,
            "times": 0,
            "signature": signature,
            "why": why,
            "status": status,
            "headers": headers,
            "payload": payload,
            "body": body.decode(errors="replace") if payload is None else None,
        }
        with self.lock:  # for the terminal as well: lines of two webhooks must not mix
            if webhook_id and not is_refused:  # a forged webhook must not make the real one look like a repeat
                self.times[webhook_id] += 1
                received["times"] = self.times[webhook_id]
            self.counts.update(webhooks=1, repeats=received["times"] > 1, refused=is_refused)
            # JSON escapes control characters, so none reaches the terminal.
            click.echo(json.dumps(received) if self.as_json else "\n".join(_lines(received)))
        return Response(f"signature {signature}: {why}\n", status)


def read_payload(body: bytes, mimetype: str) -> Any:
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True)) if mimetype == FORM else parse_json(body)
    except (ValueError, InvalidPayload):
        return None


def _lines(received: Mapping[str, Any]) -> Iterator[str]:
    payload, times = received["payload"], received["times"]
    fields = payload if isinstance(payload, dict) else {}
    clock = datetime.fromisoformat(received["at"]).astimezone().strftime("%H:%M:%S")
    kind = _short(fields.get("type") or "no type")
    yield click.style(f"{clock}  {_short(received['path'])}  {kind}  answered {received['status']}", bold=True)
    repeat = f"  received {times} times" if times > 1 else ""
    yield f"  webhook-id {_short(received['webhook_id'] or 'missing')}{click.style(repeat, fg='yellow')}"
    signature = received["signature"]
    color = "green" if signature == "good" else None if signature == "unchecked" else "red"
    yield click.style(f"  signature {signature}: {received['why']}", fg=color)
    for name, value in fields.items():
        if value not in ("", None, [], {}):
            yield f"    {_short(name):14} {_short(value)}"
    if not fields:
        yield f"    {_short(received['body'] or payload or '(an empty body)')}"
    yield ""


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    more = f"... ({len(text):,} characters)" if len(text) > MOST_SHOWN_CHARS else ""
    return one_line(text[:MOST_SHOWN_CHARS]) + more


def _secret(text: str) -> str:
    try:
        return check_secret(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Listen on this address; 0.0.0.0 for all.")
@click.option("--port", type=click.IntRange(0, 65535), default=9000, show_default=True, help="0 picks a free port.")
@click.option(
    "--secret",
    "secrets",
    type=_secret,
    multiple=True,
    metavar="WHSEC",
    help="Check signatures with it; may be repeated. Default: all secrets of WEBHOOK_SECRET and mailonce.toml.",
)
@click.option(
    "--status", type=click.IntRange(200, 599), default=200, show_default=True, help="503 simulates a failing receiver."
)
@click.option("--json", "as_json", is_flag=True, help="Print each webhook as one line of JSON, with its headers.")
def listen(host: str, port: int, secrets: tuple[str, ...], status: int, as_json: bool) -> None:
    """Run a test receiver: show each webhook, check its signature, and mark repeats.

    A webhook without a valid signature is answered with 401. Ctrl+C ends it.

    \b
    mailonce listen
    WEBHOOK_URL=http://127.0.0.1:9000/ mailonce serve        (in another terminal)
    mailonce listen --status 503                             (watch the retries)
    mailonce listen --json | jq .payload.subject
    """
    if not secrets:
        config = load_config(read_settings())
        used = [secret for destination in config.destinations.values() for secret in destination.secret]
        secrets = tuple(dict.fromkeys([*used, *config.alerts.secret]))

    receiver = Receiver(secrets, status, as_json)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # the receiver shows webhooks itself
    server = make_server(host, port, Request.application(receiver.receive), threaded=True)
    checks = f"checks signatures (secrets: {len(secrets)})" if secrets else "checks no signatures"
    url = f"http://{f'[{host}]' if ':' in host else host}:{server.port}/"
    click.echo(f"mailonce listens on {url}, answers {status}, {checks}. Ctrl+C ends it.", err=True)
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()
    counts = receiver.counts
    click.echo(f"\n{counts['webhooks']} webhooks, {counts['repeats']} repeats, {counts['refused']} refused", err=True)
