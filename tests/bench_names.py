"""make bench ARGS=steps: what an email costs on its way to the journal, its parsing and its names.

Every step has its turn in every round, so that a machine that is busy for a while is so for all of them; the median of
the rounds is shown, in time of the processor. Each turn begins with an email that nothing was read of yet. ``--json``
prints the microseconds by the names of the steps. Nothing is asserted.
"""

from __future__ import annotations

import itertools
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from deduplication.content import content_name
from deduplication.email import Email
from deduplication.identity import compute_fingerprint, own_names
from deduplication.media import MediaMode, delivery_links, media_name
from deduplication.mime import parse_mime
from deduplication.subject_group import generate_subject_group_id
from orchestrator.item import email_item
from tests.routes.providers.conftest import LETTER, email_in, provider_of, request_of
from tests.routes.providers.everyone import SETTINGS

ROUNDS = 15
TURN_S = 0.02
SUBJECTS = ("Re: Média Solution - Missions Recadrage - Lot 42", "Fwd: Réunion du 15, ordre du jour", "Daily report")
SENTENCE = "Bonjour à tous, voici la livraison du lot, merci de confirmer la bonne réception des fichiers."

Step = Callable[[], object]


def plain_body(size: int) -> str:
    """A letter in lines, here and there with a link on one of its own."""
    choose, lines, length = random.Random(1), [], 0  # noqa: S311
    while length < size:
        lines.append(" ".join(choose.choices(SENTENCE.split(), k=12)))
        if choose.random() < 0.05:
            lines.append(f"https://www.dropbox.com/s/abc{length}/file.zip?dl=0")
        length = sum(map(len, lines)) + 2 * len(lines)
    return "\r\n".join(lines)[:size]


def html_body(size: int) -> str:
    """A newsletter: a tag for every 25 characters, every seventh row with a link and an image."""
    choose, rows, length = random.Random(1), [], 0  # noqa: S311
    while length < size - 150:
        words = " ".join(choose.choices(SENTENCE.split(), k=12))
        row = f'<tr><td style="padding:4px"><p class="MsoNormal"><span style="color:#333">{words}</span></p></td></tr>'
        if choose.random() < 0.15:
            link = f'<a href="https://a.example/{length}?x=1&amp;y=2" style="color:red">{words[:9]}</a>'
            row += f'<tr><td>{link}<img src="https://cdn.a.example/{length}.png" alt="logo"></td></tr>'
        rows.append(row)
        length += len(row)
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


def names_and_fingerprint(email: Email) -> str:
    own_names(email, ids_kept_ms=None)
    return str(compute_fingerprint(email))


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

    def naming(body: Mapping[str, str]) -> Step:
        return lambda: names_and_fingerprint(mail(**body))

    def whole(body: Mapping[str, str]) -> Step:
        return lambda: email_item(mail(**body), ids_kept_ms=None)

    return {
        "subject group id": lambda: generate_subject_group_id(next(subjects)),
        **{f"ids + fingerprint, {kind}": naming(body) for kind, body in bodies.items()},
        **{f"email_item, {kind}": whole(body) for kind, body in bodies.items()},
        "content name, 20 KB": lambda: content_name("crm", text),
        f"media names of {len(links)} links": lambda: [
            media_name(link) for link in delivery_links(links, MediaMode.LISTED)
        ],
        "Mailgun form, verified and parsed": lambda: email_in(mailgun, form),
        f"MIME, {len(raw) // 1000} KB, parsed": lambda: parse_mime(raw),
    }


def measured() -> Mapping[str, float]:
    """Microseconds, by the names of the steps."""
    told = steps()
    repeats = {}
    for name, step in told.items():
        started = time.process_time()
        step()
        step()
        repeats[name] = max(1, int(TURN_S / max((time.process_time() - started) / 2, 1e-7)))
    rounds: dict[str, list[float]] = {name: [] for name in told}
    for _, (name, step) in itertools.product(range(ROUNDS), told.items()):
        started = time.process_time()
        for _ in range(repeats[name]):
            step()
        rounds[name].append((time.process_time() - started) / repeats[name] * 1e6)
    return {name: round(statistics.median(costs), 1) for name, costs in rounds.items()}


def print_costs(*, as_json: bool) -> None:
    costs = measured()
    if as_json:
        print(json.dumps(costs, indent=2))
    else:
        print("\n".join(f"| {name:<36} | {cost:>9.1f} µs |" for name, cost in costs.items()))
