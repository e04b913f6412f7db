"""What others do: the six commands people write by hand, one SET NX, one script, and a library."""

from __future__ import annotations

import itertools
import secrets
import warnings
from collections.abc import Callable
from typing import Any

import redis

from tests.bench.figures import Step

LEASE_S = 60

_numbers = itertools.count()
_TWO_KEYS = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', 604800000)
redis.call('SET', KEYS[2], ARGV[1], 'PX', 604800000)
return 1
"""


def fresh_id() -> str:
    return f"{next(_numbers):08x}{secrets.token_hex(12)}"


def take_naively(client: redis.Redis, id_: str, group: str) -> bool:
    """Asks, locks, asks for the group, marks both, unlocks: a round trip each, and atomic in no way."""
    if client.sismember("naive:ids", id_) or not client.set(f"naive:lock:{id_}", "1", nx=True, ex=LEASE_S):
        return False
    is_new = not client.sismember("naive:groups", group)
    if is_new:
        client.sadd("naive:groups", group)
        client.sadd("naive:ids", id_)
    client.delete(f"naive:lock:{id_}")
    return is_new


def naive(client: redis.Redis) -> Step:
    def step() -> None:
        id_ = fresh_id()
        assert take_naively(client, id_, f"group of {id_}")

    return step


def evalsha(client: redis.Redis) -> tuple[Step, Step]:
    """One script with two keys: for a new email, and for a duplicate."""
    script = client.register_script(_TWO_KEYS)
    known = fresh_id()
    script(keys=[f"two:{known}:a", f"two:{known}:b"], args=[known])

    def new() -> None:
        id_ = fresh_id()
        assert script(keys=[f"two:{id_}:a", f"two:{id_}:b"], args=[id_]) == 1

    def duplicate() -> None:
        assert script(keys=[f"two:{known}:a", f"two:{known}:b"], args=[known]) == 0

    return new, duplicate


def powertools(url: str) -> tuple[Step, Step]:
    """aws-lambda-powertools' idempotency over its Redis layer, around a function that does nothing."""
    warnings.filterwarnings("ignore", module="aws_lambda_powertools")  # that we are no Lambda
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
        from aws_lambda_powertools.utilities.idempotency.persistence.redis import RedisCachePersistenceLayer

        client: Any = redis.Redis.from_url(url, decode_responses=True)
        layer = RedisCachePersistenceLayer(client=client)
    runs = itertools.count()

    def process(*, email: dict[str, str]) -> dict[str, str]:
        next(runs)
        return {"id": email["id"]}

    take: Callable[..., Any] = idempotent_function(
        process,
        data_keyword_argument="email",
        persistence_store=layer,
        config=IdempotencyConfig(expires_after_seconds=7 * 24 * 3600),
    )
    known = {"id": fresh_id(), "subject": "Report of the week"}
    take(email=known)

    def new() -> None:
        take(email={"id": fresh_id(), "subject": "Report of the week"})

    def duplicate() -> None:
        take(email=known)

    return new, duplicate
