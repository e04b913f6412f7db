"""make faults: every scenario with 2,000 emails; the short version of each is in make test."""

from __future__ import annotations

import sys

from tests.faults.scenarios import SCENARIOS
from tests.faults.world import HEADER, run

EMAILS = 2000
DURATION_S = 10.0


def main(words: list[str]) -> int:
    chosen = [each for each in SCENARIOS if not words or any(word in each.name for word in words)]
    results = []
    print(HEADER)
    for scenario in chosen:
        result = run(scenario, EMAILS, DURATION_S, is_long=True)
        results.append(result)
        print(result.row, flush=True)
    failed = [result for result in results if result.problems]
    print(f"\n{len(results) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
