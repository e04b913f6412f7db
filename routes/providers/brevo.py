"""Brevo's inbound parsing: several emails in one request, attachments as download tokens only.

It discards an email on 5xx as on 4xx; only 429 makes it try again.
"""

from typing import Any

from deduplication.email import Email, addresses_in
from routes.payload import InvalidPayload
from routes.providers.base import BasicAuthProvider, Parsed, ProviderRequest, parse_all
from routes.providers.fields import Document, FileFields, MailHeaders, mailbox
from routes.providers.samples import INBOX, Letter

TEXTS = {"subject": "Subject", "date": "SentAtDate", "html": "RawHtmlBody", "plain": "RawTextBody"}
FILE = FileFields("Name", "ContentType", size="ContentLength", content_id="ContentID")


class Brevo(BasicAuthProvider):
    retry_status = 429

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        items = Document.of(request.json()).get("items")
        if not isinstance(items, list) or not items:
            raise InvalidPayload("items must be a list of emails", field="items")
        return parse_all(lambda item: self._email(Document.of(item)), items)

    def _email(self, item: Document) -> Email:
        """Attachments are downloaded with the DownloadToken that ``extra`` hands on."""
        headers, author = MailHeaders(item.get("Headers")), item.object("From")
        uuids = item["Uuid"] if isinstance(item.get("Uuid"), list) else []
        to, cc = ([person.get("Address") for person in item.objects(field)] for field in ("To", "Cc"))
        files = item.files("Attachments", FILE)
        tokens = [dict(file) for file in item.objects("Attachments")]
        item.skip("To", "Cc", "From", "ReplyTo", "Attachments", "Uuid")
        return self.email(
            headers=headers,
            **item.texts(TEXTS),
            sender=mailbox(author.optional("Name"), author.optional("Address")),
            message_id=item.text("MessageId"),
            event_id=next((uuid for uuid in uuids[:1] if isinstance(uuid, str)), ""),
            recipients=[item.get("Recipients")],
            to=to,
            cc=cc,
            reply_to=[item.object("ReplyTo").get("Address")],
            in_reply_to=item.optional("InReplyTo"),
            reply_text=item.optional("ExtractedMarkdownMessage"),
            files=files,
            spam={"SpamScore": item.get("SpamScore")},
            extra={**item.unread, "attachments": tokens},
        )

    def _document(self, letter: Letter) -> dict[str, Any]:
        name, address = letter.sender.rpartition(" ")[::2]
        item = {
            **letter.texts(TEXTS),
            "Uuid": [letter.event_id],
            "MessageId": letter.message_id,
            "From": {"Name": name or None, "Address": address.strip("<>")},
            "To": [{"Name": None, "Address": INBOX}],
            "ExtractedMarkdownMessage": letter.text,
            "Cc": [{"Name": None, "Address": address} for address in addresses_in(letter.headers.get("Cc"))],
            "Headers": letter.headers,
            "SpamScore": 0.1,
            "Attachments": letter.attachments(FILE),
        }
        return {"items": [item]}
