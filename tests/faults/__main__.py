"""make faults: every scenario with 1,000 requests. make test has short versions of some.

``ARGS=mutants`` breaks each rule of the protocol in turn, and fails if no test of the journal notices. ``ARGS=short``
runs the short versions; other words choose scenarios by their names.
"""

import sys

import requests

from tests.deduplication.journal import mutants
from tests.faults.scenarios import SCENARIOS
from tests.faults.world import HEADER, LONG, SHORT, Scenario, Size, opened, run_in


def main(words: list[str]) -> int:
    if words[:1] == ["mutants"]:
        del sys.argv[1]
        return mutants.main()
    size = SHORT if words[:1] == ["short"] else LONG
    words = words[1:] if size is SHORT else words
    chosen = [each for each in SCENARIOS if not words or any(word in each.name for word in words)]
    print(HEADER)
    failed = sum(bool(problems_of(scenario, size)) for scenario in chosen)
    print(f"\n{len(chosen) - failed} passed, {failed} failed")
    return 1 if failed else 0


def problems_of(scenario: Scenario, size: Size) -> list[str]:
    """A scenario that cannot go on has failed, and the others are run all the same."""
    try:
        with opened(scenario.setup, size) as world:
            result = run_in(world, scenario)
    except (AssertionError, requests.RequestException) as error:
        print(f"{scenario.name:<50} {error}", flush=True)
        return [str(error)]
    print(result.row, flush=True)
    return [*result.wrong, *result.late] if size.is_long else result.wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
