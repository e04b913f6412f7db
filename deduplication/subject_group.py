"""Subject groups: of emails whose subjects mean the same, one is delivered in a month."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from functools import cached_property, lru_cache

from unidecode import unidecode

from deduplication.email import decode_header
from deduplication.media import LISTS, ascii_host
from deduplication.names import Kind, Name
from deduplication.text import first_captured, nfc
from deduplication.values import frozen

MAX_FOLDED_CHARS = 1_000_000  # of a text in which routes look for words, whatever their case and accents
MOST_FOR_ONE = 4  # U+FDFA expands to 18 characters
MONTH_KEPT_MS = 32 * 24 * 3600 * 1000  # longer than any month

_PREFIXES = re.compile(
    r"^(?:\s*(?:re|ré|fwd|fw|tr|rv|aw|wg|sv|vs|antw|odp|rif|confirmation)\s*(?:[\[(]\d+[\])]\s*)?[:：])+\s*",
    re.IGNORECASE,
)
# What mail programs write before a normalised subject, perhaps after tags such as [EXT]. More than _PREFIXES, which
# decides what a group is called, and so must stay as it is.
_REPLY = re.compile(
    r"(?:\[[^\]]*\]|[^\w\[])*"
    r"(?:re|ref|res|r|rif|aw|antw|antwort|sv|svar|odp|ynt|atb|bls|va|απ|σχετ|отв|ответ|رد|השב|תגובה|回复|回覆|答复|返信|회신|답장"
    r"|fwd?|tr|rv|wg|i|vs|vb|vl|enc|pd|doorst|ilt|trs|tovabbitas|πρθ|пересл|הועבר|转发|轉寄|転送|전달)"
    r"\.?\s*(?:[\[(]\d+[\])]\s*)?:"
)
_NO_WORD = re.compile(r"[\W_]+")
# Punctuation, except what is written between a word and its number: "lot-3", "lot #3".
_END_OF_CLAUSE = re.compile(r"(?:[^\w\s#°'-]|(?<!\w)-|-(?!\w))+")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


class GroupMode(StrEnum):
    ALL = "all"
    PATTERNS = "patterns"
    OFF = "off"


class GroupScope(StrEnum):
    """Among whose emails a group or a file counts. A stranger can suppress no one else's, except with ``EVERYONE``."""

    DOMAIN = "domain"
    SENDER = "sender"
    EVERYONE = "everyone"


_PUBLIC_DOMAINS, _PUBLIC_BRANDS = frozenset(LISTS["public_domains"]), frozenset(LISTS["public_brands"])


@frozen
class SubjectPattern:
    """Subjects that contain every phrase and match the regex belong to ``<name>_<captured value>``.

    Both are searched in the normalised subject, with spaces in place of punctuation. If it ``reads_clauses``, the match
    must not cross punctuation: "Thanks a lot! 2 questions" names no lot.
    """

    name: str
    phrases: tuple[str, ...]
    regex: str
    reads_clauses: bool = False

    @cached_property
    def _phrases(self) -> tuple[str, ...]:
        return tuple(map(_words, self.phrases))

    def group_of(self, core: str, words: str) -> str | None:
        """``words``: the normalised subject ``core`` without its punctuation."""
        for phrase in self._phrases:
            if phrase not in words:
                return None
        clauses = map(_without_punctuation, _END_OF_CLAUSE.split(core)) if self.reads_clauses else (words,)
        captured = next(filter(None, (first_captured(self.regex, clause) for clause in clauses)), "")
        return f"{self.name}_{captured}" if captured else None


DEFAULT_PATTERNS = (
    # "lot" is both a phrase and in the regex: most subjects do not contain it, and a phrase is found much faster.
    SubjectPattern(
        "media_solution_missions_recadrage_lot",
        ("media solution", "missions recadrage", "lot"),
        r"\blot\s+(\d+)\b",
    ),
    SubjectPattern("lot", ("lot",), r"\blot\s+(\d+)\b"),
)


def normalize_no_accents_lower_trim(text: str) -> str:
    """Lower case, white space collapsed, Latin letters without accents.

    Other scripts keep their letters: transliterated, two different Chinese subjects can read the same.
    """
    folded = text if text.isascii() else nfc(_NOT_ASCII.sub(lambda letters: "".join(map(_fold, letters[0])), nfc(text)))
    return " ".join(folded.lower().split())


