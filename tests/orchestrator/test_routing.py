"""Which route an email takes."""

import builtins
from dataclasses import replace
from typing import Any

import pytest

from deduplication.authentication import Result
from deduplication.email import Attachment, Email
from deduplication.media import MediaMode
from deduplication.message import Message
from deduplication.subject_group import GroupMode
from orchestrator.config.model import EVERYTHING_ELSE, UNSUBSCRIBE, Condition, RouteConfig
from orchestrator.item import Item, email_item, message_item
from orchestrator.routing import MOST_CHARS_FOR_A_REGEX, Route, Router, Trial

DEFAULTS = Route("default", ("crm",), GroupMode.ALL)
SHIPPED = Router((UNSUBSCRIBE, EVERYTHING_ELSE), DEFAULTS)


def item(subject: str = "", body: str = "") -> Item:
    return email_item(Email(subject=subject, plain=body), None)


def item_with(recipient: tuple[str, ...] = (), **fields: tuple[str, ...]) -> Item:
    return replace(item(), values=lambda name: fields.get(name, ()), folded={}, recipients=recipient)


def has(text: str) -> Condition:
    return Condition(field="subject", contains=text)


def route(name: str, *match: Condition, **settings: Any) -> RouteConfig:
    return RouteConfig(name=name, match=match, **settings)


def holds(*conditions: Condition, item: Item, any: bool = False) -> bool:
    """As ``pick`` sees it; ``explain`` must see the same."""
    router = Router((route("wanted", *conditions, any=any), EVERYTHING_ELSE), DEFAULTS)
    picked = "wanted" in router.pick(item).name
    recipients = item.recipients or ("",)
    assert builtins.any(next(router.explain(item, each)).matched for each in recipients) is picked
    return picked


@pytest.mark.parametrize(
    "subject",
    ["desabo", "DESABO svp", "Re: Désabonnement", "de\u0301sabonnement", "=?utf-8?Q?D=C3=A9sabo?=", "je me désabonne"],
)
def test_unsubscribe_mails_have_no_subject_group(subject: str) -> None:
    assert SHIPPED.pick(item(subject=subject)) == Route("unsubscribe", ("crm",), GroupMode.OFF)


@pytest.mark.parametrize("subject", ["", "Abonnement", "Lot 456"])
def test_every_other_email_follows_the_settings(subject: str) -> None:
    assert SHIPPED.pick(item(subject=subject)) == Route("everything else", ("crm",), GroupMode.ALL)


GATES: list[tuple[str, Any, Any]] = [
    ("subject_groups", GroupMode.OFF, GroupMode.PATTERNS),
    ("media", MediaMode.OFF, MediaMode.ALL),
    ("content", False, True),
    ("realtime_only", False, True),
    ("identity_by_recipient", False, True),
]


@pytest.mark.parametrize(("gate", "one", "other"), GATES)
def test_the_first_matching_route_that_sets_a_gate_decides(gate: str, one: Any, other: Any) -> None:
    for first, second in ((one, other), (other, one)):
        routes = (
            route("silent", has("x"), stop=False),
            route("first", has("x"), stop=False, **{gate: first}),
            route("rest", **{gate: second}),
        )
        picked = Router(routes, DEFAULTS).pick(item(subject="x"))
        assert getattr(picked, gate) == first
        assert getattr(Router(routes, DEFAULTS).pick(item(subject="y")), gate) == second
        others = {each for each, _, _ in GATES} - {gate}
        assert all(getattr(picked, each) == getattr(DEFAULTS, each) for each in others)


def test_routes_add_their_destinations_in_order_and_once_up_to_the_first_that_stops() -> None:
    routes = (
        route("not this", has("other"), destinations=("never",), stop=False),
        route("copy", has("x"), destinations=("zoo", "audit"), stop=False),
        route("silent", has("x"), stop=False),
        route("more", has("x"), destinations=("crm", "zoo"), stop=False),
        route("end", has("stop"), destinations=("new",)),
        route("rest", destinations=("crm", "last"), media=MediaMode.OFF),
    )
    router = Router(routes, DEFAULTS)
    stopped = Route("copy + silent + more + end", ("zoo", "audit", "crm", "new"), GroupMode.ALL)
    assert router.pick(item(subject="x stop")) == stopped
    assert router.pick(item(subject="x")).destinations == ("zoo", "audit", "crm", "last")
    assert router.pick(item(subject="z")) == Route("rest", ("crm", "last"), GroupMode.ALL, media=MediaMode.OFF)


