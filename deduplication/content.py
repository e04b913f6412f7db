"""Content: texts that start with the same words, one of which is enough for a destination in a while."""

from __future__ import annotations

import hashlib
import logging
import re
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

from deduplication.claims import Kind, Name
from deduplication.errors import StoreUnavailable
from deduplication.journal.base import Claim, Claimed, Duplicate, Ending, Journal, Settlement, Wanted
from deduplication.journal.entry import About, DeliveryStatus, new_entry_id
from deduplication.limits import MAX_FIRST_WORDS_CHARS
from deduplication.unicode_text import nfc

log = logging.getLogger(__name__)

WINDOW_MS = 72 * 3600 * 1000
WORDS = 10
MARKING_LEASE_MS = 5000  # only as long as marking takes: claim and commit follow each other at once

_WRITTEN = re.compile(r"\S+")
# Emoji made of a digit or a letter: 1️⃣ and ℹ️.
_WORDLIKE_EMOJI = re.compile(r"[0-9#*]\ufe0f?\u20e3|\u2139")
_VARIATION_SELECTORS = re.compile(r"[\ufe00-\ufe0f\U000e0100-\U000e01ef]")


def normalize_text(text: str) -> str:
    """The first ten words: lower case, without punctuation, symbols and emoji, one space between them.

    Letters, digits and the marks on them are kept in every script. Punctuation inside a word joins its parts: "don't"
    is "dont". Empty if there is no word at all.
    """
    if not isinstance(text, str):
        raise TypeError(f"normalize_text takes a str, not {type(text).__name__}")
    lowered = nfc(text[:MAX_FIRST_WORDS_CHARS].lower())
    words = filter(None, (_word(written[0]) for written in _WRITTEN.finditer(lowered)))
    return " ".join(islice(words, WORDS))


def _word(raw: str) -> str:
    """``\\w`` would lose the vowel signs of Indic scripts and keep the underscore."""
    kept: list[str] = []
    for char in _VARIATION_SELECTORS.sub("", _WORDLIKE_EMOJI.sub("", raw)):
        category = unicodedata.category(char)[0]
        if category in "LN" or (category == "M" and kept):
            kept.append(char)
    return nfc("".join(kept))


def compute_hash(text: str) -> str:
    """SHA-256 of the normalised text, in hex."""
    return _hash_of(normalize_text(text))


def _hash_of(normalized: str) -> str:
    return hashlib.sha256(normalized.encode()).hexdigest()


def content_name(destination: str, text: str, window_ms: int = WINDOW_MS) -> Name | None:
    """The text as a name to claim for one destination.

    None where nothing can be a duplicate: a text without a word, or a window of 0, which is no gate.
    """
    if window_ms < 0:
        raise ValueError(f"window_ms is {window_ms}: it takes 0 (no gate) or more")
    normalized = normalize_text(text)
    if not normalized or not window_ms:
        return None
    return Name(Kind.CONTENT, destination, _hash_of(normalized), window_ms)


class ContentGate:
    """Which texts a destination already had, in its own words. Without its journal it lets everything through.

    Log lines name the destination and the hash, never the text. A journal that is set up wrongly still raises.
    """

    def __init__(self, journal: Journal, new_token: Callable[[], str], window_ms: int = WINDOW_MS) -> None:
        self._journal = journal
        self._new_token = new_token
        self._window_ms = window_ms

    def is_duplicate(self, destination: str, text: str) -> bool:
        """Was the text forwarded there within the window? Asking reserves nothing."""
        name = content_name(destination, text, self._window_ms)
        if name is None:
            return False
        try:
            return self._journal.look([name])[0].is_marked
        except StoreUnavailable as error:
            log.warning("content %s for %s: taken as new, the journal is away: %s", name.value, destination, error)
            return False

    def mark_as_forwarded(self, destination: str, text: str) -> None:
        """The window starts with the first mark; a second one changes nothing."""
        name = content_name(destination, text, self._window_ms)
        if name is None:
            return
        try:
            self._mark(name)
        except StoreUnavailable as error:
            log.warning("content %s for %s: not marked, the journal is away: %s", name.value, destination, error)

    def _mark(self, name: Name) -> None:
        """Under a lock of its own: a text is no item, and stands in no list of them."""
        claim = Claim(
            entry=new_entry_id(),
            owner=self._new_token(),
            own=(Name(Kind.LOCK, name.scope, name.value),),
            destinations=(Wanted(name.scope, "", name),),
            lease_ms=MARKING_LEASE_MS,
            about=About(item=name.value),
        )
        verdict = self._journal.claim(claim)
        if isinstance(verdict, Claimed):
            (delivery,) = verdict.entry.deliveries
            delivered = replace(delivery, status=DeliveryStatus.DELIVERED, delivered_ms=verdict.entry.created_ms)
            self._journal.note_delivered(verdict.entry, delivered)
            self._journal.settle(claim, verdict.entry, Settlement(Ending.DONE, deliveries=(delivered,)))
            return
        if isinstance(verdict, Duplicate) and verdict.entry:
            self._journal.settle(claim, verdict.entry, Settlement(Ending.FREE))
            if not verdict.stop.follows:  # it is marked already
                return
        log.warning("content %s for %s: not marked, another owner holds it", name.value, name.scope)
