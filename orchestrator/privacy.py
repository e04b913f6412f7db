"""PRIVACY=strict stores keyed digests instead of subjects and senders, which still allow exact search, and no
recipients.

The whole fleet shares the key, so that all machines compute the same digests.
"""

import base64
import hashlib
import hmac
import re

from msgspec.structs import replace

from deduplication.journal.entry import About, Entry
from deduplication.journal.sqlite import Journal
from deduplication.names import Kind, Name
from deduplication.text import well_formed
from orchestrator.item import MOST_SHOWN_CHARS
from orchestrator.sessions import SESSION_KEY, shared_key

_DIGEST = re.compile("~[a-z2-7]{16}")


class Privacy:
    def __init__(self, journal: Journal, *, is_strict: bool = False) -> None:
        self.is_strict = is_strict
        self._journal = journal

    def about(self, about: About) -> About:
        """As it is stored in strict mode."""
        return replace(about, subject=self.text(about.subject), sender=self.text(about.sender), recipient="")

    def text(self, text: str) -> str:
        """As it is stored, which a search must look for; a digest is not digested again."""
        if not self.is_strict or not text or _DIGEST.fullmatch(text):
            return text
        words = " ".join(well_formed(text.strip()[:MOST_SHOWN_CHARS]).casefold().split()).encode()
        key = shared_key(self._journal, SESSION_KEY)
        return "~" + base64.b32encode(hmac.digest(key, words, "sha256"))[:16].decode().lower()

    def shown(self, entry: Entry) -> Entry:
        """As operators see it: without digests and, in strict mode, without texts that were stored before it."""
        about = entry.about
        if self.is_strict:
            stop = entry.stop and replace(entry.stop, name=_digested(entry.stop.name))
            about = replace(about, subject="", sender="", recipient="")
            return replace(entry, about=about, own=self.names(entry.own), stop=stop)
        subject, sender = ("" if _DIGEST.fullmatch(text) else text for text in (about.subject, about.sender))
        return replace(entry, about=replace(about, subject=subject, sender=sender))

    def names(self, own: tuple[Name, ...]) -> tuple[Name, ...]:
        """Those made of subject and sender, or of a title, become digests, without a key: names must not change."""
        return tuple(map(_digested, own))


def _digested(name: Name) -> Name:
    if name.kind is not Kind.POST or "::" not in name.value:
        return name
    return name.with_value(f"sha256:{hashlib.sha256(well_formed(name.value).encode()).hexdigest()}")
