"""What people write by hand: six commands for one email, a round trip each."""

from __future__ import annotations

import itertools
import secrets

import redis

from tests.bench.figures import Step

LEASE_S = 60
_numbers = itertools.count()


def take_naively(client: redis.Redis, id_: str, group: str) -> bool:
    """Asks, locks, asks for the group, marks both, unlocks; nothing of it is atomic."""
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
        id_ = f"{next(_numbers):08x}{secrets.token_hex(12)}"
        assert take_naively(client, id_, f"group of {id_}")

    return step
