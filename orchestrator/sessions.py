"""Sessions of the web page: the key that signs their cookies, and which ones ended early. Both are notes of the fleet.

A session is stored in its cookie alone, so a sign-out is listed until the cookie would have expired anyway.
"""

from __future__ import annotations

import json
from datetime import timedelta

from deduplication import members
from deduplication.journal.sqlite import Journal, Step
from orchestrator.tokens import shared_key

SIGNED_IN_FOR = timedelta(hours=12)
LISTED_MS = int((SIGNED_IN_FOR + timedelta(hours=1)).total_seconds() * 1000)  # clocks of machines differ
MOST_LISTED = 1_000  # for each machine: anyone with a token could sign out all day, and every page reads the list
KEY_NOTE = "session_key"
ENDED_NOTE = "signed_out:"


class Sessions:
    """Raises StoreUnavailable if the journal cannot be read or written."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def key(self) -> bytes:
        return shared_key(self._journal, KEY_NOTE)

    def end(self, session: str) -> None:
        """Ends it on this machine at once, on the others within a second of reaching Redis."""
        with self._journal.step() as step:
            note = f"{ENDED_NOTE}{step.machine}"  # each machine writes its own list, so no sign-out is overwritten
            listed = _ended(step, note) | {session: step.now_ms + LISTED_MS}
            members.put_note(step, note, json.dumps(dict(list(listed.items())[-MOST_LISTED:])))

    def has_ended(self, session: str) -> bool:
        with self._journal.reading() as step:
            return session in _ended(step, ENDED_NOTE)


def _ended(step: Step, notes: str) -> dict[str, int]:
    """Sessions listed in the notes that begin with this text, oldest first, with when they may be dropped."""
    lists = (json.loads(text) for key, (_, text) in members.notes(step).items() if key.startswith(notes))
    return {session: until_ms for listed in lists for session, until_ms in listed.items() if until_ms > step.now_ms}
