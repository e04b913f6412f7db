"""make docs-reference: writes the table of docs/providers.md, which fields of the payload each provider fills.

One email with everything goes through every provider; a field that is not null has come through.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.item import email_item
from routes.providers.registry import TYPES
from routes.providers.samples import Enclosure
from tests.routes.providers.conftest import LETTER, Fetches, email_in, provider_of
from tests.routes.providers.everyone import SETTINGS, forms_of, provider_named
from tests.support.surroundings import ROOT

PAGE = ROOT / "docs/providers.md"
TRUSTED = 'trusted_authserv_ids = ["mx.example.com"]'
WITH_TRUSTED = re.sub(
    r"(?m)^(\[providers\.\w+\])$", rf"\1\n{TRUSTED}", f"[providers.gmail]\n[providers.mime]\n{SETTINGS}"
)
CHECKED = (
    "spf=pass smtp.mailfrom=b@mail.example.org; dkim=pass header.d=example.org; dmarc=pass header.from=example.org"
)
LETTER_WITH_EVERYTHING = replace(
    LETTER,
    recipients=("Inbox <inbox@in.example.com>",),
    html='<p>Voilà <a href="https://files.example/456">un</a>.<img src="cid:logo@example.org"></p>\n',
    text="Voilà un.\n",
    enclosures=(*LETTER.enclosures, Enclosure("logo.png", "image/png", b"\x89PNG", "logo@example.org")),
    more=(
        ("Authentication-Results", f"mx.example.com; {CHECKED}"),
        ("Return-Path", "<bounces@mail.example.org>"),
        ("Cc", "Carla <carla@example.org>"),
        ("Reply-To", "Desk <desk@example.org>"),
        ("In-Reply-To", "<1@mail.example.org>"),
        ("References", "<0@mail.example.org> <1@mail.example.org>"),
        ("Auto-Submitted", "auto-replied"),
        ("List-Id", "Lots <lots.example.org>"),
    ),
)
OF_ATTACHMENTS = ("sha256", "content_id", "inline")
COLUMNS = {
    "json": "any JSON",
    "mime": "raw MIME",
    "ses": "Amazon SES",
    "sendgrid": "SendGrid",
    "cloudmailin": "CloudMailin",
}


def payloads(settings: str = WITH_TRUSTED) -> Mapping[str, dict[str, Any]]:
    """Of that email, in each form of each provider."""
    fetches = Fetches()
    items = {
        form: email_item(email_in(provider_of(settings, provider_named(form), fetches), request()), None)
        for form, request in forms_of(LETTER_WITH_EVERYTHING, fetches).items()
    }
    return {form: item.payload(item.recipients) for form, item in items.items()}


def _filled(payload: Mapping[str, Any]) -> set[str]:
    found = {name for name, value in payload.items() if value not in (None, "", [], {})}
    found |= {f"authentication.{name}" for name, value in payload["authentication"].items() if value is not None}
    files = payload["attachments"]
    return found | {f"attachments.{name}" for name in OF_ATTACHMENTS if any(file.get(name) for file in files)}


def _by_provider(settings: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {name: set() for name in TYPES}
    for form, payload in payloads(settings).items():
        found[provider_named(form)] |= _filled(payload)
    return found


def table() -> str:
    """Of what is read from a header of a trusted host alone, the cell says so."""
    trusting, plain = _by_provider(WITH_TRUSTED), _by_provider(SETTINGS)
    (payload, *_) = payloads().values()
    rows = [
        name
        for name in payload
        if name not in ("version", "email_id", "headers_omitted", "extra_omitted", "authentication")
    ]
    rows += [f"attachments.{name}" for name in OF_ATTACHMENTS]
    rows += [f"authentication.{name}" for name in payload["authentication"] if name != "source"]
    lines = [
        f"| field | {' | '.join(COLUMNS.get(name, name.title()) for name in TYPES)} |",
        "|---|" + "---|" * len(TYPES),
    ]
    for row in rows:
        cells = ("yes" if row in plain[name] else "header" if row in trusting[name] else "" for name in TYPES)
        lines.append(f"| `{row}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def providers_page() -> str:
    """The page with its table replaced."""
    above = r"(?m)^(## What each provider sends\n(?:\n|[^|#\n].*\n)*)(?:\|.*\n)+"
    page, count = re.subn(above, lambda found: found[1] + table(), PAGE.read_text())
    assert count == 1, f"{PAGE} must have one heading What each provider sends"
    return page


if __name__ == "__main__":
    PAGE.write_text(providers_page())
