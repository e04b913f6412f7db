"""Which texts start alike, and that a destination gets each of them once in 72 hours, over every journal."""

from __future__ import annotations

import hashlib
import logging
import string
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deduplication.claims import Kind, Name, Pattern
from deduplication.content import ContentGate, compute_hash, content_name, normalize_text
from deduplication.errors import StoreMisconfigured, StoreUnavailable
from deduplication.journal.base import Claim, Claimed, Ending, Journal, Settlement, Wanted
from deduplication.journal.entry import DeliveryStatus, Entry
from deduplication.journal.memory import MemoryJournal
from deduplication.journal.redis import RedisJournal
from deduplication.redis_client import connect
from tests.support.journals import FakeClock, JournalBench, open_journal
from tests.support.redis_server import RedisServer, free_port

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


@pytest.fixture
def bench(journal_bench: JournalBench) -> JournalBench:
    return journal_bench


def tokens() -> Callable[[], str]:
    numbers = count()
    return lambda: f"token {next(numbers)}"


def gate(journal: Journal, **options: int) -> ContentGate:
    return ContentGate(journal, tokens(), **options)


def named(destination: str = "crm", text: str = TEXT) -> Name:
    name = content_name(destination, text)
    assert name is not None
    return name


def theirs() -> Claim:
    """A message of the service with the same words."""
    own = (Name(Kind.POST, "", "a message"),)
    return Claim("other", "other", own, destinations=(Wanted("crm", "msg_1", named()),), lease_ms=60_000)


def delivered(entry: Entry) -> Settlement:
    ended = tuple(replace(each, status=DeliveryStatus.DELIVERED) for each in entry.deliveries)
    return Settlement(Ending.DONE, "processed", ended)


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


def test_the_same_text_for_the_same_destination_is_a_duplicate(bench: JournalBench) -> None:
    assert not gate(bench.journal).is_duplicate("crm", TEXT)
    gate(bench.journal).mark_as_forwarded("crm", TEXT)
    assert gate(bench.journal).is_duplicate("crm", TEXT)
    assert gate(bench.another).is_duplicate("crm", TEXT), "another worker knows it too"


def test_another_destination_or_another_text_is_none(bench: JournalBench) -> None:
    gate(bench.journal).mark_as_forwarded("crm", TEXT)
    assert not gate(bench.journal).is_duplicate("archive", TEXT)
    assert not gate(bench.journal).is_duplicate("crm", f"Not {TEXT}")


def test_case_and_punctuation_do_not_make_another_text(bench: JournalBench) -> None:
    gate(bench.journal).mark_as_forwarded("crm", "HELLO world!")
    assert gate(bench.journal).is_duplicate("crm", "hello World")


def test_after_ten_equal_words_the_rest_does_not_matter(bench: JournalBench) -> None:
    gate(bench.journal).mark_as_forwarded("crm", "1 2 3 4 5 6 7 8 9 10 eleven")
    assert gate(bench.journal).is_duplicate("crm", "1 2 3 4 5 6 7 8 9 10 twelve")
    assert not gate(bench.journal).is_duplicate("crm", "1 2 3 4 5 6 7 8 9 ten eleven")


def test_a_duplicate_is_one_for_72_hours(bench: JournalBench) -> None:
    gate(bench.journal).mark_as_forwarded("crm", TEXT)
    bench.advance(71 * HOUR_MS)
    assert gate(bench.journal).is_duplicate("crm", TEXT)
    bench.advance(HOUR_MS + 1)
    assert not gate(bench.journal).is_duplicate("crm", TEXT)
    gate(bench.journal).mark_as_forwarded("crm", TEXT)
    assert gate(bench.journal).is_duplicate("crm", TEXT), "and from the next mark on again"


def test_a_duplicate_is_one_for_the_window_given(bench: JournalBench) -> None:
    gate(bench.journal, window_ms=2 * HOUR_MS).mark_as_forwarded("crm", TEXT)
    bench.advance(HOUR_MS)
    assert gate(bench.journal, window_ms=2 * HOUR_MS).is_duplicate("crm", TEXT)
    bench.advance(HOUR_MS + 1)
    assert not gate(bench.journal, window_ms=2 * HOUR_MS).is_duplicate("crm", TEXT)


