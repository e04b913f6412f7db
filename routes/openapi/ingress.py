"""The endpoints under /api/ingress: what each one accepts, its proof of origin, and its answers."""

from __future__ import annotations

import inspect
import sys
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from routes.endpoints import JSON, Operation, Success
from routes.providers.gmail import Gmail
from routes.providers.json_mapping import Json
from routes.providers.message import MOST
from routes.providers.registry import AnyProvider
from routes.responses import NoEmail, Refusal, Verdict, Verdicts


class AttachmentIn(BaseModel):
    name: str = ""
    content_type: str = ""
    size: int = 0
    sha256: str = ""
    content: str = Field(default="", description="In Base64, instead of size and sha256.")


class EmailIn(BaseModel):
    """An email as a script of your own sends it. Other fields are passed on under `extra`."""

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
    """Identified by `id` (within its `source`), or `name`, `permalink`, `url`, or `title` and `created_utc`."""

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
    destinations: list[str] | None = Field(default=None, description="Only these destinations of its route.")


PROBE = Operation("Whether the URL responds", {200: Success})
MESSAGES = Operation(
    "Receive posts and chat messages, one or a list",
    {200: Verdicts, 503: Verdicts | Refusal},
    {200: "All that can be accepted are safe.", 503: "Some are not safe yet: send all of them again."},
    body={JSON: MessageIn | Annotated[list[MessageIn], Field(max_length=MOST)]},
    security=("ingressToken",),
)


def provider_operation(name: str, provider: type[AnyProvider]) -> Operation:
    """Whether or not the provider is configured: the document is about the API, not about mailonce.toml."""
    statuses, text = provider.statuses, inspect.getdoc(sys.modules[provider.__module__]) or ""
    answers = {
        statuses.accepted: Verdict | Verdicts | NoEmail,
        statuses.retry: Verdict | Verdicts | Refusal,
        statuses.rejected or 400: Refusal | Verdicts,
    }
    notes = {
        statuses.unauthorized: "Invalid signature or credentials.",
        statuses.accepted: "Accepted: the sender may forget it.",
        statuses.retry: "Not accepted now, or another request is processing it: send it again.",
        statuses.rejected or 400: "The request can never be accepted as it is.",
    }
    if not provider.security:
        text += "\n\nThe proof of origin is in the body."
    body: dict[str, Any] = {
        media_type: str if media_type.startswith(("message/", "text/")) else dict[str, Any]
        for media_type in provider.media_types
    }
    if provider is Gmail:
        body = {JSON: EmailIn}
    elif provider is Json:  # one email or a list
        body = {JSON: dict[str, Any] | list[Any]}
    description = text.strip().replace("``", "`")
    return Operation(f"Receive an email from {name}", answers, notes, None, body, provider.security, description)
