"""Which subjects mean the same thing."""

import hashlib
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduplication.email import decode_header
from deduplication.names import Kind
from deduplication.subject_group import (
    CLAUSE_PATTERNS,
    MONTH_KEPT_MS,
    GroupMode,
    GroupScope,
    SubjectPattern,
    generate_subject_group_id,
    group_name,
    is_reply,
    month_of,
    monthly_scope_group_id,
    normalize_no_accents_lower_trim,
    scope_of,
)

PREFIXES = ("Re", "Fw", "Fwd", "Ré", "Tr", "Rv", "Aw", "Wg", "Sv", "Vs", "Antw", "Odp", "Rif", "Confirmation", "Re[2]")
COLONS = (":", " :", "\u00a0:", "：", "\u202f: ")


def hashed(core: str) -> str:
    return f"subject_hash_{hashlib.md5(core.encode(), usedforsecurity=False).hexdigest()}"


@pytest.mark.parametrize(
    ("subject", "group"),
    [
        ("Média Solution Missions Recadrage Lot 123", "media_solution_missions_recadrage_lot_123"),
        ("Média Solution - Missions Recadrage - Lot 123", "media_solution_missions_recadrage_lot_123"),
        ("Média Solution – Missions Recadrage — Lot 123", "media_solution_missions_recadrage_lot_123"),
        ("MÉDIA SOLUTION MISSIONS RECADRAGE LOT 123", "media_solution_missions_recadrage_lot_123"),
        ("Re: Fwd: media solution_missions recadrage: lot\u00a0123", "media_solution_missions_recadrage_lot_123"),
        ("Missions Recadrage Lot 123, Media Solution", "media_solution_missions_recadrage_lot_123"),
        ("=?utf-8?Q?M=C3=A9dia_Solution_Missions_Recadrage_Lot?= 123", "media_solution_missions_recadrage_lot_123"),
        ("Lot 456 - Documents", "lot_456"),
        ("RE: Lot 456", "lot_456"),
        ("Documents (lot 456)", "lot_456"),
        ("Missions Recadrage Lot 456", "lot_456"),
        ("Suite à votre email du 15", hashed("suite a votre email du 15")),
        ("Re : SUITE À VOTRE  EMAIL du 15 ", hashed("suite a votre email du 15")),
        ("Lot sans objet", hashed("lot sans objet")),
        ("Pilot 12", hashed("pilot 12")),
        ("Lots 12", hashed("lots 12")),
        ("🎉", hashed("🎉")),
    ],
)
def test_a_subject_belongs_to_its_group(subject: str, group: str) -> None:
    assert generate_subject_group_id(subject, mode=GroupMode.ALL) == group


@pytest.mark.parametrize("mode", GroupMode)
@pytest.mark.parametrize(
    "subject",
    [
        "", "   ", "\u00a0", "\r\n ", "Re:", "Re: Fwd : Ré\u00a0: ", "Re[2]：", "=?utf-8?Q??=",
        "(no subject)", "No Subject", "Re: (no subject)", "[no subject]", "<no subject>", "(sans objet)",
        "Tr: sans objet", "(kein Betreff)", "(Sin asunto)", "(nessun oggetto)", "(sem assunto)", "(geen onderwerp)",
        "(inget ämne)", "(без темы)", "(brak tematu)", "(件名なし)", "（无主题）", "(無主旨)", "(제목 없음)",
        "(بدون موضوع)",
    ],
)  # fmt: skip
def test_an_empty_or_missing_subject_has_no_group_in_any_mode(subject: str, mode: GroupMode) -> None:
    greedy = SubjectPattern("any", (), r"(\w+)")
    assert generate_subject_group_id(subject, [greedy], mode) is None


_MIXES = st.lists(st.tuples(st.sampled_from(PREFIXES), st.sampled_from(COLONS), st.sampled_from(["", " ", "\u00a0"])))


@given(_MIXES, st.sampled_from(["Suite à votre email", "Lot 7", "中文", "🎉", "1:2"]))
def test_any_mix_of_prefixes_leaves_the_group_as_it_is(mix: list[tuple[str, str, str]], core: str) -> None:
    prefixed = "".join("".join(prefix) for prefix in mix) + core
    groups = {generate_subject_group_id(each, mode=GroupMode.ALL) for each in (core, prefixed, prefixed.upper())}
    assert len(groups) == 1


