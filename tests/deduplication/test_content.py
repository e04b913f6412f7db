"""Which texts start alike, and that a destination gets each of them once in 72 hours ."""

from __future__ import annotations

import hashlib
import logging
import string
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deduplication.content import ContentGate, compute_hash, content_name, normalize_text
from deduplication.errors import StoreMisconfigured
from deduplication.journal.coordinator import Claimed, Coordinator
from deduplication.names import Kind, Name
from tests.deduplication.conftest import Bench
from tests.deduplication.journal.world import Email, Machine, Time, ask, claimed, delivered

HOUR_MS = 3600 * 1000
WINDOW_S = 259_200
TEXT = "Breaking: the harbour bridge is closed until Monday"
WORDLESS = [
    "",
    " \t\r\n\u00a0\u2003",
    "... !? -- «»",
    "___",
    string.punctuation,
    "。、！？「」",
    "🎉🎉 👍🏽",
    "👨‍👩‍👧‍👦 ❤️ 🇫🇷 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "1️⃣2️⃣ #️⃣ 9⃣",
    "ℹ️ ™️ Ⓜ️ ㊗️ 〰️",
    "\u0301 !\u0301",
    "\u200b\u200d\ufeff",
    "\ud800",
]


def gate(coordinator: Coordinator, *window_ms: int) -> ContentGate:
    return ContentGate(coordinator, *window_ms)


def named(destination: str = "crm", text: str = TEXT) -> Name:
    name = content_name(destination, text)
    assert name is not None
    return name


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
    [
        "привет мир",
        "你好世界",
        "こんにちは 東京タワー",
        "안녕하세요 세계",
        "γειά σου κόσμε",
        "שָׁלוֹם עולם",
        "السَّلامُ عَلَيْكُمْ ١٢٣",
        "हिन्दी में किताबें",
        "বাংলা ভাষা",
        "தமிழ் மொழி",
        "ภาษาไทย ที่นี่",
        "မြန်မာဘာသာ",
        "ለምን አይሆንም",
        "éàü ñ ş",
    ],
)
def test_words_of_every_script_are_kept_with_their_marks(text: str) -> None:
    assert normalize_text(f"«{text}» !") == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("caf\u00e9", "cafe\u0301"),
        ("ПРИВЕТ", "привет"),
        ("a\u2260b", "a=\u0338b"),
        ("র\u200d্যাব", "র্যাব"),
        ("☎\ufe0f call", "☎ call"),
        ("葛\U000e0100", "葛"),
        ("co\u00adoperate", "cooperate"),
    ],
)
def test_two_spellings_of_one_text_are_one(one: str, other: str) -> None:
    assert normalize_text(one) == normalize_text(other)


def test_texts_that_differ_in_a_vowel_sign_only_are_two() -> None:
    assert normalize_text("की") != normalize_text("का")


@pytest.mark.parametrize("text", WORDLESS)
def test_a_text_without_a_word_is_empty(text: str) -> None:
    assert normalize_text(text) == ""


@pytest.mark.parametrize("function", [normalize_text, compute_hash, lambda text: content_name("crm", text)])
@pytest.mark.parametrize("text", [None, b"hello", 42])
def test_none_and_all_that_is_no_text_is_refused(function: Callable[[Any], object], text: object) -> None:
    with pytest.raises(TypeError, match=f"takes a str, not {type(text).__name__}"):
        function(text)


@given(st.text(max_size=80))
@example("e!\u0301")
@example("İ ﬁ Σ")
def test_normalising_again_changes_nothing(text: str) -> None:
    once = normalize_text(text)
    assert normalize_text(once) == once


@given(st.lists(st.text(st.characters(categories=["L", "N"]), min_size=1), max_size=15))
def test_there_are_never_more_than_ten_words(words: list[str]) -> None:
    assert len(normalize_text(" ".join(words)).split(" ")) <= 10


# compute_hash and content_name


def test_the_hash_is_sha_256_in_hex_of_the_normalised_text() -> None:
    assert compute_hash("HELLO world!") == hashlib.sha256(b"hello world").hexdigest()
    assert compute_hash("hello World") == compute_hash("HELLO world!")
    assert compute_hash("") == hashlib.sha256(b"").hexdigest()


def test_a_name_is_the_hash_within_its_destination_for_72_hours() -> None:
    name = named("crm", "Hello")
    assert (name.kind, name.scope, name.value) == (Kind.CONTENT, "crm", compute_hash("hello"))
    assert name.kept_ms == WINDOW_S * 1000


def test_a_destination_may_have_its_own_window() -> None:
    name = content_name("crm", TEXT, window_ms=1000)
    assert name is not None
    assert name.kept_ms == 1000


@pytest.mark.parametrize("text", WORDLESS)
def test_a_text_without_a_word_has_no_name(text: str) -> None:
    assert content_name("crm", text) is None


def test_a_window_of_nothing_is_no_gate() -> None:
    assert content_name("crm", TEXT, window_ms=0) is None


def test_a_negative_window_is_refused() -> None:
    with pytest.raises(ValueError, match="window_ms is -1"):
        content_name("crm", TEXT, window_ms=-1)


# ContentGate


