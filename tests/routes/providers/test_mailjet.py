"""POST /api/ingress/mailjet, as in https://dev.mailjet.com/email/guides/parse-api/"""

from __future__ import annotations

from tests.routes.providers.conftest import email_in, provider_of
from tests.routes.providers.contract import BasicAuthContract, DocumentedContract


class TestMailjet(DocumentedContract, BasicAuthContract):
    name = "mailjet"
    probed = 200
    optional = ("Parts", "Recipient", "SpamAssassinScore", "Attachment1")
    expected = {
        "subject": "Hey! It's Friday!",
        "sender": "Pilot <pilot@mailjet.com>",
        "date": "Fri, 10 Apr 2015 18:06:38 +0200",
        "message_id": "<CAE5Zh0ZpHZ6G5DC@mail.gmail.com>",
        "recipients": ("passenger@mailjet.com",),
        "to": ("passenger@mailjet.com", "crew@mailjet.com"),
        "cc": ("tower@mailjet.com",),
        "text": "Hi, Important notice: it's Friday.",
        "plain": "Hi,\n\nImportant notice: it's Friday.\n",
        "spam": {"SpamAssassinScore": "0.602"},
    }
    files = [("helloworld.txt", "text/plain", 12, b"Hello World!"), ("été.png", "image/png", 3, b"\0\1\2")]

    def test_without_the_header_its_own_date_is_the_same_moment_in_utc(self) -> None:
        provider = provider_of(self.settings, self.name)
        headers = {name: value for name, value in self.documented_email["Headers"].items() if name != "Date"}
        own = email_in(provider, self.documented(Headers=headers))
        assert own.date == "20150410T160638"
        assert own.date_utc == email_in(provider, self.documented()).date_utc
