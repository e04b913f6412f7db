"""After a reset the same email is delivered again, over every journal; what has nothing to do with it stays."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from deduplication.claims import WEEK_MS, Gate, Kind, Name, Pattern
from deduplication.journal.base import Claim, Claimed, Duplicate, Ending, Forgotten, Journal, Settlement, Wanted
from deduplication.journal.entry import About, DeliveryStatus, Entry
from deduplication.journal.redis import RedisJournal
from deduplication.redis_client import connect
from orchestrator.delivery.webhook import Receipt, Webhook, unpack
from orchestrator.intake import Status
from orchestrator.operations.reset import Forgot, InvalidReset, Reset, Scope, forget_email, reset
from tests.support.journals import JournalBench
from tests.support.pipeline import DOWN, FakeDestination, Pipeline, open_pipeline
from tests.support.redis_server import RedisServer

LINK = "https://files.example/[a]*?x=1"
HOUR_MS = 3_600_000

_numbers = itertools.count(1)


def email(item: str, *shared: Name, day: str = "2026-11-16", to: tuple[str, ...] = ("crm",)) -> Claim:
    """An email with an id, a canonical id and a post key, and the shared names given."""
    own = (
        Name(Kind.EMAIL_ID, day, item),
        Name(Kind.EMAIL_ID, day, f"canonical {item}"),
        Name(Kind.POST, "", f"{item}@example.org", WEEK_MS),
    )
    wanted = tuple(Wanted(name, f"msg_{item}_{name}") for name in to)
    return Claim(item, "", own, shared, wanted, f"{item}.-.-.-.-.-.-", 60_000, About(item=item))


def group(value: str, month: str = "2026-11") -> Name:
    return Name(Kind.SUBJECT_GROUP, month, value, WEEK_MS)


def media(value: str) -> Name:
    return Name(Kind.MEDIA, "", value, WEEK_MS)


def again(claim: Claim) -> Claim:
    """As its provider sends it once more."""
    number = next(_numbers)
    return replace(claim, entry=f"entry{number}", owner=f"owner {number}")


def take(journal: Journal, claim: Claim, status: DeliveryStatus = DeliveryStatus.DELIVERED) -> Entry:
    """What a request does with it: it ends like this everywhere, or is skipped."""
    mine = again(claim)
    verdict = journal.claim(mine)
    assert not isinstance(verdict, Duplicate) or verdict.entry, verdict
    assert isinstance(verdict, Claimed | Duplicate) and verdict.entry
    ended = tuple(
        replace(each, status=status, next_try_ms=1 if status.is_open else None)
        for each in verdict.entry.deliveries
        if each.status is DeliveryStatus.DELIVERING
    )
    assert journal.settle(mine, verdict.entry, Settlement(Ending.DONE, "told", ended, payload=b"payload"))
    known = journal.read(verdict.entry.id)
    assert known
    return known


def is_known(journal: Journal, claim: Claim) -> bool:
    """Whether a repeat would be stopped by its own names."""
    return any(found.is_marked for found in journal.look(claim.own))


def all_names(journal: Journal) -> set[Name]:
    return set(journal.names(Pattern()))


def names_of(*claims: Claim) -> set[Name]:
    return {name for claim in claims for name in (*claim.own, *claim.shared)}


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
def test_after_a_reset_the_same_email_is_claimed_again_and_others_stay(bench: JournalBench, request_: Reset) -> None:
    take(bench.journal, WANTED)
    take(bench.journal, OTHER)
    assert reset(bench.another, request_) == Forgotten(len(names_of(WANTED)))
    assert is_known(bench.another, OTHER)
    assert all_names(bench.journal) == names_of(OTHER)
    verdict = bench.journal.claim(again(WANTED))
    assert isinstance(verdict, Claimed)
    assert [each.status for each in verdict.entry.deliveries] == [DeliveryStatus.DELIVERING]


@over_scopes
def test_a_dry_run_counts_what_would_go_and_changes_nothing(bench: JournalBench, request_: Reset) -> None:
    take(bench.journal, WANTED)
    take(bench.journal, OTHER)
    before = all_names(bench.journal), list(bench.journal.find())
    would = reset(bench.journal, replace(request_, dry_run=True))
    assert (all_names(bench.journal), list(bench.journal.find())) == before
    assert reset(bench.journal, request_) == would == Forgotten(len(names_of(WANTED)))
    assert reset(bench.journal, request_) == Forgotten(0)


def test_one_email_is_forgotten_by_the_id_of_its_entry(bench: JournalBench) -> None:
    taken, waiting = take(bench.journal, WANTED), take(bench.journal, email("waits"), DeliveryStatus.WAITING)
    take(bench.journal, OTHER)
    assert forget_email(bench.another, taken.id) is Forgot.FORGOTTEN
    assert forget_email(bench.another, taken.id) in (Forgot.NOTHING, Forgot.UNKNOWN)
    assert forget_email(bench.another, waiting.id) is Forgot.KEPT
    assert forget_email(bench.another, "nobody") is Forgot.UNKNOWN
    assert all_names(bench.journal) == names_of(OTHER, email("waits"))
    assert isinstance(bench.journal.claim(again(WANTED)), Claimed)


def test_a_reset_of_all_forgets_every_name(bench: JournalBench) -> None:
    take(bench.journal, WANTED)
    take(bench.journal, OTHER)
    bench.journal.claim(again(email("pending")))
    everything = Forgotten(len(names_of(WANTED, OTHER)) + 3)
    assert reset(bench.journal, Reset(Scope.ALL, dry_run=True)) == everything
    assert reset(bench.journal, Reset(Scope.ALL)) == everything
    assert all_names(bench.journal) == set()
    assert isinstance(bench.another.claim(again(WANTED)), Claimed)


def test_a_reset_of_what_is_not_known_forgets_nothing(bench: JournalBench) -> None:
    take(bench.journal, WANTED)
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
        (Scope.DESTINATION, "slack"),
    ):
        assert reset(bench.journal, Reset(scope, value)) == Forgotten(0)
    assert all_names(bench.journal) == names_of(WANTED)
    assert is_known(bench.journal, WANTED)


def test_a_group_without_a_month_goes_in_every_month(bench: JournalBench) -> None:
    october, november = email("e1", group("lot_1", "2026-10")), email("e2", group("lot_1", "2026-11"))
    take(bench.journal, october)
    take(bench.journal, november)
    assert reset(bench.journal, Reset(Scope.SUBJECT_GROUP, "2026-11:lot_1")).names == 4
    assert (is_known(bench.journal, october), is_known(bench.journal, november)) == (True, False)
    take(bench.journal, november)
    assert reset(bench.journal, Reset(Scope.SUBJECT_GROUP, "lot_1")).names == 8


@pytest.mark.parametrize("shared", [group("lot_1"), media(LINK)], ids=["group", "media"])
def test_a_skipped_email_is_let_in_by_its_email_id_and_its_original_stays_known(
    bench: JournalBench, shared: Name
) -> None:
    original, skipped = email("original", shared), email("skipped", shared)
    take(bench.journal, original)
    stopped = take(bench.journal, skipped)
    assert is_known(bench.journal, skipped)
    assert reset(bench.journal, Reset(Scope.EMAIL_ID, "skipped")) == Forgotten(4), "what stopped it goes too"
    assert is_known(bench.journal, original)
    verdict = bench.journal.claim(again(skipped))
    assert isinstance(verdict, Claimed)
    assert verdict.entry.id == stopped.id, "with its history"
    assert bench.journal.payload(stopped.id) == b"payload"


def test_a_reset_of_a_group_lets_the_emails_it_stopped_in_too(bench: JournalBench) -> None:
    original, skipped = email("original", group("lot_1")), email("skipped", group("lot_1"), day="2026-11-20")
    take(bench.journal, original)
    stopped = take(bench.journal, skipped)
    assert reset(bench.journal, Reset(Scope.SUBJECT_GROUP, "lot_1")) == Forgotten(7)
    assert not is_known(bench.journal, original)
    assert not is_known(bench.journal, skipped)
    verdict = bench.journal.claim(again(skipped))
    assert isinstance(verdict, Claimed)
    assert verdict.entry.id == stopped.id, "with its history"


def test_both_emails_of_one_id_go_together(bench: JournalBench) -> None:
    shared = Name(Kind.EMAIL_ID, "2026-11-16", "e1")
    claims = [
        replace(email(text), own=(shared, Name(Kind.POST, "", f"{text}@example.org", WEEK_MS)))
        for text in ("one", "two")
    ]
    for claim in claims:
        take(bench.journal, claim)
    assert reset(bench.journal, Reset(Scope.EMAIL_ID, "e1")) == Forgotten(3)
    for claim in claims:
        assert isinstance(bench.journal.claim(again(claim)), Claimed)


def test_pending_names_go_too_and_its_owner_may_still_settle(bench: JournalBench) -> None:
    mine = again(WANTED)
    claimed = bench.journal.claim(mine)
    assert isinstance(claimed, Claimed)
    assert reset(bench.another, Reset(Scope.EMAIL_ID, "wanted")) == Forgotten(len(names_of(WANTED)))
    assert isinstance(bench.another.claim(again(WANTED)), Claimed)
    stored = replace(claimed.entry.deliveries[0], status=DeliveryStatus.WAITING, next_try_ms=1)
    assert bench.journal.settle(mine, claimed.entry, Settlement(Ending.DONE, "queued", (stored,), payload=b"payload"))
    assert bench.another.due({"crm": 10}, hold_ms=1000) == [(claimed.entry.id, "crm")]


def test_undated_emails_are_a_date_of_their_own(bench: JournalBench) -> None:
    undated = email("undated email", day="undated")
    take(bench.journal, undated)
    take(bench.journal, WANTED)
    assert reset(bench.journal, Reset(Scope.DATE, "undated")) == Forgotten(3)
    assert (is_known(bench.journal, undated), is_known(bench.journal, WANTED)) == (False, True)


# What is still to be delivered


@pytest.mark.parametrize("request_", [*SCOPES, Reset(Scope.ALL)], ids=lambda r: f"{r.scope}-{r.value}")
def test_what_is_still_to_be_delivered_is_kept_and_named(bench: JournalBench, request_: Reset) -> None:
    stored = take(bench.journal, WANTED, DeliveryStatus.WAITING)
    would = reset(bench.journal, replace(request_, dry_run=True))
    assert reset(bench.another, request_) == would
    assert would.kept == (stored.id,)
    repeat = bench.journal.claim(again(WANTED))
    assert isinstance(repeat, Duplicate) and repeat.entry is None
    assert repeat.stop.original == stored.id
    assert bench.journal.payload(stored.id) == b"payload"
    assert bench.journal.due({"crm": 10}, hold_ms=1000) == [(stored.id, "crm")]


def test_a_reset_of_a_group_that_waits_frees_the_group_for_others(bench: JournalBench) -> None:
    stored = take(bench.journal, WANTED, DeliveryStatus.WAITING)
    assert reset(bench.journal, Reset(Scope.SUBJECT_GROUP, "lot_1")) == Forgotten(2, (stored.id,)), "group and media"
    assert isinstance(bench.journal.claim(again(email("third", group("lot_1")))), Claimed)


def test_a_dead_letter_keeps_its_payload_and_a_resend_joins_it(bench: JournalBench) -> None:
    dead = take(bench.journal, WANTED, DeliveryStatus.DEAD)
    assert reset(bench.journal, Reset(Scope.EMAIL_ID, "wanted")).kept == ()
    assert bench.journal.payload(dead.id) == b"payload"
    verdict = bench.journal.claim(again(WANTED))
    assert isinstance(verdict, Claimed)
    assert verdict.entry.id == dead.id


# One destination


def test_a_destination_forgets_what_it_had_and_its_locks_and_no_emails(bench: JournalBench) -> None:
    content, lock = Name(Kind.CONTENT, "crm", "hash"), Name(Kind.LOCK, "crm", "e1")
    elsewhere = Name(Kind.CONTENT, "archive", "hash")
    for number, name in enumerate((content, elsewhere)):
        take(bench.journal, replace(email(f"e{number}", name, to=()), own=(Name(Kind.POST, "", f"p{number}"),)))
    assert isinstance(bench.journal.claim(Claim("lock", "a server", (lock,), lease_ms=60_000)), Claimed)
    take(bench.journal, replace(WANTED, destinations=(Wanted("slack", "msg"),)))
    before = all_names(bench.journal)
    assert reset(bench.journal, Reset(Scope.DESTINATION, "crm", dry_run=True)) == Forgotten(2)
    assert all_names(bench.journal) == before
    assert reset(bench.journal, Reset(Scope.DESTINATION, "crm")) == Forgotten(2)
    assert before - all_names(bench.journal) == {content, lock}


def test_after_the_reset_of_a_destination_a_resend_goes_there_and_nowhere_else(bench: JournalBench) -> None:
    words = {name: Name(Kind.CONTENT, name, "hash", WEEK_MS) for name in ("crm", "slack")}
    both = replace(WANTED, destinations=tuple(Wanted(name, f"msg_{name}", words[name]) for name in words))
    take(bench.journal, both)
    would = reset(bench.journal, Reset(Scope.DESTINATION, "crm", dry_run=True))
    assert reset(bench.another, Reset(Scope.DESTINATION, "crm")) == would == Forgotten(2), "the email and its words"
    assert all_names(bench.journal) & set(words.values()) == {words["slack"]}
    verdict = bench.journal.claim(again(both))
    assert isinstance(verdict, Claimed)
    assert {each.destination: each.status for each in verdict.entry.deliveries} == {
        "crm": DeliveryStatus.DELIVERING,
        "slack": DeliveryStatus.DELIVERED,
    }


def test_what_still_waits_for_any_destination_is_kept_by_the_reset_of_one(bench: JournalBench) -> None:
    mine = again(email("e1", to=("crm", "slack")))
    claimed = bench.journal.claim(mine)
    assert isinstance(claimed, Claimed)
    crm, slack = claimed.entry.deliveries
    ended = (
        replace(crm, status=DeliveryStatus.DELIVERED),
        replace(slack, status=DeliveryStatus.WAITING, next_try_ms=1),
    )
    assert bench.journal.settle(mine, claimed.entry, Settlement(Ending.DONE, "queued", ended, payload=b"payload"))
    for dry_run in (True, False):
        assert reset(bench.journal, Reset(Scope.DESTINATION, "crm", dry_run)) == Forgotten(0, (claimed.entry.id,))
    assert bench.journal.due({"slack": 10}, hold_ms=1000) == [(claimed.entry.id, "slack")]


# In traffic


class Outage(FakeDestination):
    """Takes nothing while it is down."""

    is_down = True

    def deliver(self, webhook: Webhook, within_s: float | None = None) -> Receipt:
        if self.is_down:
            raise DOWN
        return super().deliver(webhook, within_s)


EMAILS, SENDERS = 80, 4
TOLD_200 = (Status.QUEUED, Status.PROCESSED, Status.DEAD_LETTERED, Status.SKIPPED_SUBJECT_GROUP)


def send_until_taken(pipeline: Pipeline, number: int) -> tuple[str, str]:
    """Every third shares its group with others. What is not taken is sent again, as providers do."""
    subject, text = f"Lot {number}" if number % 3 else "Lot 999", f"text {number}"
    while (outcome := pipeline.send(subject=subject, body=text)).status not in TOLD_200:
        pass
    return outcome.id, text


def reset_until(is_over: threading.Event, journal: Journal) -> Counter[Scope]:
    """Again and again, and once more at the end: how many emails each scope kept."""
    kept: Counter[Scope] = Counter()
    is_last = False
    while not is_last:
        is_last = is_over.is_set()
        waiting = (entry.about.item for entry in journal.find() if entry.has_open_deliveries)
        newest = list(itertools.islice(waiting, 3))
        for request in (
            Reset(Scope.ALL),
            Reset(Scope.DATE, "2026-11-16"),
            *(Reset(Scope.EMAIL_ID, item) for item in newest),
        ):
            kept[request.scope] += len(reset(journal, request).kept)
    return kept


@pytest.mark.parametrize("with_queue", [False, True], ids=["destination down", "queue"])
def test_a_reset_under_traffic_loses_nothing(bench: JournalBench, with_queue: bool) -> None:
    """Emails that were told 200 vanished when they moved from delivering to waiting during a reset."""
    crm, is_over = Outage(), threading.Event()
    with open_pipeline(bench, {"crm": crm}, with_queue=with_queue) as pipeline:
        with ThreadPoolExecutor(SENDERS) as senders, ThreadPoolExecutor(1) as resetter:
            kept = resetter.submit(reset_until, is_over, bench.another)
            told = list(senders.map(lambda number: send_until_taken(pipeline, number), range(EMAILS)))
            is_over.set()
            assert set(+kept.result()) == {Scope.ALL, Scope.DATE, Scope.EMAIL_ID}, "it met emails that waited"
        crm.is_down = False
        pipeline.let_time_pass(24 * HOUR_MS)
        while pipeline.deliver_due():
            pass
        delivered = {webhook.payload["body"] for webhook in crm.taken}
        lost = [text for id_, text in told if text not in delivered and not is_kept(bench.journal, id_, text)]
        assert lost == []
        assert len(delivered) >= EMAILS * 2 // 3, "all but those that share a group"


def is_kept(journal: Journal, id_: str, text: str) -> bool:
    """A person can see it, as dead or skipped, and send it."""
    entry, payload = journal.read(id_), journal.payload(id_)
    ends = (DeliveryStatus.DEAD, DeliveryStatus.SKIPPED)
    is_seen = entry is not None and all(each.status in ends for each in entry.deliveries)
    return is_seen and payload is not None and unpack(payload)["body"] == text


# Names of other programs


@pytest.fixture
def on_redis(redis_server: RedisServer) -> Iterator[RedisJournal]:
    journal = RedisJournal(connect(redis_server.url, timeout_s=5, decode_responses=False), "m1")
    yield journal
    journal.close()


def test_with_a_group_ttl_a_reset_forgets_what_decides_and_the_history(redis_server: RedisServer) -> None:
    client = connect(redis_server.url, timeout_s=5, decode_responses=False)
    journal = RedisJournal(client, "m1", group_ttl=True)
    take(journal, WANTED)
    assert redis_server.client.exists("ttl:subject_groups:2026-11:lot_1", "subject_groups:2026-11") == 2
    assert reset(journal, Reset(Scope.SUBJECT_GROUP, "lot_1")) == Forgotten(len(names_of(WANTED)))
    assert not redis_server.client.exists("ttl:subject_groups:2026-11:lot_1", "subject_groups:2026-11")
    assert isinstance(journal.claim(again(WANTED)), Claimed)
    journal.close()


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
    on_redis: RedisJournal,
    mark: Callable[[RedisServer], object],
    request_: Reset,
    name: Name,
) -> None:
    mark(redis_server)
    assert reset(on_redis, replace(request_, dry_run=True)) == Forgotten(1)
    own = (name,) if name.is_own else email("e1").own
    claim = replace(email("e1", *(() if name.is_own else (name,))), own=own)
    assert isinstance(on_redis.claim(again(claim)), Duplicate)
    reset(on_redis, request_)
    assert isinstance(on_redis.claim(again(claim)), Claimed)


def test_a_mark_of_a_script_alone_counts_as_one(redis_server: RedisServer, on_redis: RedisJournal) -> None:
    for mark, request_, _ in MARKS:
        mark(redis_server)
        assert reset(on_redis, request_) == Forgotten(1)
        assert all_names(on_redis) == set()


# What it says of itself


def test_a_reset_leaves_one_audit_line_without_links_and_line_breaks(
    bench: JournalBench, caplog: pytest.LogCaptureFixture
) -> None:
    take(bench.journal, WANTED)
    caplog.set_level(logging.INFO)
    reset(bench.journal, Reset(Scope.MEDIA, LINK))
    reset(bench.journal, Reset(Scope.EMAIL_ID, "x\nAUDIT forged", dry_run=True))
    media_line, forged_line = caplog.messages
    assert media_line.startswith("AUDIT reset scope=media ")
    assert media_line.endswith("dry_run=False names=5 kept=0")
    assert LINK not in media_line
    assert forged_line.startswith("AUDIT reset scope=email_id ")
    assert "forged" not in forged_line


@pytest.mark.parametrize(
    "value", ["fe4fc385494173f61585825e95d25317", "fe4fc385494173f61585825e95d25317@0123456789ab", "lot_456", "2026-11"]
)
def test_the_audit_line_shows_an_id_of_ours_as_it_is(
    bench: JournalBench, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    caplog.set_level(logging.INFO)
    reset(bench.journal, Reset(Scope.EMAIL_ID, value, dry_run=True))
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


def test_a_group_gate_stands_again_after_the_reset(bench: JournalBench) -> None:
    take(bench.journal, WANTED)
    reset(bench.journal, Reset(Scope.SUBJECT_GROUP, "lot_1"))
    second = take(bench.journal, WANTED)
    verdict = bench.journal.claim(again(email("third", group("lot_1"))))
    assert isinstance(verdict, Duplicate)
    assert (verdict.stop.gate, verdict.stop.original) == (Gate.SUBJECT_GROUP, second.id)
