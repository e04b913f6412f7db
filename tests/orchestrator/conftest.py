"""The pipeline over each journal in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.journals import JournalBench, open_journal
from tests.support.pipeline import FakeDestination, Pipeline, Reaction, open_pipeline
from tests.support.redis_server import RedisServer

Open = Callable[..., Pipeline]


@pytest.fixture
def start(bench: JournalBench) -> Iterator[Open]:
    """A server over each journal in turn, with destinations by name and how each of them reacts."""
    with ExitStack() as stack:

        def enter(opened: AbstractContextManager[Pipeline]) -> Pipeline:
            return stack.enter_context(opened)

        def start(reactions: dict[str, list[Reaction]] | None = None, **options: Any) -> Pipeline:
            told = {name: FakeDestination(list(each)) for name, each in (reactions or {"crm": []}).items()}
            return enter(open_pipeline(bench, told, **options))

        yield start


@pytest.fixture(params=["sqlite", "redis", "failover"])
def full(request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer) -> Iterator[JournalBench]:
    """A journal that has no room for any payload."""
    with open_journal(request.param, tmp_path, redis_server, redis_bytes=1, disk_bytes=1) as bench:
        yield bench
