"""CloudMailin, in any of its formats: JSON and multipart, normalized or with the headers' own names, and raw.

Any 4xx bounces the email to its sender, who so learns of it; 5xx makes the sender's server try again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from deduplication.email import Attachment, Email
from deduplication.mime import parse_mime
from routes.providers.base import Parsed, ProviderRequest, Statuses, json_object, sound, text_field
from routes.providers.basic import BasicAuthProvider
from routes.providers.fields import (
    File,
    addresses,
    attachments_of,
    from_base64,
    header,
    header_pairs,
    object_of,
    objects,
    scores,
    text_of,
    thread_of,
)
from routes.providers.forms import Form

MAX_STEPS = 4  # attachments[0][file_name] has three
_SIZE = re.compile("[0-9]{1,15}")


class Cloudmailin(BasicAuthProvider):
    statuses = Statuses(rejected=422)
    media_types = ("application/json", "multipart/form-data")

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        if request.media_type != "multipart/form-data":
            return [sound(self._parsed(json_object(request.header("Content-Type"), request.body)))]
        form = request.form
        files = [File(each.name, each.content_type, each.content) for each in form.uploads]
        return [sound(self._raw(form) if "message" in form else self._parsed(_document(form), files))]

    def _raw(self, form: Form) -> Email:
        envelope = object_of(_document(form), "envelope")
        email = parse_mime(
            form.first("message"),
            provider=self.name,
            recipients=addresses(envelope.get("to"), envelope.get("recipients")),
            inline_attachment_bytes=self.options.inline_attachment_bytes,
        )
        return replace(email, spam={**email.spam, **_verdicts(envelope)})

    def _parsed(self, document: dict[str, Any], files: Iterable[File] = ()) -> Email:
        headers = header_pairs(document.get("headers"))
        envelope = object_of(document, "envelope")
        return Email(
            subject=header(headers, "Subject"),
            sender=header(headers, "From"),
            date=header(headers, "Date"),
            html=text_field(document, "html"),
            plain=text_field(document, "plain"),
            message_id=header(headers, "Message-ID"),
            provider=self.name,
            recipients=addresses(
                envelope.get("to"), envelope.get("recipients"), header(headers, "To"), header(headers, "Cc")
            ),
            attachments=self._attachments(objects(document.get("attachments")), files),
            spam=_verdicts(envelope),
            extra=thread_of(headers),
        )

    def _attachments(self, described: list[dict[str, Any]], files: Iterable[File]) -> tuple[Attachment, ...]:
        here = (*files, *(_file(each) for each in described if not each.get("url")))
        elsewhere = (_stored(each) for each in described if each.get("url"))
        return (*attachments_of(here, self.options.inline_attachment_bytes), *elsewhere)


def _verdicts(envelope: Mapping[str, Any]) -> dict[str, str]:
    return scores({"spf": object_of(envelope, "spf").get("result"), "spamd": object_of(envelope, "spamd").get("score")})


def _document(form: Form) -> dict[str, Any]:
    """As its JSON would have it: headers[received][0] is the first of the list "received" under "headers"."""
    document: dict[str, Any] = {}
    for name in form.fields:
        *steps, last = name.replace("]", "").split("[", MAX_STEPS)
        place: Any = document
        for step in steps:
            place = place.setdefault(step, {}) if isinstance(place, dict) else None
        if isinstance(place, dict):
            place[last] = form.text(name)
    return {name: _with_lists(value) for name, value in document.items()}


def _with_lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {name: _with_lists(each) for name, each in value.items()}
    return list(inner.values()) if all(name.isdecimal() for name in inner) else inner


def _file(given: dict[str, Any]) -> File:
    return File(text_of(given, "file_name"), text_of(given, "content_type"), from_base64(given.get("content")))


def _stored(given: dict[str, Any]) -> Attachment:
    """CloudMailin was told to put it into the user's own storage: its contents are not known here."""
    size = str(given.get("size"))
    size_bytes = int(size) if _SIZE.fullmatch(size) else 0
    return Attachment(text_of(given, "file_name"), text_of(given, "content_type"), size_bytes, "")
