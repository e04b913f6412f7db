"""The last email and the last refused request of each provider, for all processes of this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from deduplication.errors import StoreUnavailable
from deduplication.journal.sqlite import Journal

MOST_WHY_CHARACTERS = 200
_KEY = "provider:"


@dataclass(frozen=True)
class ProviderSeen:
    """Times are milliseconds since 1970, 0 for never. ``status`` is the answer to the last email, ``why`` what was
    wrong with the last refused request. Neither has contents."""

    email_ms: int = 0
    status: str = ""
    refused_ms: int = 0
    why: str = ""


class ProvidersSeen:
    """A request notes it in memory; ``flush`` writes it to the journal, behind the requests. A note begins with its
    time, so that the greater of two is the later one."""

    def __init__(self, journal: Journal, now_s: Callable[[], float] = time.time) -> None:
        self._journal = journal
        self._now_s = now_s
        self._unwritten: dict[str, str] = {}
        self._lock = threading.Lock()

    def note_email(self, provider: str, status: str) -> None:
        self._note(f"{provider}:email", status)

    def note_refusal(self, provider: str, why: str) -> None:
        self._note(f"{provider}:refusal", why[:MOST_WHY_CHARACTERS])

    def read(self) -> dict[str, ProviderSeen]:
        with self._journal.reading() as step, self._lock:
            notes = dict(step.query("SELECT key, value FROM meta WHERE key >= ? AND key < ?", (_KEY, f"{_KEY}~")))
            notes |= {key: max(value, notes.get(key, "")) for key, value in self._unwritten.items()}
        found: dict[str, dict[str, tuple[int, str]]] = {}
        for key, value in notes.items():
            provider, _, kind = key.removeprefix(_KEY).rpartition(":")
            at_ms, _, text = value.partition(" ")
            found.setdefault(provider, {})[kind] = (int(at_ms), text)
        never = (0, "")
        return {
            name: ProviderSeen(*each.get("email", never), *each.get("refusal", never)) for name, each in found.items()
        }

    def flush(self) -> None:
        with self._lock:
            unwritten, self._unwritten = self._unwritten, {}
        if not unwritten:
            return
        try:
            with self._journal.step() as step:
                for note in unwritten.items():
                    query = (
                        "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = max(value, excluded.value)"
                    )
                    step.query(query, note)
        except StoreUnavailable:
            with self._lock:
                self._unwritten = unwritten | self._unwritten
            raise

    def _note(self, key: str, text: str) -> None:
        with self._lock:
            self._unwritten[f"{_KEY}{key}"] = f"{int(self._now_s() * 1000):015d} {text}"
