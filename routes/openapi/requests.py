"""Bodies of requests that views do not read by a model. The models of the others are in routes/questions.py."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from routes.openapi.webhooks import Absent, absent
from routes.providers.message import MOST


class AttachmentIn(BaseModel):
    name: str | Absent = absent()
    content_type: str | Absent = absent()
    size: int | Absent = absent()
    sha256: str | Absent = absent()
    content: str | Absent = absent("In Base64, instead of size and sha256.")


class EmailIn(BaseModel):
    """An email as a script of your own sends it. Other fields are handed on under `extra`."""

    sender: str = Field(description="An address, or Name <address>.", examples=["Ada Lovelace <ada@example.org>"])
    subject: str | None = Field(default=None, examples=["Lot 456"])
    date: str | None = Field(default=None, examples=["2026-11-16T09:00:00.000Z"])
    html: str | None = None
    plain: str | None = Field(default=None, examples=["Hello"])
    body: str | None = Field(default=None, description="For a script that does not know which of the two it is.")
    body_type: Literal["html", "text", ""] | None = None
    message_id: str | None = None
    recipient: str | None = None
    to: str | None = None
    attachments: list[AttachmentIn] | None = None


class MessageIn(BaseModel):
    """Known by `id` (within its `source`), or `name`, `permalink`, `url`, or `title` and `created_utc`."""

    source: str | None = Field(default=None, examples=["tg:news"])
    id: str | int | float | None = Field(default=None, examples=[1])
    text: str | None = Field(default=None, examples=["Hello"])
    date: str | int | float | None = None
    title: str | None = None
    name: str | None = None
    url: str | None = None
    permalink: str | None = None
    created_utc: str | int | float | None = None
    media: list[str] | None = None
    destinations: list[str] | None = Field(default=None, description="Only these, of those that its route has.")


def one_or_many(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "array", "items": schema, "maxItems": MOST}]}
