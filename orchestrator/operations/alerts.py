"""Alarms: what is wrong with the fleet, in words, and when that begins and ends. Pure; alert_watch.py does the rest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from orchestrator.delivery.webhook import EventType, Webhook, shown_timestamp
from orchestrator.operations.words import shown_duration, shown_moment

REDIS_ERROR_SHARE = 0.05
LOCAL_SHARE = 0.10
HIT_RATE = 0.01
LEAST_RECEIVED = 1_000  # in a day: of fewer emails one in a hundred says nothing
OLDEST_WAITING_S = 15 * 60
GOOD_POLICY = "noeviction"

TOLD_AGAIN_AFTER_S = (10, 60, 300, 1800)  # what could not be told; then it is left at that
MOST_EPISODES = 1_000


class AlertCondition(StrEnum):
    REDIS_ERRORS = "redis_errors"
    LOCAL_JOURNAL = "local_journal"
    LOW_HIT_RATE = "low_hit_rate"
    DEAD_LETTERS = "dead_letters"
    BREAKER_OPEN = "breaker_open"
    OLDEST_WAITING = "oldest_waiting"
    NO_WORKER = "no_worker"
    EVICTION_POLICY = "eviction_policy"


@dataclass(frozen=True)
class Facts:
    """The fleet as it is now. None: that cannot be told just now; ``has_redis`` and ``has_queue``: whether it ever can.

    ``redis_error_share`` and ``local_share``: of the last ten minutes. ``received`` and ``stopped``: of the last day.
    ``died``: how many dead letters each destination got within an hour. ``breakers`` and ``oldest_s``: of destinations
    that are to be sent to, so neither of those that are disabled nor of those that somebody has paused.
    """

    has_redis: bool = False
    has_queue: bool = False
    redis_error_share: float | None = None
    local_share: float | None = None
    received: int | None = None
    stopped: int = 0
    died: Mapping[str, int] | None = None
    breakers: Mapping[str, str] | None = None
    oldest_s: Mapping[str, int] | None = None
    workers: int | None = None
    policy: str | None = None


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong: for each condition, and destination where it has one, the words for a person, without contents.

    ``unknown``: what nobody can tell just now; what was found before stays.
    """

    wrong: Mapping[str, str]
    unknown: frozenset[AlertCondition] = frozenset()


def diagnose(facts: Facts, off: Collection[AlertCondition] = ()) -> Diagnosis:
    """``off``: what nobody wants to hear of."""
    rules = (
        (facts.has_redis, AlertCondition.REDIS_ERRORS, facts.redis_error_share, _redis_errors),
        (facts.has_redis, AlertCondition.LOCAL_JOURNAL, facts.local_share, _local_journal),
        (facts.has_redis, AlertCondition.EVICTION_POLICY, facts.policy, _eviction_policy),
        (facts.has_queue, AlertCondition.NO_WORKER, facts.workers, _no_worker),
        (True, AlertCondition.LOW_HIT_RATE, facts.received, _low_hit_rate),
        (True, AlertCondition.BREAKER_OPEN, facts.breakers, _breakers),
        (True, AlertCondition.OLDEST_WAITING, facts.oldest_s, _oldest_waiting),
        (True, AlertCondition.DEAD_LETTERS, facts.died, _dead_letters),
    )
    wrong: dict[str, str] = {}
    unknown = set()
    for applies, condition, fact, words in rules:
        if not applies or condition in off:
            continue
        if fact is None:
            unknown.add(condition)
        else:
            wrong |= {_key(condition, destination): text for destination, text in words(facts)}
    return Diagnosis(wrong, frozenset(unknown))


Words = Iterator[tuple[str, str]]  # a destination, or "", and what is wrong


def _redis_errors(facts: Facts) -> Words:
    share = facts.redis_error_share or 0.0
    if share > REDIS_ERROR_SHARE:
        yield "", f"Redis failed {_percent(share)} of what it was asked in the last ten minutes; the log says how."


def _local_journal(facts: Facts) -> Words:
    share = facts.local_share or 0.0
    if share > LOCAL_SHARE:
        alone = "without it each server decides alone, and cannot know what the others got."
        yield "", f"Redis was away for {_percent(share)} of the last ten minutes: {alone}"


def _eviction_policy(facts: Facts) -> Words:
    if facts.policy != GOOD_POLICY:
        yield "", eviction_warning(facts.policy)


def eviction_warning(policy: str | None) -> str:
    return f"Redis maxmemory-policy is {policy}: it silently forgets names; set it to {GOOD_POLICY}"


