"""Delivery records in Redis, shared by all servers. Each step is one Lua script; what each does stands in lua/.

Keys, each after the prefix: ``delivery:{id}`` and ``delivery_payload:{id}``, which expire by themselves;
``deliveries:{destination}:{status}``, the ids by creation; ``deliveries:due``, ``deliveries:expiring`` and
``deliveries:destinations``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any, cast

from deduplication.journal.redis import translated_errors
from deduplication.redis_client import Client
from orchestrator.delivery.ledger.base import DEFAULT_RETENTION, Counts, Retention, Wanted
from orchestrator.delivery.record import Delivery, DeliveryStatus

TAKEN = "taken"

_DUE, _EXPIRING, _DESTINATIONS = "deliveries:due", "deliveries:expiring", "deliveries:destinations"
_STATUSES = list(DeliveryStatus)
_BATCH = 200
_SCRIPTS = ("put", "read", "begin", "due", "hold", "page", "counts", "expired", "sweep", "forget")


class Rule(StrEnum):
    """When a record is taken in; see put.lua."""

    ADD = "add"
    SAVE = "save"
    MERGE = "merge"


@dataclass(frozen=True)
class Known:
    """What Redis knows of an id: its record, how far that is, and when the id was last forgotten on purpose."""

    delivery: Delivery | None
    progress: tuple[int, ...] = ()
    forgotten_ms: int | None = None


class RedisLedger:
    def __init__(self, client: Client, prefix: str = "", retention: Retention = DEFAULT_RETENTION) -> None:
        """On Redis Cluster the prefix has to hold a hash tag, so that the keys of a script share a slot."""
        self._client = client
        self._prefix = prefix
        self._retention = retention
        self._scripts = {name: client.register_script(_source(name)) for name in _SCRIPTS}

    # The contract

    def add(self, deliveries: Sequence[Delivery]) -> None:
        self.put(deliveries, Rule.ADD)

    def save(self, delivery: Delivery) -> None:
        self.put([delivery], Rule.SAVE)

    def get(self, delivery_id: str) -> Delivery | None:
        return self.read([delivery_id], with_payloads=True)[0].delivery

    def begin(self, delivery_id: str, hold_ms: int) -> Delivery | None:
        with translated_errors():
            facts = cast(str | None, self._client.hget(self._prefix + _record_key(delivery_id), "facts"))
        if facts is None:
            return None
        indexes = _index_keys([json.loads(facts)["destination"]], (DeliveryStatus.WAITING, DeliveryStatus.DELIVERING))
        answer = self._call("begin", [_DUE, _record_key(delivery_id), _payload_key(delivery_id), *indexes], hold_ms)
        return _known(answer).delivery if answer else None

    def find(self, wanted: Wanted) -> Iterator[Delivery]:
        indexes = self._indexes(wanted)
        first = "-" if wanted.since_ms is None else f"[{wanted.since_ms:015d}"
        last = "+" if wanted.until_ms is None else f"({wanted.until_ms:015d}"
        while indexes:
            members = cast(list[str], self._call("page", indexes, first, last, _BATCH))
            yield from (delivery for delivery in self._listed(members) if wanted.matches(delivery))
            if len(members) < _BATCH:
                return
            first = f"({members[-1]}"

    def counts(self) -> Counts:
        while self._sweep_expired() == _BATCH:
            pass
        destinations = self._destinations()
        places = [(destination, status) for destination in destinations for status in _STATUSES]
        counts = self._call("counts", _index_keys(destinations, _STATUSES)) if places else []
        return {place: count for place, count in zip(places, counts, strict=True) if count}

    def due(self, limit: int, hold_ms: int) -> list[Delivery]:
        members = cast(list[str], self._call("due", [_DUE, _EXPIRING], limit, hold_ms))
        return [delivery for delivery in self._listed(members) if delivery.status.is_open]

    def hold(self, deliveries: Sequence[Delivery], hold_ms: int) -> None:
        if deliveries:
            pairs = [(_member(each), str(each.next_try_ms)) for each in deliveries]
            self._call("hold", [_DUE], hold_ms, *(part for pair in pairs for part in pair))

    def forget(self, delivery_ids: Iterable[str]) -> int:
        return len(self.forget_known(delivery_ids))

    def follow(self) -> None:
        """Records expire by themselves; this takes a batch of them out of the indexes."""
        self._sweep_expired()

    def close(self) -> None:
        self._client.close()

    # For failover.py and for the above

    def put(self, deliveries: Sequence[Delivery], rule: Rule) -> list[str]:
        """For each TAKEN, or what stood against it: "forgotten", "expired", or the status that stays."""
        keys, arguments = [_DUE, _EXPIRING, _DESTINATIONS], [str(rule), str(len(_STATUSES))]
        for each in deliveries:
            keys += [_record_key(each.id), _payload_key(each.id), *_index_keys([each.destination], _STATUSES)]
            arguments += [json.dumps(self._facts(each)), each.to_json(), each.payload_to_json() or ""]
        return cast(list[str], self._call("put", keys, *arguments))

    def read(self, delivery_ids: Sequence[str], *, with_payloads: bool = False) -> list[Known]:
        """What is known of each, in the order asked for."""
        known: list[Known] = []
        for batch in _batches(delivery_ids):
            keys = [_DUE, *map(_record_key, batch), *(map(_payload_key, batch) if with_payloads else ())]
            known += map(_known, self._call("read", keys, len(batch)))
        return known

    def forget_known(self, delivery_ids: Iterable[str]) -> set[str]:
        """The ids that were known until now."""
        wanted, indexes = list(dict.fromkeys(delivery_ids)), self._indexes(Wanted())
        forgotten: set[str] = set()
        for batch in _batches(wanted):
            records = [key for each in batch for key in (_record_key(each), _payload_key(each))]
            keys = [_DUE, _EXPIRING, *indexes, *records]
            were_known = self._call("forget", keys, len(indexes), self._retention.others_ms)
            forgotten.update(each for each, was_known in zip(batch, were_known, strict=True) if was_known)
        return forgotten

    def _facts(self, delivery: Delivery) -> dict[str, Any]:
        facts = {
            "member": _member(delivery),
            "destination": delivery.destination,
            "status": delivery.status,
            "index": _STATUSES.index(delivery.status),
            "created_ms": delivery.created_ms,
            "scheduled_ms": delivery.scheduled_ms,
            "delivered_ms": delivery.delivered_ms or delivery.scheduled_ms,
            "expires_ms": self._retention.expires_ms(delivery),
            "progress": delivery.progress,
        }
        is_scheduled = delivery.status.is_open and delivery.next_try_ms is not None
        return facts | ({"next_try_ms": delivery.next_try_ms} if is_scheduled else {})

    def _listed(self, members: Sequence[str]) -> list[Delivery]:
        """Their records, of those that still are there; the others are taken off the lists."""
        known = self.read([_id_of(member) for member in members])
        gone = [member for member, each in zip(members, known, strict=True) if each.delivery is None]
        self._sweep(gone)
        return [each.delivery for each in known if each.delivery is not None]

    def _sweep_expired(self) -> int:
        return self._sweep(cast(list[str], self._call("expired", [_EXPIRING], _BATCH)))

    def _sweep(self, members: Sequence[str]) -> int:
        if not members:
            return 0
        indexes = self._indexes(Wanted())
        records = [_record_key(_id_of(member)) for member in members]
        return int(self._call("sweep", [_DUE, _EXPIRING, *indexes, *records], len(indexes), *members))

    def _indexes(self, wanted: Wanted) -> list[str]:
        destinations = self._destinations() if wanted.destination is None else [wanted.destination]
        statuses = _STATUSES if wanted.status is None else [wanted.status]
        return _index_keys(destinations, statuses)

    def _destinations(self) -> list[str]:
        with translated_errors():
            return sorted(cast(set[str], self._client.smembers(self._prefix + _DESTINATIONS)))

    def _call(self, script: str, keys: Sequence[str], *arguments: str | int) -> Any:
        with translated_errors():
            return self._scripts[script](keys=[self._prefix + key for key in keys], args=arguments)


@cache
def _source(script: str) -> str:
    return (resources.files("orchestrator.delivery.ledger") / "lua" / f"{script}.lua").read_text()


def _record_key(delivery_id: str) -> str:
    return f"delivery:{delivery_id}"


def _payload_key(delivery_id: str) -> str:
    return f"delivery_payload:{delivery_id}"


def _index_keys(destinations: Sequence[str], statuses: Sequence[DeliveryStatus]) -> list[str]:
    return [f"deliveries:{destination}:{status}" for destination in destinations for status in statuses]


def _member(delivery: Delivery) -> str:
    return f"{delivery.created_ms:015d}:{delivery.id}"


def _id_of(member: str) -> str:
    return member.partition(":")[2]


def _known(answer: Sequence[Any]) -> Known:
    record, status, next_try_ms, facts, forgotten_ms, payload = answer
    forgotten_ms = None if forgotten_ms is None else int(forgotten_ms)
    if record is None:
        return Known(None, forgotten_ms=forgotten_ms)
    next_try_ms = None if next_try_ms is None else int(float(next_try_ms))
    delivery = Delivery.from_json(record, payload, status=status, next_try_ms=next_try_ms)
    return Known(delivery, tuple(json.loads(facts)["progress"]), forgotten_ms)


def _batches(items: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(items), _BATCH):
        yield items[start : start + _BATCH]
