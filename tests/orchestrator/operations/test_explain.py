"""In plain words: what happened to an email, and what the configuration means without its secrets."""

from __future__ import annotations

import base64
from datetime import UTC
from pathlib import Path

import pytest

from deduplication.email import Email
from deduplication.journal.entry import About, Attempt, Delivery, DeliveryStatus, Entry, Stop, changed
from deduplication.names import Kind, Name
from deduplication.subject_group import GroupMode
from orchestrator.config.model import Condition, Config, RouteConfig, load_config
from orchestrator.config.settings import load_settings
from orchestrator.item import email_item
from orchestrator.operations.deliveries import AttemptView, DeliveryView, Storage
from orchestrator.operations.explain import condition_in_words, explain, explained, said_at, shown
from orchestrator.pipeline import Status
from orchestrator.routing import Route, Router

SECRET = "s3cr3t-that-must-not-be-shown"
SIGNING = [f"whsec_{base64.b64encode(bytes([each]) * 24).decode()}" for each in range(2)]

FILE = f"""
[destinations.crm]
url = "https://user:{SECRET}@crm.example:8443/hooks/{SECRET}?key={SECRET}"
secret = {SIGNING}
headers = {{ X-Team = "{SECRET}", Authorization = "{SECRET}" }}
fallback_form = true
max_attempts = 1
rate = "10/s"
content_window_s = 3600
connect_timeout_s = 0.5

[destinations.archive]
url = "http://[::1]/{SECRET}"
format = "form"
enabled = false
breaker_failures = 0
content_window_s = 0

[destinations.screen]
url = "log:"

[[routes]]
name = "opt out"
match = [{{ field = "subject", regex = '^stop\\b' }}, {{ field = "recipient", equals = "out@ours.example" }}]
any = true
destinations = ["crm"]
subject_groups = "off"
media = "all"
content = true
realtime_only = true
identity_by_recipient = true
stop = false

[[routes]]
name = "nowhere"
match = [{{ field = "sender", contains = "@x" }}, {{ field = "provider", equals = "ses" }}]
destinations = ["archive"]
media = "off"
content = false

[[routes]]
name = "all"
destinations = ["screen", "archive"]

[[routes]]
name = "rest"
destinations = ["screen"]

[[subject_patterns]]
name = "ticket"
phrases = ["our ref"]
regex = '(\\d+)'

[media]
hosts = ["files.example"]
resolve = ["bit.ly"]

[alerts]
url = "https://user:{SECRET}@ops.example/{SECRET}"
off = ["low_hit_rate"]
secret = {SIGNING}
[providers.ses]
topics = ["{SECRET}"]
[providers.mailgun]
signing_key = "{SECRET}"
"""

SHOWN = """\
Destinations
  crm: to crm.example by https, signed with 2 secrets, as JSON, as a form if JSON is refused, up to 1 attempt, \
at most 10/s, waits 0.5 s to connect and 5 s for the answer, circuit breaker opens for 30 s after 5 failures in a row, \
with the headers X-Team, Authorization, the same text once in 3600 s
  archive: to ::1 by http, not signed, as a form, up to 10 attempts, at any rate, \
waits 3 s to connect and 5 s for the answer, the same text every time (switched off)
  screen: printed, sent nowhere
Routes, in order
  1. "opt out": the subject matches the regex '^stop\\b' or a recipient is "out@ours.example"
     goes to crm; subject groups: off; media: all; content: on; only emails newer than the service; \
each recipient counts separately; later routes are evaluated too
  2. "nowhere": the sender contains "@x" and the provider is "ses"
     goes to archive; media: off; content: off
  3. "all": every email
     goes to screen, archive
  4. "rest": every email
     goes to screen
  Unless a route says otherwise: subject groups as SUBJECT_GROUPS, media listed, content by destination
Subject patterns
  ticket: a subject with "our ref" and the regex '(\\d+)'
Media
  links to files.example are files
  links to bit.ly are followed to their final address
Providers
  mailgun
  ses
Alarms
  to ops.example by https, signed with 2 secrets: problems that last 60 s
Off
  destination archive: switched off; emails for it are queued
  destination archive: no signature
  destination archive: no circuit breaker
  destination archive: no content gate
  route "opt out": no subject groups
  route "nowhere": no media
  route "nowhere": no content gate
  route "nowhere": all its destinations are switched off
  route "rest": never evaluated, since "all" matches every email
  alarm low_hit_rate: disabled"""


def config_of(text: str) -> Config:
    Path("mailonce.toml").write_text(text)
    return load_config(load_settings(), {})


