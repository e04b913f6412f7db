"""What is kept of subjects and senders. PRIVACY=strict keeps only keyed digests, which still allow exact search.

The whole fleet shares the key, so that all machines make the same digests.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import replace
from enum import StrEnum

from deduplication.email import well_formed
from deduplication.journal.entry import About, Entry
from deduplication.journal.sqlite import Journal
from deduplication.names import Kind, Name
from orchestrator.item import MOST_SHOWN_CHARS
from orchestrator.sessions import Sessions

_DIGEST = re.compile("~[a-z2-7]{16}")


class PrivacyMode(StrEnum):
    NORMAL = "normal"
    STRICT = "strict"


class Privacy:
    """``about`` is what may be kept of an item, ``text`` what a searched word looks like there."""

    def __init__(self, journal: Journal, mode: PrivacyMode = PrivacyMode.NORMAL) -> None:
        self.mode = mode
        self._sessions = Sessions(journal)

    @property
    def is_strict(self) -> bool:
        return self.mode is PrivacyMode.STRICT

    def about(self, about: About) -> About:
        if not self.is_strict:
            return about
        return replace(about, subject=self.text(about.subject), sender=self.text(about.sender))

    def text(self, text: str) -> str:
        """As it is stored; a digest stays what it is."""
        if not self.is_strict or not text or _DIGEST.fullmatch(text):
            return text
        said = " ".join(well_formed(text.strip()[:MOST_SHOWN_CHARS]).casefold().split()).encode()
        return "~" + base64.b32encode(hmac.digest(self._sessions.key(), said, "sha256"))[:16].decode().lower()

    def shown(self, entry: Entry) -> Entry:
        """What an operator sees: no digests and, in strict mode, nothing of what was stored before it either."""
        about, stop = entry.about, entry.stop
        if self.is_strict or _DIGEST.fullmatch(about.subject) or _DIGEST.fullmatch(about.sender):
            subject, sender = (
                "" if self.is_strict or _DIGEST.fullmatch(text) else text for text in (about.subject, about.sender)
            )
            entry = replace(entry, about=replace(about, subject=subject, sender=sender))
        if not self.is_strict:
            return entry
        return replace(entry, own=self.names(entry.own), stop=stop and replace(stop, name=_digested(stop.name)))

    def names(self, own: tuple[Name, ...]) -> tuple[Name, ...]:
        """A name made of subject and sender, or of a title, becomes a digest; without a key, for it must not change."""
        return tuple(map(_digested, own)) if self.is_strict else own


def _digested(name: Name) -> Name:
    if name.kind is not Kind.POST or "::" not in name.value:
        return name
    return replace(name, value=f"sha256:{hashlib.sha256(well_formed(name.value).encode()).hexdigest()}")
