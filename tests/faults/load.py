"""Clients that behave as providers do: they send an email again only if they are asked to retry or get no answer.

New emails come at a steady rate, whatever happens to earlier requests.
"""

from __future__ import annotations

import heapq
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
NOTATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"date": "2026-11-16T10:00:00+01:00", "sender": "Ada@example.org"},
)


@dataclass(order=True)
class Request:
    at: float
    number: int
    subject: str = field(compare=False)
    machine: int = field(compare=False)
    give_up_at: float = field(compare=False)


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
    honoured up to ``size.patience_s``.
    """

    def __init__(self, urls: Sequence[str], size: Size, scenario: Scenario, seed: int) -> None:
        self._urls, self._size, self._scenario, self._seed = urls, size, scenario, seed
        self._count = scenario.loaded or len(urls)
        self._random = random.Random(seed)  # noqa: S311 - reproducible load, no secret
        self._changed = threading.Condition()
        self._waiting: list[Request] = []
        self._open = 0
        self._is_fed = False
        self._finishing = threading.Event()
        self._local = threading.local()
        self._machines: dict[str, int] = {}
        self.report = Report()

    @property
    def subjects(self) -> Collection[str]:
        return self._machines.keys()

    def run(self) -> None:
        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(self._send_requests) for _ in range(CLIENTS)]
            self._feed()
            for client in clients:
                client.result()

    def finish(self) -> None:
        """No more new emails once there were enough; ``run`` ends when the last one is accepted."""
        self._finishing.set()

    def put(self, subject: str, machine: int | None = None) -> None:
        """Sends it now; a repeat without ``machine`` goes to the one that got it first."""
        with self._changed:
            known = self._machines.setdefault(subject, machine or 0)
            self._open += 1
            self.report.sent += 1
            now = time.monotonic()
            self.report.first_sent.setdefault(subject, now)
            chosen = known if machine is None else machine
            heapq.heappush(self._waiting, Request(now, self.report.sent, subject, chosen, now + GIVE_UP_AFTER_S))
            self._changed.notify()

    def machine_of(self, subject: str) -> int:
        return self._machines[subject]

    def has_accepted(self, subjects: Collection[str]) -> bool:
        return self.report.accepted.keys() >= set(subjects)

    def _feed(self) -> None:
        size, scenario, started, count = self._size, self._scenario, time.monotonic(), 0
        subjects: list[str] = []
        while count < size.emails or not self._finishing.is_set():
            time.sleep(max(0.0, started + count / size.per_second - time.monotonic()))
            count += 1
            if subjects and self._random.random() < scenario.duplicates:
                choose = self._random.choice
                again = choose([subjects[-1], choose(subjects[-50:]), choose(subjects)])
                self.put(again, None if scenario.sticky else self._random.randrange(self._count))
            else:
                subjects.append(f"email {self._seed}-{len(subjects)}")
                self.put(subjects[-1], len(subjects) % self._count)
        with self._changed:
            self._is_fed = True
            self._changed.notify_all()

    def _send_requests(self) -> None:
        while (request := self._next()) is not None:
            wait_s = self._send(request)
            with self._changed:
                if wait_s is not None and time.monotonic() < request.give_up_at:
                    request.at = time.monotonic() + wait_s
                    if not self._scenario.sticky:
                        request.machine = self._random.randrange(self._count)
                    heapq.heappush(self._waiting, request)
                else:
                    if wait_s is not None:
                        self.report.unanswered.append(request.subject)
                    self._open -= 1
                self._changed.notify_all()

    def _next(self) -> Request | None:
        with self._changed:
            while True:
                if self._is_fed and not self._open:
                    return None
                now = time.monotonic()
                if self._waiting and self._waiting[0].at <= now:
                    return heapq.heappop(self._waiting)
                self._changed.wait(self._waiting[0].at - now if self._waiting else 0.5)

    def _send(self, request: Request) -> float | None:
        """How long to wait before it is sent again; None if it is accepted."""
        started = time.monotonic()
        notation = NOTATIONS[request.number % len(NOTATIONS)]
        payload = email(subject=request.subject, body=f"This is {request.subject}", **notation)
        try:
            url = f"{self._urls[request.machine]}/api/ingress/gmail"
            answer = self._session().post(url, json=payload, timeout=ANSWER_WITHIN_S)
            status, word = answer.status_code, answer.json()["status"]
            wait_s = min(self._size.patience_s, float(answer.headers.get("Retry-After", NO_ANSWER_WAIT_S)))
        except requests.RequestException as error:
            status, word, wait_s = 0, type(error).__name__, NO_ANSWER_WAIT_S
        ended = time.monotonic()
        is_accepted = 200 <= status < 300
        with self._changed:
            self.report.answers[f"{status} {word}"] += 1
            self.report.took.append((ended, ended - started))
            self.report.slowest_s = max(self.report.slowest_s, ended - started)
            if not is_accepted and word != UNDER_WAY:
                self.report.troubles += 1
                self.report.trouble_at = ended
            if is_accepted:
                self.report.accepted.setdefault(request.subject, (ended, request.machine))
        return None if is_accepted else wait_s

    def _session(self) -> requests.Session:
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            self._local.session.trust_env = False
            self._local.session.headers["Authorization"] = f"Bearer {INGRESS_TOKEN}"
        session: requests.Session = self._local.session
        return session
