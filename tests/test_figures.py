"""Every source of figures agrees with the answers that clients got and the webhooks that arrived.

Two servers with a queue, a worker on the machine of one of them, and a worker on a machine of its own.
"""

from __future__ import annotations

import json
import re
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

EMAILS = 120
RETRIED = ("already_processing", "retry_later")  # answers that do not count as received
SETTLED_WITHIN_S = 120.0  # machines read the stream every few seconds
NAMES = ("statuses", "received", "duplicates", "suppressed", "delivered", "dead", "waiting")
TILE = r'<span class="label">([^<]+)</span><span class="value">(\d+)</span>'

Figures = dict[str, Any]  # the counts of one source, by NAMES
Answer = dict[str, Any]


def subjects() -> Iterator[str]:
    """Of ten emails six are new, two are exact repeats, one is of a group, and one is refused: it is tried once, and is
    a dead letter then."""
    for number in range(EMAILS):
        match number % 10:
            case 6 | 7:
                yield f"email {number - 6}"
            case 8:
                yield f"Lot {number // 50}"
            case 9:
                yield f"please refuse {number}"
            case _:
                yield f"email {number}"


def send(servers: list[Server], sink: Sink) -> list[Answer]:
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

    emails = list(enumerate(subjects()))
    with ThreadPoolExecutor(4) as clients:
        for half in (emails[: EMAILS // 2], emails[EMAILS // 2 :]):
            list(clients.map(post, half))
            # A group suppresses other emails once its first one is delivered.
            groups = {subject for _, subject in half if subject.startswith("Lot")}
            while not groups <= sink.subjects.keys():
                time.sleep(0.05)
    return answers


def figures(statuses: Counter[str], gates: Counter[str], **counts: int) -> Figures:
    received = sum(count for status, count in statuses.items() if status not in RETRIED)
    stopped = {"duplicates": gates["identity"], "suppressed": gates.total() - gates["identity"]}
    return {"statuses": dict(statuses), "received": received, **stopped, **counts}


def of_clients_and_sink(answers: list[Answer], sink: Sink) -> Figures:
    """The true figures."""
    gates = Counter(each["reason"]["gate"] for each in answers if each["success"] and "reason" in each)
    refused = {each.webhook_id for each in sink.received if each.status == 422}
    statuses = Counter(each["status"] for each in answers)
    return figures(statuses, gates, delivered=len(sink.accepted), dead=len(refused), waiting=0)


def of_metrics(urls: list[str]) -> Figures:
    """As Prometheus sees it: counters summed over all machines, gauges equal on each."""
    scrapes = [samples(requests.get(f"{url}/metrics", headers=ADMIN, timeout=30).text) for url in urls]
    total: Counter[str] = sum(map(Counter, scrapes), Counter())

    def by_last_label(name: str) -> Counter[str]:
        """``name{provider=gmail,status=queued}``: by status."""
        found: Counter[str] = Counter()
        for sample, count in total.items():
            if sample.startswith(name):
                found[sample.rpartition("=")[2].rstrip("}")] += int(count)
        return found

    gauges = {"dead": "mailonce_dead_letters", "waiting": "mailonce_deliveries_waiting"}
    (equal,) = {tuple(int(each[f"{gauge}{{destination=crm}}"]) for gauge in gauges.values()) for each in scrapes}
    delivered = int(total["mailonce_deliveries_total{destination=crm,outcome=delivered}"])
    gates = by_last_label("mailonce_duplicates_total")
    return figures(
        by_last_label("mailonce_emails_total"), gates, delivered=delivered, **dict(zip(gauges, equal, strict=True))
    )


def of_page(server: Server) -> Figures:
    """Its tiles, which show what became of emails, not what was answered: one that waited for the name of its group and
    was suppressed then counts as suppressed there."""
    shown = {
        label.split()[0].lower(): int(value) for label, value in re.findall(TILE, PageVisitor(server.url).text("/"))
    }
    assert shown["received"] == sum(shown.values()) - shown["received"], "tiles add up"
    return {name: count for name, count in shown.items() if name != "suppressed"}


def test_all_sources_of_figures_agree_with_the_clients_and_the_sink(tmp_path: Path, redis_server: RedisServer) -> None:
    with ExitStack() as stack:
        sink = stack.enter_context(Sink())
        sink.answers = {subject: Reply(422) for subject in subjects() if "refuse" in subject}
        config = tmp_path / "mailonce.toml"
        config.write_text(f"[destinations.crm]\nurl = '{sink.url}'\nmax_attempts = 1\n")
        settings = {"REDIS_URL": redis_server.url, "QUEUE_URL": redis_server.url, "MAILONCE_CONFIG": str(config)}
        servers = [stack.enter_context(Server(tmp_path / name, **settings)) for name in ("one", "two")]
        port = str(free_port())
        own = {"WORKER_METRICS_PORT": port, "ADMIN_TOKEN": ADMIN_TOKEN}
        stack.enter_context(WorkerProcess(tmp_path / "one", **settings))
        stack.enter_context(WorkerProcess(tmp_path / "three", **settings, **own))
        answers = send(servers, sink)

        def by_api(server: Server) -> dict[str, Any]:
            answer = requests.get(f"{server.url}/api/admin/stats?span=hour", headers=ADMIN, timeout=30)
            return dict(answer.json())

        def by_command(data_dir: Path) -> dict[str, Any]:
            environment = clean_environment(DATA_DIR=str(data_dir), LOG_LEVEL="ERROR", **settings)
            shown = programs_loaded.run([MAILONCE, "stats", "--json", "--span", "hour"], data_dir, environment)
            return dict(json.loads(shown.stdout))

        urls = [*(server.url for server in servers), f"http://127.0.0.1:{port}"]

        def of_totals(stats: dict[str, Any]) -> Figures:
            return {name: stats["totals"][name] for name in NAMES}

        sources: list[Callable[[], Figures]] = [
            lambda: of_totals(by_api(servers[0])),
            lambda: of_totals(by_api(servers[1])),
            lambda: of_totals(by_command(tmp_path / "two")),
            lambda: of_totals(by_command(tmp_path / "three")),
            lambda: of_metrics(urls),
            lambda: of_clients_and_sink(answers, sink) | of_page(servers[1]),
        ]
        for source in sources:
            deadline = time.monotonic() + SETTLED_WITHIN_S
            while (found := source()) != (truth := of_clients_and_sink(answers, sink)):
                assert time.monotonic() < deadline, (found, truth)
                time.sleep(0.3)
        hours = [each["over_time"]["total"] for each in (*map(by_api, servers), by_command(tmp_path / "three"))]
    assert (truth["received"], truth["delivered"] > 60, truth["dead"]) == (EMAILS, True, 12)
    assert (truth["duplicates"], truth["suppressed"] > 0) == (24, True)
    stopped = truth["duplicates"] + truth["suppressed"]
    assert [(each["received"], each["stopped"], each["delivered"]) for each in hours] == [
        (EMAILS, stopped, truth["delivered"])
    ] * 3
