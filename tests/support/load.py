"""Clients that behave as providers do: they send an email again until they read 200."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import requests

from tests.support.server import INGRESS_TOKEN, email

GIVE_UP_AFTER_S = 240.0
PAUSE_S = 0.15


@dataclass(frozen=True)
class Plan:
    """``duplicates`` is the share of requests that repeat an earlier email; ``sticky`` sends these to the same server,
    as a load balancer that hashes does, otherwise to any."""

    emails: int
    duration_s: float
    duplicates: float = 0.3
    sticky: bool = True
    clients: int = 16
    seed: int = 1


@dataclass
class Report:
    sent: int = 0
    distinct: int = 0
    unanswered: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    refused: int = 0
    finished_at: float = 0.0
    last_trouble_at: float = 0.0
    statuses: dict[int, int] = field(default_factory=dict)


class Load:
    """Runs a plan against servers. ``wait_for(share)`` lets a fault strike in the middle."""

    def __init__(self, plan: Plan, urls: Sequence[str]) -> None:
        self._plan = plan
        self._urls = urls
        self._random = random.Random(plan.seed)  # noqa: S311 - reproducible load, no secret
        self._lock = threading.Lock()
        self._local = threading.local()
        self._started = 0.0
        self.report = Report()
        self._schedule = self._make_schedule()

    def _make_schedule(self) -> list[tuple[float, str, int]]:
        """(when, subject, server) for every request; a duplicate comes at any time after its original."""
        plan = self._plan
        distinct = round(plan.emails * (1 - plan.duplicates))
        requests_: list[tuple[float, str, int]] = []
        for number in range(distinct):
            when = plan.duration_s * number / distinct
            requests_.append((when, f"email {plan.seed}-{number}", number % len(self._urls)))
        for _ in range(plan.emails - distinct):
            when, subject, server = self._random.choice(requests_[:distinct])
            again = when + self._random.choice([0.0, self._random.uniform(0, plan.duration_s - when)])
            other = server if plan.sticky else self._random.randrange(len(self._urls))
            requests_.append((again, subject, other))
        self.report.distinct = distinct
        return sorted(requests_)

    def run(self) -> Report:
        self._started = time.monotonic()
        with ThreadPoolExecutor(self._plan.clients) as clients:
            list(clients.map(self._send_until_taken, self._schedule))
        self.report.finished_at = time.monotonic() - self._started
        return self.report

    def wait_for(self, share: float) -> None:
        while not self._started:
            time.sleep(0.01)
        time.sleep(max(0.0, self._started + share * self._plan.duration_s - time.monotonic()))

    def _send_until_taken(self, planned: tuple[float, str, int]) -> None:
        when, subject, server = planned
        time.sleep(max(0.0, self._started + when - time.monotonic()))
        with self._lock:
            self.report.sent += 1
        deadline = time.monotonic() + GIVE_UP_AFTER_S
        payload = email(subject=subject, body=f"This is {subject}")
        while time.monotonic() < deadline:
            if self._send(payload, self._urls[server]):
                return
            time.sleep(PAUSE_S)
        self.report.unanswered.append(subject)

    def _send(self, payload: dict[str, Any], url: str) -> bool:
        started = time.monotonic()
        try:
            answer = self._session().post(f"{url}/api/ingress/gmail", json=payload, timeout=30)
            status = answer.status_code
        except requests.RequestException:
            status = 0
        took_s = time.monotonic() - started
        with self._lock:
            self.report.statuses[status] = self.report.statuses.get(status, 0) + 1
            if status:
                self.report.slowest_s = max(self.report.slowest_s, took_s)
            if status != 200:
                self.report.last_trouble_at = time.monotonic() - self._started
        return status == 200

    def _session(self) -> requests.Session:
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            self._local.session.trust_env = False
            self._local.session.headers["Authorization"] = f"Bearer {INGRESS_TOKEN}"
        session: requests.Session = self._local.session
        return session
