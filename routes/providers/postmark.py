"""Postmark's inbound webhook. MessageID is its own id, the same in its retries; the email's is among Headers.

Its other webhooks (bounces, deliveries, opens...) say in RecordType what they are. A bounce has a sender and a subject,
but is not an email.
"""

from typing import Any

from deduplication.authentication import Result
from routes.providers.base import BasicAuthProvider, Handshake, Parsed, ProviderRequest
from routes.providers.fields import Document, FileFields, MailHeaders, mailbox
from routes.providers.samples import INBOX, Letter

TEXTS = {"subject": "Subject", "date": "Date", "html": "HtmlBody", "plain": "TextBody"}
FILE = FileFields("Name", "ContentType", ("Content", "Data"), "ContentLength", "ContentID")  # Data: "Check" button
SPAM_HEADERS = ("X-Spam-Status", "X-Spam-Score", "X-Spam-Tests")


class Postmark(BasicAuthProvider):
    rejected_status = 403

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        document = Document.of(request.json("Content|Data|RawEmail"))
        kind = document.optional("RecordType") or ("Bounce" if "BouncedAt" in document else "Inbound")
        if kind != "Inbound":
            raise Handshake(f"{kind[:80]!r} is no email")
        headers, author = MailHeaders(document.get("Headers")), document.object("FromFull")
        sender = document.text("From") or author.optional("Email")
        document.skip("RecordType", "FromFull", "FromName", "ToFull", "CcFull", "BccFull", "RawEmail")
        email = self.email(
            headers=headers,
            **document.texts(TEXTS),
            sender=sender if "<" in sender else mailbox(author.optional("Name"), sender),
            event_id=document.text("MessageID"),
            recipients=[document.get("OriginalRecipient")],
            to=[document.get("To")],
            cc=[document.get("Cc"), document.get("Bcc")],
            reply_to=[document.get("ReplyTo")],
            reply_text=document.optional("StrippedTextReply"),
            files=document.files("Attachments", FILE),
            spam=headers.named(SPAM_HEADERS),
            original=document.content("RawEmail") or None,
            verdicts=_verdicts(headers["X-Spam-Tests"]) if "postmark" in self._trusted else (),
            extra=document.unread,
        )
        return [email]

    def _document(self, letter: Letter) -> dict[str, Any]:
        headers = {"X-Spam-Status": "No", "X-Spam-Score": "-0.1", "Message-ID": letter.message_id, **dict(letter.more)}
        return {
            **letter.texts(TEXTS),
            "From": letter.sender,
            "To": letter.to,
            "Cc": letter.headers.get("Cc", ""),
            "OriginalRecipient": INBOX,
            "MessageID": letter.event_id,
            "StrippedTextReply": letter.text,
            "Headers": [{"Name": name, "Value": value} for name, value in headers.items()],
            "Attachments": letter.attachments(FILE),
        }


def _verdicts(tests: str) -> list[Result]:
    """Of the rules of SpamAssassin that matched. Postmark adds the header, and may pass a sender's own one on."""
    by_rule = {
        "SPF_PASS": Result("spf", "pass"),
        "SPF_FAIL": Result("spf", "fail"),
        "SPF_SOFTFAIL": Result("spf", "fail"),
        "SPF_NONE": Result("spf", "none"),
        "DKIM_VALID": Result("dkim", "pass"),
        "DKIM_INVALID": Result("dkim", "fail"),
    }
    return [by_rule[rule] for rule in map(str.strip, tests.split(",")) if rule in by_rule]
