"""Subject groups: one email a month is delivered of those whose subjects mean the same."""

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from functools import cached_property, lru_cache

from unidecode import unidecode

from deduplication.email import decode_header
from deduplication.media import LISTS, ascii_host
from deduplication.names import Kind, Name
from deduplication.text import nfc, search
from deduplication.values import frozen

MAX_FOLDED_CHARS = 1_000_000  # of a text that routes search for words, ignoring case and accents
MAX_EXPANSION = 4  # of one character; U+FDFA would expand to 18
MONTH_KEPT_MS = 32 * 24 * 3600 * 1000  # longer than any month

# Leading "Re:", "Fwd:", "Ré :", "Re[2]:" and so on, in any number and order.
_PREFIXES = re.compile(
    r"^(?:\s*(?:re|ré|fwd|fw|tr|rv|aw|wg|sv|vs|antw|odp|rif|confirmation)\s*(?:[\[(]\d+[\])]\s*)?[:：])+\s*",
    re.IGNORECASE,
)
# The prefixes of mail programs in a normalised subject, perhaps after tags such as [EXT]. _PREFIXES has fewer, but it
# must not change, because the names of groups depend on it.
_REPLY = re.compile(
    r"(?:\[[^\]]*\]|[^\w\[])*"
    r"(?:re|ref|res|r|rif|aw|antw|antwort|sv|svar|odp|ynt|atb|bls|va|απ|σχετ|отв|ответ|رد|השב|תגובה|回复|回覆|答复|返信|회신|답장"
    r"|fwd?|tr|rv|wg|i|vs|vb|vl|enc|pd|doorst|ilt|trs|tovabbitas|πρθ|пересл|הועבר|转发|轉寄|転送|전달)"
    r"\.?\s*(?:[\[(]\d+[\])]\s*)?:"
)
_NOT_WORD = re.compile(r"[\W_]+")
# Punctuation, except between a word and its number: "lot-3", "lot #3".
_END_OF_CLAUSE = re.compile(r"(?:[^\w\s#°'-]|(?<!\w)-|-(?!\w))+")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


class GroupMode(StrEnum):
    ALL = "all"
    PATTERNS = "patterns"
    OFF = "off"


class GroupScope(StrEnum):
    """Among whose emails a group or a file counts. Only with EVERYONE can a stranger suppress the emails of others."""

    DOMAIN = "domain"
    SENDER = "sender"
    EVERYONE = "everyone"


_PUBLIC_DOMAINS, _PUBLIC_BRANDS = frozenset(LISTS["public_domains"]), frozenset(LISTS["public_brands"])


@frozen
class SubjectPattern:
    """Subjects that contain every phrase and match the regex belong to the group ``<name>_<captured value>``.

    Both are searched in the normalised subject, with spaces in place of punctuation. With ``reads_clauses``, the match
    must not cross punctuation, so "Thanks a lot! 2 questions" belongs to no lot.
    """

    name: str
    phrases: tuple[str, ...]
    regex: str
    reads_clauses: bool = False

    @cached_property
    def _phrases(self) -> tuple[str, ...]:
        return tuple(map(_normalize_words, self.phrases))

    def group_of(self, core: str, words: str) -> str | None:
        """``core`` is the normalised subject, and ``words`` the same without punctuation."""
        if not all(phrase in words for phrase in self._phrases):
            return None
        clauses = map(_remove_punctuation, _END_OF_CLAUSE.split(core)) if self.reads_clauses else (words,)
        for clause in clauses:
            if (match := search(self.regex, clause)) and match[1]:
                return f"{self.name}_{match[1].decode()}"
        return None


DEFAULT_PATTERNS = (
    # "lot" is also a phrase, because most subjects do not contain it, and a phrase is found much faster than a regex.
    SubjectPattern(
        "media_solution_missions_recadrage_lot",
        ("media solution", "missions recadrage", "lot"),
        r"\blot\s+(\d+)\b",
    ),
    SubjectPattern("lot", ("lot",), r"\blot\s+(\d+)\b"),
)
CLAUSE_PATTERNS = tuple(replace(pattern, reads_clauses=True) for pattern in DEFAULT_PATTERNS)


