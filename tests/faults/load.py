"""Clients that behave as providers do: they send an email again only if they are asked to retry or get no answer.

New emails come at a steady rate, whatever happens to earlier requests.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import requests

from tests.support.server import INGRESS_TOKEN, email

if TYPE_CHECKING:
    from tests.faults.world import Scenario, Size

GIVE_UP_AFTER_S = 240.0
NO_ANSWER_WAIT_S = 0.5
ANSWER_WITHIN_S = 30.0
CLIENTS = 24
UNDER_WAY = "already_processing"
# The same moment and sender as providers write them: both must be recognised as the same email.
NOTATIONS: tuple[dict[str, Any], ...] = ({}, {"date": "2026-11-16T10:00:00+01:00", "sender": "Ada@example.org"})


@dataclass
class Report:
    """``accepted``: the first 2xx of each email, as (when, machine). ``slowest_s`` includes requests without an answer.

    ``troubles``: how often a client was asked to retry for another reason than that the email is being processed.
    """

    sent: int = 0
    first_sent: dict[str, float] = field(default_factory=dict)
    accepted: dict[str, tuple[float, int]] = field(default_factory=dict)
    unanswered: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    troubles: int = 0
    trouble_at: float = 0.0
    answers: Counter[str] = field(default_factory=Counter)
    took: list[tuple[float, float]] = field(default_factory=list)

    def p95_s(self, since: float) -> float:
        """Of the requests that were answered since then."""
        return statistics.quantiles([took_s for at, took_s in list(self.took) if at > since], n=20)[18]

    def pause_s(self, since: float, until: float) -> float:
        """The longest time in which a machine accepted no new email."""
        longest = 0.0
        for machine in {machine for _, machine in self.accepted.values()}:
            times = sorted(at for at, by in self.accepted.values() if by == machine and since < at < until)
            steps = zip([since, *times], [*times, until], strict=True)
            longest = max(longest, *(later - earlier for earlier, later in steps))
        return longest


class Load:
    """The traffic of a scenario: at least ``size.emails`` requests, and on until ``finish``.

    A sticky scenario sends repeats and retries to the machine that got the email first, others to any. Retry-After is
    honoured up to ``size.patience_s``. An event loop in a thread of its own waits; a pool of clients sends.
    """

    def __init__(self, urls: Sequence[str], size: Size, scenario: Scenario, seed: int) -> None:
        self._urls, self._size, self._scenario, self._seed = urls, size, scenario, seed
        self._random = random.Random(seed)  # noqa: S311 - reproducible load, no secret
        self._loop = asyncio.new_event_loop()
        self._clients = ThreadPoolExecutor(CLIENTS)
        self._emails: set[asyncio.Task[None]] = set()
        self._finishing = threading.Event()
        self._local = threading.local()
        self._machines: dict[str, int] = {}
        self.report = Report()

    @property
    def subjects(self) -> Collection[str]:
        return self._machines.keys()

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, self._clients:
            runner.run(self._feed())

    def finish(self) -> None:
        """No more new emails once there were enough; ``run`` ends when the last one is accepted."""
        self._finishing.set()

    def put(self, subject: str, machine: int | None = None) -> None:
        """Sends it now; a repeat without ``machine`` goes to the one that got it first."""
        known = self._machines.setdefault(subject, machine or 0)
        self.report.first_sent.setdefault(subject, time.monotonic())
        self._loop.call_soon_threadsafe(self._start, subject, known if machine is None else machine)

    def machine_of(self, subject: str) -> int:
        return self._machines[subject]

    def has_accepted(self, subjects: Collection[str]) -> bool:
        return self.report.accepted.keys() >= set(subjects)

    async def _feed(self) -> None:
        size, scenario, started, count = self._size, self._scenario, time.monotonic(), 0
        subjects: list[str] = []
        while count < size.emails or not self._finishing.is_set():
            await asyncio.sleep(max(0.0, started + count / size.per_second - time.monotonic()))
            count += 1
            if subjects and self._random.random() < scenario.duplicates:
                choose = self._random.choice
                again = choose([subjects[-1], choose(subjects[-50:]), choose(subjects)])
                self.put(again, None if scenario.sticky else self._random.randrange(len(self._urls)))
            else:
                subjects.append(f"email {self._seed}-{len(subjects)}")
                self.put(subjects[-1], len(subjects) % len(self._urls))
        await asyncio.sleep(0)  # the last one is started
        await asyncio.gather(*self._emails)

    def _start(self, subject: str, machine: int) -> None:
        self.report.sent += 1
        sending = self._loop.create_task(self._send_until_accepted(subject, machine, self.report.sent))
        self._emails.add(sending)
        sending.add_done_callback(self._emails.discard)

    async def _send_until_accepted(self, subject: str, machine: int, number: int) -> None:
        gives_up_at = time.monotonic() + GIVE_UP_AFTER_S
        payload = email(subject=subject, body=f"This is {subject}", **NOTATIONS[number % len(NOTATIONS)])
        while time.monotonic() < gives_up_at:
            sending = self._loop.run_in_executor(self._clients, self._post, machine, payload)
            status, word, wait_s, took_s = await sending
            ended = time.monotonic()
            self.report.answers[f"{status} {word}"] += 1
            self.report.took.append((ended, took_s))
            self.report.slowest_s = max(self.report.slowest_s, took_s)
            if 200 <= status < 300:
                self.report.accepted.setdefault(subject, (ended, machine))
                return
            if word != UNDER_WAY:
                self.report.troubles += 1
                self.report.trouble_at = ended
            await asyncio.sleep(wait_s)
            if not self._scenario.sticky:
                machine = self._random.randrange(len(self._urls))
        self.report.unanswered.append(subject)

    def _post(self, machine: int, payload: dict[str, Any]) -> tuple[int, str, float, float]:
        """The status, its word, how long to wait before a retry, and how long the answer took."""
        started = time.monotonic()
        try:
            url = f"{self._urls[machine]}/api/ingress/gmail"
            answer = self._session().post(url, json=payload, timeout=ANSWER_WITHIN_S)
            status, word = answer.status_code, answer.json()["status"]
            wait_s = min(self._size.patience_s, float(answer.headers.get("Retry-After", NO_ANSWER_WAIT_S)))
        except requests.RequestException as error:
            status, word, wait_s = 0, type(error).__name__, NO_ANSWER_WAIT_S
        return status, word, wait_s, time.monotonic() - started

    def _session(self) -> requests.Session:
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            self._local.session.trust_env = False
            self._local.session.headers["Authorization"] = f"Bearer {INGRESS_TOKEN}"
        session: requests.Session = self._local.session
        return session
