"""mailonce listen: a test receiver in the terminal, which shows what a destination would get."""

from __future__ import annotations

import json
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

import click
from werkzeug.exceptions import HTTPException
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response

from orchestrator.config.model import load_config
from orchestrator.delivery.signing import check_secret
from routes.commands.service import read_settings
from routes.commands.signatures import Checked, Proof, check_signature
from routes.terminal import one_line

MOST_IDS = 10_000
MOST_BODY_BYTES = 100 * 1024 * 1024
MOST_SHOWN_CHARS = 120
FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class Taken:
    """One webhook. ``times``: how often its webhook-id was received so far; 0 if it has none.

    ``payload`` is None if the body is neither JSON nor a form.
    """

    at: datetime
    path: str
    headers: dict[str, str]
    body: bytes
    payload: Any
    checked: Checked
    times: int
    status: int

    @property
    def webhook_id(self) -> str:
        return self.headers.get("webhook-id", "")


@dataclass
class Receiver:
    """Accepts every POST, at any path, and passes it to ``show``.

    A missing or wrong signature is answered with 401, as a real receiver should; everything else with ``status``.
    """

    secrets: tuple[str, ...]
    status: int
    show: Callable[[Taken], None]
    counts: Counter[str] = field(default_factory=Counter)
    _seen: OrderedDict[str, int] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def receive(self, request: Request) -> Response:
        if request.method != "POST":
            return Response("mailonce listen accepts webhooks: POST them here.\n", 405, {"Allow": "POST"})
        request.max_content_length = MOST_BODY_BYTES
        try:
            body = request.get_data()
        except HTTPException as error:
            return Response(f"{error.description}\n", error.code)
        headers = {name.lower(): value for name, value in request.headers.items()}
        with self._lock:  # also for the terminal: lines of two webhooks must not mix
            taken = self._take(request.path, headers, body, request.mimetype)
            self.show(taken)
        answer = {"ok": taken.status < 300, "signature": taken.checked.proof, "times": taken.times}
        return Response(json.dumps(answer), taken.status, content_type="application/json")

    def _take(self, path: str, headers: dict[str, str], body: bytes, mimetype: str) -> Taken:
        now = datetime.now(UTC)
        checked = check_signature(self.secrets, headers, body, now)
        times = 0
        if not checked.is_refused:  # a forged webhook must not make the real one look like a repeat
            times = self._count(headers.get("webhook-id", ""))
        status = 401 if checked.is_refused else self.status
        self.counts.update(webhooks=1, again=times > 1, refused=checked.is_refused)
        return Taken(now, path, headers, body, read_payload(body, mimetype), checked, times, status)

    def _count(self, webhook_id: str) -> int:
        """Counts the last MOST_IDS ids."""
        if not webhook_id:
            return 0
        self._seen[webhook_id] = self._seen.pop(webhook_id, 0) + 1
        if len(self._seen) > MOST_IDS:
            self._seen.popitem(last=False)
        return self._seen[webhook_id]


def read_payload(body: bytes, mimetype: str) -> Any:
    try:
        if mimetype == FORM:
            return dict(parse_qsl(body.decode(), keep_blank_values=True))
        payload = json.loads(body)
        json.dumps(payload)  # deeply nested JSON can be read, but not written again
        return payload
    except (ValueError, RecursionError):
        return None


# Showing


def as_json(taken: Taken) -> str:
    """On one line. JSON escapes control characters, so none reaches the terminal."""
    told = {
        "at": taken.at.isoformat(timespec="milliseconds"),
        "path": taken.path,
        "webhook_id": taken.webhook_id or None,
        "times": taken.times,
        "signature": taken.checked.proof,
        "why": taken.checked.why,
        "status": taken.status,
        "headers": taken.headers,
        "payload": taken.payload,
    }
    if taken.payload is None:
        told["body"] = taken.body.decode(errors="replace")
    return json.dumps(told)


def as_text(taken: Taken) -> str:
    return "\n".join(_lines(taken))


