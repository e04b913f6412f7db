"""What an email costs on its way to the journal, its parsing and its names, in time of the processor.

Each step begins with an email that nothing was read of yet.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from deduplication.content import content_name
from deduplication.email import Email
from deduplication.identity import compute_fingerprint, own_names
from deduplication.media import MediaMode, delivery_links, media_name
from deduplication.mime import parse_mime
from deduplication.subject_group import generate_subject_group_id
from orchestrator.item import email_item
from tests.bench.figures import Figure, Row, Step, spent
from tests.routes.providers.conftest import LETTER, email_in, provider_of, request_of
from tests.routes.providers.everyone import SETTINGS
from tests.support.redis_server import RedisServer

STEPS_A_TURN = 20
ROUNDS = 15
SUBJECTS = ("Re: Média Solution - Missions Recadrage - Lot 42", "Fwd: Réunion du 15, ordre du jour", "Daily report")
SENTENCE = "Bonjour à tous, voici la livraison du lot, merci de confirmer la bonne réception des fichiers."
LINK = "\r\nhttps://www.dropbox.com/s/abc{}/file.zip?dl=0"
WANTED = {
    "subject group id": (8, 4),
    "ids + fingerprint, plain 20 KB": (300, 150),
    "ids + fingerprint, html 20 KB": (300, 150),
}


def step_rows(_redis: RedisServer, _folder: Path) -> Iterator[Row]:
    for name, costs_s in spent(steps(), STEPS_A_TURN, time.process_time, ROUNDS).items():
        must, aim = WANTED.get(name, (None, None))
        yield Row(f"steps: {name}", Figure.of(*(each * 1e6 for each in costs_s)), "µs", "", must, aim, True)


def plain_body(size: int) -> str:
    """A letter in lines, every twentieth with a link."""
    lines = (f"{SENTENCE}{LINK.format(number) if number % 20 == 0 else ''}" for number in itertools.count())
    return "\r\n".join(itertools.islice(lines, size // len(SENTENCE)))[:size]


def html_body(size: int) -> str:
    """A newsletter: a tag for every 25 characters, every seventh row with a link and an image."""
    row = f'<tr><td style="padding:4px"><p class="MsoNormal"><span style="color:#333">{SENTENCE}</span></p></td></tr>'
    link = '<tr><td><a href="https://a.example/{0}?x=1&amp;y=2">here</a><img src="https://cdn.a.example/{0}.png"></td></tr>'
    rows = (f"{row}{link.format(number) if number % 7 == 0 else ''}" for number in range(size // len(row)))
    head = "<head><title>News</title><style>p { margin: 0 }</style></head>"
    return f"<!DOCTYPE html><html>{head}<body><table>{''.join(rows)}</table></body></html>"


def mail(html: str = "", plain: str = "") -> Email:
    return Email(
        subject=SUBJECTS[0],
        sender='"Ada Lovelace" <Ada@Example.org>',
        date="Wed, 11 Oct 2017 18:31:04 -0700",
        message_id="<4f145791.8040802@mail.example.org>",
        recipients=("inbox@in.example.com", "bob@example.org"),
        html=html,
        plain=plain,
    )


def steps() -> Mapping[str, Step]:
    subjects = itertools.cycle(SUBJECTS)
    bodies = {
        f"{kind} {size // 1000} KB": {kind: make(size)}
        for size in (2_000, 20_000)
        for kind, make in (("plain", plain_body), ("html", html_body))
    }
    letter = replace(LETTER, text=plain_body(20_000), html=html_body(20_000))
    raw = letter.mime.as_bytes()
    mailgun, form = provider_of(SETTINGS, "mailgun"), request_of(SETTINGS, "mailgun", letter)
    text, links = mail(html=html_body(20_000)).text, mail(plain=plain_body(20_000)).links[:10]

    def name(body: Mapping[str, str]) -> str:
        email = mail(**body)
        return f"{own_names(email, ids_kept_ms=None)}{compute_fingerprint(email)}"

    return {
        "subject group id": lambda: generate_subject_group_id(next(subjects)),
        **{f"ids + fingerprint, {kind}": partial(name, body) for kind, body in bodies.items()},
        **{
            f"email_item, {kind}": partial(lambda body: email_item(mail(**body), ids_kept_ms=None), body)
            for kind, body in bodies.items()
        },
        "content name, 20 KB": lambda: content_name("crm", text),
        f"media names of {len(links)} links": lambda: [
            media_name(link) for link in delivery_links(links, MediaMode.LISTED)
        ],
        "Mailgun form, verified and parsed": lambda: email_in(mailgun, form),
        f"MIME, {len(raw) // 1000} KB, parsed": lambda: parse_mime(raw),
    }
