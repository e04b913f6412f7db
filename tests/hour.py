"""make figures ARGS=hour: 50 emails a second for an hour, and what the page and the memory of each process say to it.

Beside it stands a server that got 1,000 emails and no more. Both pages are asked in turn, in the same minute: what else
the machine does then is done to both. ``ARGS="hour 5"`` for five minutes.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import requests

from tests.support.page import PageVisitor
from tests.support.redis_server import RedisServer
from tests.support.server import INGRESS_TOKEN, Server, email
from tests.support.sink import Received, Sink

PER_SECOND = 50
MINUTES = 60
FEW = 1_000
CLIENTS = 16
ROUNDS_A_MINUTE, ROUNDS_AT_THE_END = 3, 25
SHOWN_AT = (5, 15, 30, 45, 60)
MOST_TIMES, MOST_GROWTH = 3.0, 1.05  # of the page's time; of the memory, in the second half
PEOPLE = ("ada", "alan", "grace", "edsger", "katherine", "margaret", "hedy", "barbara", "donald", "frances")
COMPANIES = ("engine.example", "bletchley.example", "cobol.example", "northwind.example", "orbit.example")
TOPICS = ("Invoice", "Weekly report", "Question about the delivery", "Meeting notes", "Photos of the site", "Order")
QUESTIONS = {
    "list": "/decisions",
    "search by a word": "/decisions?q=report",
    "search by a sender of many": "/decisions?q=grace@cobol.example",
    "search by a sender of one": "/decisions?q=visitor-8@",
    "search for what nobody wrote": "/decisions?q=zeppelin",
    "filter with many": "/decisions?gate=subject_group",
    "filter with none": "/decisions?gate=media",
    "deliveries": "/deliveries",
    "overview": "/",
}


class CountingSink(Sink):
    """Keeps no payloads: an hour has many."""

    def __init__(self) -> None:
        super().__init__()
        self.webhooks: Counter[str] = Counter()

    def take(self, received: Received) -> None:
        with self._lock:
            self.webhooks[received.webhook_id] += 1


def email_of(number: int) -> dict[str, str]:
    """Of ten emails seven are new, two are exact repeats (of a moment ago, of any time), one is of a group of ten."""
    drawn = random.Random(number)  # noqa: S311  # the same email each time
    match number % 10:
        case 6:
            return email_of(number - 5)
        case 7:
            return email_of(drawn.randrange(number // 10 + 1) * 10)
        case 8:
            subject, sender = f"Lot {number // 100} - documents", f"visitor-{number}@guests.example"
        case _:
            subject = f"{drawn.choice(TOPICS)} {number}"
            sender = f"{drawn.choice(PEOPLE)}@{drawn.choice(COMPANIES)}"
    text = f"<p>This is email {number}.</p>" * drawn.randint(1, 20)
    return email(subject=subject, sender=sender, body=text, date=f"2026-11-{number % 28 + 1:02}T09:00:00Z")


@dataclass
class Load:
    """Clients at a steady rate, as providers: who is told to come back does so, and keeps nobody else waiting."""

    url: str
    emails: int
    per_second: float
    answers: Counter[int] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._numbers = iter(range(self.emails))
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._threads = [threading.Thread(target=self._send, daemon=True) for _ in range(CLIENTS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        with requests.Session() as http:
            http.trust_env = False
            http.headers["Authorization"] = f"Bearer {INGRESS_TOKEN}"
            while True:
                with self._lock:
                    number = next(self._numbers, None)
                if number is None:
                    return
                time.sleep(max(0.0, self._began + number / self.per_second - time.monotonic()))
                self._send_one(http, email_of(number))

    def _send_one(self, http: requests.Session, payload: dict[str, str]) -> None:
        while True:
            try:
                answer = http.post(f"{self.url}/api/ingress/gmail", json=payload, timeout=60)
            except requests.RequestException as error:
                with self._lock:
                    self.troubles[type(error).__name__] += 1
                time.sleep(1)
                continue
            with self._lock:
                self.answers[answer.status_code] += 1
                self.statuses[answer.json()["status"]] += 1
            if answer.ok:
                return
            time.sleep(min(3.0, float(answer.headers.get("Retry-After", 1))))  # before its connection is closed


@dataclass(frozen=True)
class Minute:
    """``rss_mb`` of each process, ``times``: for each question, how many times as long the large journal took."""

    number: int
    sent: int
    rss_mb: dict[str, float]
    times: dict[str, float]


def compare(large: PageVisitor, small: PageVisitor, rounds: int) -> dict[str, tuple[float, float, float]]:
    """For each question: the median of the ratios within a round, and the medians in milliseconds of both."""
    told = {}
    for what, path in QUESTIONS.items():
        pairs = []
        for turn in range(rounds):
            taken = {visitor: _milliseconds(visitor, path) for visitor in ((large, small), (small, large))[turn % 2]}
            pairs.append((taken[large], taken[small]))
        ratio = statistics.median(ours / theirs for ours, theirs in pairs)
        told[what] = (ratio, *(statistics.median(each) for each in zip(*pairs, strict=True)))
    return told


def _milliseconds(visitor: PageVisitor, path: str) -> float:
    began = time.perf_counter()
    visitor.text(path)
    return 1000 * (time.perf_counter() - began)


def rss_mb(server: Server, redis: RedisServer) -> dict[str, float]:
    assert server.process is not None
    pids = {"master": server.process.pid, "redis": redis.pid}
    pids |= {f"worker {number}": pid for number, pid in enumerate(sorted(server.worker_pids()), 1)}
    return {name: psutil.Process(pid).memory_info().rss / 1e6 for name, pid in sorted(pids.items())}


def wait_until_shown(visitor: PageVisitor, subject: str) -> None:
    """The index is a few seconds behind, and longer where much came at once."""
    while subject not in visitor.text(f"/decisions?q={subject}"):
        time.sleep(1)


def run(minutes: int, folder: Path, tell: Callable[[Minute], None]) -> bool:
    emails = minutes * 60 * PER_SECOND
    with ExitStack() as stack:
        redis = RedisServer().start()
        stack.callback(redis.stop)
        sink, other_sink = stack.enter_context(CountingSink()), stack.enter_context(CountingSink())
        common = {"WEB_CONCURRENCY": "2", "LOG_LEVEL": "WARNING"}
        large = stack.enter_context(
            Server(folder / "large", REDIS_URL=f"{redis.address}/0", WEBHOOK_URL=sink.url, **common)
        )
        small = stack.enter_context(
            Server(folder / "small", REDIS_URL=f"{redis.address}/1", WEBHOOK_URL=other_sink.url, **common)
        )
        with Load(small.url, FEW, 4 * PER_SECOND):
            pass
        visitors = PageVisitor(large.url), PageVisitor(small.url)
        seen: list[Minute] = []
        began = time.monotonic()
        with Load(large.url, emails, PER_SECOND) as load:
            for number in range(1, minutes + 1):
                time.sleep(max(0.0, began + 60 * number - time.monotonic()))
                times = {what: ratio for what, (ratio, *_) in compare(*visitors, ROUNDS_A_MINUTE).items()}
                seen.append(Minute(number, load.answers.total(), rss_mb(large, redis), times))
                tell(seen[-1])
        took_s = time.monotonic() - began
        for visitor, last in zip(visitors, (emails - 1, FEW - 1), strict=True):
            wait_until_shown(visitor, email_of(last)["subject"])
        compare(*visitors, 1)
        at_the_end = compare(*visitors, ROUNDS_AT_THE_END)
        stored = redis.client.info("memory")["used_memory"] / 1e6
        files = {each.name: each.stat().st_size / 1e6 for each in (folder / "large").rglob("*.db*")}
        doubled = sum(1 for times in sink.webhooks.values() if times > 1)
        new = load.statuses["processed"]
        print(f"{emails:,} emails in {took_s:,.0f} s: answers {dict(load.answers)}, {dict(load.statuses)}")
        print(f"no answer: {dict(load.troubles)}; the sink got {len(sink.webhooks):,} ({new:,} new), {doubled} twice")
        print(f"Redis holds {stored:,.0f} MB; files: {', '.join(f'{n} {mb:,.0f} MB' for n, mb in files.items())}")
    print_memory(seen)
    print(f"\n{'the page':30} {'ratio':>6} {f'{emails:,}':>12} {f'{FEW:,}':>9}")
    for what, (ratio, ours, theirs) in at_the_end.items():
        print(f"{what:30} {ratio:5.2f}x {ours:9.1f} ms {theirs:6.1f} ms")
    is_quick = all(ratio <= MOST_TIMES for ratio, *_ in at_the_end.values())
    is_once = not doubled and len(sink.webhooks) == new and set(load.answers) <= {200, 503}
    return is_quick and is_once and is_flat(seen)


def is_flat(seen: list[Minute]) -> bool:
    """What each process of the server has at the end, against the middle."""
    half, end = seen[len(seen) // 2].rss_mb, seen[-1].rss_mb
    return all(end[name] <= MOST_GROWTH * half[name] for name in end if name != "redis")


def print_memory(seen: list[Minute]) -> None:
    shown = [each for each in seen if each.number in SHOWN_AT] or seen[-1:]
    print(f"\n{'MB resident after minute':30}", *(f"{each.number:>8}" for each in shown))
    for name in shown[0].rss_mb:
        print(f"{name:30}", *(f"{each.rss_mb[name]:8.1f}" for each in shown))


def main(arguments: list[str]) -> int:
    def tell(minute: Minute) -> None:
        memory = ", ".join(f"{name} {mb:.1f}" for name, mb in minute.rss_mb.items())
        times = ", ".join(f"{what} {ratio:.2f}" for what, ratio in minute.times.items())
        print(f"minute {minute.number}: {minute.sent:,} answered; MB: {memory}; times: {times}", flush=True)

    with tempfile.TemporaryDirectory(prefix="mailonce-hour-") as folder:
        return 0 if run(int(arguments[0]) if arguments else MINUTES, Path(folder), tell) else 1
