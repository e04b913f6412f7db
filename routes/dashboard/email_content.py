"""What is kept of an email, for a person to read: its text, its HTML, its headers, and all of it as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deduplication.body import Html, looks_like_html

MOST_SHOWN_CHARS = 1_000_000
HEADERS = {
    "From": "sender",
    "To": "recipients",
    "Subject": "subject",
    "Title": "title",
    "Date": "date",
    "Message-ID": "message_id",
    "Source": "source",
    "Received": "received_at",
    "URL": "url",
    "Permalink": "permalink",
}
# They fetch or lead elsewhere before any policy is asked (a preconnect, a refresh), so they do not reach the browser.
_FETCHING = re.compile(r"<(/?)(base|embed|frame|frameset|iframe|link|meta|object|portal)\b", re.IGNORECASE)


@dataclass(frozen=True)
class EmailContent:
    payload: Mapping[str, Any]

    @property
    def html(self) -> str | None:
        """None: it has none. The payload does not say which its body is; one with both parts has text beside it."""
        body = self.payload.get("body") or ""
        return body if body and (self.payload.get("plain") or looks_like_html(body)) else None

    @property
    def text(self) -> str:
        if "text" in self.payload:
            return str(self.payload["text"])
        if self.html is None:
            return str(self.payload.get("body") or "")
        return str(self.payload.get("plain") or Html(self.html[:MOST_SHOWN_CHARS]).text)

    @property
    def headers(self) -> dict[str, str]:
        named = {label: self.payload.get(field) for label, field in HEADERS.items()}
        others = {name: value for name, value in (self.payload.get("extra") or {}).items() if isinstance(value, str)}
        shown = {name: ", ".join(map(str, each)) if isinstance(each, list) else each for name, each in named.items()}
        return {name: str(value) for name, value in {**shown, **others}.items() if value}

    @property
    def attachments(self) -> list[Mapping[str, Any]]:
        return list(self.payload.get("attachments") or ())

    @property
    def as_json(self) -> str:
        return json.dumps(self.payload, indent=2, ensure_ascii=False)


def harmless_html(html: str) -> str:
    """For a frame of its own under headers.EMAIL_ONLY, which stops scripts and whatever is fetched."""
    return _FETCHING.sub(r"<\1x-\2", html[:MOST_SHOWN_CHARS])
