"""What machines tell each other of their figures, by way of Redis.

It stands beside the claims and has no part in them: no decision asks for any of it, and what is lost of it is told
again. Each machine writes under its own name, and absolute values, so that telling twice changes nothing.
"""

from __future__ import annotations

import base64
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import redis

from deduplication.journal.redis import translated_errors

KEPT_S = 32 * 86_400  # of a machine that tells nothing any more


@dataclass(frozen=True)
class News:
    """``before``: the mark that Redis has if it knows all that was told until now; ``mark``: the one that it gets.

    ``buckets``: by their length and their start, in seconds. ``workers``: how many live here, for so long.
    """

    before: str
    mark: str
    totals: str
    workers: int
    workers_for_s: int
    buckets: Mapping[tuple[int, int], str] = field(default_factory=dict)


class RedisFigures:
    """``client`` hands out text. ``kept_s``: how long buckets of each length are kept."""

    def __init__(self, client: redis.Redis, machine: str, prefix: str, kept_s: Mapping[int, int]) -> None:
        self._client = client
        self._machine = machine
        self._prefix = f"{prefix}figures:"
        self._kept_s = kept_s

    def tell(self, news: News) -> bool:
        """False: it had another mark, or none, so that what was told before may be gone."""
        now_s = int(time.time())
        home = self._key(self._machine)
        with translated_errors(), self._client.pipeline(transaction=False) as pipeline:
            pipeline.hget(home, "mark")
            pipeline.hset(home, mapping={"mark": news.mark, "totals": _packed(news.totals)})
            pipeline.expire(home, KEPT_S)
            pipeline.set(self._key(self._machine, "workers"), news.workers, ex=news.workers_for_s)
            pipeline.zadd(self._key("machines"), {self._machine: now_s})
            pipeline.zremrangebyscore(self._key("machines"), "-inf", now_s - KEPT_S)
            pipeline.expire(self._key("machines"), KEPT_S)
            for step_s, kept_s in self._kept_s.items():
                told = {start: text for (length_s, start), text in news.buckets.items() if length_s == step_s}
                fields: dict[Any, Any] = {str(start): _packed(text) for start, text in told.items()}
                if fields:
                    pipeline.hset(self._key(self._machine, step_s), mapping=fields)
                    pipeline.expire(self._key(self._machine, step_s), kept_s)
            return bool(pipeline.execute()[0] == news.before)

    def drop_old(self) -> None:
        """Fields of a hash do not end by themselves."""
        now_s = time.time()
        for step_s, kept_s in self._kept_s.items():
            key = self._key(self._machine, step_s)
            with translated_errors():
                fields = cast(list[str], self._client.hkeys(key))
                old = [each for each in fields if int(each) < now_s - kept_s]
                if old:
                    self._client.hdel(key, *old)

    def totals(self) -> dict[str, str]:
        """As the other machines told them last."""
        others = self._others()
        with translated_errors(), self._client.pipeline(transaction=False) as pipeline:
            for machine in others:
                pipeline.hget(self._key(machine), "totals")
            found = cast(list[str | None], pipeline.execute())
        return {machine: _unpacked(text) for machine, text in zip(others, found, strict=True) if text}

    def buckets(self, step_s: int, starts: Sequence[int]) -> list[tuple[int, str]]:
        """Those of the other machines, each with its start."""
        others = self._others()
        with translated_errors(), self._client.pipeline(transaction=False) as pipeline:
            for machine in others:
                pipeline.hmget(self._key(machine, step_s), [str(start) for start in starts])
            found = cast(list[list[str | None]], pipeline.execute())
        return [(start, _unpacked(text)) for each in found for start, text in zip(starts, each, strict=True) if text]

    def workers(self) -> int:
        """How many live on the other machines."""
        keys = [self._key(machine, "workers") for machine in self._others()]
        with translated_errors():
            found = cast(list[str | None], self._client.mget(keys)) if keys else []
        return sum(int(each) for each in found if each)

    def close(self) -> None:
        self._client.close()

    def _others(self) -> list[str]:
        with translated_errors():
            known = cast(list[str], self._client.zrange(self._key("machines"), 0, -1))
        return [machine for machine in known if machine != self._machine]

    def _key(self, *parts: object) -> str:
        return self._prefix + ":".join(map(str, parts))


def _packed(text: str) -> str:
    """A third of it: the same few words stand in every one of a thousand buckets."""
    return base64.b64encode(zlib.compress(text.encode())).decode()


def _unpacked(text: str) -> str:
    return zlib.decompress(base64.b64decode(text)).decode()