@pytest.mark.parametrize(
    "subject", ["Réf: 123", "Request: a", "Treaty: b", "Re 123", "Note: Re: c", "Confirmation de d"]
)
def test_what_only_looks_like_a_prefix_stays(subject: str) -> None:
    assert generate_subject_group_id(subject, mode=GroupMode.ALL) == hashed(normalize_no_accents_lower_trim(subject))


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("  Élève\u00a0 ŒUVRE E\u0301te\u0301 x\u0301", "eleve oeuvre ete x"),
        ("Straße ＦＵＬＬ　ｗｉｄｔｈ", "strasse full width"),
        ("l’été – “déjà”", 'l\'ete - "deja"'),
        ("Ελλάδα Привет", "ελλάδα привет"),
    ],
)
def test_latin_letters_lose_accents_and_case_and_other_scripts_keep_their_letters(text: str, normalised: str) -> None:
    assert normalize_no_accents_lower_trim(text) == normalised


def test_different_words_are_never_merged_by_spelling_them_in_latin() -> None:
    # 北京 and 背景 are both "Bei Jing" when spelt in Latin letters.
    subjects = ("事实", "实事", "北京", "背景", "Мир", "Mir", "عربي", "عربى", "🎉", "🎂", "Lot 🎉", "Lot 🎂")
    assert len({generate_subject_group_id(each, mode=GroupMode.ALL) for each in subjects}) == len(subjects)


@pytest.mark.parametrize("subject", ["Lot 456 - Documents", "Suite à votre email"])
def test_the_mode_says_which_groups_there_are(subject: str) -> None:
    assert generate_subject_group_id(subject, mode=GroupMode.OFF) is None
    assert generate_subject_group_id(subject, mode=GroupMode.PATTERNS) == ("lot_456" if "Lot" in subject else None)


TICKET = SubjectPattern("ticket", ("Société Générale",), r"\bREF (\w+)\b")
FIRST, SECOND = (SubjectPattern(name, (), r"lot (\d+)") for name in ("first", "second"))


@pytest.mark.parametrize(
    ("patterns", "subject", "group"),
    [
        ([TICKET], "Societe generale: Réf. AB12", "ticket_ab12"),
        ([TICKET], "RE: ref ab12 / Société-Générale", "ticket_ab12"),
        ([TICKET], "Réf. AB12", None),
        ([TICKET], "Société Générale", None),
        ([TICKET], "Lot 456", None),
        ([FIRST, SECOND], "Lot 1", "first_1"),
        ([TICKET, SECOND], "Lot 1", "second_1"),
        *(([SubjectPattern("lot", (), regex)], "Lot de documents", None) for regex in (r"lot (\d+)?", r"lot (\d*)")),
    ],
)
def test_the_first_pattern_groups_that_matches_and_captures_something_whatever_accents_and_case(
    patterns: list[SubjectPattern], subject: str, group: str | None
) -> None:
    assert generate_subject_group_id(subject, patterns, GroupMode.PATTERNS) == group


@pytest.mark.parametrize(
    ("moment", "zone", "month"),
    [
        ("2026-11-30T22:59:59Z", "Europe/Paris", "2026-11"),
        ("2026-11-30T23:00:00Z", "Europe/Paris", "2026-12"),
        ("2026-11-30T23:00:00Z", "UTC", "2026-11"),
        ("2027-01-01T04:59:59Z", "America/New_York", "2026-12"),
        ("2027-01-01T05:00:00Z", "America/New_York", "2027-01"),
        ("2026-07-31T21:59:59Z", "Europe/Paris", "2026-07"),
        ("2026-07-31T22:00:00Z", "Europe/Paris", "2026-08"),
    ],
)
def test_a_month_ends_at_midnight_of_the_configured_zone(moment: str, zone: str, month: str) -> None:
    now, tz = datetime.fromisoformat(moment), ZoneInfo(zone)
    assert month_of(tz, now) == month
    assert monthly_scope_group_id("lot_456", tz, now) == f"{month}:lot_456"


@pytest.mark.parametrize(("ttl_seconds", "kept_ms"), [(0, MONTH_KEPT_MS), (90, 90_000)])
def test_a_group_is_kept_for_its_month_or_for_the_ttl(ttl_seconds: int, kept_ms: int) -> None:
    name = group_name("lot_456", "2026-11", ttl_seconds)
    assert (name.kind, name.scope, name.value, name.kept_ms) == (Kind.SUBJECT_GROUP, "2026-11", "lot_456", kept_ms)


# Scopes

EVERYONE, DOMAIN, SENDER = GroupScope.EVERYONE, GroupScope.DOMAIN, GroupScope.SENDER


