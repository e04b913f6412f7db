"""Clients that behave as providers do: they send an email again only when they are told to, or hear nothing.

They come at a steady rate, whatever becomes of the requests before; who is told to wait does not keep others waiting.
"""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import requests

from tests.support.server import INGRESS_TOKEN, email

GIVE_UP_AFTER_S = 240.0
NO_ANSWER_WAIT_S = 0.5
ANSWER_WITHIN_S = 30.0
UNDER_WAY = "already_processing"


@dataclass(frozen=True)
class Plan:
    """At least ``emails`` at ``per_second``, and on until ``Load.finish``.

    ``duplicates`` is the share of requests that repeat an earlier email; ``sticky`` sends these to the same server, as
    a load balancer that hashes does, otherwise to any. Retry-After is honoured up to ``patience_s``.
    """

    emails: int
    per_second: float
    duplicates: float = 0.3
    sticky: bool = True
    patience_s: float = 1.0
    clients: int = 24
    seed: int = 1


@dataclass(order=True)
class Request:
    at: float
    subject: str
    server: int
    give_up_at: float


@dataclass
class Report:
    """``taken``: who was answered 2xx, and when first. ``slowest_s`` counts those without an answer too.

    ``troubles``: how often somebody was told to come back for another reason than that the email is under way, and when
    last.
    """

    sent: int = 0
    taken: dict[str, float] = field(default_factory=dict)
    unanswered: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    troubles: int = 0
    trouble_at: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)


class Load:
    """Runs a plan against servers, in the thread of whoever calls ``run``, until another calls ``finish``."""

    def __init__(self, plan: Plan, urls: Sequence[str]) -> None:
        self._plan = plan
        self._urls = urls
        self._random = random.Random(plan.seed)  # noqa: S311 - reproducible load, no secret
        self._changed = threading.Condition()
        self._waiting: list[Request] = []
        self._open = 0
        self._is_fed = False
        self._finishing = threading.Event()
        self._local = threading.local()
        self._servers: dict[str, int] = {}
        self.report = Report()

    @property
    def subjects(self) -> Collection[str]:
        return self._servers.keys()

    def run(self) -> None:
        with ThreadPoolExecutor(self._plan.clients) as pool:
            clients = [pool.submit(self._send_what_comes) for _ in range(self._plan.clients)]
            self._feed()
            for client in clients:
                client.result()

    def finish(self) -> None:
        """No more new emails once there were enough; ``run`` ends when the last one is taken."""
        self._finishing.set()

    def put(self, subject: str, server: int | None = None) -> None:
        """Sends it now; a repeat without a server to the one of its first time."""
        known = self._servers.setdefault(subject, server or 0)
        chosen = known if server is None else server
        with self._changed:
            self._open += 1
            self.report.sent += 1
            now = time.monotonic()
            heapq.heappush(self._waiting, Request(now, subject, chosen, now + GIVE_UP_AFTER_S))
            self._changed.notify()

    def server_of(self, subject: str) -> int:
        return self._servers[subject]

    def _feed(self) -> None:
        plan, started, count = self._plan, time.monotonic(), 0
        subjects: list[str] = []
        while count < plan.emails or not self._finishing.is_set():
            time.sleep(max(0.0, started + count / plan.per_second - time.monotonic()))
            count += 1
            if subjects and self._random.random() < plan.duplicates:
                at_once, lately, ever = subjects[-1], self._random.choice(subjects[-50:]), self._random.choice(subjects)
                again = self._random.choice([at_once, lately, ever])
                self.put(again, None if plan.sticky else self._random.randrange(len(self._urls)))
            else:
                subjects.append(f"email {plan.seed}-{len(subjects)}")
                self.put(subjects[-1], len(subjects) % len(self._urls))
        with self._changed:
            self._is_fed = True
            self._changed.notify_all()

    def _send_what_comes(self) -> None:
        while (request := self._next()) is not None:
            wait_s = self._send(request)
            with self._changed:
                if wait_s is not None and time.monotonic() < request.give_up_at:
                    request.at = time.monotonic() + wait_s
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
        """How long to wait before it is sent again; None if it is taken."""
        started = time.monotonic()
        payload = email(subject=request.subject, body=f"This is {request.subject}")
        try:
            url = f"{self._urls[request.server]}/api/ingress/gmail"
            answer = self._session().post(url, json=payload, timeout=ANSWER_WITHIN_S)
            status = answer.status_code
            is_trouble = status >= 300 and answer.json()["status"] != UNDER_WAY
            wait_s = min(self._plan.patience_s, float(answer.headers.get("Retry-After", NO_ANSWER_WAIT_S)))
        except requests.RequestException:
            status, wait_s, is_trouble = 0, NO_ANSWER_WAIT_S, True
        ended = time.monotonic()
        with self._changed:
            self.report.statuses[status] += 1
            self.report.slowest_s = max(self.report.slowest_s, ended - started)
            if is_trouble:
                self.report.troubles += 1
                self.report.trouble_at = ended
            if 200 <= status < 300:
                self.report.taken.setdefault(request.subject, ended)
        return None if 200 <= status < 300 else wait_s

    def _session(self) -> requests.Session:
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            self._local.session.trust_env = False
            self._local.session.headers["Authorization"] = f"Bearer {INGRESS_TOKEN}"
        session: requests.Session = self._local.session
        return session
