"""Content: texts that start with the same words, one of which is enough for a destination in a while."""

from __future__ import annotations

import hashlib
import logging
import re
import unicodedata
from itertools import islice

from deduplication.errors import StoreUnavailable
from deduplication.journal.coordinator import Coordinator
from deduplication.limits import MAX_FIRST_WORDS_CHARS
from deduplication.names import Kind, Name
from deduplication.unicode_text import nfc

log = logging.getLogger(__name__)

WINDOW_MS = 72 * 3600 * 1000
WORDS = 10

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
    """Which texts a destination already had, for scripts. If neither Redis nor the journal answers, every text is new.

    Log lines name the destination and the hash, never the text. A wrong setting still raises.
    """

    def __init__(self, coordinator: Coordinator, window_ms: int = WINDOW_MS) -> None:
        self._coordinator = coordinator
        self._window_ms = window_ms

    def is_duplicate(self, destination: str, text: str) -> bool:
        """Was the text forwarded there within the window? Asking reserves nothing."""
        name = content_name(destination, text, self._window_ms)
        if name is None:
            return False
        try:
            return self._coordinator.known([name]).of(name).is_marked
        except StoreUnavailable as error:
            log.warning("content %s for %s: taken as new: %s", name.value, destination, error)
            return False

    def mark_as_forwarded(self, destination: str, text: str) -> None:
        """The window starts with the first mark; a second one changes nothing."""
        name = content_name(destination, text, self._window_ms)
        if name is None:
            return
        try:
            self._coordinator.mark([name])
        except StoreUnavailable as error:
            log.warning("content %s for %s: not marked: %s", name.value, destination, error)
