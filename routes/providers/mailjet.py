"""Mailjet's Parse API. It has no id of its own, so the email's Message-ID is used."""

from dataclasses import replace
from typing import Any

from deduplication.email import Attachment
from routes.mime import read_entity
from routes.providers.base import BasicAuthProvider, Parsed, ProviderRequest
from routes.providers.fields import Document, MailHeaders
from routes.providers.samples import BOUNCES, INBOX, Letter

TEXTS = {"subject": "Subject", "sender": "From", "date": "Date", "html": "Html-part", "plain": "Text-part"}


class Mailjet(BasicAuthProvider):
    """What it does on 4xx and whether it checks the URL first is not documented: both are allowed for."""

    answers_probes = True

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        document = Document.of(request.json("(?:Inline)?Attachment[0-9]+"))
        parts = document.objects("Parts")
        files = [_file(part, document) for part in parts if "Attachment" in part.optional("ContentRef")]
        document.skip("Parts", "Headers", "Html-part", "Text-part", "SpamAssassinScore")
        email = self.email(
            headers=MailHeaders(document.get("Headers")),
            **document.texts(TEXTS),
            recipients=[document.get("Recipient")],
            return_path=document.optional("Sender") if "Sender" in document else None,
            files=files,
            spam={"SpamAssassinScore": document.get("SpamAssassinScore")},
            extra=document.unread,
        )
        return [email]

    def _document(self, letter: Letter) -> dict[str, Any]:
        files = {f"Attachment{place}": file for place, file in enumerate(letter.enclosures, 1)}
        parts = []
        for name, file in files.items():
            headers = {"Content-Type": [file.content_type], "Content-Transfer-Encoding": ["base64"]}
            headers["Content-Disposition"] = [f'{file.disposition}; filename="{file.name}"']
            if file.content_id:
                headers["Content-ID"] = [f"<{file.content_id}>"]
            parts.append({"Headers": headers, "ContentRef": name})
        return {
            **letter.texts(TEXTS),
            "Sender": BOUNCES,
            "Recipient": INBOX,
            "Headers": letter.headers,
            "Parts": parts,
            "SpamAssassinScore": "0.1",
            **{name: file.base64 for name, file in files.items()},
        }


def _file(part: Document, document: Document) -> Attachment:
    """Attachment1, InlineAttachment1 and so on have the contents; Parts describes them."""
    headers = MailHeaders(part.get("Headers")).named(("Content-Type", "Content-Disposition", "Content-ID"))
    lines = (f"{name}: {' '.join(value.split())}\n" for name, value in headers.items())
    file = read_entity("".join(lines).encode(), 0).to_file(document.base64(part.optional("ContentRef")))
    return replace(file, inline=file.inline or part.optional("ContentRef").startswith("Inline"))