@lru_cache(maxsize=10_000)  # computing one takes a microsecond
def _fold(char: str) -> str:
    compatible = unicodedata.normalize("NFKC", char)
    return "".join(map(_fold_one, compatible if len(compatible) <= MOST_FOR_ONE else char))


def _fold_one(char: str) -> str:
    if char.isascii():
        return char
    if "\u0300" <= char <= "\u036f":  # an accent that found no letter to join
        return ""
    if unicodedata.name(char, "").startswith("LATIN ") or unicodedata.category(char) in ("Pd", "Pi", "Pf"):
        return unidecode(char)
    return char


def fold_subject(subject: str) -> str:
    """As groups and routes read it."""
    return normalize_no_accents_lower_trim(decode_header(subject))


def is_reply(folded: str) -> bool:
    """Whether it is a reply or a forward, by its folded subject."""
    return _REPLY.match(folded) is not None


def strip_leading_reply_prefixes(subject: str) -> str:
    """Without leading "Re:", "Fwd:", "Ré :", "Re[2]:"..., in any number and order."""
    return _PREFIXES.sub("", subject)


def generate_subject_group_id(
    subject: str,
    patterns: Sequence[SubjectPattern] = DEFAULT_PATTERNS,
    mode: GroupMode = GroupMode.PATTERNS,
) -> str | None:
    """The group of the subject, or None: an empty subject and "(no subject)" have none."""
    return group_of(fold_subject(subject), patterns, mode)


def group_of(folded: str, patterns: Sequence[SubjectPattern], mode: GroupMode) -> str | None:
    """By the folded subject."""
    if mode is GroupMode.OFF:
        return None
    core = strip_leading_reply_prefixes(folded)
    words = _without_punctuation(core)
    if not core or words in _NO_SUBJECT:
        return None
    for pattern in patterns:
        if matched := pattern.group_of(core, words):
            return matched
    if mode is GroupMode.PATTERNS:
        return None
    digest = hashlib.md5(core.encode(), usedforsecurity=False).hexdigest()
    return f"subject_hash_{digest}"


def _words(text: str) -> str:
    return _without_punctuation(normalize_no_accents_lower_trim(text))


def _without_punctuation(normalised: str) -> str:
    return _NO_WORD.sub(" ", normalised).strip()


_NO_SUBJECT = frozenset(map(_words, LISTS["no_subject"]))


def month_of(tz: tzinfo, now: datetime | None = None) -> str:
    """The month of processing, in the configured time zone."""
    return (now or datetime.now(UTC)).astimezone(tz).strftime("%Y-%m")


def monthly_scope_group_id(group_id: str, tz: tzinfo, now: datetime | None = None) -> str:
    """Such as ``2026-11:lot_456``, the member of the Set subject_groups:2026-11."""
    return f"{month_of(tz, now)}:{group_id}"


def scope_of(sender: str, scope: GroupScope, *, hides_domain: bool = False) -> str:
    """The end of a shared name, which says among whose emails it counts, such as ``@example.org``.

    Names are shown, so they have only a digest of an address and, if ``hides_domain``, of a domain.
    """
    if scope is GroupScope.EVERYONE:
        return ""
    local, _, domain = sender.rpartition("@")
    host = ascii_host(domain)
    is_public = host in _PUBLIC_DOMAINS or host.partition(".")[0] in _PUBLIC_BRANDS
    is_by_domain = host and scope is GroupScope.DOMAIN and not is_public
    if is_by_domain and not hides_domain:
        return f"@{host}"
    whose = host if is_by_domain else f"{local}@{host or domain}"
    return f"@{hashlib.sha256(whose.encode(errors='replace')).hexdigest()[:12]}"


def group_name(group_id: str, month: str, ttl_seconds: int) -> Name:
    """The group as a name to claim, kept for its month or, if a TTL is configured, for the TTL."""
    return Name(Kind.SUBJECT_GROUP, month, group_id, ttl_seconds * 1000 or MONTH_KEPT_MS)