def _lines(taken: Taken) -> Iterator[str]:
    kind = taken.payload.get("type") if isinstance(taken.payload, dict) else None
    what = _cut(kind) if isinstance(kind, str) else f"{len(taken.body):,} bytes"
    clock = taken.at.astimezone().strftime("%H:%M:%S")
    yield click.style(f"{clock}  {_cut(taken.path)}  {what}  answered {taken.status}", bold=True)
    again = f"  again: {_nth(taken.times)} time" if taken.times > 1 else ""
    yield f"  webhook-id {_cut(taken.webhook_id) or 'missing'}{click.style(again, fg='yellow')}"
    color = {Proof.GOOD: "green", Proof.UNCHECKED: None}.get(taken.checked.proof, "red")
    yield click.style(f"  signature {taken.checked.proof}: {taken.checked.why}", fg=color)
    if isinstance(taken.payload, dict):
        for name, value in taken.payload.items():
            if value not in ("", None, [], {}):
                yield f"    {_cut(name):14} {_cut(value if isinstance(value, str) else json.dumps(value))}"
    else:
        yield f"    {_cut(taken.body[: 4 * MOST_SHOWN_CHARS].decode(errors='replace')) or '(an empty body)'}"
    yield ""


def _cut(text: str) -> str:
    more = f"... ({len(text):,} characters)" if len(text) > MOST_SHOWN_CHARS else ""
    return one_line(text[:MOST_SHOWN_CHARS]) + more


def _nth(count: int) -> str:
    ending = "th" if count % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th")
    return f"{count}{ending}"


# The command


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        """The receiver shows webhooks itself; other requests are not shown."""


def _secret(text: str) -> str:
    try:
        return check_secret(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address to listen on; 0.0.0.0 for other machines."
)
@click.option("--port", type=click.IntRange(0, 65535), default=9000, show_default=True, help="0 picks a free one.")
@click.option(
    "--secret",
    "secrets",
    type=_secret,
    multiple=True,
    metavar="WHSEC",
    help="Checks signatures; may be repeated. Default: all secrets of WEBHOOK_SECRET and mailonce.toml; without any, "
    "nothing is checked.",
)
@click.option(
    "--status", type=click.IntRange(200, 599), default=200, show_default=True, help="503 simulates a failing receiver."
)
@click.option("--json", "in_json", is_flag=True, help="Print each webhook as one line of JSON, with its headers.")
def listen(host: str, port: int, secrets: tuple[str, ...], status: int, in_json: bool) -> None:
    """Run a test receiver: show each webhook, check its signature, and mark repeats.

    A webhook without a valid signature is answered with 401. Ctrl+C ends it.

    \b
    mailonce listen
    WEBHOOK_URL=http://127.0.0.1:9000/ mailonce serve        (in another terminal)
    mailonce listen --status 503                             (watch the retries)
    mailonce listen --json | jq .payload.subject
    """
    secrets = secrets or _configured_secrets()
    shown = as_json if in_json else as_text
    server: BaseWSGIServer | None = None
    broken: list[BrokenPipeError] = []

    def show(taken: Taken) -> None:
        try:
            click.echo(shown(taken))
        except BrokenPipeError as error:  # the reader of the pipe has ended
            broken.append(error)
            if server:
                threading.Thread(target=server.shutdown).start()

    receiver = Receiver(secrets, status, show)
    server = make_server(host, port, Request.application(receiver.receive), threaded=True, request_handler=_Quiet)
    checks = f"checks signatures with {len(secrets)} secret{'s' * (len(secrets) > 1)}" if secrets else "has no secret"
    url = f"http://{f'[{host}]' if ':' in host else host}:{server.port}/"
    click.echo(f"mailonce listens on {url}, answers {status}, {checks}. Ctrl+C ends it.", err=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
    if broken:
        raise broken[0]  # click exits like every program in a pipe
    counts = receiver.counts
    click.echo(f"\n{counts['webhooks']} webhooks, {counts['again']} again, {counts['refused']} refused", err=True)


def _configured_secrets() -> tuple[str, ...]:
    config = load_config(read_settings())
    configured = [each.secret for each in config.destinations.values()] + [config.alerts.secret]
    return tuple(dict.fromkeys(secret for each in configured for secret in each))
