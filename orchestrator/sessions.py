"""Keys that all machines share, and which sessions of the web page ended early. Both are notes of the fleet.

A session is stored in its cookie alone, so a sign-out is listed until the cookie would have expired anyway. All raise
StoreUnavailable if the journal cannot be read or written.
"""

import json
import secrets
from datetime import timedelta

from deduplication import members
from deduplication.journal.sqlite import Journal, Step

SIGNED_IN_FOR = timedelta(hours=12)
LISTED_MS = int((SIGNED_IN_FOR + timedelta(hours=1)).total_seconds() * 1000)  # clocks of machines differ
MOST_LISTED = 1_000  # for each machine: anyone with a token could sign out all day, and every page reads the list
SESSION_KEY = "session_key"
ENDED_NOTE = "signed_out:"
_END_OF_TIME_MS = 1 << 53


def shared_key(journal: Journal, note: str) -> bytes:
    """Made when it is first asked for; the same on all machines, a second after a new one has joined."""
    while not (key := known_key(journal, note)):
        with journal.step() as step:
            if note not in members.notes(step):
                # The latest note wins, but a machine that joins must not end everyone's session: time runs backwards.
                members.put_note(step, note, secrets.token_hex(32), _END_OF_TIME_MS - step.now_ms)
    return key


def known_key(journal: Journal, note: str) -> bytes:
    """b"" if no machine has made it, or this one does not know it yet."""
    with journal.reading() as step:
        known = members.notes(step).get(note)
    return bytes.fromhex(known[1]) if known else b""


def end_session(journal: Journal, session: str) -> None:
    """Ends it on this machine at once, on the others within a second of reaching Redis."""
    with journal.step() as step:
        note = f"{ENDED_NOTE}{step.machine}"  # each machine writes its own list, so no sign-out is overwritten
        listed = _ended(step, note) | {session: step.now_ms + LISTED_MS}
        members.put_note(step, note, json.dumps(dict(list(listed.items())[-MOST_LISTED:])))


def has_ended(journal: Journal, session: str) -> bool:
    with journal.reading() as step:
        return session in _ended(step, ENDED_NOTE)


def _ended(step: Step, notes: str) -> dict[str, int]:
    """Sessions listed in the notes that begin with this text, oldest first, with when they may be dropped."""
    lists = (json.loads(text) for _, text in members.notes(step, notes).values())
    return {session: until_ms for listed in lists for session, until_ms in listed.items() if until_ms > step.now_ms}
