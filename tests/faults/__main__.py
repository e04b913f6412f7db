"""make faults: every scenario with 2,000 emails, 2,000 through the queue, and what is retried (retries.py).

make test has short versions.

``ARGS=mutants`` leaves out each rule of the failover in turn, and fails if no scenario notices. ``ARGS=short`` runs the
short versions; other words choose scenarios by their names.
"""

from __future__ import annotations

import sys

import requests

from tests.faults import queue_run, retries
from tests.faults.mutants import MUTANTS
from tests.faults.scenarios import SCENARIOS, Scenario
from tests.faults.world import HEADER, LONG, SHORT, Size, run
from tests.support.rabbitmq_server import RabbitmqServer

QUEUE_DURATION_S = 100.0
NOTICEABLE_S = 0.05  # RabbitMQ delivers within 4 ms: what is added to that is the scheduling of two cores


def main(words: list[str]) -> int:
    if words[:1] == ["mutants"]:
        return run_mutants(words[1:])
    size = SHORT if words[:1] == ["short"] else LONG
    words = words[1:] if size is SHORT else words
    chosen = [each for each in SCENARIOS if not words or any(word in each.name for word in words)]
    print(HEADER)
    problems = [_problems_of(scenario, size) for scenario in chosen]
    if size is LONG:
        problems += [_through_the_queue(broker) for broker in _brokers(words)]
    problems += retries.run_all(size, words)
    failed = [each for each in problems if each]
    print(f"\n{len(problems) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def run_mutants(words: list[str]) -> int:
    """Each with the scenarios that should notice, until one does."""
    scenarios = {scenario.name: scenario for scenario in SCENARIOS}
    survivors = []
    for name, mutant in MUTANTS.items():
        if words and not any(word in name for word in words):
            continue
        for scenario in mutant.caught_by:
            problems = _problems_of(scenarios[scenario], SHORT, name)
            if problems:
                print(f"{name:<36} caught by {scenario!r}: {'; '.join(problems)}", flush=True)
                break
            print(f"{name:<36} not noticed by {scenario!r}", flush=True)
        else:
            survivors.append(name)
    print(f"\nsurvived: {', '.join(survivors) or 'none'}")
    return 1 if survivors else 0


def _problems_of(scenario: Scenario, size: Size, mutant: str = "") -> list[str]:
    """A scenario that cannot go on is one that failed, and the others are run all the same."""
    try:
        result = run(scenario, size, mutant)
    except (AssertionError, requests.RequestException) as error:
        if not mutant:
            print(f"{scenario.name:<48} {error}", flush=True)
        return [str(error)]
    if not mutant:
        print(result.row, flush=True)
    return result.problems


def _brokers(words: list[str]) -> list[str]:
    brokers = ["redis", "rabbitmq"] if RabbitmqServer.is_installed() else ["redis"]
    if "rabbitmq" not in brokers:
        print("rabbitmq-server is not installed: the queue is tried on Redis alone")
    return [each for each in brokers if not words or any(word in f"queue on {each}" for word in words)]


def _through_the_queue(broker: str) -> list[str]:
    report = queue_run.run(queue_run.Plan(LONG.emails, QUEUE_DURATION_S, slow_s=0.2, broker=broker))
    print(report.row, flush=True)
    slow_down = report.healthy_p95_s / report.alone_p95_s
    is_noticed = slow_down > 2 and report.healthy_p95_s - report.alone_p95_s > NOTICEABLE_S
    return [*report.problems, *([f"the healthy destination waits {slow_down:.1f}x"] if is_noticed else [])]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
