"""make figures: emails over two servers with a queue and two workers; then all sources of figures must agree.

The reference is the answers that the clients got and the webhooks that arrived. ``ARGS=5000`` for more than 1,000
emails.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import requests

from tests.support import programs_loaded
from tests.support.page import PageVisitor
from tests.support.programs_loaded import MAILONCE
from tests.support.redis_server import RedisServer, free_port
from tests.support.scrape import samples
from tests.support.server import ADMIN, ADMIN_TOKEN, Server, email
from tests.support.sink import Reply, Sink
from tests.support.surroundings import clean_environment
from tests.support.worker import WorkerProcess

EMAILS = 1_000
RETRIED = ("already_processing", "retry_later")  # answers that do not count as received
SETTLED_WITHIN_S = 120.0
NAMES = ("statuses", "received", "duplicates", "suppressed", "delivered", "dead", "waiting")
TILE = r'<span class="label">([^<]+)</span><span class="value">([\d,]+)</span><span class="note">([^<]*)</span>'

Figures = dict[str, Any]  # the counts of one source, by NAMES
Answer = dict[str, Any]


class PickySink(Sink):
    """Refuses for good what says so."""

    def reply_to(self, payload: dict[str, Any]) -> Reply:
        return Reply(422) if "refuse" in payload["subject"] else Reply(200)


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


def send(servers: list[Server], count: int, sink: Sink) -> list[Answer]:
    """Every answer, including those that asked for a retry."""
    answers: list[Answer] = []

    def post(numbered: tuple[int, str]) -> None:
        number, subject = numbered
        second = number if subject.startswith("Lot") else 0  # emails of a group differ in their date
        fields = {"date": f"2026-11-16T09:{second // 60 % 60:02}:{second % 60:02}Z", "body": f"This is {subject}"}
        while True:
            answers.append(answer := servers[number % len(servers)].post(email(subject=subject, **fields)).json())
            if answer["success"]:
                return
            time.sleep(0.1)

    emails = list(enumerate(subjects(count)))
    with ThreadPoolExecutor(4) as clients:
        for half in (emails[: count // 2], emails[count // 2 :]):
            list(clients.map(post, half))
            # A group suppresses other emails once its first one is delivered.
            groups = {subject for _, subject in half if subject.startswith("Lot")}
            while not groups <= sink.subjects.keys():
                time.sleep(0.05)
    return answers


def figures(statuses: Counter[str], gates: Counter[str], **counts: int) -> Figures:
    received = sum(count for status, count in statuses.items() if status not in RETRIED)
    duplicates = gates["identity"]
    stopped = {"duplicates": duplicates, "suppressed": gates.total() - duplicates}
    return {"statuses": dict(statuses), "received": received, **stopped, **counts}


def of_clients_and_sink(answers: list[Answer], sink: Sink) -> Figures:
    """The true figures. Each webhook that the sink refused for good is a dead letter."""
    gates = Counter(each["reason"]["gate"] for each in answers if each["success"] and "reason" in each)
    refused = {each.webhook_id for each in sink.received if each.status == 422}
    statuses = Counter(each["status"] for each in answers)
    return figures(statuses, gates, delivered=len(sink.accepted), dead=len(refused), waiting=0)


def of_totals(stats: dict[str, Any]) -> Figures:
    return {name: stats["totals"][name] for name in NAMES}


def of_metrics(urls: list[str]) -> Figures:
    """As Prometheus sees it: counters summed over all machines, gauges equal on each."""
    scrapes = [samples(requests.get(f"{url}/metrics", headers=ADMIN, timeout=30).text) for url in urls]
    statuses: Counter[str] = Counter()
    gates: Counter[str] = Counter()
    delivered = 0
    for name, count in (sample for scrape in scrapes for sample in scrape.items()):
        if name.startswith("mailonce_emails_total"):
            statuses[name.partition("status=")[2].rstrip("}")] += int(count)
        elif name.startswith("mailonce_duplicates_total"):
            gates[name.partition("gate=")[2].rstrip("}")] += int(count)
        elif name == "mailonce_deliveries_total{destination=crm,outcome=delivered}":
            delivered += int(count)
    (dead,) = {int(each["mailonce_dead_letters{destination=crm}"]) for each in scrapes}
    (waiting,) = {int(each["mailonce_deliveries_waiting{destination=crm}"]) for each in scrapes}
    return figures(statuses, gates, delivered=delivered, dead=dead, waiting=waiting)


def of_page(server: Server) -> Figures:
    """Its tiles. What was answered is not on them."""
    tiles = {label: (value, note) for label, value, note in re.findall(TILE, PageVisitor(server.url).text("/"))}
    labels = ("Received", "Duplicates stopped", "Suppressed", "Delivered")
    shown = {label.split()[0].lower(): re.findall(r"([\d,]+) in all", tiles[label][1])[0] for label in labels}
    shown |= {"dead": tiles["Dead letters"][0], "waiting": tiles["Waiting now"][0]}
    return {name: int(number.replace(",", "")) for name, number in shown.items()}


def over_time(stats: dict[str, Any]) -> tuple[int, int, int]:
    total = stats["over_time"]["total"]
    return total["received"], total["stopped"], total["delivered"]


def run(count: int, folder: Path) -> tuple[Figures, dict[str, Figures], list[tuple[int, int, int]]]:
    """The true figures, those of each source once they agree, and the sums over the last hour."""
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        redis.open_era()
        sink = stack.enter_context(PickySink())
        config = folder / "mailonce.toml"
        config.write_text(f"[destinations.crm]\nurl = '{sink.url}'\n")
        settings = {"REDIS_URL": redis.url, "QUEUE_URL": redis.url, "MAILONCE_CONFIG": str(config)}
        servers = [stack.enter_context(Server(folder / name, **settings)) for name in ("one", "two")]
        port = str(free_port())
        own = {"WORKER_METRICS_PORT": port, "ADMIN_TOKEN": ADMIN_TOKEN}
        stack.enter_context(WorkerProcess(folder / "one", **settings))  # on the machine of a server
        stack.enter_context(WorkerProcess(folder / "three", **settings, **own))  # and on one of its own
        answers = send(servers, count, sink)

        def stats(server: Server) -> dict[str, Any]:
            answer = requests.get(f"{server.url}/api/admin/stats?span=hour", headers=ADMIN, timeout=30)
            return dict(answer.json())

        def shown_by_command(data_dir: Path) -> dict[str, Any]:
            environment = clean_environment(DATA_DIR=str(data_dir), LOG_LEVEL="ERROR", **settings)
            shown = programs_loaded.run([MAILONCE, "stats", "--json", "--span", "hour"], data_dir, environment)
            return dict(json.loads(shown.stdout))

        urls = [*(server.url for server in servers), f"http://127.0.0.1:{port}"]
        sources: dict[str, Callable[[], Figures]] = {
            "stats of one": lambda: of_totals(stats(servers[0])),
            "stats of two": lambda: of_totals(stats(servers[1])),
            "/metrics": lambda: of_metrics(urls),
            "the page": lambda: {"statuses": dict(Counter(each["status"] for each in answers))} | of_page(servers[1]),
            "mailonce stats": lambda: of_totals(shown_by_command(folder / "two")),
        }
        found = {name: _once_settled(ask, lambda: of_clients_and_sink(answers, sink)) for name, ask in sources.items()}
        hours = [over_time(each) for each in (*map(stats, servers), shown_by_command(folder / "three"))]
        return of_clients_and_sink(answers, sink), found, hours


def _once_settled(ask: Callable[[], Figures], truth: Callable[[], Figures]) -> Figures:
    """The figures as soon as they are true, or at the deadline: machines read the stream every few seconds."""
    deadline = time.monotonic() + SETTLED_WITHIN_S
    while (found := ask()) != truth() and time.monotonic() < deadline:
        time.sleep(0.3)
    return found


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="mailonce-figures-") as folder:
        truth, found, hours = run(int(arguments[0]) if arguments else EMAILS, Path(folder))
    print(f"{'clients and sink':18} {truth}")
    for name, shown in found.items():
        print(f"{name:18} {shown if shown != truth else 'the same'}")
    print(f"{'over the last hour':18} received, stopped, delivered: {hours}")
    expected = (truth["received"], truth["duplicates"] + truth["suppressed"], truth["delivered"])
    return 0 if all(each == truth for each in found.values()) and set(hours) == {expected} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
