"""What came last by each provider, and what was last refused and why: over all processes of this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from deduplication.journal.base import Journal
from deduplication.journal.failover import FailoverJournal

MOST_WHY_CHARACTERS = 200
_MEMO = "providers"


@dataclass(frozen=True)
class ProviderSeen:
    """Times are milliseconds since 1970, 0 for never. ``status``: what was answered to the last email.

    ``why``: what was wrong with the last request that was refused. Neither has contents.
    """

    email_ms: int = 0
    status: str = ""
    refused_ms: int = 0
    why: str = ""

    def with_news(self, told: ProviderSeen) -> ProviderSeen:
        email = max(self, told, key=lambda each: (each.email_ms, each.status))
        refused = max(self, told, key=lambda each: (each.refused_ms, each.why))
        return ProviderSeen(email.email_ms, email.status, refused.refused_ms, refused.why)


_NEVER = ProviderSeen()


class ProvidersSeen:
    """A request only notes it here, in a moment; ``write`` tells the other processes, behind the requests."""

    def __init__(self, journal: Journal, now_s: Callable[[], float] = time.time) -> None:
        self._home = journal.local if isinstance(journal, FailoverJournal) else journal
        self._now_s = now_s
        self._emails: dict[str, tuple[int, str]] = {}
        self._refusals: dict[str, tuple[int, str]] = {}
        self._written: dict[str, ProviderSeen] = {}

    def note_email(self, provider: str, status: str) -> None:
        self._emails[provider] = (int(self._now_s() * 1000), status)

    def note_refusal(self, provider: str, why: str) -> None:
        self._refusals[provider] = (int(self._now_s() * 1000), why[:MOST_WHY_CHARACTERS])

    def read(self) -> dict[str, ProviderSeen]:
        return _together(_parsed(self._home.memo(_MEMO)), self._noted())

    def write(self) -> None:
        """Where another process writes at the same moment, it is told the next time."""
        noted = self._noted()
        if noted == self._written:
            return
        before = self._home.memo(_MEMO)
        after = {name: asdict(each) for name, each in _together(_parsed(before), noted).items()}
        if self._home.change_memo(_MEMO, before, json.dumps(after)):
            self._written = noted

    def _noted(self) -> dict[str, ProviderSeen]:
        emails, refusals = dict(self._emails), dict(self._refusals)
        return {
            name: ProviderSeen(*emails.get(name, (0, "")), *refusals.get(name, (0, "")))
            for name in {*emails, *refusals}
        }


def _together(known: dict[str, ProviderSeen], news: dict[str, ProviderSeen]) -> dict[str, ProviderSeen]:
    return known | {name: known.get(name, _NEVER).with_news(each) for name, each in news.items()}


def _parsed(memo: str | None) -> dict[str, ProviderSeen]:
    return {name: ProviderSeen(**each) for name, each in json.loads(memo or "{}").items()}
