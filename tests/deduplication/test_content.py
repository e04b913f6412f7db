"""Which texts start alike, and that a destination gets each of them once in 72 hours."""

import hashlib
import logging
import string
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deduplication.content import ContentGate, compute_hash, content_name, normalize_text
from deduplication.errors import StoreMisconfigured
from deduplication.journal.coordinator import Claimed
from deduplication.names import Kind, Name
from tests.deduplication.conftest import ON_REDIS, Bench
from tests.deduplication.journal.world import Email, Machine, Time, ask

HOUR_MS = 3600 * 1000
WINDOW_S = 259_200
TEXT = "Breaking: the harbour bridge is closed until Monday"
WORDLESS = (
    "", " \t\r\n\u00a0\u2003", "... !? -- «»", "___", string.punctuation, "。、！？「」", "🎉🎉 👍🏽",
    "👨‍👩‍👧‍👦 ❤️ 🇫🇷 🏴󠁧󠁢󠁥󠁮󠁧󠁿", "1️⃣2️⃣ #️⃣ 9⃣", "ℹ️ ™️ Ⓜ️ ㊗️ 〰️", "\u0301 !\u0301", "\u200b\u200d\ufeff", "\ud800",
)  # fmt: skip


# normalize_text


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("HELLO world!", "hello world"),
        ("hello World", "hello world"),
        ("  a\t b\r\nc\u00a0d\u2003e ", "a b c d e"),
        ("Don't panic -- it's well-known...", "dont panic its wellknown"),
        ("_so_ *it* `is`", "so it is"),
        ("№ 5 – 100 %", "5 100"),
        ("1 2 3 4 5 6 7 8 9 10 11 12", "1 2 3 4 5 6 7 8 9 10"),
        ("1 ! 2 ? 3 4 5 6 7 8 9 … 10 11", "1 2 3 4 5 6 7 8 9 10"),
        ("🎉 Party 🎉 at 1️⃣ ℹ️ 8", "party at 8"),
        ("one ℹ️", "one"),
    ],
)
def test_a_text_is_its_first_ten_words_in_lower_case_without_punctuation(text: str, normalized: str) -> None:
    assert normalize_text(text) == normalized


@pytest.mark.parametrize(
    "text",
    (
        "привет мир", "你好世界", "こんにちは 東京タワー", "안녕하세요 세계", "γειά σου κόσμε", "שָׁלוֹם עולם",
        "السَّلامُ عَلَيْكُمْ ١٢٣", "हिन्दी में किताबें", "বাংলা ভাষা", "தமிழ் மொழி", "ภาษาไทย ที่นี่", "မြန်မာဘာသာ", "ለምን አይሆንም", "éàü ñ ş",
    ),
)  # fmt: skip
def test_words_of_every_script_are_kept_with_their_marks(text: str) -> None:
    assert normalize_text(f"«{text}» !") == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("caf\u00e9", "cafe\u0301"),
        ("ПРИВЕТ", "привет"),
        ("a\u2260b", "a=\u0338b"),
        ("র\u200d্যাব", "র্যাব"),
        ("☎\ufe0f call co\u00adoperate", "☎ call cooperate"),
        ("葛\U000e0100", "葛"),
    ],
)
def test_two_spellings_of_one_text_are_one(one: str, other: str) -> None:
    assert normalize_text(one) == normalize_text(other)
    assert normalize_text("की") != normalize_text("का"), "a vowel sign makes another word"


@given(st.text(max_size=80))
@example("e!\u0301")
@example("İ ﬁ Σ")
def test_normalising_again_changes_nothing(text: str) -> None:
    once = normalize_text(text)
    assert normalize_text(once) == once


# compute_hash and content_name


def test_a_name_is_the_sha_256_of_the_normalised_text_within_its_destination_for_72_hours() -> None:
    name = content_name("crm", "HELLO world!")
    assert name == Name(Kind.CONTENT, "crm", hashlib.sha256(b"hello world").hexdigest())
    assert (name.value, name.kept_ms) == (compute_hash("hello World"), WINDOW_S * 1000)


@pytest.mark.parametrize("text", WORDLESS)
def test_a_text_without_a_word_has_no_name(text: str) -> None:
    assert content_name("crm", text) is None