EMAIL = email_item(
    Email(
        subject="Été à Paris",
        sender="Ada <Ada@Example.org>",
        html="<p>Prix : 12 €<br>Merci</p>",
        provider="gmail",
        recipients=("sales@ours.example", "Help@ours.example"),
        to=("team@ours.example",),
        cc=("boss@ours.example", "bob@example.org"),
    ),
    None,
)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"field": "subject", "equals": "ete a paris"}, True),
        ({"field": "subject", "equals": "ÉTÉ  À PARIS "}, True),
        ({"field": "subject", "equals": "ete"}, False),
        ({"field": "subject", "contains": "À PAR"}, True),
        ({"field": "subject", "contains": "lyon"}, False),
        ({"field": "subject", "regex": "^ete"}, True),
        ({"field": "subject", "regex": "^Été"}, True),
        ({"field": "subject", "regex": r"paris\s*\d"}, False),
        ({"field": "subject", "equals": "Été à Paris", "exact": True}, True),
        ({"field": "subject", "equals": "été à paris", "exact": True}, False),
        ({"field": "subject", "contains": "à P", "exact": True}, True),
        ({"field": "subject", "contains": "a P", "exact": True}, False),
        ({"field": "subject", "regex": "^Été .* P", "exact": True}, True),
        ({"field": "subject", "regex": "^été", "exact": True}, False),
        ({"field": "sender", "equals": "ada@example.org"}, True),
        ({"field": "sender", "contains": "Ada <"}, False),
        ({"field": "body", "contains": "12 € merci"}, True),
        ({"field": "body", "contains": "<br>"}, False),
        ({"field": "provider", "equals": "gmail"}, True),
        ({"field": "provider", "equals": "postmark"}, False),
        ({"field": "recipient", "equals": "help@ours.example"}, True),
        ({"field": "recipient", "equals": ""}, False),
        ({"field": "recipient", "equals": "team@ours.example"}, False),
        ({"field": "to", "equals": "team@ours.example"}, True),
        ({"field": "to", "contains": "boss@"}, False),
        ({"field": "cc", "regex": "@example.org$"}, True),
        ({"field": "source", "equals": ""}, True),
        ({"field": "source", "contains": "tg"}, False),
    ],
)
def test_conditions(condition: dict[str, Any], expected: bool) -> None:
    assert holds(Condition(**condition), item=EMAIL) is expected


FILE = Attachment("a.pdf", "application/pdf", size_bytes=900, sha256="")
REPLY = Email(
    html="<p>é</p>",
    plain="é",
    attachments=(FILE, FILE),
    headers=(("X-Team", "Sales, EMEA"), ("x-team", "Legal"), ("Auto-Submitted", "auto-replied"), ("X-Empty", "")),
    reply_to=("help@ours.example", "ada@example.org"),
    return_path="",
    references=("root@example.org", "second@example.org"),
    verdicts=(Result("spf", "pass", ""), Result("dmarc", "fail", "")),
    provider="mailgun",
)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"field": "size", "over": 1810}, True),
        ({"field": "size", "over": 1811}, False),
        ({"field": "size", "under": 1811}, False),
        ({"field": "size", "under": 1812}, True),
        ({"field": "has_attachments", "equals": True}, True),
        ({"field": "has_attachments", "equals": "false"}, False),
        ({"field": "header:X-Team", "equals": "sales, emea"}, True),
        ({"field": "header:x-TEAM", "contains": "legal"}, True),
        ({"field": "header:X-Team", "equals": ""}, False),
        ({"field": "header:X-Nothing", "equals": ""}, True),
        ({"field": "reply_to", "equals": "ada@example.org"}, True),
        ({"field": "return_path", "equals": ""}, True),
        ({"field": "thread", "equals": "root@example.org"}, True),
        ({"field": "automated", "equals": "auto_reply"}, True),
        ({"field": "automated", "regex": "bounce|auto_reply"}, True),
        ({"field": "automated", "equals": "none"}, False),
        ({"field": "authentication.spf", "equals": "pass"}, True),
        ({"field": "authentication.dkim", "equals": ""}, True),
        ({"field": "authentication.dkim", "equals": "none"}, False),
        ({"field": "authentication.dmarc", "equals": "fail"}, True),
        ({"field": "authentication.dmarc", "equals": "pass"}, False),
    ],
)
def test_conditions_on_the_envelope_and_the_headers(condition: dict[str, Any], expected: bool) -> None:
    assert holds(Condition(**condition), item=email_item(REPLY, None)) is expected


@pytest.mark.parametrize(
    ("field", "of_email", "of_message"),
    [
        ("automated", "none", ""),
        ("authentication.dmarc", "", ""),
        ("has_attachments", "false", ""),
        ("thread", "", ""),
        ("header:X-Team", "", ""),
    ],
)
def test_a_field_that_says_nothing_is_empty_and_no_header_is_none(field: str, of_email: str, of_message: str) -> None:
    plain = email_item(Email(headers=(("Subject", "Hello"),)), None)
    for asked, value in ((plain, of_email), (message_item(Message(id="1", text="Hello")), of_message)):
        assert (asked.values(field) or ("",)) == (value,)
    assert holds(Condition(field="size", under=6), item=message_item(Message(id="1", text="Hello")))
    assert holds(Condition(field="source", regex="^vk:"), item=message_item(Message(source="vk:a", id="1")))


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("junk", Route("junk", ("crm", "log"), GroupMode.ALL, dropped_by="junk")),
        ("copy junk", Route("copy + junk", ("archive",), GroupMode.ALL)),
        ("copy", Route("copy", ("archive",), GroupMode.ALL)),
        ("mark", Route("mark + rest", ("crm", "log"), GroupMode.OFF)),
        ("junk mark", Route("junk", ("crm", "log"), GroupMode.OFF, dropped_by="junk")),
        ("", Route("rest", ("crm", "log"), GroupMode.ALL)),
    ],
)
def test_a_route_drops_what_no_earlier_one_took_and_the_last_takes_what_no_other_did(
    subject: str, expected: Route
) -> None:
    router = Router(
        (
            route("copy", has("copy"), destinations=("archive",), stop=False),
            route("junk", has("junk"), drop=True),
            route("mark", has("mark"), stop=False, subject_groups=GroupMode.OFF),
            route("rest", otherwise=True, destinations=("crm", "log")),
        ),
        DEFAULTS,
    )
    assert router.pick(item(subject=subject)) == expected
    tried = [trial.route.name for trial in router.explain(item(subject=subject), "") if trial.matched and trial.reached]
    assert " + ".join(tried) == expected.name


