import gc
import secrets
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import hypothesis
import pytest

from tests.support import programs_loaded
from tests.support import redis_server as real_redis
from tests.support.redis_server import RedisServer
from tests.support.surroundings import forget_environment, keep_files_in_memory

OF_REDIS = {"redis_server", "own_redis"}
# Tests that wait: for processes, leases, a browser; the longest first. They begin first, so that none of them runs
# alone at the end. Those of one line stay together, for what they share.
LONG = (
    "tests/routes/dashboard/test_in_browser.py",
    "tests/test_demo.py",
    "tests/docs/test_operating.py",
    "tests/test_end_to_end.py::test_when_a_destination_works_again",
    "tests/faults/test_faults.py::test_nothing_is_lost_and_nothing_arrives_twice[the reply of a hold lost",
    "tests/routes/test_health.py::test_the_begin_and_the_end_of_an_alarm",
    "tests/faults/test_faults.py::test_nothing_is_lost_and_nothing_arrives_twice[disk lost",
    "tests/faults/test_faults.py::test_nothing_is_lost_and_nothing_arrives_twice[",
    "tests/test_end_to_end.py::test_a_destination_that_fails",
    "tests/test_end_to_end.py::test_all_sources_of_figures_agree",
    "tests/deploy/test_prometheus.py",
    "tests/routes/test_command_line.py::test_a_killed_workers_deliveries_return",
)
GARBAGE = 5_000  # so many objects are worth a look; Python's own 700 are soon made by a test that builds an app

# Without a profile of ours, CI=true would make every run try the same examples. How long an example takes on a busy
# machine says nothing about it, and examples kept in the checkout would make a run depend on the one before.
hypothesis.settings.register_profile(
    "mailonce",
    derandomize=False,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("mailonce")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--redis", choices=("any", "wheel"), default="any", help="any: redis-server on PATH, else the wheel's"
    )
    parser.addoption("--examples", type=int, default=0, help="how many orders of steps the protocol is tried in")
    parser.addoption("--wide", action="store_true", help="the protocol with all that its state machine knows")


@pytest.hookimpl(tryfirst=True)  # before Hypothesis looks at its seed
def pytest_configure(config: pytest.Config) -> None:
    forget_environment()
    keep_files_in_memory()
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = secrets.randbits(32)  # xdist hands it on to its workers
    programs_loaded.is_used = True
    real_redis.use_the_wheel = config.option.redis == "wheel"


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter and not hasattr(session.config, "workerinput"):
        version = ".".join(map(str, real_redis.redis_server_version()))
        reporter.write_line(f"Redis {version}: {real_redis.redis_server_binary()}")
        seed = session.config.option.hypothesis_seed
        reporter.write_line(f"seed {seed}; make test SEED={seed} tries the same examples")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    mark_real_redis(items)
    yield  # -m and -k choose
    if workers := getattr(config, "workerinput", {}).get("workercount"):
        items[:] = long_ones_first(items, workers)


def mark_real_redis(items: list[pytest.Item]) -> None:
    """Who asks for ``redis_server``, always or as its parameter says, needs a real Redis."""
    for item in items:
        assert isinstance(item, pytest.Function)
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if OF_REDIS & set(item.fixturenames) or any(type(each) is str and each == "redis" for each in parameters):
            item.add_marker("real_redis")


def long_ones_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """xdist cuts the list into parts of the same length, one for each worker: each begins with its share of LONG."""
    groups: dict[str, list[pytest.Item]] = {prefix: [] for prefix in (*LONG, "")}
    for item in items:
        groups[next(prefix for prefix in groups if item.nodeid.startswith(prefix))].append(item)
    others = iter(groups.pop(""))
    long_ones = list(filter(None, groups.values()))
    ordered: list[pytest.Item] = []
    for number in range(workers):
        share = [item for group in long_ones[number::workers] for item in group]
        length = (len(items) - len(ordered)) // (workers - number)
        ordered += [*share, *islice(others, max(0, length - len(share)))]
    return [*ordered, *others]


def pytest_collection_finish() -> None:
    """What was loaded stays to the end; to look through it again and again was a fifth of the time of the tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)


@pytest.fixture(autouse=True)
def folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No mailonce.toml, .env or data/ of the checkout gets in."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def redis_process() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """One for this test alone, which it may stop, kill and restore."""
    with RedisServer("--appendonly", "yes") as server:
        server.open_era()
        yield server


@pytest.fixture
def redis_server(redis_process: RedisServer, request: pytest.FixtureRequest) -> RedisServer:
    """A real Redis, emptied. Its era has been open for long: tests do not wait as after a real loss of memory."""
    assert request.node.get_closest_marker("real_redis"), "mark it real_redis"
    redis_process.client.flushall()
    redis_process.open_era()
    return redis_process
