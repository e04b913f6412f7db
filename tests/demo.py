"""make demo: a handful of emails, what happened to each, and why. Exits with 1 if a result differs."""

from __future__ import annotations

import contextlib
import logging
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from werkzeug.test import TestResponse

from orchestrator.build import build
from orchestrator.config.model import load_config
from orchestrator.config.settings import Settings, load_settings
from orchestrator.delivery.fetching import fetch
from routes.app import create_app
from routes.providers.base import Surroundings
from routes.providers.registry import open_providers
from routes.providers.samples import curl_line, sample
from tests.bench.figures import aligned
from tests.support.curl import read_curl
from tests.support.sink import Reply, Sink

TOKEN = secrets.token_urlsafe(16)
THIS_MONTH = datetime(2026, 11, 16, 9, 30, tzinfo=UTC)
NEXT_MONTH = datetime(2026, 12, 1, 9, 30, tzinfo=UTC)
NEXT_YEAR = datetime(2027, 1, 5, 9, 30, tzinfo=UTC)
PROVIDERS = """
[providers.mailgun]
signing_key = "key-of-the-demo"

[providers.postmark]
username = "postmark"
password = "password-of-the-demo"
"""
MOST_WAITED_S = 60
ADDRESS = "http://127.0.0.1:8000"
COLUMNS = ("what was sent", "HTTP", "status", "why", "webhooks so far")


@dataclass(frozen=True)
class Step:
    """One email, its circumstances, and the expected result.

    With ``provider`` it is that provider's signed sample, sent as the curl command of ``mailonce sample`` does.
    ``after_webhooks``: it is sent once so many webhooks have arrived, by the service's own retries.
    """

    what: str
    email: dict[str, str]
    http_status: int
    status: str
    webhooks: int
    now: datetime = THIS_MONTH
    destination_is_down: bool = False
    provider: str = ""
    after_webhooks: int = 0


@dataclass(frozen=True)
class Result:
    """What happened to it."""

    http_status: int
    status: str
    why: str
    webhooks: int


def _email(subject: str, sender: str, date: str, body: str) -> dict[str, str]:
    return {"subject": subject, "sender": sender, "date": date, "body": body}


LOT = _email("Lot 456 - Documents", "Ada <ada@example.org>", "Mon, 16 Nov 2026 10:00:00 +0100", "<p>Two files.</p>")
REMINDER = _email("Reminder: lot 456", "bob@example.org", "2026-11-16T09:20:00Z", "Did you get them?")
DECEMBER_LOT = LOT | {"date": "Tue, 1 Dec 2026 10:00:00 +0100", "body": "<p>Three more files.</p>"}
BOB_LEAVES = _email("DESABO", "Bob <bob@example.org>", "2026-11-16T09:05:00Z", "Please take me off the list.")
CARLA_LEAVES = _email("DESABO", "carla@example.org", "2026-11-16T09:06:00Z", "Please take me off the list.")
BOB_LEAVES_ANOTHER_LIST = BOB_LEAVES | {"body": "And off the newsletter, too."}
NO_SENDER = {"subject": "Lot 457", "date": "2026-11-16T09:07:00Z", "body": "From nobody."}
INVOICE = _email("Invoice 2026-118", "dan@example.org", "2026-11-16T09:08:00Z", "Attached.")

STEPS = (
    Step("a new email", LOT, 200, "processed", 1),
    Step("exactly the same again", LOT, 200, "already_processed", 1),
    Step("a colleague about the same lot", REMINDER, 200, "skipped_subject_group", 1),
    Step("the same subject, a month later", DECEMBER_LOT, 200, "processed", 2, now=NEXT_MONTH),
    Step("November's email, a month later", LOT, 200, "already_processed", 2, now=NEXT_MONTH),
    Step("DESABO from Bob", BOB_LEAVES, 200, "processed", 3),
    Step("DESABO from Carla", CARLA_LEAVES, 200, "processed", 4),
    Step("DESABO from Bob again", BOB_LEAVES, 200, "already_processed", 4),
    Step("Bob, same second, another text", BOB_LEAVES_ANOTHER_LIST, 200, "processed", 5),
    Step("that one again", BOB_LEAVES_ANOTHER_LIST, 200, "already_processed", 5),
    Step("an email without a sender", NO_SENDER, 400, "invalid", 5),
    Step("while the destination is down", INVOICE, 200, "queued", 5, destination_is_down=True),
    Step("a retry that was not needed", INVOICE, 200, "queued", 5, destination_is_down=True),
    Step("once it is up, seconds later", INVOICE, 200, "already_processed", 6, after_webhooks=6),
    Step("Mailgun's signed sample", {}, 200, "processed", 7, now=NEXT_YEAR, provider="mailgun"),
    Step("the same email from Postmark", {}, 200, "already_processed", 7, now=NEXT_YEAR, provider="postmark"),
)


