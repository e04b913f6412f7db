"""After a reset the same email is delivered again, over every store; what has nothing to do with it stays."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deduplication.claims import WEEK_MS, Claim, Claimed, Duplicate, Gate, Kind, Name
from deduplication.redis_client import connect
from deduplication.stores.base import Pattern, Store
from deduplication.stores.redis import RedisStore
from deduplication.stores.spelling import Speller
from orchestrator.delivery.ledger.sqlite import SqliteLedger
from orchestrator.reset import InvalidReset, Reset, Scope
from orchestrator.reset import reset as reset_both
from tests.support.redis_server import RedisServer
from tests.support.stores import Bench

LINK = "https://files.example/[a]*?x=1"


@pytest.fixture
def redis_store(redis_server: RedisServer) -> Iterator[RedisStore]:
    store = RedisStore(connect(redis_server.url, timeout_s=5))
    yield store
    store.close()


def reset(store: Store, request: Reset) -> int:
    """Of names alone; what becomes of records, tests/routes/test_delivery.py shows."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = SqliteLedger(Path(folder) / "deliveries.db")
        try:
            return reset_both(store, ledger, request)
        finally:
            ledger.close()


def email(item: str, *more: Name, day: str = "2026-11-16", owner: str = "first") -> Claim:
    """An email with an id, a canonical id and a post key, and the shared names given."""
    names = (
        Name(Kind.EMAIL_ID, day, item),
        Name(Kind.EMAIL_ID, day, f"canonical {item}"),
        Name(Kind.POST, "", f"{item}@example.org", WEEK_MS),
    )
    return Claim(item, (*names, *more), f"text of {item}", f"{owner} {item}", lease_ms=60_000)


def group(value: str, month: str = "2026-11") -> Name:
    return Name(Kind.SUBJECT_GROUP, month, value, WEEK_MS)


def media(value: str) -> Name:
    return Name(Kind.MEDIA, "", value, WEEK_MS)


def deliver(bench: Bench, claim: Claim) -> None:
    assert isinstance(bench.store.claim(claim), Claimed)
    assert bench.store.commit(claim)


def is_known(bench: Bench, claim: Claim) -> bool:
    """Asked without its shared names, and given back if it was free."""
    own = Claim(claim.item, tuple(n for n in claim.names if n.is_own), claim.fingerprint, f"probe {claim.item}", 60_000)
    verdict = bench.another.claim(own)
    if isinstance(verdict, Claimed):
        bench.another.release(own, retries_left=None)
        bench.another.forget(own.names)
    return isinstance(verdict, Duplicate)


def again(claim: Claim) -> Claim:
    return Claim(claim.item, claim.names, claim.fingerprint, f"again {claim.item}", claim.lease_ms)


WANTED = email("wanted", group("lot_1"), media(LINK))
OTHER = email("other", group("lot_2", "2026-10"), media("https://files.example/other"), day="2026-11-17")

SCOPES = [
    Reset(Scope.EMAIL_ID, "wanted"),
    Reset(Scope.EMAIL_ID, "canonical wanted"),
    Reset(Scope.DATE, "2026-11-16"),
    Reset(Scope.SUBJECT_GROUP, "lot_1"),
    Reset(Scope.SUBJECT_GROUP, "2026-11:lot_1"),
    Reset(Scope.MONTH, "2026-11"),
    Reset(Scope.MEDIA, LINK),
]
over_scopes = pytest.mark.parametrize("request_", SCOPES, ids=lambda r: f"{r.scope}-{r.value}")


@over_scopes
def test_after_a_reset_the_same_email_is_claimed_again_and_others_stay(bench: Bench, request_: Reset) -> None:
    deliver(bench, WANTED)
    deliver(bench, OTHER)
    assert reset(bench.another, request_) == len(WANTED.names)
    assert is_known(bench, OTHER)
    assert {record.name for record in bench.store.find(Pattern())} == set(OTHER.names)
    assert isinstance(bench.store.claim(again(WANTED)), Claimed)


@over_scopes
def test_a_dry_run_counts_what_would_go_and_changes_nothing(bench: Bench, request_: Reset) -> None:
    deliver(bench, WANTED)
    deliver(bench, OTHER)
    before = list(bench.store.find(Pattern()))
    count = reset(bench.store, Reset(request_.scope, request_.value, dry_run=True))
    assert list(bench.store.find(Pattern())) == before
    assert reset(bench.store, request_) == count == len(WANTED.names)
    assert reset(bench.store, request_) == 0


def test_a_reset_of_all_forgets_every_name(bench: Bench) -> None:
    deliver(bench, WANTED)
    deliver(bench, OTHER)
    bench.store.claim(email("pending"))
    everything = len(WANTED.names) + len(OTHER.names) + 3
    assert reset(bench.store, Reset(Scope.ALL, dry_run=True)) == everything
    assert reset(bench.store, Reset(Scope.ALL)) == everything
    assert list(bench.store.find(Pattern())) == []
    assert isinstance(bench.another.claim(again(WANTED)), Claimed)