def _no_worker(facts: Facts) -> Words:
    if not facts.workers:
        yield "", "The queue has no worker: what is queued waits until `mailonce worker` runs with the same settings."


def _low_hit_rate(facts: Facts) -> Words:
    received = facts.received or 0
    if received >= LEAST_RECEIVED and facts.stopped / received < HIT_RATE:
        rate = f"Of {received} emails within a day only {_percent(facts.stopped / received)} were known already"
        yield "", f"{rate}: names may be lost, or emails may come without what they are recognised by."


def _breakers(facts: Facts) -> Words:
    for name, state in (facts.breakers or {}).items():
        if state != "closed":
            yield name, f"{name} keeps failing: its breaker is open, and what comes for it waits."


def _oldest_waiting(facts: Facts) -> Words:
    for name, age_s in (facts.oldest_s or {}).items():
        if age_s > OLDEST_WAITING_S:
            yield name, f"An email has waited for {shown_duration(age_s)} to be delivered to {name}."


def _dead_letters(facts: Facts) -> Words:
    for name, died in (facts.died or {}).items():
        if died:
            yield name, f"New dead letters at {name} within an hour: {died}. It refused them, or failed for too long."


@dataclass(frozen=True)
class Notice:
    """Whether the begin or the end of an alarm was told to whom it is sent, or how often that was tried."""

    tries: int = 0
    next_try_ms: int = 0
    is_over: bool = False

    def after_try(self, now_ms: int) -> Notice:
        """Noted before it is sent: whatever becomes of who sends it, it is tried so often and no more."""
        if self.tries >= len(TOLD_AGAIN_AFTER_S):
            return replace(self, tries=self.tries + 1, is_over=True)
        return replace(self, tries=self.tries + 1, next_try_ms=now_ms + TOLD_AGAIN_AFTER_S[self.tries] * 1000)

    def merged(self, other: Notice) -> Notice:
        return Notice(
            max(self.tries, other.tries), max(self.next_try_ms, other.next_try_ms), self.is_over or other.is_over
        )


class Phase(StrEnum):
    BEGUN = "begun"
    ENDED = "ended"


@dataclass(frozen=True)
class Episode:
    """One condition: its alarm that is on now, or the last one. ``number`` counts them; 0: it has never been one.

    ``turning_ms``: since when it is otherwise than the alarm says; 0: it is not. Only what stays so becomes an alarm,
    and only what stays away ends it.
    """

    number: int = 0
    text: str = ""
    begun_ms: int = 0
    ended_ms: int = 0
    turning_ms: int = 0
    begin: Notice = Notice()
    end: Notice = Notice()

    @property
    def is_on(self) -> bool:
        return self.begun_ms > 0 and self.ended_ms == 0

    def after(self, wrong: str | None, now_ms: int, patience_ms: int) -> Episode:
        """``wrong``: the words where it holds now."""
        if (wrong is not None) == self.is_on:
            return replace(self, turning_ms=0)
        since_ms = min(self.turning_ms, now_ms) or now_ms
        if now_ms - since_ms < patience_ms:
            return replace(self, turning_ms=since_ms)
        if wrong is not None:
            return Episode(self.number + 1, wrong, begun_ms=since_ms)
        return replace(self, ended_ms=now_ms, turning_ms=0)

    def next_notice(self, now_ms: int) -> Phase | None:
        """What is to be told now. Of one that is over, the begin comes first."""
        if not self.begun_ms:
            return None
        if not self.begin.is_over:
            return Phase.BEGUN if now_ms >= self.begin.next_try_ms else None
        is_due = self.ended_ms and not self.end.is_over and now_ms >= self.end.next_try_ms
        return Phase.ENDED if is_due else None

    def with_notice(self, phase: Phase, notice: Notice) -> Episode:
        return replace(self, begin=notice) if phase is Phase.BEGUN else replace(self, end=notice)

    def notice(self, phase: Phase) -> Notice:
        return self.begin if phase is Phase.BEGUN else self.end

    def merged(self, other: Episode) -> Episode:
        """With what this machine knew apart: the later one counts; of the same one, what either of them knows.

        That it is turning is left to who judges: an older copy would never let go of it.
        """
        if self.number != other.number:
            return max(self, other, key=lambda each: each.number)
        first = min(self, other, key=lambda each: (each.begun_ms, each.text))
        return Episode(
            self.number,
            first.text,
            first.begun_ms,
            max(self.ended_ms, other.ended_ms),
            self.turning_ms,
            self.begin.merged(other.begin),
            self.end.merged(other.end),
        )