def test_the_same_text_for_the_same_destination_is_a_duplicate(bench: Bench) -> None:
    assert not gate(bench.one).is_duplicate("crm", TEXT)
    gate(bench.one).mark_as_forwarded("crm", TEXT)
    assert gate(bench.one).is_duplicate("crm", TEXT)
    assert gate(bench.other).is_duplicate("crm", TEXT), "another process knows it too"
    assert not gate(bench.one).is_duplicate("archive", TEXT)
    assert not gate(bench.one).is_duplicate("crm", f"Not {TEXT}")


def test_case_punctuation_and_what_follows_ten_words_do_not_matter(bench: Bench) -> None:
    gate(bench.one).mark_as_forwarded("crm", "HELLO world!")
    assert gate(bench.one).is_duplicate("crm", "hello World")
    gate(bench.one).mark_as_forwarded("crm", "1 2 3 4 5 6 7 8 9 10 eleven")
    assert gate(bench.one).is_duplicate("crm", "1 2 3 4 5 6 7 8 9 10 twelve")
    assert not gate(bench.one).is_duplicate("crm", "1 2 3 4 5 6 7 8 9 ten eleven")


@pytest.mark.parametrize("hours", [72, 2])
def test_a_duplicate_is_one_for_the_window_which_starts_with_the_first_mark(bench: Bench, hours: int) -> None:
    mine = gate(bench.one, hours * HOUR_MS) if hours != 72 else gate(bench.one)
    mine.mark_as_forwarded("crm", TEXT)
    bench.advance((hours - 1) * HOUR_MS)
    assert mine.is_duplicate("crm", TEXT)
    mine.mark_as_forwarded("crm", TEXT)
    bench.advance(HOUR_MS + 1)
    assert not mine.is_duplicate("crm", TEXT)
    mine.mark_as_forwarded("crm", TEXT)
    assert mine.is_duplicate("crm", TEXT), "and from the next mark on again"


@pytest.mark.parametrize("text", ["", "  ", "?!", "🎉"])
def test_a_text_without_a_word_is_never_a_duplicate(bench: Bench, text: str) -> None:
    gate(bench.one).mark_as_forwarded("crm", text)
    assert not gate(bench.one).is_duplicate("crm", text)


def test_none_is_refused_by_the_gate_too(bench: Bench) -> None:
    nothing: Any = None
    for ask_gate in (gate(bench.one).is_duplicate, gate(bench.one).mark_as_forwarded):
        with pytest.raises(TypeError, match="takes a str, not NoneType"):
            ask_gate("crm", nothing)


def test_a_text_that_is_being_delivered_is_not_yet_forwarded_and_once_it_is_that_counts(bench: Bench) -> None:
    assert not gate(bench.one).is_duplicate("crm", TEXT)
    email = claimed(bench.second, Email(text=TEXT, words=True))
    assert email.to_send, "asking reserves nothing"
    assert not gate(bench.one).is_duplicate("crm", TEXT)
    delivered(bench.second, email)
    bench.other.publish(email.entry.id)
    assert gate(bench.one).is_duplicate("crm", TEXT)


def test_a_mark_is_no_item_and_stops_the_service(bench: Bench) -> None:
    gate(bench.one).mark_as_forwarded("crm", TEXT)
    with bench.first.journal.reading() as step:
        assert step.query("SELECT * FROM entries") == []
    bench.second.follow()
    stopped = ask(bench.second, Email(text=TEXT, words=True))
    assert isinstance(stopped, Claimed) and stopped.entry.stop and not stopped.to_send


def test_a_mark_reaches_the_journals_of_the_fleet(bench: Bench) -> None:
    gate(bench.one).mark_as_forwarded("crm", TEXT)
    bench.second.follow()
    with bench.second.journal.reading() as step:
        assert step.known([named()]).of(named()).is_marked


def test_redis_shows_the_mark_as_dedup_destination_hash_for_72_hours(bench: Bench) -> None:
    if bench.redis is None:
        pytest.skip("there is no Redis")
    client, key = bench.redis.client, f"dedup:crm:{hashlib.sha256(b'hello world').hexdigest()}"
    gate(bench.one).mark_as_forwarded("crm", "HELLO world!")
    assert list(client.scan_iter(match="dedup:*")) == [key]
    assert WINDOW_S - 60 < client.ttl(key) <= WINDOW_S
    client.delete(key)
    assert not gate(bench.one).is_duplicate("crm", "hello World"), "an operator may take the mark away"
    client.set(f"dedup:crm:{compute_hash(TEXT)}", "1", ex=WINDOW_S)
    assert gate(bench.one).is_duplicate("crm", TEXT), "and another program may set one"
    client.delete(f"dedup:crm:{compute_hash(TEXT)}")
    client.sadd(f"dedup:crm:{compute_hash(TEXT)}", "not a String")
    with pytest.raises(StoreMisconfigured, match="WRONGTYPE"):
        gate(bench.one).is_duplicate("crm", TEXT)


def test_without_a_journal_nothing_is_a_duplicate_and_nothing_is_marked(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(None, Time())
    machine.close()
    assert gate(machine.coordinator).is_duplicate("crm", TEXT) is False
    gate(machine.coordinator).mark_as_forwarded("crm", TEXT)
    records = [record for record in caplog.records if record.name == "deduplication.content"]
    assert [record.levelno for record in records] == [logging.WARNING] * 2
    for record, what in zip(records, ("taken as new", "not marked"), strict=True):
        line = record.getMessage()
        assert what in line and f"content {compute_hash(TEXT)} for crm" in line
        assert "harbour" not in line
