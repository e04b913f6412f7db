"""make faults: every scenario with 2,000 emails, and 2,000 through the queue; make test has short versions."""

from __future__ import annotations

import sys

from tests.faults import queue_run
from tests.faults.scenarios import SCENARIOS
from tests.faults.world import HEADER, run
from tests.support.rabbitmq_server import RabbitmqServer

EMAILS = 2000
DURATION_S = 10.0
QUEUE_DURATION_S = 100.0
NOTICEABLE_S = 0.05  # RabbitMQ delivers within 4 ms: what is added to that is the scheduling of two cores


def main(words: list[str]) -> int:
    chosen = [each for each in SCENARIOS if not words or any(word in each.name for word in words)]
    results = []
    print(HEADER)
    for scenario in chosen:
        result = run(scenario, EMAILS, DURATION_S, is_long=True)
        results.append(result)
        print(result.row, flush=True)
    problems = [result.problems for result in results] + [_through_the_queue(broker) for broker in _brokers(words)]
    failed = [each for each in problems if each]
    print(f"\n{len(problems) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def _brokers(words: list[str]) -> list[str]:
    brokers = ["redis", "rabbitmq"] if RabbitmqServer.is_installed() else ["redis"]
    if "rabbitmq" not in brokers:
        print("rabbitmq-server is not installed: the queue is tried on Redis alone")
    return [each for each in brokers if not words or any(word in f"queue on {each}" for word in words)]


def _through_the_queue(broker: str) -> list[str]:
    report = queue_run.run(queue_run.Plan(EMAILS, QUEUE_DURATION_S, slow_s=0.2, broker=broker))
    print(report.row, flush=True)
    slow_down = report.healthy_p95_s / report.alone_p95_s
    is_noticed = slow_down > 2 and report.healthy_p95_s - report.alone_p95_s > NOTICEABLE_S
    return [*report.problems, *([f"the healthy destination waits {slow_down:.1f}x"] if is_noticed else [])]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
