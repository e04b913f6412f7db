"""Names in Redis, shared by all servers. Each step is one Lua script and one round trip; the verdict is in lua/."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import resources
from typing import Any, TypeVar, cast

import redis

from deduplication.claims import (
    PENDING_KEPT_MS,
    Claim,
    Claimed,
    Duplicate,
    Gate,
    InFlight,
    Kind,
    Name,
    Verdict,
)
from deduplication.errors import StoreUnavailable
from deduplication.journal.redis import translated_errors
from deduplication.stores.base import Pattern, Record, State
from deduplication.stores.spelling import Speller, escape_glob, glob_of

T = TypeVar("T")

_Entries = list[tuple[str, dict[str, str]]]
_SCAN_COUNT = 1000
_BATCH = 500


@dataclass(frozen=True)
class Memory:
    """Which memory of Redis a server knows, and the highest fencing number it got from it."""

    id: str | None
    seen_fence: int = 0


class RedisLostMemory(StoreUnavailable):
    """Redis is up, but has forgotten what it knew: emptied, or gone back to an older state."""


class RedisRestoring(StoreUnavailable):
    """The servers are telling Redis what it forgot; until they are through, nothing can be decided."""


@dataclass(frozen=True)
class Facts:
    """Any policy but noeviction silently forgets names. None where the server does not say."""

    maxmemory_policy: str | None
    evicted_keys: int | None


@dataclass(frozen=True)
class News:
    """What a server learns by asking now and then: the id of the memory, and names that were reset elsewhere."""

    memory_id: str | None
    resets: list[tuple[list[Name], int]]
    cursor: str


class RedisStore:
    def __init__(self, client: redis.Redis, speller: Speller | None = None) -> None:
        self._client = client
        self._speller = speller or Speller()
        self._prefix = self._speller.prefix
        self._scripts = {step: client.register_script(_source(step)) for step in _STEPS}

    def claim(self, claim: Claim, memory: Memory | None = None) -> Verdict:
        """With ``memory``, raises RedisLostMemory where Redis is no longer the one the server knows."""
        return self.move(claim, claim, memory)

    def move(self, claim: Claim, to: Claim, memory: Memory | None = None) -> Verdict:
        known = {"memory": memory.id, "seen_fence": memory.seen_fence} if memory else {}
        return _verdict(json.loads(self._run("claim", to, claim.given_back_by(to), **known)))

    def commit(self, claim: Claim) -> bool:
        return bool(self._run("commit", claim))

    def release(self, claim: Claim, retries_left: int | None) -> bool:
        return bool(self._run("release", claim, retries_left=retries_left))

    def renew(self, claim: Claim) -> bool:
        return bool(self._run("renew", claim))

    def merge(self, records: Iterable[Record], now_ms: int, hold_ms: int | None = None) -> int:
        """Takes over records of a local store; ``now_ms`` is that store's time. Returns how many names changed."""
        merged = 0
        for batch in _batches(records):
            keys = self._common_keys()
            names = [self._with_record(record, now_ms, keys) for record in batch]
            merged += self._call("merge", keys, {"names": names, "hold_ms": hold_ms})
        return merged

    def adopt(self, memory: Memory, new_id: str, hold_ms: int) -> str:
        """The id of the memory; a new one if it has none or has gone back."""
        known = {"memory": memory.id, "seen_fence": memory.seen_fence, "new_id": new_id, "hold_ms": hold_ms}
        return str(self._call("adopt", self._common_keys(), known))

    def news(self, cursor: str) -> News:
        stream = f"{self._prefix}resets"
        with translated_errors():
            memory_id = cast(str | None, self._client.hget(f"{self._prefix}memory", "id"))
            answer = cast(list[tuple[str, _Entries]], self._client.xread({stream: cursor}, count=1000))
        entries = [entry for _, each in answer for entry in each]
        resets = [
            ([Name.from_label(label) for label in json.loads(fields["labels"])], int(fields["fence"]))
            for _, fields in entries
        ]
        return News(memory_id, resets, entries[-1][0] if entries else cursor)

    def _run(self, step: str, claim: Claim, dropped: tuple[Name, ...] = (), **more: Any) -> Any:
        keys = self._common_keys()
        request = {
            "item": claim.item,
            "owner": claim.owner,
            "fingerprint": claim.fingerprint or "-",
            "lease_ms": claim.lease_ms,
            "siblings": claim.labels,
            "names": [self._with_keys(name, keys, lists_siblings=claim.holds_siblings(name)) for name in claim.names],
            "dropped": [self._with_keys(name, keys) for name in dropped] or None,
        }
        return self._call(step, keys, request | more)

    def _call(self, step: str, keys: list[str], request: dict[str, Any]) -> Any:
        request = _without_none({"pending_kept_ms": PENDING_KEPT_MS, **request})
        with translated_errors():
            return self._scripts[step](keys=keys, args=[json.dumps(request)])

    def _common_keys(self) -> list[str]:
        return [self._prefix + key for key in ("fence", "memory", "resets")]

    def _with_record(self, record: Record, now_ms: int, keys: list[str]) -> dict[str, Any]:
        stored = {
            "state": record.state,
            "owner": record.owner,
            "item": record.item,
            "fence": record.fence,
            "retries_left": record.retries_left,
            "first_seen_ms": record.first_seen_ms,
            "gate": record.gate,
            "by": record.by,
            "original": record.original,
            "original_seen_ms": record.original_seen_ms,
            "siblings": list(record.siblings) or None,
        }
        kept_ms = None if record.expires_ms is None else max(1, record.expires_ms - now_ms)
        return self._with_keys(replace(record.name, kept_ms=kept_ms), keys) | {
            "fingerprint": record.fingerprint or "-",
            "lease_ms": max(0, record.lease_until_ms - now_ms),
            "record": _without_none(stored),
        }

    def _with_keys(self, name: Name, keys: list[str], *, lists_siblings: bool = False) -> dict[str, Any]:
        """The name as records.lua takes it; its keys are appended to ``keys``."""
        spelling = self._speller.spell(name)
        indexes = {}
        for role, key in (
            ("detail", f"claim:{name.label}"),
            ("decides", spelling.decides),
            ("history", spelling.history),
        ):
            if key is not None:
                keys.append(self._prefix + key)
                indexes[role] = len(keys)
        return _without_none(
            {
                "label": name.label,
                "gate": name.gate,
                "own": name.is_own,
                "needs_agreement": name.needs_agreement,
                "lists_siblings": lists_siblings,
                "member": spelling.member,
                "done": spelling.done,
                "pending": spelling.pending,
                "counts": spelling.counts,
                "leased": spelling.leased,
                "kept_ms": name.kept_ms,
                **indexes,
            }
        )

    def read(self, names: Iterable[Name]) -> Iterator[Record]:
        for batch in _batches(dict.fromkeys(names)):
            keys = self._common_keys()
            found = self._call("read", keys, {"names": [self._with_keys(name, keys) for name in batch]})
            for index, fingerprint, text in found:
                yield _record(batch[index - 1], fingerprint, json.loads(text))

    def find(self, pattern: Pattern) -> Iterator[Record]:
        with translated_errors():
            names = [*self._detailed(pattern), *self._marked(pattern)]
        yield from self.read(names)

    def _detailed(self, pattern: Pattern) -> Iterator[Name]:
        start = f"{self._prefix}claim:"
        glob = ":".join(map(glob_of, (pattern.kind, pattern.scope, pattern.value)))
        for key in self._scan(escape_glob(start) + glob):
            yield from _readable(partial(Name.from_label, key.removeprefix(start)), pattern)

    def _marked(self, pattern: Pattern) -> Iterator[Name]:
        for kind, glob in self._speller.visible(pattern):
            for key in self._scan(glob):
                for member in self._members(kind, key, pattern):
                    yield from _readable(partial(self._speller.read_back, kind, key, member), pattern)

    def _members(self, kind: Kind, key: str, pattern: Pattern) -> Iterable[str | None]:
        """The members of a Set, or None once for a String that says done; nothing of a key that is not ours."""
        match self._client.type(key):
            case "string":
                return [None] if self._client.get(key) == self._done_value(kind) else []
            case "set" if kind is Kind.EMAIL_ID and pattern.value is not None:
                return [pattern.value] if self._client.sismember(key, pattern.value) else []
            case "set" if kind in (Kind.EMAIL_ID, Kind.SUBJECT_GROUP):
                return cast(Iterable[str], self._client.sscan_iter(key, count=_SCAN_COUNT))
        return []

    def _done_value(self, kind: Kind) -> str | None:
        return Speller(group_ttl=True).spell(Name(kind, "", "")).done

    def _scan(self, glob: str) -> Iterator[str]:
        yield from self._client.scan_iter(match=glob, count=_SCAN_COUNT)

    def forget(self, names: Iterable[Name]) -> int:
        forgotten = 0
        for batch in _batches(dict.fromkeys(names)):
            keys = self._common_keys()
            forgotten += self._call("forget", keys, {"names": [self._with_keys(name, keys) for name in batch]})
        return forgotten

    def drop_lapsed(self, kind: Kind) -> int:
        """Keys that are only leased expire by themselves; others may still be taken over, and keep their retries."""
        return 0

    def now_ms(self) -> int:
        with translated_errors():
            seconds, microseconds = self._client.time()
        return int(seconds * 1000 + microseconds // 1000)

    def check(self) -> None:
        with translated_errors():
            opens_ms = self._client.hget(f"{self._prefix}memory", "opens_ms")
        if opens_ms and int(opens_ms) > self.now_ms():
            raise RedisRestoring("redis: it has lost its memory and is being restored")

    def facts(self) -> Facts:
        with translated_errors():
            memory = self._client.info("memory")
            stats = self._client.info("stats")
        return Facts(memory.get("maxmemory_policy"), stats.get("evicted_keys"))

    def close(self) -> None:
        self._client.close()


_STEPS = ("claim", "commit", "release", "renew", "read", "forget", "merge", "adopt")


@cache
def _source(step: str) -> str:
    folder = resources.files("deduplication.stores") / "lua"
    return (folder / "records.lua").read_text() + "\n" + (folder / f"{step}.lua").read_text()


def _verdict(answer: dict[str, Any]) -> Verdict:
    if answer["verdict"] == "lost_memory":
        raise RedisLostMemory("redis: it has lost its memory")
    if answer["verdict"] == "restoring":
        raise RedisRestoring(f"redis: being restored for another {answer['retry_after_ms']} ms")
    if answer["verdict"] == "claimed":
        return Claimed(answer["fence"], answer.get("retries_left"), tuple(answer.get("left_out", ())))
    gate, label = Gate(answer["gate"]), answer["name"]
    if answer["verdict"] == "in_flight":
        return InFlight(gate, label, answer["retry_after_ms"])
    return Duplicate(gate, label, answer.get("original"), answer.get("first_seen_ms"))


def _record(name: Name, fingerprint: str, detail: dict[str, Any]) -> Record:
    known = {**detail, "state": State(detail["state"]), "siblings": tuple(detail.get("siblings", ()))}
    if "gate" in known:
        known["gate"] = Gate(known["gate"])
    return Record(name=name, fingerprint="" if fingerprint == "-" else fingerprint, **known)


def _readable(read: Callable[[], Name], pattern: Pattern) -> Iterator[Name]:
    """The name if the pattern wants it; other programs' keys may look like ours and be none."""
    try:
        name = read()
    except ValueError:
        return
    if pattern.matches(name):
        yield name


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    pending = list(items)
    for start in range(0, len(pending), _BATCH):
        yield pending[start : start + _BATCH]
