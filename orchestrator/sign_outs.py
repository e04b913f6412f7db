"""Sessions that were ended before their time: once their viewer has signed out, a copied cookie is worth nothing.

A session lies in its cookie alone, so those that ended are listed until they would have ended by themselves: in the
journal for all servers, and on this machine for the time when Redis is away or has lost its memory. Only pages ask.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from operator import itemgetter

from deduplication.errors import DeduplicationError
from deduplication.journal.base import Journal
from deduplication.journal.failover import FailoverJournal

log = logging.getLogger(__name__)

SIGNED_IN_FOR = timedelta(hours=12)
KEPT_S = int((SIGNED_IN_FOR + timedelta(hours=1)).total_seconds())  # clocks differ
MOST_LISTED = 10_000  # the last of them: whoever has a token could sign out all day, and each page reads the list
MEMO = "sessions that ended"


class SignOuts:
    def __init__(self, journal: Journal, now_s: Callable[[], float] = time.time) -> None:
        self._journal = journal
        self._here = journal.local if isinstance(journal, FailoverJournal) else None
        self._now_s = now_s
        self._untold: dict[str, int] = {}

    def end(self, session: str) -> None:
        """On this machine once this returns, on the others as soon as the journal can be told."""
        self._untold[session] = int(self._now_s()) + KEPT_S
        if self._here:
            self._add(self._here, self._untold)
        try:
            self.tell()
        except DeduplicationError as error:
            if self._here is None:
                raise
            log.warning("sign-out: the other servers are told later: %s", error)

    def tell(self) -> None:
        """What the journal could not be told before; for whoever works behind the requests, too."""
        untold = dict(self._untold)
        if untold:
            self._add(self._journal, untold)
            for session in untold:
                self._untold.pop(session, None)

    def has_ended(self, session: str) -> bool:
        """While Redis does not answer, by what this machine knows; what only one of both knew, both know then."""
        if self._here is None:
            return session in self._read(self._journal)
        here = self._read(self._here)
        try:
            there = self._read(self._journal)
            if there != here:
                self._add(self._here, there)
                self._add(self._journal, here)
        except DeduplicationError as error:
            log.info("sign-outs: by what this machine knows: %s", error)
            there = {}
        return session in here or session in there

    def _read(self, journal: Journal) -> dict[str, int]:
        return self._living(journal.memo(MEMO))

    def _add(self, journal: Journal, sessions: Mapping[str, int]) -> None:
        while True:
            written = journal.memo(MEMO)
            known = self._living(written)
            after = dict(sorted({**known, **sessions}.items(), key=itemgetter(1))[-MOST_LISTED:])
            if after == known or journal.change_memo(MEMO, written, json.dumps(after)):
                return  # otherwise another was faster

    def _living(self, written: str | None) -> dict[str, int]:
        known: dict[str, int] = json.loads(written or "{}")
        now_s = self._now_s()
        return {session: until_s for session, until_s in known.items() if until_s > now_s}