def test_everything_in_the_file_is_shown_but_secrets() -> None:
    assert shown(config_of(FILE)) == SHOWN
    assert SECRET not in SHOWN


def test_what_ships_is_shown() -> None:
    text = shown(load_config(load_settings()))
    assert "  default: printed, sent nowhere\nRoutes" in text
    assert (
        "1. \"unsubscribe\": the subject matches the regex 'desabo'\n     goes to default; subject groups: off" in text
    )
    assert '2. "everything else": every email\n     goes to default; media: listed' in text
    assert "Providers" not in text
    assert text.endswith('Off\n  route "unsubscribe": no subject groups')


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            f"[destinations.a]\nurl = 'https://a.example/'\nsecret = '{SIGNING[0]}'",
            "by https, signed, as JSON, up to 10",
        ),
        (
            "[destinations.a]\nurl = 'https://a.example/'",
            "the same text of messages once in 72 hours, of emails every time",
        ),
        ("[destinations.a]\nurl = 'log:'\nenabled = false", "a: printed, sent nowhere (switched off)"),
        ("[media]\nhosts = []", "no link is a file"),
        ("[[routes]]\nname = 'a'\nstop = false", "goes to default\n"),
        ("[[routes]]\nname = 'a'\nsubject_groups = 'patterns'", "goes to default; subject groups: patterns\n"),
        ("[[routes]]\nname = 'a'\nrealtime_only = false\nidentity_by_recipient = false", "goes to default\n"),
        ('[[routes]]\nname = "a\\nb"', '1. "a\\nb": every email'),
        (
            "[destinations.a]\nurl='log:'\n[destinations.b]\nurl='log:'\n"
            "[[routes]]\nname='c'\nstop=false\n[[routes]]\nname='d'\ndestinations=['b']",
            "names no destination; later routes are evaluated too\n",
        ),
    ],
)
def test_a_detail_is_shown(text: str, line: str) -> None:
    assert line in shown(config_of(text))


def test_a_route_without_a_match_that_goes_on_hides_nobody() -> None:
    text = "[[routes]]\nname = 'a'\nstop = false\n[[routes]]\nname = 'b'"
    assert "never evaluated" not in shown(config_of(text))


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (Condition(field="subject", equals="Été"), 'the subject is "Été"'),
        (Condition(field="sender", contains='a"\n'), 'the sender contains "a\\"\\n"'),
        (Condition(field="subject", regex=r"a\d"), r"the subject matches the regex 'a\d'"),
        (Condition(field="subject", regex="it's\n"), 'the subject matches the regex "it\'s\\n"'),
        (Condition(field="recipient", equals="a", exact=True), 'a recipient is "a" (accents and case count)'),
        (Condition(field="body", contains="a"), 'the body contains "a"'),
        (Condition(field="body", regex="a"), "the body matches the regex 'a' (in its first 100,000 characters)"),
        (
            Condition(field="body", regex="a", exact=True),
            "the body matches the regex 'a' (accents and case count, in its first 100,000 characters)",
        ),
    ],
)
def test_a_condition_reads_as_a_sentence(condition: Condition, words: str) -> None:
    assert condition_in_words(condition) == words


def test_it_says_which_routes_an_email_matches_and_why() -> None:
    lot, paid = Condition(field="subject", contains="lot"), Condition(field="subject", contains="paid")
    routes = (
        RouteConfig(name="paid lots", match=(lot, paid)),
        RouteConfig(name="lots", match=(lot,)),
        RouteConfig(name="rest"),
    )
    router = Router(routes, Route("default", ("crm",), GroupMode.ALL))
    assert explained(router.explain(email_item(Email(subject="Lot 1"), None))) == (
        '"paid lots" does not match\n'
        '  yes: the subject contains "lot"\n'
        '  no: the subject contains "paid"\n'
        '"lots" matches\n'
        '  yes: the subject contains "lot"\n'
        '"rest" matches, but is not evaluated: an earlier route stopped'
    )


GROUP, EMAIL_ID = Name(Kind.SUBJECT_GROUP, "2026-11", "lot_456"), Name(Kind.EMAIL_ID, "2026-11-16", "fe4f")
WORDS = Name(Kind.CONTENT, "crm", "0123456789abcdef")
AT_MS = 1_763_283_600_000
D, W, X, S, C, R = (
    Delivery("crm", "msg_1", status, tries=tries, ended_ms=AT_MS, next_try_ms=AT_MS)
    for status, tries in (
        (DeliveryStatus.DELIVERED, 1),
        (DeliveryStatus.WAITING, 2),
        (DeliveryStatus.DEAD, 9),
        (DeliveryStatus.SKIPPED, 0),
        (DeliveryStatus.CLAIMED, 0),
        (DeliveryStatus.RETURNED, 1),
    )
)
FAILED = Attempt(AT_MS, 10, 500, "crm: answered 500")
ORIGINAL = Entry(
    "first", "m", (EMAIL_ID,), created_ms=AT_MS, about=About("fe4f", sender="ada@x.example"), deliveries=(D,)
)


