"""The content gate: a destination gets only one of several texts with the same first words within a time window."""

import hashlib
import logging
import re
import unicodedata
from itertools import islice

from deduplication.again import mark
from deduplication.errors import StoreUnavailable
from deduplication.journal.coordinator import Coordinator
from deduplication.names import Kind, Name
from deduplication.text import nfc

log = logging.getLogger(__name__)

WINDOW_MS = 72 * 3600 * 1000
WORDS = 10
MAX_FIRST_WORDS_CHARS = 100_000  # the first words are only searched within these

_TOKEN = re.compile(r"\S+")
# Emoji that contain a digit or a letter: 1️⃣ and ℹ️.
_WORDLIKE_EMOJI = re.compile(r"[0-9#*]\ufe0f?\u20e3|\u2139")
_VARIATION_SELECTORS = re.compile(r"[\ufe00-\ufe0f\U000e0100-\U000e01ef]")


def normalize_text(text: str) -> str:
    """The first ten words in lower case, without punctuation, symbols and emoji, separated by one space.

    Letters, digits and their marks are kept in every script. Punctuation inside a word is removed: "don't" becomes
    "dont". Empty if the text has no words.
    """
    lowered = nfc(text[:MAX_FIRST_WORDS_CHARS].lower())
    words = filter(None, (_normalize_word(token[0]) for token in _TOKEN.finditer(lowered)))
    return " ".join(islice(words, WORDS))


def _normalize_word(token: str) -> str:
    """``\\w`` would drop the vowel signs of Indic scripts and keep underscores."""
    chars: list[str] = []
    for char in _VARIATION_SELECTORS.sub("", _WORDLIKE_EMOJI.sub("", token)):
        category = unicodedata.category(char)[0]
        if category in "LN" or (category == "M" and chars):
            chars.append(char)
    return nfc("".join(chars))


def compute_hash(text: str) -> str:
    """SHA-256 of the normalised text, in hex."""
    return hashlib.sha256(normalize_text(text).encode()).hexdigest()


def content_name(destination: str, text: str, window_ms: int = WINDOW_MS) -> Name | None:
    """The name to claim for a text at one destination. None if it has no words, or if the window is 0 (no gate)."""
    words = normalize_text(text) if window_ms > 0 else ""
    return Name(Kind.CONTENT, destination, compute_hash(words), window_ms) if words else None


class ContentGate:
    """For scripts: which texts were forwarded to a destination. If neither Redis nor the journal answers, every text is
    new; a wrong setting raises. Log lines have the destination and the hash, never the text.
    """

    def __init__(self, coordinator: Coordinator, window_ms: int = WINDOW_MS) -> None:
        self._coordinator = coordinator
        self._window_ms = window_ms

    def is_duplicate(self, destination: str, text: str) -> bool:
        """Whether the text was forwarded there within the window. Nothing is reserved."""
        name = content_name(destination, text, self._window_ms)
        if name is None:
            return False
        try:
            return self._coordinator.known([name]).of(name).is_marked
        except StoreUnavailable as error:
            log.warning("content %s for %s: treated as new: %s", name.value, destination, error)
            return False

    def mark_as_forwarded(self, destination: str, text: str) -> None:
        """The window starts with the first call; later calls do not extend it."""
        name = content_name(destination, text, self._window_ms)
        if name is None:
            return
        try:
            mark(self._coordinator, [name])
        except StoreUnavailable as error:
            log.warning("content %s for %s: not marked: %s", name.value, destination, error)