def test_marking_what_is_marked_changes_nothing(bench: JournalBench, caplog: pytest.LogCaptureFixture) -> None:
    marking = gate(bench.journal)
    marking.mark_as_forwarded("crm", TEXT)
    bench.advance(71 * HOUR_MS)
    names = [named(), Name(Kind.LOCK, "crm", named().value)]
    before = bench.journal.look(names)
    marking.mark_as_forwarded("crm", TEXT)
    assert bench.journal.look(names) == before
    assert not caplog.records
    bench.advance(HOUR_MS + 1)
    assert not marking.is_duplicate("crm", TEXT), "the window starts with the first mark"


@pytest.mark.parametrize("text", ["", "  ", "?!", "🎉"])
def test_a_text_without_a_word_is_never_a_duplicate(bench: JournalBench, text: str) -> None:
    gate(bench.journal).mark_as_forwarded("crm", text)
    assert not gate(bench.journal).is_duplicate("crm", text)
    assert list(bench.journal.names(Pattern(Kind.CONTENT))) == []


def test_none_is_refused_by_the_gate_too(bench: JournalBench) -> None:
    nothing: Any = None
    with pytest.raises(TypeError, match="takes a str, not NoneType"):
        gate(bench.journal).is_duplicate("crm", nothing)
    with pytest.raises(TypeError, match="takes a str, not NoneType"):
        gate(bench.journal).mark_as_forwarded("crm", nothing)


def test_asking_reserves_nothing(bench: JournalBench) -> None:
    gate(bench.journal).is_duplicate("crm", TEXT)
    assert list(bench.journal.names(Pattern(Kind.CONTENT))) == []
    assert isinstance(bench.another.claim(theirs()), Claimed)


def test_a_text_only_reserved_is_not_yet_forwarded(bench: JournalBench) -> None:
    bench.journal.claim(theirs())
    assert not gate(bench.journal).is_duplicate("crm", TEXT)


def test_marking_leaves_the_reservation_of_another_alone_and_says_so(
    bench: JournalBench, caplog: pytest.LogCaptureFixture
) -> None:
    claim = theirs()
    verdict = bench.another.claim(claim)
    gate(bench.journal).mark_as_forwarded("crm", TEXT)
    assert "another owner holds it" in caplog.text
    assert isinstance(verdict, Claimed)
    assert bench.another.settle(claim, verdict.entry, delivered(verdict.entry)) is True


def test_marking_leaves_a_message_with_the_same_words_that_waits_alone(
    bench: JournalBench, caplog: pytest.LogCaptureFixture
) -> None:
    claim = theirs()
    verdict = bench.another.claim(claim)
    assert isinstance(verdict, Claimed)
    waits = tuple(replace(each, status=DeliveryStatus.WAITING, next_try_ms=1) for each in verdict.entry.deliveries)
    bench.another.settle(claim, verdict.entry, Settlement(Ending.DONE, "queued", waits, payload=b"message"))
    gate(bench.journal).mark_as_forwarded("crm", TEXT)
    assert "another owner holds it" in caplog.text
    assert bench.another.begin(verdict.entry.id, "crm", "worker", 60_000)
    assert [entry.id for entry in bench.journal.find()] == [verdict.entry.id]
    assert bench.journal.look([Name(Kind.LOCK, "crm", named().value)])[0].entries == (), "and holds nothing itself"


def test_every_mark_has_an_owner_of_its_own(bench: JournalBench) -> None:
    marking = gate(bench.journal)
    for text in ("one", "two"):
        marking.mark_as_forwarded("crm", text)
    marks = bench.journal.look([named(text="one"), named(text="two")])
    assert {entry.owner for mark in marks for entry in mark.entries} == {"token 0", "token 1"}


