"""Release, replay and forget: what each acts on, what it says before, and what it may come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

from deduplication.journal.base import Released, Replayed
from deduplication.journal.entry import DeliveryStatus, Entry
from orchestrator.build import Parts
from orchestrator.operations.decisions import ReleaseHow, find_entries, list_decisions, release
from orchestrator.operations.deliveries import (
    How,
    cursor_after,
    delivery_id,
    find_deliveries,
    replay,
    replay_at_once,
    replay_email,
)
from orchestrator.operations.reset import Forgot, forget_email
from routes import api_decisions, api_deliveries
from routes.api_decisions import read_filter
from routes.api_deliveries import read_after, read_wanted
from routes.providers.base import InvalidPayload
from routes.questions import OF_ANOTHER

MOST_COUNTED = 10_000

Given = Mapping[str, str]


@dataclass(frozen=True)
class Found:
    """Some of those that match. ``following`` is where to go on; None: that was all."""

    ids: list[str]
    following: str | None


@dataclass(frozen=True)
class Wish:
    """``options``: those that were ticked. ``is_alone``: it is about one only, and whoever asked waits for it."""

    options: frozenset[str]
    is_alone: bool
    by: str


@dataclass(frozen=True)
class Things:
    """Acted on. ``find`` gives those that match a filter, after its cursor; ``count`` MOST_COUNTED + 1 at most."""

    one: str
    many: str
    filters: tuple[str, ...]
    find: Callable[[Given, int], Found]
    count: Callable[[Given], int]


@dataclass(frozen=True)
class Action:
    """``effect`` says what will happen; ``act_on`` tells what became of one: one of ``answers``, the good one first."""

    verb: str
    things: Things
    effect: str
    options: Mapping[str, str]
    act_on: Callable[[str, Wish], str]
    answers: Mapping[str, str]


def all_actions(parts: Parts) -> dict[str, Action]:
    emails = _emails(parts)
    return {
        "replay": _replay(parts, _deliveries(parts)),
        "replay-emails": _replay(parts, emails),
        "release": _release(parts, _emails(parts, _has_skipped)),
        "forget": _forget(parts, emails),
    }


def _has_skipped(entry: Entry) -> bool:
    return any(each.status is DeliveryStatus.SKIPPED for each in entry.deliveries)


def _deliveries(parts: Parts) -> Things:
    def find(given: Given, limit: int) -> Found:
        wanted = read_wanted(given)
        found = list(islice(find_deliveries(parts.journal, wanted, read_after(wanted, given)), limit + 1))
        ids = [delivery_id(each.entry.id, each.delivery.destination) for each in found[:limit]]
        return Found(ids, cursor_after(wanted, found[limit - 1]) if len(found) > limit else None)

    def count(given: Given) -> int:
        return sum(1 for _ in islice(find_deliveries(parts.journal, read_wanted(given)), MOST_COUNTED + 1))

    return Things("delivery", "deliveries", api_deliveries.FILTERS, find, count)


def _emails(parts: Parts, counts: Callable[[Entry], bool] = lambda _: True) -> Things:
    """``counts``: those that it can be about."""

    def find(given: Given, limit: int) -> Found:
        try:
            page = list_decisions(parts, read_filter(given), limit, given.get("cursor"))
        except ValueError as error:
            raise InvalidPayload(OF_ANOTHER, field="cursor") from error
        return Found([each.entry.id for each in page.decisions if counts(each.entry)], page.next)

    def count(given: Given) -> int:
        return sum(1 for _ in islice(filter(counts, find_entries(parts, read_filter(given))), MOST_COUNTED + 1))

    return Things("email", "emails", api_decisions.FILTERS, find, count)


def _replay(parts: Parts, things: Things) -> Action:
    def act_on(id_: str, wish: Wish) -> str:
        how = How(force="force" in wish.options, new_id="new_id" in wish.options)
        if ":" not in id_:
            return replay_email(parts, id_, how)
        return (
            replay_at_once(parts, id_, how)
            if wish.is_alone
            else replay(parts.journal, id_, how, parts.sources.new_token)
        )

    return Action(
        verb="Replay",
        things=things,
        effect=(
            "What is dead or waits is sent to its destination again, past all gates, under the same webhook-id. What "
            "the destination has already, what is under way, and what has lost its payload is left alone."
        ),
        options={
            "force": "Also what the destination has already",
            "new_id": "Under a new webhook-id: the receiver takes it for another one",
        },
        act_on=act_on,
        answers={
            Replayed.REPLAYED: "sent again",
            Replayed.ALREADY_DELIVERED: "left alone: there is nothing that its destination still misses",
            Replayed.UNDER_WAY: "left alone: it is being delivered just now",
            Replayed.NO_PAYLOAD: "left alone: its payload is not kept",
            Replayed.UNKNOWN: "no longer kept",
        },
    )


def _release(parts: Parts, things: Things) -> Action:
    def act_on(id_: str, wish: Wish) -> str:
        at_once = wish.is_alone and not parts.settings.queue_url
        return release(parts, id_, ReleaseHow(force="force" in wish.options, at_once=at_once), wish.by)

    return Action(
        verb="Release",
        things=things,
        effect=(
            "What was stopped by its group, its files or its words is delivered after all, once, to the destinations "
            "that it was stopped from. What was not stopped is left alone."
        ),
        options={"force": "Also where the same email was delivered"},
        act_on=act_on,
        answers={
            Released.RELEASED: "released",
            Released.ALREADY_RELEASED: "left alone: released before",
            Released.NOT_SUPPRESSED: "left alone: nothing of it was stopped",
            Released.ALREADY_DELIVERED: "left alone: the same email was delivered",
            Released.NO_PAYLOAD: "left alone: its payload is not kept",
            Released.UNKNOWN: "no longer kept",
        },
    )


def _forget(parts: Parts, things: Things) -> Action:
    return Action(
        verb="Forget",
        things=things,
        effect=(
            "All names that these emails are known by are forgotten, on every server. Nothing is sent now; but if such "
            "an email comes again, it counts as new and is delivered. What still waits is delivered all the same."
        ),
        options={},
        act_on=lambda id_, _: forget_email(parts.journal, id_),
        answers={
            Forgot.FORGOTTEN: "forgotten",
            Forgot.NOTHING: "had no names left to forget",
            Forgot.KEPT: "kept: still to be delivered",
            Forgot.UNKNOWN: "no longer kept",
        },
    )