def normalize_no_accents_lower_trim(text: str) -> str:
    """The text in lower case, with white space collapsed and without accents on Latin letters.

    Other scripts are not transliterated, because different Chinese subjects could then become equal.
    """
    if not text.isascii():
        text = nfc(_NOT_ASCII.sub(lambda letters: "".join(map(_fold_char, letters[0])), nfc(text)))
    return " ".join(text.lower().split())


@lru_cache(maxsize=10_000)  # computing one takes a microsecond
def _fold_char(char: str) -> str:
    compatible = unicodedata.normalize("NFKC", char)
    return "".join(map(_remove_accent, compatible if len(compatible) <= MAX_EXPANSION else char))


def _remove_accent(char: str) -> str:
    if char.isascii():
        return char
    if "\u0300" <= char <= "\u036f":  # an accent that NFC joined to no letter
        return ""
    if unicodedata.name(char, "").startswith("LATIN ") or unicodedata.category(char) in ("Pd", "Pi", "Pf"):
        return unidecode(char)
    return char


def is_reply(folded: str) -> bool:
    """Whether the folded subject is that of a reply or a forward."""
    return _REPLY.match(folded) is not None


def generate_subject_group_id(
    subject: str,
    patterns: Sequence[SubjectPattern] = DEFAULT_PATTERNS,
    mode: GroupMode = GroupMode.PATTERNS,
) -> str | None:
    """The group of a subject as received, or None. For scripts."""
    return group_of(normalize_no_accents_lower_trim(decode_header(subject)), patterns, mode)


def group_of(folded: str, patterns: Sequence[SubjectPattern], mode: GroupMode) -> str | None:
    """The group of a folded subject, or None. An empty subject and "(no subject)" have no group."""
    if mode is GroupMode.OFF:
        return None
    core = _PREFIXES.sub("", folded)
    words = _remove_punctuation(core)
    if not core or words in _NO_SUBJECT:
        return None
    for pattern in patterns:
        if group := pattern.group_of(core, words):
            return group
    if mode is GroupMode.PATTERNS:
        return None
    return f"subject_hash_{hashlib.md5(core.encode(), usedforsecurity=False).hexdigest()}"


def _normalize_words(text: str) -> str:
    return _remove_punctuation(normalize_no_accents_lower_trim(text))


def _remove_punctuation(normalised: str) -> str:
    return _NOT_WORD.sub(" ", normalised).strip()


_NO_SUBJECT = frozenset(map(_normalize_words, LISTS["no_subject"]))


def month_of(tz: tzinfo, now: datetime | None = None) -> str:
    """The current month in the configured time zone, such as ``2026-11``."""
    return (now or datetime.now(UTC)).astimezone(tz).strftime("%Y-%m")


def monthly_scope_group_id(group_id: str, tz: tzinfo, now: datetime | None = None) -> str:
    """Such as ``2026-11:lot_456``, the member of the Set subject_groups:2026-11."""
    return f"{month_of(tz, now)}:{group_id}"


def scope_of(sender: str, scope: GroupScope, *, hides_domain: bool = False) -> str:
    """The end of a shared name, which limits it to the emails of a domain or sender, such as ``@example.org``.

    Operators see names, so an address is replaced by a digest, and with ``hides_domain`` a domain too.
    """
    if scope is GroupScope.EVERYONE:
        return ""
    local, _, domain = sender.rpartition("@")
    host = ascii_host(domain)
    is_public = host in _PUBLIC_DOMAINS or host.partition(".")[0] in _PUBLIC_BRANDS
    is_by_domain = host and scope is GroupScope.DOMAIN and not is_public
    if is_by_domain and not hides_domain:
        return f"@{host}"
    hidden = host if is_by_domain else f"{local}@{host or domain}"
    return f"@{hashlib.sha256(hidden.encode(errors='replace')).hexdigest()[:12]}"


def group_name(group_id: str, month: str, ttl_seconds: int) -> Name:
    """The name to claim for a group. It is kept for its month or, if a TTL is configured, for the TTL."""
    return Name(Kind.SUBJECT_GROUP, month, group_id, ttl_seconds * 1000 or MONTH_KEPT_MS)