def test_a_reset_of_what_is_not_known_forgets_nothing(bench: Bench) -> None:
    deliver(bench, WANTED)
    for scope, value in (
        (Scope.EMAIL_ID, "unknown"),
        (Scope.EMAIL_ID, "want*"),
        (Scope.EMAIL_ID, "lot_1"),
        (Scope.DATE, "2026-11-15"),
        (Scope.DATE, "undated"),
        (Scope.SUBJECT_GROUP, "lot_*"),
        (Scope.SUBJECT_GROUP, "lot_"),
        (Scope.SUBJECT_GROUP, "2026-10:lot_1"),
        (Scope.MONTH, "2026-10"),
        (Scope.MEDIA, LINK.removesuffix("=1")),
        (Scope.DESTINATION, "crm"),
    ):
        assert reset(bench.store, Reset(scope, value)) == 0
    assert is_known(bench, WANTED)


def test_a_group_without_a_month_goes_in_every_month(bench: Bench) -> None:
    october, november = email("e1", group("lot_1", "2026-10")), email("e2", group("lot_1", "2026-11"))
    deliver(bench, october)
    deliver(bench, november)
    assert reset(bench.store, Reset(Scope.SUBJECT_GROUP, "2026-11:lot_1")) == 4
    assert (is_known(bench, october), is_known(bench, november)) == (True, False)
    deliver(bench, again(november))
    assert reset(bench.store, Reset(Scope.SUBJECT_GROUP, "lot_1")) == 8


@pytest.mark.parametrize("shared", [group("lot_1"), media(LINK)], ids=["group", "media"])
def test_a_skipped_email_is_released_by_its_email_id_and_its_original_stays_known(bench: Bench, shared: Name) -> None:
    original, skipped = email("original", shared), email("skipped", shared)
    deliver(bench, original)
    assert isinstance(bench.store.claim(skipped), Duplicate)
    assert is_known(bench, skipped)
    assert reset(bench.store, Reset(Scope.EMAIL_ID, "skipped")) == len(skipped.names)
    assert isinstance(bench.store.claim(again(skipped)), Claimed)
    assert is_known(bench, original)


def test_a_reset_of_a_group_releases_the_emails_it_stopped_too(bench: Bench) -> None:
    original, skipped = email("original", group("lot_1")), email("skipped", group("lot_1"), day="2026-11-20")
    deliver(bench, original)
    bench.store.claim(skipped)
    assert reset(bench.store, Reset(Scope.SUBJECT_GROUP, "lot_1")) == 7
    assert not is_known(bench, original)
    assert not is_known(bench, skipped)


def test_both_emails_of_one_id_go_together(bench: Bench) -> None:
    shared = Name(Kind.EMAIL_ID, "2026-11-16", "e1")
    claims = [
        Claim("e1", (shared, Name(Kind.POST, "", f"{text}@example.org", WEEK_MS)), text, f"owner of {text}", 60_000)
        for text in ("one", "two")
    ]
    for claim in claims:
        deliver(bench, claim)
    assert reset(bench.store, Reset(Scope.EMAIL_ID, "e1")) == 3
    for claim in claims:
        assert isinstance(bench.store.claim(claim), Claimed)


def test_pending_names_go_too(bench: Bench) -> None:
    bench.store.claim(WANTED)
    assert reset(bench.another, Reset(Scope.EMAIL_ID, "wanted")) == len(WANTED.names)
    assert isinstance(bench.another.claim(again(WANTED)), Claimed)


def test_undated_emails_are_a_date_of_their_own(bench: Bench) -> None:
    undated = email("undated email", day="undated")
    deliver(bench, undated)
    deliver(bench, WANTED)
    assert reset(bench.store, Reset(Scope.DATE, "undated")) == 3
    assert (is_known(bench, undated), is_known(bench, WANTED)) == (False, True)


def test_a_destination_forgets_its_contents_and_locks_and_no_emails(bench: Bench) -> None:
    content, lock = Name(Kind.CONTENT, "crm", "hash"), Name(Kind.LOCK, "crm", "e1")
    elsewhere = Name(Kind.CONTENT, "archive", "hash")
    for name in (content, elsewhere):
        deliver(bench, Claim("e1", (name,), "", f"owner of {name.label}", 60_000))
    assert isinstance(bench.store.claim(Claim("e1", (lock,), "", "a server", 60_000)), Claimed)
    deliver(bench, WANTED)
    assert reset(bench.store, Reset(Scope.DESTINATION, "crm")) == 2
    assert {r.name for r in bench.store.find(Pattern())} == {elsewhere, *WANTED.names}