def test_a_mark_is_no_item_and_outlives_what_made_it(bench: JournalBench) -> None:
    gate(bench.journal).mark_as_forwarded("crm", TEXT)
    assert list(bench.journal.find()) == []
    bench.advance(2 * HOUR_MS)
    assert gate(bench.journal).is_duplicate("crm", TEXT)
    verdict = bench.journal.claim(theirs())
    assert not isinstance(verdict, Claimed), "nor is it delivered by the service"


@pytest.mark.parametrize(("kind", "database"), [("redis", 0), ("failover", 1)])
def test_redis_shows_the_mark_as_dedup_destination_hash_for_72_hours(
    redis_server: RedisServer, tmp_path: Path, kind: str, database: int
) -> None:
    key = f"dedup:crm:{hashlib.sha256(b'hello world').hexdigest()}"
    client = connect(f"{redis_server.address}/{database}", timeout_s=5)
    with open_journal(kind, tmp_path, redis_server) as bench:
        gate(bench.journal).mark_as_forwarded("crm", "HELLO world!")
        assert list(client.scan_iter(match="dedup:*")) == [key]
        assert WINDOW_S - 60 < client.ttl(key) <= WINDOW_S
        client.delete(key)
        assert not gate(bench.journal).is_duplicate("crm", "hello World"), "an operator may take the mark away"
    client.close()


def test_a_mark_that_another_program_made_in_redis_counts(redis_server: RedisServer, tmp_path: Path) -> None:
    redis_server.client.set(f"dedup:crm:{compute_hash(TEXT)}", "1", ex=WINDOW_S)
    with open_journal("redis", tmp_path, redis_server) as bench:
        assert gate(bench.journal).is_duplicate("crm", TEXT)


# The journal is away


@pytest.fixture
def journal_away() -> Iterator[Journal]:
    client = connect(f"redis://127.0.0.1:{free_port()}/0", decode_responses=False)
    yield RedisJournal(client, "m1")
    client.close()


def test_with_the_journal_away_nothing_is_a_duplicate(journal_away: Journal, caplog: pytest.LogCaptureFixture) -> None:
    assert gate(journal_away).is_duplicate("crm", TEXT) is False
    assert_logged_without_the_text(caplog, "taken as new")


def test_with_the_journal_away_marking_is_logged_and_not_raised(
    journal_away: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    gate(journal_away).mark_as_forwarded("crm", TEXT)
    assert_logged_without_the_text(caplog, "not marked")


class LosesSettlements(MemoryJournal):
    is_away = True

    def settle(self, claim: Claim, entry: Entry, settlement: Settlement) -> bool:
        if self.is_away:
            raise StoreUnavailable("gone between claim and settlement")
        return super().settle(claim, entry, settlement)


def test_a_journal_that_goes_away_while_marking_is_logged_and_blocks_the_next_mark_only_for_a_moment(
    caplog: pytest.LogCaptureFixture,
) -> None:
    time = FakeClock()
    journal = LosesSettlements(time.clock)
    gate(journal).mark_as_forwarded("crm", TEXT)
    assert_logged_without_the_text(caplog, "not marked")
    journal.is_away = False
    time.advance(5_000)
    after = ContentGate(journal, lambda: "another token")
    assert not after.is_duplicate("crm", TEXT)
    after.mark_as_forwarded("crm", TEXT)
    assert after.is_duplicate("crm", TEXT)


def test_a_journal_set_up_wrongly_is_not_taken_for_one_that_is_away(redis_server: RedisServer, tmp_path: Path) -> None:
    redis_server.client.sadd(f"dedup:crm:{compute_hash(TEXT)}", "not a String")
    with open_journal("redis", tmp_path, redis_server) as bench, pytest.raises(StoreMisconfigured, match="WRONGTYPE"):
        gate(bench.journal).is_duplicate("crm", TEXT)


def assert_logged_without_the_text(caplog: pytest.LogCaptureFixture, what: str) -> None:
    (record,) = [record for record in caplog.records if record.name == "deduplication.content"]
    line = record.getMessage()
    assert record.levelno == logging.WARNING
    assert what in line
    assert f"content {compute_hash(TEXT)} for crm" in line
    assert not [word for word in TEXT.split() if len(word) > 5 and word.lower() in line.lower()]
