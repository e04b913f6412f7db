"""``mailonce check`` says in plain words what the file means, and nothing that should stay in it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from deduplication.email import Email
from deduplication.subject_group import GroupMode
from orchestrator.config.model import Condition, Config, RouteConfig, load_config
from orchestrator.config.settings import load_settings
from orchestrator.item import email_item
from orchestrator.operations.explain import condition_in_words, explained, shown
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
  crm: to crm.example by https, signed with 2 secrets, as JSON, as a form where JSON is refused, up to 1 attempt, \
at most 10/s, waits 0.5 s to connect and 5 s for the answer, pauses 30 s after 5 failures in a row, \
with the headers X-Team, Authorization, the same words once in 3600 s
  archive: to ::1 by http, not signed, as a form, up to 10 attempts, at any rate, \
waits 3 s to connect and 5 s for the answer, the same words as often as they come (switched off)
  screen: printed, sent nowhere
Routes, in order
  1. "opt out": the subject matches the regex '^stop\\b' or a recipient is "out@ours.example"
     goes to crm; subject groups: off; media: all; content: on; only what is newer than the service; \
each recipient counts on its own; the routes after it are asked too
  2. "nowhere": the sender contains "@x" and the provider is "ses"
     goes to archive; media: off; content: off
  3. "all": every email
     goes to screen, archive
  4. "rest": every email
     goes to screen
  What none of them says: subject groups as SUBJECT_GROUPS, media listed, content as the destination says
Subject patterns
  ticket: a subject with "our ref" and the regex '(\\d+)'
Media
  links to files.example are files
  links to bit.ly are followed to where they lead
Providers
  mailgun
  ses
Alarms
  to ops.example by https, signed with 2 secrets: what is wrong for 60 s
Off
  destination archive: switched off; what goes there waits
  destination archive: no signature
  destination archive: no breaker
  destination archive: no content gate
  route "opt out": no subject groups
  route "nowhere": no media
  route "nowhere": no content gate
  route "nowhere": all its destinations are switched off
  route "rest": never asked, since "all" takes every email
  alarm low_hit_rate: not judged"""


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
            "the same words from messages once in 72 hours, from emails as",
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
            "names no destination; the routes after it are asked too\n",
        ),
    ],
)
def test_a_detail_is_shown(text: str, line: str) -> None:
    assert line in shown(config_of(text))


def test_a_route_without_a_match_that_goes_on_hides_nobody() -> None:
    text = "[[routes]]\nname = 'a'\nstop = false\n[[routes]]\nname = 'b'"
    assert "never asked" not in shown(config_of(text))


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
        '"rest" matches, but is not asked: a route before it stopped'
    )
