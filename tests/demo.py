"""make demo: a page to look at, a dozen emails and what happened to each, then an hour of mail in a minute, in which a
destination fails and a process is killed. Exits with 1 if a result differs, or an email is lost or doubled."""

import argparse
import contextlib
import logging
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import requests
from werkzeug.test import TestResponse

from orchestrator.build import build
from orchestrator.config.model import load_config
from orchestrator.config.settings import Settings, load_settings
from orchestrator.delivery.fetching import fetch
from routes.app import create_app
from routes.providers.base import Surroundings
from routes.providers.registry import open_providers
from routes.providers.samples import curl_line, sample_letter
from tests.bench.figures import aligned
from tests.support.curl import read_curl
from tests.support.server import ADMIN, ADMIN_TOKEN, Server
from tests.support.sink import Reply, Sink
from tests.support.surroundings import forget_environment
from tests.support.waiting import wait_for

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


def play(steps: Sequence[Step]) -> list[Result]:
    """In a temporary folder, with its own mailonce.toml; every setting is given, so that none is the environment's."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mailonce-demo-")))
        stack.enter_context(contextlib.chdir(folder))
        (folder / "mailonce.toml").write_text(PROVIDERS)
        sink, now = stack.enter_context(Sink()), THIS_MONTH
        given = {name: setting.default for name, setting in Settings.model_fields.items()}
        given |= {"data_dir": folder, "webhook_url": sink.url, "ingress_token": TOKEN, "admin_token": TOKEN}
        settings = load_settings(**given)
        service = build(settings)
        stack.callback(service.close)
        service.pipeline = replace(service.pipeline, now=lambda: now)
        client = create_app(service).test_client()
        providers = open_providers(load_config(settings), Surroundings((TOKEN,), fetch))

        def send(step: Step) -> TestResponse:
            if not step.provider:
                return client.post("/api/ingress/gmail", json=step.email, headers={"Authorization": f"Bearer {TOKEN}"})
            sample = providers[step.provider].sample(sample_letter(step.now), step.now)
            request = read_curl(curl_line(sample, ADDRESS))
            return client.post(request.url.removeprefix(ADDRESS), data=request.body, headers=request.headers)

        def play_one(step: Step) -> Result:
            nonlocal now
            now = step.now
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


class Hour:
    """An hour of mail, three emails a minute, at a server that is a process of its own. The provider sends every third
    email twice, and retries what is not answered 200."""

    def __init__(self, server: Server, sink: Sink, seconds: float) -> None:
        self._server, self._sink, self._pause_s = server, sink, seconds / 60
        self._answers: dict[str, list[str]] = {}  # of each email, those with 200

    def send(self, subject: str, sender: str = "ada@example.org") -> None:
        email = _email(subject, sender, "2026-11-16T09:00:00Z", f"This is about {subject}.")
        for _ in range(400):
            with contextlib.suppress(requests.RequestException):
                answer = self._server.post(email)
                if answer.status_code == 200:
                    self._answers.setdefault(subject, []).append(answer.json()["status"])
                    return
            time.sleep(0.1)

    def play(self) -> int:
        """Returns how many emails were lost or doubled."""
        with ThreadPoolExecutor(4) as provider:
            for minute in range(60):
                if minute in self._EVENTS:
                    print(f"  minute {minute:2}: {self._EVENTS[minute]}", flush=True)
                self._sink.otherwise = Reply(503) if 15 <= minute < 30 else Reply()
                if minute == 45:
                    self._kill()
                subjects = [f"Order {3 * minute + number}" for number in range(3)]
                subjects += subjects[:1] + (["Lot 7, a question"] if minute % 10 == 1 else [])
                list(provider.map(self.send, subjects))
                time.sleep(self._pause_s)
        return self._sum_up()

    _EVENTS = {
        0: "mail arrives, and the provider sends every third email twice",
        15: "the destination begins to fail: emails are stored",
        30: "it works again: stored emails go out",
        45: "a process is killed (kill -9) in the middle of a delivery",
    }

    def _kill(self) -> None:
        wait_for(lambda: len(self._sink.subjects) >= 3 * 45 and self._is_settled(), "everything sent is delivered")
        held = self._sink.answers["Order at risk"] = Reply(0, after=threading.Event())
        self._sink.arrived.clear()
        with ThreadPoolExecutor(1) as provider:
            provider.submit(self.send, "Order at risk")
            self._sink.arrived.wait(MOST_WAITED_S)
            for pid in self._server.worker_pids():
                os.kill(pid, signal.SIGKILL)
            del self._sink.answers["Order at risk"]
            if held.after:
                held.after.set()

    def _is_settled(self) -> bool:
        """A delivery that is made and not noted yet would be repeated after the kill."""
        url = f"{self._server.url}/api/admin/deliveries?status="
        answers = (requests.get(url + status, headers=ADMIN, timeout=30) for status in ("waiting", "claimed"))
        return not any(answer.json()["deliveries"] for answer in answers)

    def _sum_up(self) -> int:
        suppressed = {subject for subject, statuses in self._answers.items() if statuses[0].startswith("skipped")}
        wanted = self._answers.keys() - suppressed
        with contextlib.suppress(AssertionError):
            wait_for(lambda: wanted <= self._sink.subjects.keys(), within_s=MOST_WAITED_S)
        received = Counter(self._sink.subjects)
        stored = {subject for subject, statuses in self._answers.items() if statuses[0] == "queued"}
        lost, double = wanted - received.keys(), sum(received.values()) - len(received)
        figures = {
            "requests received": sum(map(len, self._answers.values())),
            "emails delivered": len(received),
            "duplicates stopped": sum(len(statuses) - 1 for statuses in self._answers.values()),
            "suppressed by their subject group": len(suppressed),
            "deliveries retried": len(stored | {each.subject for each in self._sink.received if each.status != 200}),
            "lost": len(lost),
            "double": double,
        }
        print("\nWhat was saved\n" + "\n".join(f"  {name:34} {count:4}" for name, count in figures.items()))
        return len(lost) + double


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make demo")
    parser.add_argument("--seconds", type=float, default=60, help="how long the hour takes")
    parser.add_argument("--stay", action="store_true", default=sys.stdout.isatty(), help="keep the page up")
    options = parser.parse_args(given)
    forget_environment()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mailonce-demo-")))
        sink = stack.enter_context(Sink())
        config = folder / "mailonce.toml"
        config.write_text(f"[destinations.crm]\nurl = '{sink.url}'\nbreaker_pause_s = 2\n")
        settings = {"MAILONCE_CONFIG": str(config), "WEB_CONCURRENCY": "2", "LEASE_SECONDS": "5"}
        server = stack.enter_context(Server(folder / "data", **settings))
        hour = Hour(server, sink, options.seconds)
        for subject in ("Lot 7", "Invoice 2026-118", "Invoice 2026-118"):
            hour.send(subject)
        print(f"Page: {server.url}/   token: {ADMIN_TOKEN}\n", flush=True)
        wrong = explain()
        print("\nAn hour of mail in a minute", flush=True)
        wrong += hour.play()
        if options.stay:
            with contextlib.suppress(KeyboardInterrupt):  # which may come as soon as the line is read
                print(f"\nThe page stays up: {server.url}/   token: {ADMIN_TOKEN}   Ctrl+C ends it", flush=True)
                signal.pause()
    return 1 if wrong else 0


def explain(steps: Sequence[Step] = STEPS) -> int:
    """Shows what happened to each email, and why; how many results differ."""
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
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main())
