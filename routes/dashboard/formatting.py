"""Template filters and functions: times, numbers, statuses, and the content of an email, as people read them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from flask import request, url_for
from markupsafe import Markup

from deduplication.body import Html, looks_like_html
from orchestrator.operations.times import shown_duration
from routes.dashboard.page import page

STATIC = Path(__file__).parent / "static"
MOST_SHOWN_CHARS = 1_000_000
COLOURS = {
    "good": "delivered, processed, ok, up, released",
    "waits": "waiting, claimed, returned, queued, degraded, already_processing, paused, retry_later, behind",
    "bad": "dead, dead_lettered, down, over the limit, failing, in trouble, late, no worker, full, gap",
    "stopped": "skipped, skipped_subject_group, skipped_media, skipped_content, skipped_old, skipped_route",
}
COLOUR_OF_STATUS = {status: colour for colour, statuses in COLOURS.items() for status in statuses.split(", ")}
STATUSES = {
    "processed": "delivered",
    "already_processed": "duplicate",
    "already_processing": "in progress",
    "claimed": "in progress",
    "queued": "waiting",
    "dead_lettered": "dead",
    "skipped_subject_group": "same group",
    "skipped_media": "same files",
    "skipped_content": "same text",
    "skipped_old": "too old",
    "skipped_route": "dropped",
    "retry_later": "returned",
}
SHOWN = ("sender", "recipients", "subject", "title", "date", "message_id", "source", "received_at", "url", "permalink")
# They load something or redirect before a policy applies (a preconnect, a refresh), so they do not reach the browser.
_LOADING = re.compile(r"<(/?)(base|embed|frame|frameset|iframe|link|meta|object|portal)\b", re.IGNORECASE)


page.add_app_template_filter("{:,}".format, "number")
page.add_app_template_filter(shown_duration, "duration")


@page.app_template_filter()
def moment(at: int | float | str | None) -> Markup:
    """Milliseconds since 1970, or ISO text, in UTC; the page's script converts it to the viewer's time zone."""
    if at is None or at == "":
        return Markup('<span class="none">never</span>')
    when = datetime.fromisoformat(at) if isinstance(at, str) else datetime.fromtimestamp(at / 1000, UTC)
    when = when.astimezone(UTC)
    exact = when.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        when.isoformat(timespec="milliseconds"), exact, when.strftime("%d %b %H:%M UTC")
    )


@page.app_template_filter()
def percent(share: float | None) -> str:
    """Never "100 %" where something is missing, nor "0 %" where there is something."""
    if share is None:
        return "–"
    if share in (0, 1):
        return f"{share * 100:.0f} %"
    return f"{min(max(share * 100, 0.1), 99.9):.{1 if share < 0.1 or share > 0.99 else 0}f} %"


@page.app_template_filter()
def milliseconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f} ms" if value < 10_000 else f"{value / 1000:,.1f} s"


@page.app_template_filter()
def label(field: str) -> str:
    """Of a field of /health or of a payload, without its unit."""
    return re.sub("_(bytes|mb|s)$", "", field).replace("_", " ").capitalize()


@page.app_template_filter()
def badge(status: str) -> Markup:
    colour = COLOUR_OF_STATUS.get(status, "plain")
    return Markup('<span class="badge {}">{}</span>').format(colour, status_words(status))


@page.app_template_filter()
def status_words(status: str) -> str:
    return STATUSES.get(status, status.replace("_", " "))


@page.app_template_global()
def counted(count: int, thing: str, many: str = "") -> str:
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {many or thing + 's'}"


@page.app_template_global()
def here_with(**changed: str | None) -> str:
    """This URL with other values in its query, without those that are None, and from the first page of a list."""
    kept = {name: value for name, value in request.args.items() if name not in (*changed, "cursor")}
    asked = kept | {name: value for name, value in changed.items() if value}
    return f"{request.path}?{urlencode(asked)}" if asked else request.path


@page.app_template_global()
@cache
def asset(name: str) -> str:
    """A URL that changes with the content of the file, so that browsers may keep it forever."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:10]
    return url_for("dashboard.static", filename=name, v=digest, _external=False)


class EmailContent(NamedTuple):
    """An email or message for a person to read. ``html`` is None if there is none."""

    text: str
    html: str | None
    headers: Mapping[str, str]
    json: str


def email_content(payload: Mapping[str, Any]) -> EmailContent:
    """From its payload, which does not say whether ``body`` is HTML; beside HTML there may be ``plain``."""
    body, plain = str(payload.get("body") or ""), str(payload.get("plain") or "")
    html = body if body and (plain or looks_like_html(body)) else None
    text = payload.get("text") or plain or (Html(html[:MOST_SHOWN_CHARS]).text if html else body)
    headers = {label(field): payload.get(field) for field in SHOWN}
    headers |= {name: value for name, value in (payload.get("extra") or {}).items() if isinstance(value, str)}
    shown = {
        name: ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in headers.items()
        if value
    }
    return EmailContent(str(text), html, shown, json.dumps(payload, indent=2, ensure_ascii=False))


def harmless_html(html: str) -> str:
    """For a frame under browser.EMAIL_POLICY, which blocks scripts and all loading."""
    return _LOADING.sub(r"<\1x-\2", html[:MOST_SHOWN_CHARS])
