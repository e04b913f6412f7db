"""POST /api/ingress/mailjet, as in https://dev.mailjet.com/email/guides/parse-api/"""

from tests.routes.providers.conftest import email_in, provider_of
from tests.routes.providers.contract import BasicAuthContract, DocumentedContract


class TestMailjet(DocumentedContract, BasicAuthContract):
    name = "mailjet"
    probed = 200
    optional = ("Parts", "Recipient", "SpamAssassinScore", "Attachment1")

    def test_without_the_header_its_own_date_is_the_same_moment_in_utc(self) -> None:
        provider = provider_of(self.settings, self.name)
        headers = {name: value for name, value in self.documented_email["Headers"].items() if name != "Date"}
        own = email_in(provider, self.documented(Headers=headers))
        assert own.date == "20150410T160638"
        assert own.date_utc == email_in(provider, self.documented()).date_utc
