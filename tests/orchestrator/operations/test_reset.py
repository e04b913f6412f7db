"""After a reset the same email is delivered again, and nothing else is forgotten."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest

from deduplication.errors import StoreUnavailable
from deduplication.marks import find_marks
from deduplication.members import last_event, members_before
from deduplication.names import Kind, Name
from orchestrator.operations.reset import Reset, Scope, forget_email, reset
from orchestrator.pipeline import Outcome
from tests.deduplication.journal.world import Machine
from tests.orchestrator.conftest import ON_REDIS, Open
from tests.support.pipeline import DOWN, PipelineBench

LINK = "https://we.tl/t-abcdef"
MAIL: dict[str, Any] = {
    "subject": "Lot 456 : mission",
    "date": "Mon, 16 Nov 2026 10:00:00 +0100",
    "body": f"Hello {LINK}",
    "message_id": "<lot@mail.example>",
}
OTHER: dict[str, Any] = {"subject": "Another matter", "date": "2026-10-01T00:00:00Z", "body": "Bye"}


@pytest.fixture
def bench(start: Open) -> PipelineBench:
    return start({"crm": [], "slack": []})


def sent(bench: PipelineBench, **fields: Any) -> Outcome:
    outcome = bench.send(**fields)
    assert outcome.status == "processed", outcome
    return outcome


def request_of(bench: PipelineBench, scope: Scope) -> Reset:
    entry = bench.entry(**MAIL)
    group = next(name for name in entry.shared if name.kind is Kind.SUBJECT_GROUP)
    media = next((name.value for name in entry.shared if name.kind is Kind.MEDIA), LINK)
    values = {
        Scope.EMAIL_ID: entry.about.item,
        Scope.DATE: "2026-11-16",
        Scope.MONTH: group.scope,
        Scope.SUBJECT_GROUP: group.value,
        Scope.MEDIA: media,
        Scope.DESTINATION: "crm",
    }
    return Reset(scope=scope, value=values.get(scope, ""))


@pytest.mark.parametrize("scope", list(Scope))
def test_after_a_reset_the_same_email_is_delivered_again_and_others_are_not(bench: PipelineBench, scope: Scope) -> None:
    coordinator = bench.machine.coordinator
    sent(bench, **MAIL)
    sent(bench, **OTHER)
    request = request_of(bench, scope)
    would = reset(coordinator, request.model_copy(update={"dry_run": True}))
    assert bench.status_of(**MAIL) == "already_processed"
    done = reset(coordinator, request)
    assert (done, done.kept) == (would, [])
    assert done.names >= 2
    assert bench.status_of(**MAIL) == "processed"
    counts = {name: len(destination.taken) for name, destination in bench.destinations.items()}
    assert counts == {"crm": 3, "slack": 2 if scope is Scope.DESTINATION else 3}, "only what was forgotten"
    is_wide = scope in (Scope.ALL, Scope.DESTINATION)
    assert bench.status_of(**OTHER) == ("processed" if is_wide else "already_processed")


@pytest.mark.parametrize("by", ["email_id", "entry", "group"])
def test_a_stopped_email_is_delivered_after_a_reset_of_its_id_or_its_group(bench: PipelineBench, by: str) -> None:
    second = MAIL | {"subject": "Lot 456 : reminder", "message_id": "<re@mail.example>", "body": "again"}
    sent(bench, **MAIL)
    stopped, coordinator = bench.send(**second), bench.machine.coordinator
    assert stopped.status == "skipped_subject_group"
    if by == "entry":
        assert forget_email(coordinator, stopped.id) == "forgotten"
        assert forget_email(coordinator, stopped.id) == "unknown"
    else:
        by_id = Reset(scope=Scope.EMAIL_ID, value=stopped.item_id)
        reset(coordinator, by_id if by == "email_id" else request_of(bench, Scope.SUBJECT_GROUP))
    assert bench.status_of(**second) == "processed"
    original = bench.status_of(**MAIL)
    assert original == ("skipped_subject_group" if by == "group" else "already_processed"), "its names are its own"


def test_a_sender_is_no_email_id(bench: PipelineBench) -> None:
    sent(bench, **MAIL, sender="ada@one.example")
    for dry_run in (True, False):
        wrong = Reset(scope=Scope.EMAIL_ID, value="ada@one.example", dry_run=dry_run)
        assert reset(bench.machine.coordinator, wrong).names == 0


def test_only_the_exact_names_of_a_scope_are_forgotten(bench: PipelineBench) -> None:
    coordinator = bench.machine.coordinator
    for subject in ("Lot 1", "Again lot 1", "Lot 11", "Again lot 11"):
        bench.send(subject=subject)
    with bench.machine.journal.step() as step:
        for name in ("2026-10:lot_11", "2026-10:big:lot_11", "2026-10:lot_111"):
            step.put_mark(f"subject_group:{name}", None)
    of_one, of_many = (
        reset(coordinator, Reset(scope=Scope.SUBJECT_GROUP, value=value)).names for value in ("lot_1", "lot_11")
    )
    assert of_many == of_one + 1 > 3, "both emails of the group, and one more mark of it"
    assert reset(coordinator, Reset(scope=Scope.SUBJECT_GROUP, value="2026-10:big:lot_11")).names == 1


@pytest.mark.parametrize("kind", [Kind.SUBJECT_GROUP, Kind.MEDIA])
def test_a_group_or_a_file_is_forgotten_for_one_domain_or_for_all(bench: PipelineBench, kind: Kind) -> None:
    coordinator, scope = bench.machine.coordinator, Scope(kind)
    senders = ["ada@one.example", "ada@two.example", "ada@gmail.com", "ada@three.example"]
    plain, whose = ("lot_456", "@one.example") if kind is Kind.SUBJECT_GROUP else (LINK, " @one.example")

    def stopped(words: str) -> list[bool]:
        subject, body = ("Lot 456", words) if kind is Kind.SUBJECT_GROUP else (words, f"{words} {LINK}")
        return [bench.status_of(subject=subject, body=body, sender=each) != "processed" for each in senders]

    assert stopped("first") == [False] * 4
    assert stopped("second") == [True] * 4
    would = reset(coordinator, Reset(scope=scope, value=plain + whose, dry_run=True))
    assert reset(coordinator, Reset(scope=scope, value=plain + whose)) == would
    assert stopped("third") == [False, True, True, True], "as it appears in Redis and in reasons: for one domain"
    bench.let_time_pass(1)
    would = reset(coordinator, Reset(scope=scope, value=plain, dry_run=True))
    assert reset(coordinator, Reset(scope=scope, value=plain)) == would
    assert stopped("fourth") == [False] * 4, "without a domain: for all"


@ON_REDIS
@pytest.mark.parametrize("is_ttl", [False, True])
@pytest.mark.parametrize("whose", ["", "@one.example"])
def test_a_group_that_only_redis_knows_is_forgotten(bench: PipelineBench, whose: str, is_ttl: bool) -> None:
    client, head = bench.machine.client, f"{bench.machine.options.prefix}{'ttl:' * is_ttl}subject_groups:2026-11"
    for group in (f"lot_1{whose}", "lot_11@one.example", "a_lot_1"):
        client.set(f"{head}:{group}", "1") if is_ttl else client.sadd(head, f"2026-11:{group}")
    for value, names in (("2020-01:lot_1", 0), ("lot", 0), ("2026-11:lot_1", 1), ("lot_1", 1)):
        would = reset(bench.machine.coordinator, Reset(scope=Scope.SUBJECT_GROUP, value=value, dry_run=True))
        assert would.names == names, value
    reset(bench.machine.coordinator, Reset(scope=Scope.SUBJECT_GROUP, value="lot_1"))
    assert is_ttl or client.scard(head) == 2


def test_what_is_still_to_be_delivered_keeps_its_names(start: Open) -> None:
    bench = start({"crm": [DOWN] * 9})
    waiting = bench.send(**MAIL)
    assert waiting.status == "queued"
    for dry_run in (True, False):
        done = reset(bench.machine.coordinator, Reset(scope=Scope.ALL, dry_run=dry_run))
        assert (done.names, done.kept) == (0, [waiting.id])
    assert forget_email(bench.machine.coordinator, waiting.id) == "kept"
    assert bench.status_of(**MAIL) == "queued"


def test_an_undated_email_is_forgotten_too(bench: PipelineBench) -> None:
    """The reference of its id includes the fingerprint."""
    undated = OTHER | {"date": ""}
    first = sent(bench, **undated)
    assert bench.status_of(**undated) == "already_processed"
    assert reset(bench.machine.coordinator, Reset(scope=Scope.EMAIL_ID, value=first.item_id)).names >= 1
    sent(bench, **undated)
    with bench.machine.journal.step() as step:
        step.put_mark("email_id:undated:abc#fingerprint", None, "fingerprint")
    assert reset(bench.machine.coordinator, Reset(scope=Scope.EMAIL_ID, value="abc")).names == 1, (
        "only its mark is left"
    )


@ON_REDIS
def test_marks_that_only_redis_has_are_forgotten(bench: PipelineBench) -> None:
    coordinator = bench.machine.coordinator
    first = sent(bench, **OTHER)
    reset(coordinator, Reset(scope=Scope.ALL))
    bench.machine.client.sadd(f"{bench.machine.options.prefix}processed_ids:2026-10-01", first.item_id)
    assert bench.machine.registry.ask(partial(find_marks, kind=Kind.EMAIL_ID, scope=None, value=None)) == [
        Name(Kind.EMAIL_ID, "2026-10-01", first.item_id)
    ]
    assert reset(coordinator, Reset(scope=Scope.EMAIL_ID, value=first.item_id)).names == 1
    sent(bench, **OTHER)


@ON_REDIS
@pytest.mark.parametrize("value", ["".join(map(chr, (*range(32, 127), 10, 233))), "a*", "a?", "[ab]", "a\\"])
def test_a_mark_is_found_by_its_text_and_not_by_a_pattern(bench: PipelineBench, value: str) -> None:
    head = f"{bench.machine.options.prefix}post:"
    bench.machine.client.mset(dict.fromkeys((f"{head}ab", f"{head}{value}"), "0"))
    found = bench.machine.registry.ask(partial(find_marks, kind=Kind.POST, scope="", value=value))
    assert found == [Name(Kind.POST, "", value)]


@ON_REDIS
def test_without_redis_a_reset_is_refused_with_a_clear_sentence(bench: PipelineBench) -> None:
    coordinator = bench.machine.coordinator
    first = sent(bench, **MAIL)
    coordinator.redis.give_up()
    asked = [partial(reset, coordinator, Reset(scope=Scope.ALL, dry_run=dry_run)) for dry_run in (True, False)]
    for refused in (*asked, partial(forget_email, coordinator, first.id)):
        with pytest.raises(StoreUnavailable, match="a reset needs Redis, so that all machines forget"):
            cast(Callable[[], object], refused)()


@ON_REDIS
def test_another_machine_forgets_too(bench: PipelineBench, monkeypatch: pytest.MonkeyPatch) -> None:
    here = bench.machine
    there = Machine(here.url, here.time)
    try:
        sent(bench, **MAIL)
        for scope in (Scope.EMAIL_ID, Scope.DESTINATION):
            there.tick()
            there.follow()
            monkeypatch.setattr("orchestrator.operations.reset.WAIT_S", 0.0)
            assert reset(there.coordinator, request_of(bench, scope)).behind == [here.name], "it has not read it yet"
            here.follow()
            here.tick()
            target, now_ms = last_event(there.registry), there.journal.clock.now_ms()
            assert members_before(there.registry, target, now_ms) <= {there.name}
            assert bench.status_of(**MAIL) == "processed", scope
    finally:
        there.close()