def test_with_a_group_ttl_a_reset_forgets_what_decides_and_the_history(redis_server: RedisServer) -> None:
    store = RedisStore(connect(redis_server.url, timeout_s=5), Speller(group_ttl=True))
    store.claim(WANTED)
    store.commit(WANTED)
    assert reset(store, Reset(Scope.SUBJECT_GROUP, "lot_1")) == len(WANTED.names)
    assert not redis_server.client.exists("ttl:subject_groups:2026-11:lot_1", "subject_groups:2026-11")
    assert isinstance(store.claim(again(WANTED)), Claimed)
    store.close()


MARKS: list[tuple[Callable[[RedisServer], object], Reset, Name]] = [
    (
        lambda server: server.client.sadd("processed_ids:2026-11-16", "e1"),
        Reset(Scope.EMAIL_ID, "e1"),
        Name(Kind.EMAIL_ID, "2026-11-16", "e1"),
    ),
    (
        lambda server: server.client.sadd("processed_ids:2026-11-16", "e1"),
        Reset(Scope.DATE, "2026-11-16"),
        Name(Kind.EMAIL_ID, "2026-11-16", "e1"),
    ),
    (
        lambda server: server.client.sadd("subject_groups:2026-11", "2026-11:lot_1"),
        Reset(Scope.SUBJECT_GROUP, "lot_1"),
        group("lot_1"),
    ),
    (
        lambda server: server.client.sadd("subject_groups:2026-11", "2026-11:lot_1"),
        Reset(Scope.MONTH, "2026-11"),
        group("lot_1"),
    ),
    (lambda server: server.client.set(f"media:{LINK}", "1"), Reset(Scope.MEDIA, LINK), media(LINK)),
    (lambda server: server.client.set("post:m1", "0"), Reset(Scope.ALL), Name(Kind.POST, "", "m1")),
]


@pytest.mark.parametrize(("mark", "request_", "name"), MARKS, ids=lambda v: v.scope if isinstance(v, Reset) else None)
def test_names_that_only_a_script_marked_go_too(
    redis_server: RedisServer,
    redis_store: RedisStore,
    mark: Callable[[RedisServer], object],
    request_: Reset,
    name: Name,
) -> None:
    mark(redis_server)
    claim = Claim("e1", (name,), "", "service", 60_000)
    assert isinstance(redis_store.claim(claim), Duplicate)
    assert reset(redis_store, Reset(request_.scope, request_.value, dry_run=True)) == 1
    assert reset(redis_store, request_) == 1
    assert isinstance(redis_store.claim(claim), Claimed)


def test_a_reset_leaves_one_audit_line_without_links_and_line_breaks(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    deliver(bench, WANTED)
    reset(bench.store, Reset(Scope.MEDIA, LINK))
    reset(bench.store, Reset(Scope.EMAIL_ID, "x\nAUDIT forged", dry_run=True))
    media_line, forged_line = caplog.messages
    assert media_line.startswith("AUDIT reset scope=media ")
    assert media_line.endswith("dry_run=False names=5")
    assert LINK not in media_line
    assert forged_line.startswith("AUDIT reset scope=email_id ")
    assert "forged" not in forged_line


@pytest.mark.parametrize(
    "value", ["fe4fc385494173f61585825e95d25317", "fe4fc385494173f61585825e95d25317@0123456789ab", "lot_456", "2026-11"]
)
def test_the_audit_line_shows_an_id_of_ours_as_it_is(
    bench: Bench, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    caplog.set_level(logging.INFO)
    reset(bench.store, Reset(Scope.EMAIL_ID, value, dry_run=True))
    assert f"value={value} " in caplog.text


@pytest.mark.parametrize(
    ("scope", "value", "takes"),
    [
        (Scope.EMAIL_ID, "", "the email_id to forget"),
        (Scope.SUBJECT_GROUP, "", "the subject_group to forget"),
        (Scope.MEDIA, "", "the media to forget"),
        (Scope.DESTINATION, "", "the destination to forget"),
        (Scope.MONTH, "", "a month such as"),
        (Scope.MONTH, "2026-13", "a month such as"),
        (Scope.MONTH, "2026-11-16", "a month such as"),
        (Scope.DATE, "", "a day such as"),
        (Scope.DATE, "2026-11", "a day such as"),
        (Scope.DATE, "16/11/2026", "a day such as"),
    ],
)
def test_a_reset_that_does_not_say_what_to_forget_is_refused(scope: Scope, value: str, takes: str) -> None:
    with pytest.raises(InvalidReset, match=f"value takes {takes}") as raised:
        Reset(scope, value)
    assert raised.value.field == "value"


def test_a_group_gate_stands_again_after_the_reset(bench: Bench) -> None:
    deliver(bench, WANTED)
    reset(bench.store, Reset(Scope.SUBJECT_GROUP, "lot_1"))
    deliver(bench, again(WANTED))
    verdict = bench.store.claim(email("third", group("lot_1")))
    assert isinstance(verdict, Duplicate)
    assert (verdict.gate, verdict.original) == (Gate.SUBJECT_GROUP, "wanted")
