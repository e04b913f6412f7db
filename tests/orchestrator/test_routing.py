"""Which route an email takes."""

from __future__ import annotations

import pytest

from deduplication.email import Email
from deduplication.message import Message
from deduplication.subject_group import GroupMode
from orchestrator.config import EVERYTHING_ELSE, UNSUBSCRIBE, Condition, RouteConfig
from orchestrator.item import Item, email_item, message_item
from orchestrator.routing import Route, Router

DEFAULTS = Route("default", ("crm",), GroupMode.ALL)


def item(subject: str = "", body: str = "") -> Item:
    return email_item(Email(subject=subject, body=body), None)


def holds(*conditions: Condition, email: Email, any: bool = False) -> bool:
    routes = (RouteConfig(name="wanted", match=conditions, any=any), EVERYTHING_ELSE)
    return Router(routes, DEFAULTS).pick(email_item(email, None)).name == "wanted"


@pytest.mark.parametrize(
    "subject",
    ["desabo", "DESABO svp", "Re: Désabonnement", "de\u0301sabonnement", "=?utf-8?Q?D=C3=A9sabo?=", "je me désabonne"],
)
def test_unsubscribe_mails_have_no_subject_group(subject: str) -> None:
    route = Router((UNSUBSCRIBE, EVERYTHING_ELSE), DEFAULTS).pick(item(subject=subject))
    assert route == Route("unsubscribe", ("crm",), GroupMode.OFF)


@pytest.mark.parametrize("subject", ["", "Abonnement", "Lot 456"])
def test_every_other_email_goes_as_the_settings_say(subject: str) -> None:
    route = Router((UNSUBSCRIBE, EVERYTHING_ELSE), DEFAULTS).pick(item(subject=subject))
    assert route == Route("everything else", ("crm",), GroupMode.ALL)


def test_an_unsubscribe_word_in_the_body_changes_nothing() -> None:
    assert Router((UNSUBSCRIBE, EVERYTHING_ELSE), DEFAULTS).pick(item(body="désabo")).name == "everything else"


def test_the_first_route_that_matches_is_taken_with_what_it_says() -> None:
    routes = (
        RouteConfig(name="one", match=(Condition(field="subject", contains="x"),), destinations=("archive",)),
        RouteConfig(name="two", match=(Condition(field="subject", contains="x"),)),
        RouteConfig(name="rest", subject_groups=GroupMode.PATTERNS),
    )
    router = Router(routes, DEFAULTS)
    assert router.pick(item(subject="x")) == Route("one", ("archive",), GroupMode.ALL)
    assert router.pick(item(subject="y")) == Route("rest", ("crm",), GroupMode.PATTERNS)


EMAIL = Email(
    subject="Été à Paris", sender="Ada <Ada@Example.org>", body="<p>Prix : 12 €<br>Merci</p>", provider="gmail"
)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (Condition(field="subject", equals="ete a paris"), True),
        (Condition(field="subject", equals="ÉTÉ À PARIS"), True),
        (Condition(field="subject", equals="ete"), False),
        (Condition(field="subject", equals=""), False),
        (Condition(field="subject", contains="À PAR"), True),
        (Condition(field="subject", contains="lyon"), False),
        (Condition(field="subject", regex="^ete"), True),
        (Condition(field="subject", regex="^Été"), True),
        (Condition(field="subject", regex=r"paris\s*\d"), False),
        (Condition(field="sender", equals="ada@example.org"), True),
        (Condition(field="sender", regex="@example\\.org$"), True),
        (Condition(field="sender", contains="Ada <"), False),
        (Condition(field="body", contains="12 € merci"), True),
        (Condition(field="body", contains="<br>"), False),
        (Condition(field="provider", equals="gmail"), True),
        (Condition(field="provider", equals="postmark"), False),
    ],
)
def test_a_condition_reads_a_field_as_a_person_would(condition: Condition, expected: bool) -> None:
    assert holds(condition, email=EMAIL) is expected


@pytest.mark.parametrize(("any", "expected"), [(False, False), (True, True)])
def test_all_conditions_must_hold_unless_any_will_do(any: bool, expected: bool) -> None:
    yes, no = Condition(field="subject", contains="paris"), Condition(field="subject", contains="lyon")
    assert holds(yes, no, email=EMAIL, any=any) is expected
    assert holds(yes, yes, email=EMAIL, any=any)
    assert not holds(no, no, email=EMAIL, any=any)


def test_an_empty_equals_matches_an_empty_subject() -> None:
    assert holds(Condition(field="subject", equals=""), email=Email(subject="  "))


def test_a_message_is_asked_about_its_source() -> None:
    routes = (RouteConfig(name="vk", match=(Condition(field="source", regex="^vk:"),)), EVERYTHING_ELSE)
    picked = [
        Router(routes, DEFAULTS).pick(message_item(Message(source=each, id="1"))).name for each in ("vk:a", "tg:a")
    ]
    assert picked == ["vk", "everything else"]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [(None, ("a", "b")), ((), ("a", "b")), (("b",), ("b",)), (("b", "c"), ("b",)), (("c",), ("a", "b"))],
)
def test_a_sender_may_ask_for_fewer_destinations_but_not_for_others(
    wanted: tuple[str, ...] | None, expected: tuple[str, ...]
) -> None:
    route = Route("both", ("a", "b"), GroupMode.ALL)
    assert route.destinations_for(message_item(Message(id="1", destinations=wanted))) == expected