def test_a_window_of_nothing_is_no_gate_and_a_negative_one_is_refused() -> None:
    assert content_name("crm", TEXT, window_ms=0) is None
    with pytest.raises(ValueError, match="window_ms must be 0 .no gate. or more, got -1"):
        content_name("crm", TEXT, window_ms=-1)


# ContentGate


def test_the_same_text_for_the_same_destination_is_a_duplicate(bench: Bench) -> None:
    assert not ContentGate(bench.one).is_duplicate("crm", TEXT)
    ContentGate(bench.one).mark_as_forwarded("crm", TEXT)
    assert ContentGate(bench.one).is_duplicate("crm", TEXT)
    assert ContentGate(bench.other).is_duplicate("crm", TEXT), "another process knows it too"
    assert not ContentGate(bench.one).is_duplicate("archive", TEXT)
    assert not ContentGate(bench.one).is_duplicate("crm", f"Not {TEXT}")


@pytest.mark.parametrize("hours", [72, 2])
def test_a_duplicate_is_one_for_the_window_which_starts_with_the_first_mark(bench: Bench, hours: int) -> None:
    mine = ContentGate(bench.one, hours * HOUR_MS) if hours != 72 else ContentGate(bench.one)
    mine.mark_as_forwarded("crm", TEXT)
    bench.advance((hours - 1) * HOUR_MS)
    assert mine.is_duplicate("crm", TEXT)
    mine.mark_as_forwarded("crm", TEXT)
    bench.advance(HOUR_MS + 1)
    assert not mine.is_duplicate("crm", TEXT)
    mine.mark_as_forwarded("crm", TEXT)
    assert mine.is_duplicate("crm", TEXT), "and from the next mark on again"


def test_a_mark_is_no_item_reaches_the_journals_of_the_fleet_and_stops_the_service(bench: Bench) -> None:
    ContentGate(bench.one).mark_as_forwarded("crm", TEXT)
    with bench.first.journal.reading() as step:
        assert step.query("SELECT * FROM entries") == []
    bench.second.follow()
    name = content_name("crm", TEXT)
    with bench.second.journal.reading() as step:
        assert name and step.known([name]).of(name).is_marked
    stopped = ask(bench.second, Email(text=TEXT, words=True))
    assert isinstance(stopped, Claimed) and stopped.entry.stop and not stopped.to_send


@ON_REDIS
def test_redis_shows_the_mark_as_dedup_destination_hash_for_72_hours(bench: Bench) -> None:
    client, key = bench.client, f"dedup:crm:{hashlib.sha256(b'hello world').hexdigest()}"
    ContentGate(bench.one).mark_as_forwarded("crm", "HELLO world!")
    assert list(client.scan_iter(match="dedup:*")) == [key]
    assert WINDOW_S - 60 < client.ttl(key) <= WINDOW_S
    client.delete(key)
    assert not ContentGate(bench.one).is_duplicate("crm", "hello World"), "an operator may take the mark away"
    client.set(f"dedup:crm:{compute_hash(TEXT)}", "1", ex=WINDOW_S)
    assert ContentGate(bench.one).is_duplicate("crm", TEXT), "and another program may set one"
    client.delete(f"dedup:crm:{compute_hash(TEXT)}")
    client.sadd(f"dedup:crm:{compute_hash(TEXT)}", "not a String")
    with pytest.raises(StoreMisconfigured, match="WRONGTYPE"):
        ContentGate(bench.one).is_duplicate("crm", TEXT)


def test_without_a_journal_nothing_is_a_duplicate_and_nothing_is_marked(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(None, Time())
    machine.close()
    assert ContentGate(machine.coordinator).is_duplicate("crm", TEXT) is False
    ContentGate(machine.coordinator).mark_as_forwarded("crm", TEXT)
    records = [record for record in caplog.records if record.name == "deduplication.content"]
    assert [record.levelno for record in records] == [logging.WARNING] * 2
    for record, what in zip(records, ("treated as new", "not marked"), strict=True):
        line = record.getMessage()
        assert what in line and f"content {compute_hash(TEXT)} for crm" in line
        assert "harbour" not in line
