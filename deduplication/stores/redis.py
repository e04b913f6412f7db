"""Names in Redis, shared by all servers. Each step is one Lua script and one round trip; the verdict is in lua/."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

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
from deduplication.errors import StoreMisconfigured, StoreUnavailable
from deduplication.stores.base import Pattern, Record, State

SOCKET_TIMEOUT_S = 0.25
_SCAN_COUNT = 1000
_BATCH = 500
_REFUSED = (
    redis.exceptions.AuthenticationError,
    redis.exceptions.AuthorizationError,
    redis.exceptions.NoPermissionError,
)
_MAY_PASS = (
    redis.exceptions.ConnectionError,  # refused, cut, LOADING
    redis.exceptions.TimeoutError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
    redis.exceptions.MasterDownError,
)


def connect(url: str, timeout_s: float = SOCKET_TIMEOUT_S) -> redis.Redis:
    """A client that never retries by itself: a repeated claim must carry its owner token knowingly."""
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        retry_on_timeout=False,
        decode_responses=True,
    )


@dataclass(frozen=True)
class Spelling:
    """How Redis writes one name: the only place that knows. Keys are without the prefix."""

    decides: str
    member: str | None = None
    history: str | None = None
    done: str | None = None
    pending: str | None = None
    counts: bool = False


@dataclass(frozen=True)
class Speller:
    """Spells every kind of name (DESIGN 2). With a group TTL, a String decides and the Set is history."""

    prefix: str = ""
    group_ttl: bool = False

    def spell(self, name: Name) -> Spelling:
        match name.kind:
            case Kind.EMAIL_ID:
                return Spelling(f"processed_ids:{name.scope}", member=name.value)
            case Kind.POST:
                return Spelling(f"post:{name.value}", done="0", pending="pending", counts=True)
            case Kind.SUBJECT_GROUP if self.group_ttl:
                member = f"{name.scope}:{name.value}"
                groups = f"subject_groups:{name.scope}"
                return Spelling(f"ttl:subject_groups:{member}", member=member, history=groups, done="1")
            case Kind.SUBJECT_GROUP:
                return Spelling(f"subject_groups:{name.scope}", member=f"{name.scope}:{name.value}")
            case Kind.MEDIA:
                return Spelling(f"media:{name.value}", done="1", pending="pending")
            case Kind.CONTENT:
                return Spelling(f"dedup:{name.scope}:{name.value}", done="1")
            case Kind.LOCK:
                return Spelling(f"lock:{name.scope}:{name.value}", done="1", pending="pending")

    def visible(self, pattern: Pattern) -> list[tuple[Kind, str]]:
        """Where names may stand that another program marked: (kind, glob over keys)."""
        scope, value = _glob(pattern.scope), _glob(pattern.value)
        globs = [
            (Kind.EMAIL_ID, f"processed_ids:{scope}"),
            (Kind.POST, f"post:{value}"),
            (Kind.SUBJECT_GROUP, f"subject_groups:{scope}"),
            (Kind.SUBJECT_GROUP, f"ttl:subject_groups:{scope}:{value}"),
            (Kind.MEDIA, f"media:{value}"),
            (Kind.CONTENT, f"dedup:{scope}:{value}"),
            (Kind.LOCK, f"lock:{scope}:{value}"),
        ]
        return [(kind, self.prefix + glob) for kind, glob in globs if pattern.kind in (None, kind)]

    def read_back(self, kind: Kind, key: str, member: str | None) -> Name:
        """The name that a visible key, or a member of a visible Set, stands for."""
        text = key.removeprefix(self.prefix)
        match kind:
            case Kind.EMAIL_ID:
                return Name(kind, text.split(":", 1)[1], member or "")
            case Kind.SUBJECT_GROUP:
                scope, _, value = (member or text.removeprefix("ttl:subject_groups:")).partition(":")
                return Name(kind, scope, value)
            case Kind.POST | Kind.MEDIA:
                return Name(kind, "", text.split(":", 1)[1])
            case Kind.CONTENT | Kind.LOCK:
                _, scope, value = text.split(":", 2)
                return Name(kind, scope, value)


class RedisStore:
    def __init__(self, client: redis.Redis, speller: Speller | None = None) -> None:
        self._client = client
        self._speller = speller or Speller()
        self._prefix = self._speller.prefix
        self._scripts = {step: client.register_script(_source(step)) for step in _STEPS}

    def claim(self, claim: Claim) -> Verdict:
        return _verdict(json.loads(self._run("claim", claim)))

    def commit(self, claim: Claim) -> bool:
        return bool(self._run("commit", claim))

    def release(self, claim: Claim, retries_left: int | None) -> bool:
        return bool(self._run("release", claim, retries_left=retries_left))

    def renew(self, claim: Claim) -> bool:
        return bool(self._run("renew", claim))

    def _run(self, step: str, claim: Claim, **more: int | None) -> Any:
        keys = [f"{self._prefix}fence"]
        request = {
            "item": claim.item,
            "owner": claim.owner,
            "fingerprint": claim.fingerprint or "-",
            "lease_ms": claim.lease_ms,
            "pending_kept_ms": PENDING_KEPT_MS,
            "siblings": claim.labels,
            "names": [self._with_keys(claim, name, keys) for name in claim.names],
            **more,
        }
        with translated_errors():
            return self._scripts[step](keys=keys, args=[json.dumps(_without_none(request))])

    def _with_keys(self, claim: Claim, name: Name, keys: list[str]) -> dict[str, Any]:
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
                "lists_siblings": claim.holds_siblings(name),
                "member": spelling.member,
                "done": spelling.done,
                "pending": spelling.pending,
                "counts": spelling.counts,
                "kept_ms": name.kept_ms,
                **indexes,
            }
        )

    def read(self, names: Iterable[Name]) -> Iterator[Record]:
        with translated_errors():
            for batch in _batches(dict.fromkeys(names)):
                yield from self._read(batch)

    def find(self, pattern: Pattern) -> Iterator[Record]:
        with translated_errors():
            names = [*self._detailed(pattern), *self._marked(pattern)]
        yield from self.read(names)

    def _detailed(self, pattern: Pattern) -> Iterator[Name]:
        start = f"{self._prefix}claim:"
        glob = ":".join(map(_glob, (pattern.kind, pattern.scope, pattern.value)))
        for key in self._scan(_escape(start) + glob):
            name = Name.from_label(key.removeprefix(start))
            if pattern.matches(name):
                yield name

    def _marked(self, pattern: Pattern) -> Iterator[Name]:
        for kind, glob in self._speller.visible(pattern):
            for key in self._scan(glob):
                for member in self._members(kind, key, pattern):
                    name = self._speller.read_back(kind, key, member)
                    if pattern.matches(name):
                        yield name

    def _members(self, kind: Kind, key: str, pattern: Pattern) -> Iterable[str | None]:
        if self._client.type(key) != "set":
            return [None] if self._client.get(key) == self._done_value(kind) else []
        if kind is Kind.EMAIL_ID and pattern.value is not None:
            return [pattern.value] if self._client.sismember(key, pattern.value) else []
        return cast(Iterable[str], self._client.sscan_iter(key, count=_SCAN_COUNT))

    def _done_value(self, kind: Kind) -> str | None:
        return Speller(group_ttl=True).spell(Name(kind, "", "")).done

    def _scan(self, glob: str) -> Iterator[str]:
        yield from self._client.scan_iter(match=glob, count=_SCAN_COUNT)

    def _read(self, names: list[Name]) -> Iterator[Record]:
        pipe = self._client.pipeline(transaction=False)
        pipe.time()
        for name in names:
            pipe.hgetall(f"{self._prefix}claim:{name.label}")
            spelling = self._speller.spell(name)
            key = self._prefix + spelling.decides
            pipe.sismember(key, spelling.member or "") if spelling.done is None else pipe.get(key)
        (seconds, microseconds), *answers = pipe.execute()
        now_ms = seconds * 1000 + microseconds // 1000
        for name, fields, mark in zip(names, answers[::2], answers[1::2], strict=True):
            done = self._speller.spell(name).done
            marked = bool(mark) if done is None else mark == done
            yield from _records(name, fields, marked, now_ms)

    def forget(self, names: Iterable[Name]) -> int:
        return sum(
            self._run("forget", Claim(item="", names=tuple(batch), fingerprint="", owner="", lease_ms=0))
            for batch in _batches(dict.fromkeys(names))
        )

    def check(self) -> None:
        with translated_errors():
            self._client.ping()

    def eviction_policy(self) -> str | None:
        """Anything but noeviction silently forgets names. None where the server does not say."""
        try:
            with translated_errors():
                return cast(dict[str, str], self._client.config_get("maxmemory-policy")).get("maxmemory-policy")
        except StoreMisconfigured:  # CONFIG is switched off by ACL on many hosted servers
            return None

    def close(self) -> None:
        self._client.close()


_STEPS = ("claim", "commit", "release", "renew", "forget")


@cache
def _source(step: str) -> str:
    folder = resources.files("deduplication.stores") / "lua"
    return (folder / "records.lua").read_text() + "\n" + (folder / f"{step}.lua").read_text()


def _verdict(answer: dict[str, Any]) -> Verdict:
    if answer["verdict"] == "claimed":
        return Claimed(answer["fence"], answer.get("retries_left"))
    gate, label = Gate(answer["gate"]), answer["name"]
    if answer["verdict"] == "in_flight":
        return InFlight(gate, label, answer["retry_after_ms"])
    return Duplicate(gate, label, answer.get("original"), answer.get("first_seen_ms"))


def _records(name: Name, fields: dict[str, str], marked: bool, now_ms: int) -> Iterator[Record]:
    """As read() in records.lua: what decides says whether a done record still counts."""
    details = {fingerprint: json.loads(text) for fingerprint, text in fields.items()}
    if marked and not any(detail["state"] == State.DONE for detail in details.values()):
        details["-"] = {"state": State.DONE}
    for fingerprint, detail in details.items():
        is_over = detail.pop("expires_ms", now_ms + 1) <= now_ms
        if not is_over and (marked or detail["state"] != State.DONE):
            yield _record(name, fingerprint, detail)


def _record(name: Name, fingerprint: str, detail: dict[str, Any]) -> Record:
    known = {**detail, "state": State(detail["state"]), "siblings": tuple(detail.get("siblings", ()))}
    if "gate" in known:
        known["gate"] = Gate(known["gate"])
    return Record(name=name, fingerprint=fingerprint.removeprefix("-"), **known)


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _batches(names: Iterable[Name]) -> Iterator[list[Name]]:
    pending = list(names)
    for start in range(0, len(pending), _BATCH):
        yield pending[start : start + _BATCH]


def _glob(part: str | None) -> str:
    return "*" if part is None else _escape(part)


def _escape(text: str) -> str:
    return "".join("\\" + char if char in "\\*?[]" else char for char in text)


@contextmanager
def translated_errors() -> Iterator[None]:
    try:
        yield
    except _REFUSED as error:  # before ConnectionError, whose children two of them are
        raise StoreMisconfigured(f"redis: {error}") from error
    except _MAY_PASS as error:
        raise StoreUnavailable(f"redis: {error}") from error
    except redis.exceptions.RedisError as error:  # WRONGTYPE, NOPERM, a script error
        raise StoreMisconfigured(f"redis: {error}") from error