@pytest.mark.parametrize(
    ("scope", "one", "other", "is_same"),
    [
        (EVERYONE, "ada@example.org", "eve@evil.example", True),
        (EVERYONE, "ada@example.org", "", True),
        (DOMAIN, "ada@example.org", "bob@example.org", True),
        (DOMAIN, "ada@example.org", "bob@EXAMPLE.org", True),
        (DOMAIN, "ada@example.org", "bob@mail.example.org", False),
        (DOMAIN, "ada@example.org", "eve@evil.example", False),
        (DOMAIN, "ada@bücher.example", "bob@xn--bcher-kva.example", True),
        (DOMAIN, "ada@[192.0.2.1]", "bob@[192.0.2.2]", False),
        (DOMAIN, "ada@gmail.com", "ada@gmail.com", True),
        (SENDER, "ada@example.org", "bob@example.org", False),
        (SENDER, "ada@example.org", "ada@example.org", True),
        (SENDER, "ada@bücher.example", "ada@xn--bcher-kva.example", True),
    ],
)
def test_names_are_shared_within_a_scope(scope: GroupScope, one: str, other: str, is_same: bool) -> None:
    for hides_domain in (False, True):
        ends = [scope_of(sender, scope, hides_domain=hides_domain) for sender in (one, other)]
        assert (ends[0] == ends[1]) is is_same
        assert not any("ada" in end or "eve" in end for end in ends), "names are shown: they contain no address"
        assert not (hides_domain and "example" in ends[0])


@pytest.mark.parametrize(
    "domain",
    [
        "gmail.com", "googlemail.com", "outlook.com", "outlook.fr", "hotmail.co.uk", "hotmail.com", "live.nl",
        "msn.com", "yahoo.com", "yahoo.co.jp", "yahoo.fr", "ymail.com", "icloud.com", "me.com", "mac.com", "gmx.net",
        "gmx.de", "web.de", "t-online.de", "orange.fr", "free.fr", "laposte.net", "proton.me", "protonmail.com",
        "aol.com", "qq.com", "mail.ru", "yandex.ru", "libero.it", "wp.pl", "Gmail.com",
    ],
)  # fmt: skip
def test_at_public_mail_providers_each_address_is_a_scope_of_its_own(domain: str) -> None:
    assert scope_of(f"ada@{domain}", DOMAIN) != scope_of(f"eve@{domain}", DOMAIN)
    assert scope_of(f"ada@{domain}", DOMAIN) == scope_of(f"ada@{domain}", SENDER)


@pytest.mark.parametrize(
    "prefix",
    [
        "Re:", "RE:", "re :", "Ré:", "Réf :", "Réf. :", "Rif:", "R:", "Aw:", "AW:", "Antw:", "Sv:", "Vs:", "Odp:",
        "Res:", "YNT:", "回复：", "رد:", "Fwd:", "FW:", "Fw :", "WG:", "TR:", "Tr :", "RV:", "I:", "Enc:", "Vb:",
        "İLT:", "转发：", "Re[2]:", "Re (3):", "Re：", "Ｒｅ：", "R\u00e9\u00a0:", "Re\u0301:", "\u200eRe: ",
        "[EXT] Re:", "[a] [b]: Aw:", "=?utf-8?Q?R=C3=A9?= :",
    ],
)  # fmt: skip
def test_replies_and_forwards_are_recognised_in_many_languages(prefix: str) -> None:
    assert is_reply(normalize_no_accents_lower_trim(decode_header(f"{prefix} Lot 456")))


@pytest.mark.parametrize(
    "subject", ["", "Lot 456", "Re Lot 456", "Request: a", "Confirmation: lot 456", "[Re:] Lot 456"]
)
def test_other_subjects_are_no_replies(subject: str) -> None:
    assert not is_reply(normalize_no_accents_lower_trim(decode_header(subject)))


def test_a_hostile_subject_is_read_in_linear_time() -> None:
    assert not is_reply("[!]" * 100_000)


@pytest.mark.parametrize(
    ("subject", "older", "by_clauses"),
    [
        ("Lot 3", "lot_3", "lot_3"),
        ("lot-3", "lot_3", "lot_3"),
        ("Lot #3", "lot_3", "lot_3"),
        ("lot_3", "lot_3", "lot_3"),
        ("Documents (lot 3)", "lot_3", "lot_3"),
        ("Auction: offer for lot 3", "lot_3", "lot_3"),
        ("Média Solution - Missions Recadrage - Lot 3", *["media_solution_missions_recadrage_lot_3"] * 2),
        ("Thanks a lot! 2 questions", "lot_2", None),
        ("Thanks a lot - 2 questions", "lot_2", None),
        ("Thanks a lot – 2 questions", "lot_2", None),
        ("Thanks a lot (2 questions)", "lot_2", None),
        ("Thanks a lot 🙂 2 questions", "lot_2", None),
        ("Merci ! Lot ？ 2", "lot_2", None),
        ("Not a lot, 5 of them", "lot_5", None),
        ("A lot: 7 ideas", "lot_7", None),
        ("A lot! Of lot 4", "lot_4", "lot_4"),
    ],
)
def test_a_pattern_may_read_one_clause_at_a_time(subject: str, older: str, by_clauses: str | None) -> None:
    assert generate_subject_group_id(subject) == older
    assert generate_subject_group_id(subject, CLAUSE_PATTERNS) == by_clauses