def test_each_recipient_is_dropped_or_taken_on_its_own() -> None:
    junk = Condition(field="recipient", contains="junk@")
    router = Router((route("junk", junk, drop=True), route("rest", destinations=("crm",))), DEFAULTS)
    received = item_with(recipient=("junk@x.example", "ada@x.example"))
    assert [(each.recipients, router.pick(each).dropped_by) for each in router.split(received)] == [
        (("junk@x.example",), "junk"),
        (("ada@x.example",), ""),
    ]


@pytest.mark.parametrize("exact", [False, True])
def test_one_of_several_values_is_enough_and_none_is_an_empty_text(exact: bool) -> None:
    def recipient(**test: Any) -> Condition:
        return Condition(field="recipient", exact=exact, **test)

    both = item_with(recipient=("a@x.example", "b@y.example"))
    for wanted in ("a@x.example", "b@y.example"):
        tests = (recipient(equals=wanted), recipient(contains=wanted), recipient(regex=f"^{wanted}$"))
        assert all(holds(test, item=both) for test in tests)
    assert not holds(recipient(contains="example b"), item=both), "each value is read on its own"
    assert not holds(recipient(regex="a.*b"), item=both)
    for nobody in (item_with(), item_with(recipient=()), item_with(recipient=("",))):
        assert holds(recipient(equals=""), item=nobody) and holds(recipient(regex="^$"), item=nobody)
        assert not holds(recipient(contains="a"), item=nobody)


@pytest.mark.parametrize(("any", "expected"), [(False, False), (True, True)])
def test_all_conditions_must_hold_unless_any_will_do(any: bool, expected: bool) -> None:
    yes, no = has("paris"), has("lyon")
    assert holds(yes, no, item=EMAIL, any=any) is expected
    assert holds(no, yes, item=EMAIL, any=any) is expected
    assert holds(yes, yes, item=EMAIL, any=any)
    assert not holds(no, no, item=EMAIL, any=any)
    assert holds(item=EMAIL, any=any)


@pytest.mark.parametrize("exact", [False, True])
def test_a_regex_searches_only_the_beginning_of_a_long_text(exact: bool) -> None:
    word = Condition(field="body", regex="needle", exact=exact)
    within = item_with(body=("x" * (MOST_CHARS_FOR_A_REGEX - 6) + "needle",))
    beyond = item_with(body=("x" * (MOST_CHARS_FOR_A_REGEX - 5) + "needle",))
    assert holds(word, item=within)
    assert not holds(word, item=beyond)
    assert holds(Condition(field="body", contains="needle", exact=exact), item=beyond)


def test_an_explanation_tries_every_condition_of_every_route() -> None:
    yes, no = has("paris"), has("lyon")
    routes = (
        route("some", yes, no, yes),
        route("either", no, yes, any=True, stop=False),
        route("all", yes),
        route("late", yes),
        route("late and wrong", no),
        route("rest"),
    )
    router = Router(routes, DEFAULTS)
    assert list(router.explain(EMAIL, "")) == [
        Trial(routes[0], held=(True, False, True), matched=False, reached=True),
        Trial(routes[1], held=(False, True), matched=True, reached=True),
        Trial(routes[2], held=(True,), matched=True, reached=True),
        Trial(routes[3], held=(True,), matched=True, reached=False),
        Trial(routes[4], held=(False,), matched=False, reached=False),
        Trial(routes[5], held=(), matched=True, reached=False),
    ]
    assert router.pick(EMAIL).name == "either + all"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [(None, ("a", "b")), ((), ("a", "b")), (("b",), ("b",)), (("b", "c"), ("b",)), (("c",), ("a", "b"))],
)
def test_a_sender_may_ask_for_fewer_destinations(wanted: tuple[str, ...] | None, expected: tuple[str, ...]) -> None:
    router = Router((EVERYTHING_ELSE,), Route("both", ("a", "b"), GroupMode.ALL))
    assert router.pick(message_item(Message(id="1", destinations=wanted))).destinations == expected
