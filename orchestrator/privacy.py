"""What is kept of who wrote and about what. PRIVACY=strict: nothing but keyed digests, by which an exact search works.

The key is the journal's, so that the whole fleet makes the same digests; without it nobody can tell what they are of.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum

from deduplication.claims import Kind, Name
from deduplication.email import well_formed
from deduplication.journal.base import Journal
from deduplication.journal.entry import About, Entry
from orchestrator.item import MOST_SHOWN_CHARS
from orchestrator.shared_key import SharedKey

_DIGEST = re.compile("~[a-z2-7]{16}")


class PrivacyMode(StrEnum):
    NORMAL = "normal"
    STRICT = "strict"


class Privacy:
    """``about`` is what may be kept of an item, ``text`` what a word that is searched for looks like there."""

    def __init__(
        self, journal: Journal, mode: PrivacyMode = PrivacyMode.NORMAL, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.mode = mode
        self._shared_key = SharedKey(journal, monotonic)
        self.look_after_key()

    @property
    def is_strict(self) -> bool:
        return self.mode is PrivacyMode.STRICT

    def look_after_key(self) -> None:
        if self.is_strict:
            self._shared_key.refresh()

    def about(self, about: About) -> About:
        if not self.is_strict:
            return about
        return replace(about, subject=self.text(about.subject), sender=self.text(about.sender))

    def text(self, text: str) -> str:
        """As it stands in what is kept; a digest stays what it is."""
        if not self.is_strict or not text or _DIGEST.fullmatch(text):
            return text
        said = " ".join(well_formed(text.strip()[:MOST_SHOWN_CHARS]).casefold().split()).encode()
        return "~" + base64.b32encode(hmac.digest(self._shared_key.value, said, "sha256"))[:16].decode().lower()

    def shown(self, entry: Entry) -> Entry:
        """What an operator sees: no digests, and while it is strict nothing of what was kept before, its names among
        it."""
        about, stop = entry.about, entry.stop
        hidden = {
            name: "" for name in ("subject", "sender") if self.is_strict or _DIGEST.fullmatch(getattr(about, name))
        }
        if hidden:
            entry = replace(entry, about=replace(about, **hidden))
        if not self.is_strict:
            return entry
        return replace(entry, own=self.names(entry.own), stop=stop and replace(stop, name=_digested(stop.name)))

    def names(self, own: tuple[Name, ...]) -> tuple[Name, ...]:
        """One that is made of subject and sender, for want of a Message-ID, or of a title, for want of an id, as a
        digest; without a key, for a name must never change."""
        return tuple(map(_digested, own)) if self.is_strict else own


def _digested(name: Name) -> Name:
    if name.kind is not Kind.POST or "::" not in name.value:
        return name
    return replace(name, value=f"sha256:{hashlib.sha256(well_formed(name.value).encode()).hexdigest()}")
