"""How the page says things: times, numbers, durations and statuses, as a person reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from flask import Blueprint, g, request, url_for
from flask_wtf.csrf import generate_csrf
from markupsafe import Markup

from orchestrator.operations.words import shown_duration

STATIC = Path(__file__).parent / "static"
KINDS = {
    "good": {"delivered", "processed", "ok", "up", "released"},
    "waits": {
        "waiting",
        "claimed",
        "returned",
        "queued",
        "degraded",
        "already_processing",
        "paused",
        "retry_later",
        "behind",
    },
    "bad": {
        "dead",
        "dead_lettered",
        "down",
        "over the limit",
        "failing",
        "in trouble",
        "late",
        "no worker",
        "full",
        "gap",
    },
    "stopped": {"skipped", "skipped_subject_group", "skipped_media", "skipped_content", "skipped_old"},
}
SAID = {
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
    "retry_later": "returned",
}
FACTS = {
    "rss_mb": "In use",
    "unpublished": "Unpublished entries",
    "behind_s": "Behind the stream",
    "known_since": "Knows the fleet's work since",
    "gap_since": "Missed a part of it at",
    "used_bytes": "Memory in use",
    "limit_bytes": "Memory limit",
    "journal_payload_bytes": "Payloads in the journal",
    "redis_payload_bytes": "Payloads in Redis",
    "redis_payload_limit_bytes": "Limit of payloads in Redis",
}


def moment(at: int | float | str | None) -> Markup:
    """Milliseconds since 1970, or ISO text. The script says it in the viewer's zone; without it, it is UTC."""
    if at is None or at == "":
        return Markup('<span class="none">never</span>')
    when = datetime.fromisoformat(at) if isinstance(at, str) else datetime.fromtimestamp(at / 1000, UTC)
    when = when.astimezone(UTC)
    exact = when.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        when.isoformat(timespec="milliseconds"), exact, when.strftime("%d %b %H:%M UTC")
    )


def number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def percent(part: float | None) -> str:
    """Of 1. Never "100 %" where something is missing, nor "0 %" where there is something."""
    if part is None:
        return "–"
    if part in (0, 1):
        return f"{part * 100:.0f} %"
    return f"{min(max(part * 100, 0.1), 99.9):.{1 if part < 0.1 or part > 0.99 else 0}f} %"


def milliseconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f} ms" if value < 10_000 else f"{value / 1000:,.1f} s"


def duration(seconds: int | None) -> str:
    return "–" if seconds is None else shown_duration(seconds)


def size(count: float) -> str:
    """1,024 to the next unit, as df -h has it."""
    for unit, digits in (("bytes", 0), ("KB", 0), ("MB", 1)):
        if count < 1024:
            return f"{count:,.{digits}f} {unit}"
        count /= 1024
    return f"{count:,.1f} GB"


def fact(key: str) -> str:
    """What a fact of /health is called."""
    known = FACTS.get(key)
    return known or key.removesuffix("_bytes").removesuffix("_mb").removesuffix("_s").replace("_", " ").capitalize()


def badge(status: str) -> Markup:
    kind = next((kind for kind, statuses in KINDS.items() if status in statuses), "plain")
    return Markup('<span class="badge {}">{}</span>').format(kind, said(status))


def said(status: str) -> str:
    return SAID.get(status, status.replace("_", " "))


def counted(count: int, thing: str, many: str = "") -> str:
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {many or thing + 's'}"


def here_with(**changed: str | None) -> str:
    """This address with other values in its query; None takes one out. A page of results begins anew."""
    kept = {name: value for name, value in request.args.items() if name not in (*changed, "cursor")}
    asked = kept | {name: value for name, value in changed.items() if value}
    return f"{request.path}?{urlencode(asked)}" if asked else request.path


@cache
def asset(name: str) -> str:
    """Its address changes with its contents, so that a browser may keep it for ever."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:10]
    return url_for("dashboard.static", filename=name, v=digest, _external=False)


def add_words(page: Blueprint) -> None:
    filters: tuple[Callable[..., str], ...] = (
        moment,
        number,
        percent,
        milliseconds,
        duration,
        size,
        fact,
        badge,
        said,
    )
    for each in filters:
        page.add_app_template_filter(each)

    for name, each in {"asset": asset, "counted": counted, "csrf_token": generate_csrf, "here_with": here_with}.items():
        page.add_app_template_global(each, name)

    @page.app_context_processor
    def of_request() -> dict[str, Any]:
        return {"is_fragment": "HX-Request" in request.headers, "viewer": g.get("viewer")}