@dataclass(frozen=True)
class Board:
    """All episodes, for the whole fleet. ``fleet``: tells those of one fleet from those of another."""

    fleet: str = ""
    episodes: Mapping[str, Episode] = field(default_factory=dict)

    def after(self, found: Diagnosis, now_ms: int, patience_ms: int) -> Board:
        """What nobody finds any more is over, also because its destination is gone."""
        episodes = {}
        for key in {**self.episodes, **found.wrong}:
            episode = self.episodes.get(key, Episode())
            if _parts(key)[0] not in found.unknown:
                episode = episode.after(found.wrong.get(key), now_ms, patience_ms)
            if episode != Episode():
                episodes[key] = episode
        return replace(self, episodes=_bounded(episodes))

    def with_episode(self, key: str, episode: Episode) -> Board:
        return replace(self, episodes={**self.episodes, key: episode})

    def merged(self, other: Board) -> Board:
        episodes = dict(self.episodes)
        for key, episode in other.episodes.items():
            episodes[key] = episodes[key].merged(episode) if key in episodes else episode
        return Board(min(self.fleet, other.fleet) or self.fleet or other.fleet, episodes)

    @property
    def alarms(self) -> list[Alarm]:
        """Those that are on, the oldest first."""
        on = sorted((each.begun_ms, key) for key, each in self.episodes.items() if each.is_on)
        return [Alarm(*_parts(key), since_ms, self.episodes[key].text) for since_ms, key in on]

    def webhook(self, key: str, phase: Phase) -> Webhook:
        """The same id however often it is sent, and by whichever server. ``data`` repeats the fields:
        alarms had them nowhere else."""
        episode, (condition, destination) = self.episodes[key], _parts(key)
        is_over = phase is Phase.ENDED
        lasted = f"Over after {shown_duration((episode.ended_ms - episode.begun_ms) // 1000)}: " if is_over else ""
        digest = hashlib.sha256(json.dumps([self.fleet, key, episode.number, phase]).encode()).hexdigest()
        said = {
            "condition": condition,
            "destination": destination or None,
            "status": phase,
            "text": lasted + episode.text,
            "since": shown_moment(episode.begun_ms),
            "until": shown_moment(episode.ended_ms) if is_over else None,
        }
        happened = datetime.fromtimestamp((episode.ended_ms if is_over else episode.begun_ms) / 1000, UTC)
        told = {"type": EventType.ALERT, "timestamp": shown_timestamp(happened)}
        return Webhook(f"alert_{digest[:32]}", {**told, **said, "data": said})

    def written(self) -> str:
        episodes = {key: asdict(each) for key, each in self.episodes.items()}
        return json.dumps({"fleet": self.fleet, "episodes": episodes}, sort_keys=True)


@dataclass(frozen=True)
class Alarm:
    """One that is on, as it is shown."""

    condition: AlertCondition
    destination: str
    since_ms: int
    text: str

    @property
    def key(self) -> str:
        return _key(self.condition, self.destination)

    def shown(self) -> dict[str, str | None]:
        return {
            "condition": self.condition,
            "destination": self.destination or None,
            "since": shown_moment(self.since_ms),
            "text": self.text,
        }


def read_board(written: str | None) -> Board:
    if not written:
        return Board()
    known: dict[str, Any] = json.loads(written)
    episodes = {
        key: Episode(**{**each, "begin": Notice(**each["begin"]), "end": Notice(**each["end"])})
        for key, each in known["episodes"].items()
        if key.partition(":")[0] in set(AlertCondition)  # another version may know others
    }
    return Board(known["fleet"], episodes)


def _bounded(episodes: dict[str, Episode]) -> dict[str, Episode]:
    """Destinations come and go: of those that are over the oldest are forgotten."""
    if len(episodes) <= MOST_EPISODES:
        return episodes
    over = [key for key, each in episodes.items() if each.ended_ms and not each.turning_ms]
    gone = set(sorted(over, key=lambda key: episodes[key].ended_ms)[: len(episodes) - MOST_EPISODES])
    return {key: each for key, each in episodes.items() if key not in gone}


def _key(condition: AlertCondition, destination: str) -> str:
    return f"{condition}:{destination}" if destination else condition.value


def _parts(key: str) -> tuple[AlertCondition, str]:
    condition, _, destination = key.partition(":")
    return AlertCondition(condition), destination


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"
