"""Template filters and functions: times, numbers, statuses, and the content of an email, as people read them."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from flask import request, url_for
from markupsafe import Markup

from deduplication.body import Html, looks_like_html
from orchestrator.operations.decisions import SAME
from orchestrator.operations.search import OUTCOME_OF
from orchestrator.operations.times import shown_duration
from routes.dashboard.page import page
from routes.endpoints import service

STATIC = Path(__file__).parent / "static"
MOST_SHOWN_CHARS = 1_000_000
LEAST_COLUMNS = 24  # of a plot, which begins where there is data
TICKS = 5
COLOURS = {
    "good": "delivered, ok, up, released",
    "waits": "waiting, in progress, returned, degraded, paused, behind",
    "bad": "dead letter, dead letters, down, over the limit, failing, in trouble, late, no worker, full, gap",
    "stopped": "suppressed, duplicate, same subject group, same file, same text, too old, dropped by a route",
}
COLOUR_OF_WORDS = {words: colour for colour, listed in COLOURS.items() for words in listed.split(", ")}
STATUSES: dict[str, str] = {
    **{status.value: outcome.replace("_", " ") for status, outcome in OUTCOME_OF.items()},
    "claimed": "in progress",
    "dead": "dead letter",
    "skipped": "suppressed",
    **{f"skipped_{gate}": same for gate, same in SAME.items()},
    "skipped_old": "too old",
    "skipped_route": "dropped by a route",
}
SHOWN = ("sender", "recipients", "subject", "title", "date", "message_id", "source", "received_at", "url", "permalink")
# They load something or redirect before a policy applies (a preconnect, a refresh), so they do not reach the browser.
_LOADING = re.compile(r"<(/?)(base|embed|frame|frameset|iframe|link|meta|object|portal)\b", re.IGNORECASE)


page.add_app_template_filter("{:,}".format, "number")
page.add_app_template_filter(shown_duration, "duration")


@page.app_template_filter()
def moment(at: int | float | str | None) -> Markup:
    """Milliseconds since 1970, or ISO text, in TIMEZONE like all other times. The page's script shows what is near as
    a duration ("3 min ago")."""
    if at is None or at == "":
        return Markup('<span class="none">never</span>')
    when = datetime.fromisoformat(at) if isinstance(at, str) else datetime.fromtimestamp(at / 1000, UTC)
    when = when.astimezone(service.settings.timezone)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        when.isoformat(timespec="milliseconds"), when.strftime("%Y-%m-%d %H:%M:%S %Z"), _clock(when)
    )


def _clock(when: datetime) -> str:
    """With the date, unless it is today."""
    is_today = when.date() == datetime.now(when.tzinfo).date()
    return when.strftime("%H:%M" if is_today else "%d %b %H:%M")


@page.app_template_global()
def zone() -> str:
    return datetime.now(service.settings.timezone).strftime("%Z")


Values = Sequence[int]


@page.app_template_global()
def plot(
    starts: Values, step_s: int, series: Mapping[str, Values], failed: Values, only_failed: bool = False
) -> dict[str, Any]:
    """Stacked bars, from the first point with data on, each with name, top and height; ``most`` is the height of all.
    Columns with failed attempts are marked; ``only_failed``: those without any other."""
    counts = list(zip(*series.values(), strict=True))
    busy = [place for place, values in enumerate(counts) if any(values) or failed[place]]
    first = max(0, min(busy[0] - 1 if busy else 0, len(counts) - LEAST_COLUMNS))
    most = max((sum(values) for values in counts), default=0) or 1
    columns, clocks = [], []
    for start_s, values, failures in zip(starts[first:], counts[first:], failed[first:], strict=True):
        begin, end = (datetime.fromtimestamp(start_s + add_s, service.settings.timezone) for add_s in (0, step_s))
        clocks.append(_clock(begin))
        tops = (most - height for height in accumulate(values))
        bars = [bar for bar in zip(series, tops, values, strict=True) if bar[2]]
        said = [f"{value:,} {name}" for name, _, value in bars]
        said += [f"{failures:,} failed"] if failures and "failed" not in series else []
        title = f"{_clock(begin)} to {end:%H:%M}: {', '.join(said) or 'nothing'}"
        is_marked = failures > 0 and (not only_failed or sum(values) == failures)
        columns.append({"title": title, "bars": bars, "is_marked": is_marked})
    ticks = dict.fromkeys(clocks[place * (len(clocks) - 1) // (TICKS - 1)] for place in range(TICKS))
    return {"columns": columns, "most": most, "ticks": list(ticks)}


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
    words = status_words(status)
    return Markup('<span class="badge {}">{}</span>').format(COLOUR_OF_WORDS.get(words, "plain"), words)


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


def email_content(payload: Mapping[str, Any]) -> dict[str, Any]:
    """An email or message for a person to read: ``text``, ``html`` (or None), ``headers`` as received or, where the
    provider sends none, what is known of them, and all as ``json``. The payload does not say whether ``body`` is HTML;
    beside HTML there may be ``plain``."""
    body, plain = str(payload.get("body") or ""), str(payload.get("plain") or "")
    html = body if body and (plain or looks_like_html(body)) else None
    text = payload.get("text") or plain or (Html(html[:MOST_SHOWN_CHARS]).text if html else body)
    known = {label(field): payload.get(field) for field in SHOWN}
    known |= {name: value for name, value in (payload.get("extra") or {}).items() if isinstance(value, str)}
    headers = [(header["name"], header["value"]) for header in payload.get("headers") or ()] or [
        (name, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        for name, value in known.items()
        if value
    ]
    whole = json.dumps(payload, indent=2, ensure_ascii=False)
    return {"text": str(text), "html": html, "headers": headers, "json": whole}


def harmless_html(html: str) -> str:
    """For a frame under browser.EMAIL_POLICY, which blocks scripts and all loading."""
    return _LOADING.sub(r"<\1x-\2", html[:MOST_SHOWN_CHARS])