def entry(*deliveries: Delivery, stop: Stop | None = None, released_ms: int | None = None) -> Entry:
    named = tuple(changed(each, destination=name) for each, name in zip(deliveries, ("crm", "slack"), strict=False))
    return Entry("id", "m", (), created_ms=AT_MS, deliveries=named, stop=stop, released_ms=released_ms)


def view(delivery: Delivery) -> DeliveryView:
    attempts = [
        AttemptView(at=each.at_ms, latency_ms=each.latency_ms, status_code=each.status_code, error=each.error)
        for each in delivery.attempts
    ]
    return DeliveryView(
        id=f"id:{delivery.destination}",
        destination=delivery.destination,
        status=delivery.status,
        reason=delivery.reason,
        tries=delivery.tries,
        max_attempts=None,
        next_try=delivery.next_try_ms,
        delivered=None,
        receiver_id=None,
        email_id="",
        provider="",
        sender="",
        subject="",
        webhook_id="",
        created=0,
        age_s=0,
        attempts=attempts,
        storage=Storage.NONE,
        payload_bytes=0,
        payload_machine=None,
    )


@pytest.mark.parametrize(
    ("what", "status", "original", "sentence"),
    [
        (entry(C), Status.ALREADY_PROCESSING, None, "Being delivered to crm, since 09:00"),
        (entry(C), Status.RETRY_LATER, None, "Not finished: its request at 09:00 ended without a result. It continues"),
        (
            entry(changed(R, attempts=(FAILED,)), D),
            Status.RETRY_LATER,
            None,
            "Returned to its provider, which sends it again (already delivered to slack): crm: answered 500",
        ),
        (entry(S), Status.SKIPPED_OLD, None, "Not sent: it is older than the service, and its route accepts only new"),
        (
            entry(S, stop=Stop(GROUP, "first", AT_MS)),
            Status.SKIPPED_SUBJECT_GROUP,
            ORIGINAL,
            "Not sent: same subject group lot_456 as the email of 09:00 from ada@x.example, delivered to crm",
        ),
        (
            entry(S, stop=Stop(GROUP, "first", AT_MS)),
            Status.SKIPPED_SUBJECT_GROUP,
            None,
            "Not sent: same subject group lot_456 as the email of 09:00, which is no longer stored",
        ),
        (
            entry(S, stop=Stop(WORDS, "first", AT_MS)),
            Status.SKIPPED_CONTENT,
            changed(ORIGINAL, deliveries=(X,)),
            "Not sent: same first words as the email of 09:00 from ada@x.example, which could not be delivered to crm",
        ),
        (
            entry(S, stop=Stop(EMAIL_ID)),
            Status.ALREADY_PROCESSED,
            None,
            "Not sent: its email id fe4f is marked as done, by another program or an import",
        ),
        (entry(D, D), Status.PROCESSED, None, "Delivered to crm and slack at 09:00"),
        (entry(D, S), Status.PROCESSED, None, "Delivered to crm at 09:00; not sent to slack, which received the same"),
        (
            entry(changed(W, reason="crm: paused")),
            Status.QUEUED,
            None,
            "Waiting for crm (paused), after 2 attempts; next attempt at 09:00",
        ),
        (
            entry(changed(X, reason="crm: answered 500")),
            Status.DEAD_LETTERED,
            None,
            "Not delivered to crm, given up after 9 attempts: answered 500",
        ),
        (
            entry(D, stop=Stop(GROUP, "first"), released_ms=AT_MS),
            Status.PROCESSED,
            ORIGINAL,
            "Released at 09:00, after it was stopped (same subject group lot_456 as the email of 09:00 from",
        ),
        (
            Entry("id", "m", (), deliveries=(changed(D, destination=""),)),
            Status.PROCESSED,
            None,
            "Published by a script",
        ),
    ],
)
def test_what_happened_is_said_in_one_sentence(
    what: Entry, status: Status, original: Entry | None, sentence: str
) -> None:
    views = [view(each) for each in what.deliveries]
    assert explain(what, status, original, views, lambda ms: said_at(ms, AT_MS, UTC)).startswith(sentence)


def test_a_time_of_another_day_has_its_date() -> None:
    assert said_at(AT_MS, AT_MS + 86_400_000, UTC) == "2025-11-16 09:00"
