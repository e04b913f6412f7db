"""make figures: emails over two servers with a queue and two workers; then everybody who tells figures must agree.

The judges are the answers that the clients got and what arrived at the sink. ``ARGS=5000`` for more than 1,000 emails,
``ARGS=hour`` for tests/hour.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import requests

from tests import hour
from tests.support.page import PageVisitor
from tests.support.programs_loaded import MAILONCE
from tests.support.redis_server import RedisServer, free_port
from tests.support.scrape import samples
from tests.support.server import ADMIN_TOKEN, Server, email
from tests.support.sink import Reply, Sink
from tests.support.surroundings import clean_environment
from tests.support.worker import WorkerProcess

EMAILS = 1_000
SETTLED_WITHIN_S = 120.0
HEADERS = {"Authorization": f"Bearer {ADMIN_TOKEN}"}


class PickySink(Sink):
    """Refuses for good what says so."""

    def reply_to(self, payload: dict[str, Any]) -> Reply:
        return Reply(422) if "refuse" in payload["subject"] else Reply(200)


@dataclass
class Told:
    """What the clients were answered."""

    statuses: Counter[str] = field(default_factory=Counter)
    gates: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Figures:
    """What somebody says that there was."""

    statuses: dict[str, int]
    received: int
    duplicates: int
    suppressed: int
    delivered: int
    dead: int
    waiting: int


def subjects(count: int) -> Iterator[str]:
    """Of ten emails five are new, two are exact repeats, two of a group that came before, one will be refused."""
    for number in range(count):
        match number % 10:
            case 6 | 7:
                yield f"email {number - 6}"
            case 8:
                yield f"Lot {number // 50}"
            case 9:
                yield f"please refuse {number}"
            case _:
                yield f"email {number}"


def send(servers: list[Server], count: int) -> Told:
    told = Told()

    def post(numbered: tuple[int, str]) -> dict[str, Any]:
        number, subject = numbered
        date = (
            f"2026-11-16T09:{number // 60 % 60:02}:{number % 60:02}Z"
            if subject.startswith("Lot")
            else "2026-11-16T09:00:00Z"
        )
        server = servers[number % len(servers)]
        while True:
            answer: dict[str, Any] = server.post(email(subject=subject, date=date, body=f"This is {subject}")).json()
            if answer["success"]:
                return answer
            told.statuses[answer["status"]] += 1
            time.sleep(0.1)

    with ThreadPoolExecutor(4) as clients:
        for answer in clients.map(post, enumerate(subjects(count))):
            told.statuses[answer["status"]] += 1
            if "reason" in answer:
                told.gates[answer["reason"]["gate"]] += 1
    return told


def of_clients_and_sink(told: Told, sink: Sink) -> Figures:
    """What is true. Each webhook that the sink refused for good is a dead letter."""
    duplicates = told.gates["identity"]
    refused = {each.webhook_id for each in sink.received if each.status == 422}
    return Figures(
        statuses=dict(told.statuses),
        received=sum(n for status, n in told.statuses.items() if status not in ("already_processing", "retry_later")),
        duplicates=duplicates,
        suppressed=told.gates.total() - duplicates,
        delivered=len(sink.accepted),
        dead=len(refused),
        waiting=0,
    )


def of_totals(totals: dict[str, Any]) -> Figures:
    return Figures(**{name: totals[name] for name in Figures.__dataclass_fields__})


def of_metrics(urls: list[str]) -> Figures:
    """As Prometheus would have it: counters summed over all who tell them, facts from each, the same."""
    told = [samples(requests.get(f"{url}/metrics", headers=HEADERS, timeout=30).text) for url in urls]
    counts: Counter[str] = Counter()
    for each in told:
        counts.update(each)
    statuses: Counter[str] = Counter()
    for name, count in counts.items():
        if name.startswith("mailonce_emails_total"):
            statuses[name.partition("status=")[2].rstrip("}")] += int(count)
    gates = {name: int(count) for name, count in counts.items() if name.startswith("mailonce_duplicates_total")}
    duplicates = gates.pop("mailonce_duplicates_total{gate=identity}")
    (dead,) = {each["mailonce_dead_letters{destination=crm}"] for each in told}
    (waiting,) = {each["mailonce_deliveries_waiting{destination=crm}"] for each in told}
    return Figures(
        statuses=dict(statuses),
        received=sum(n for status, n in statuses.items() if status not in ("already_processing", "retry_later")),
        duplicates=duplicates,
        suppressed=sum(gates.values()),
        delivered=int(counts["mailonce_deliveries_total{destination=crm,outcome=delivered}"]),
        dead=int(dead),
        waiting=int(waiting),
    )


def of_page(server: Server) -> Figures:
    """Its tiles. What was answered is not on them."""
    page = PageVisitor(server.url).text("/")
    tile = r'<span class="label">([^<]+)</span><span class="value">([\d,]+)</span><span class="note">([^<]*)</span>'
    tiles = {label: (value, note) for label, value, note in re.findall(tile, page)}

    def ever(label: str) -> int:
        return _number(re.findall(r"([\d,]+) in all", tiles[label][1])[0])

    return Figures(
        statuses={},
        received=ever("Received"),
        duplicates=ever("Duplicates stopped"),
        suppressed=ever("Suppressed"),
        delivered=ever("Delivered"),
        dead=_number(tiles["Dead letters"][0]),
        waiting=_number(tiles["Waiting now"][0]),
    )


def _number(shown: str) -> int:
    return int(shown.replace(",", ""))


def of_command(data_dir: Path, settings: dict[str, str]) -> dict[str, Any]:
    environment = clean_environment(DATA_DIR=str(data_dir), **settings)
    command = [MAILONCE, "stats", "--json", "--span", "hour"]
    shown = subprocess.run(command, env=environment, cwd=data_dir, capture_output=True, text=True, check=True)
    figures: dict[str, Any] = json.loads(shown.stdout)
    return figures


def over_time(figures: dict[str, Any]) -> tuple[int, int, int]:
    total = figures["over_time"]["total"]
    return total["received"], total["stopped"], total["delivered"]


def run(count: int, folder: Path) -> tuple[Figures, dict[str, Figures], list[tuple[int, int, int]]]:
    """What is true, what each teller says once it says the same, and the sums over the last hour."""
    with ExitStack() as stack:
        redis = RedisServer().start()
        stack.callback(redis.stop)
        sink = stack.enter_context(PickySink())
        config = folder / "mailonce.toml"
        config.write_text(f"[destinations.crm]\nurl = '{sink.url}'\n")
        settings = {"REDIS_URL": redis.url, "QUEUE_URL": redis.url, "MAILONCE_CONFIG": str(config)}
        servers = [Server(folder / name, **settings) for name in ("one", "two")]
        for server in servers:
            server.launch()
            stack.callback(server.stop)
        port = str(free_port())
        own = {"WORKER_METRICS_PORT": port, "ADMIN_TOKEN": ADMIN_TOKEN}
        stack.enter_context(WorkerProcess(folder / "one", **settings))  # on the machine of a server
        stack.enter_context(WorkerProcess(folder / "three", **settings, **own))  # and on one of its own
        for server in servers:
            server.wait_until_up()
        told = send(servers, count)

        def stats(server: Server) -> dict[str, Any]:
            answer = requests.get(f"{server.url}/api/admin/stats?span=hour", headers=HEADERS, timeout=30)
            figures: dict[str, Any] = answer.json()
            return figures

        urls = [*(server.url for server in servers), f"http://127.0.0.1:{port}"]
        tellers: dict[str, Callable[[], Figures]] = {
            "stats of one": lambda: of_totals(stats(servers[0])["totals"]),
            "stats of two": lambda: of_totals(stats(servers[1])["totals"]),
            "/metrics": lambda: of_metrics(urls),
            "the page": lambda: replace(of_page(servers[1]), statuses=dict(told.statuses)),
            "mailonce stats": lambda: of_totals(of_command(folder / "two", settings)["totals"]),
        }
        said = {name: _once_settled(ask, lambda: of_clients_and_sink(told, sink)) for name, ask in tellers.items()}
        hours = [over_time(stats(server)) for server in servers]
        return of_clients_and_sink(told, sink), said, [*hours, over_time(of_command(folder / "three", settings))]


def _once_settled(ask: Callable[[], Figures], truth: Callable[[], Figures]) -> Figures:
    """What is said as soon as it is true, or in the end: machines hear of each other every few seconds."""
    deadline = time.monotonic() + SETTLED_WITHIN_S
    while True:
        said = ask()
        if said == truth() or time.monotonic() > deadline:
            return said
        time.sleep(0.3)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["hour"]:
        return hour.main(arguments[1:])
    count = int(arguments[0]) if arguments else EMAILS
    with tempfile.TemporaryDirectory(prefix="mailonce-figures-") as folder:
        truth, said, hours = run(count, Path(folder))
    print(f"{'clients and sink':18} {truth}")
    for name, figures in said.items():
        print(f"{name:18} {figures if figures != truth else 'the same'}")
    print(f"{'over the last hour':18} received, stopped, delivered: {hours}")
    expected = (truth.received, truth.duplicates + truth.suppressed, truth.delivered)
    return 0 if all(each == truth for each in said.values()) and set(hours) == {expected} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