class SettableClock:
    now = THIS_MONTH

    def __call__(self) -> datetime:
        return self.now


def play(steps: Sequence[Step]) -> list[Result]:
    """In a temporary folder, with its own mailonce.toml; every setting is given, so that none is the environment's."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mailonce-demo-")))
        stack.enter_context(contextlib.chdir(folder))
        (folder / "mailonce.toml").write_text(PROVIDERS)
        sink, clock = stack.enter_context(Sink()), SettableClock()
        given = {name: setting.default for name, setting in Settings.model_fields.items()}
        given |= {"data_dir": folder, "webhook_url": sink.url, "ingress_token": TOKEN, "admin_token": TOKEN}
        settings = load_settings(**given)
        service = build(settings)
        stack.callback(service.close)
        service.pipeline = replace(service.pipeline, now=clock)
        client = create_app(service).test_client()
        providers = open_providers(load_config(settings), Surroundings((TOKEN,), fetch))

        def send(step: Step) -> TestResponse:
            if not step.provider:
                return client.post("/api/ingress/gmail", json=step.email, headers={"Authorization": f"Bearer {TOKEN}"})
            request = read_curl(curl_line(sample(providers[step.provider], step.now), ADDRESS))
            return client.post(request.url.removeprefix(ADDRESS), data=request.body, headers=request.headers)

        def play_one(step: Step) -> Result:
            clock.now = step.now
            sink.otherwise = Reply(503) if step.destination_is_down else Reply()
            gives_up_at = time.monotonic() + MOST_WAITED_S
            while len(sink.accepted) < step.after_webhooks and time.monotonic() < gives_up_at:
                time.sleep(0.05)
            answer = send(step)
            while step.after_webhooks and answer.get_json()["status"] == "queued" and time.monotonic() < gives_up_at:
                time.sleep(0.05)  # the receiver has it a moment before that is recorded
                answer = send(step)
            body = answer.get_json()
            return Result(answer.status_code, body["status"], explained(body), len(sink.accepted))

        return [play_one(step) for step in steps]


def explained(answer: dict[str, Any]) -> str:
    """The reason, from the response alone."""
    if reason := answer.get("reason"):
        kind, _, value = str(reason["name"]).split(":", 2)
        return f"repeats {str(reason['original'])[:8]}: same {kind} {value[:20]}"
    if field := answer.get("field"):
        return f"field {field}: {answer['error']}"
    if answer["status"] == "queued":
        return f"new, as {answer['email_id'][:8]}, stored and tried again"
    group = answer.get("subject_group")
    return f"new, as {answer['email_id'][:8]}" + (f", first of {group[:20]}" if group else ", no subject group")


def main(steps: Sequence[Step] = STEPS) -> int:
    logging.basicConfig(handlers=[logging.NullHandler()])
    results = play(steps)
    shown = [(step.what, *map(str, astuple(result))) for step, result in zip(steps, results, strict=True)]
    print(aligned([COLUMNS, *shown]))
    wrong = [
        f"{step.what}: expected {step.http_status} {step.status} and {step.webhooks} webhooks"
        for step, got in zip(steps, results, strict=True)
        if (got.http_status, got.status, got.webhooks) != (step.http_status, step.status, step.webhooks)
    ]
    print("\n" + ("\n".join(["NOT as expected:", *wrong]) if wrong else "All as expected: each email fired once."))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
