"""POST /api/ingress/postmark, as in https://postmarkapp.com/developer/webhooks/inbound-webhook"""

import json
from base64 import b64encode
from collections.abc import Iterable
from typing import Any

import pytest

from routes.providers.samples import SampleRequest
from tests.routes.providers.conftest import Serve
from tests.routes.providers.contract import DOCUMENTED, BasicAuthContract, DocumentedContract

# https://postmarkapp.com/developer/webhooks/bounce-webhook
BOUNCE: dict[str, Any] = json.loads((DOCUMENTED / "postmark-bounce.json").read_text())


class TestPostmark(DocumentedContract, BasicAuthContract):
    name = "postmark"
    rejected = too_large = 403
    wrong_content_type = 403
    optional = ("FromFull", "Headers", "Attachments", "To", "Cc")

    @pytest.mark.parametrize(
        ("name", "sender"),
        [
            ("Lovelace, Ada", '"Lovelace, Ada" <support@postmarkapp.com>'),
            ('Ada "the" <ceo@bank.example>', '"Ada \\"the\\" <ceo@bank.example>" <support@postmarkapp.com>'),
            ("", "support@postmarkapp.com"),
            (None, "support@postmarkapp.com"),
        ],
    )
    def test_the_senders_name_is_kept_and_brings_in_no_address(self, name: str | None, sender: str) -> None:
        request = self.documented(FromFull={"Email": "support@postmarkapp.com", "Name": name})
        email = self.read(request)
        assert (email.sender, email.sender_email) == (sender, "support@postmarkapp.com")

    @pytest.mark.parametrize(
        "constant", ["73e6d360-66eb-11e1-8e72-a8904824019b", "22c74902-a0c1-4511-804f2-341342852c90"]
    )
    def test_each_test_by_its_check_button_is_an_email_of_its_own(self, serve: Serve, constant: str) -> None:
        """They all carry the same MessageID, no Message-ID at all, and attachments as Data."""
        data = [{"Name": "a.txt", "Data": b64encode(b"abc").decode(), "ContentType": "text/plain"}]
        dates = [f"Mon, 16 Nov 2026 09:0{minute}:00 -05:00" for minute in (1, 2, 1)]
        ingress = serve(self.settings)
        tests = [self.documented(MessageID=constant, Headers=[], Attachments=data, Date=date) for date in dates]
        assert [ingress.status_of(each) for each in tests] == ["processed", "processed", "already_processed"]
        assert [each["size_bytes"] for each in ingress.delivered[0]["attachments"]] == [3]

    def ignored(self) -> Iterable[SampleRequest]:
        """Events of its other webhooks."""
        records: list[dict[str, Any]] = [
            BOUNCE,
            {name: value for name, value in BOUNCE.items() if name != "RecordType"},
            BOUNCE | {"RecordType": "SpamComplaint", "Type": "SpamComplaint"},
            {"RecordType": "Delivery", "MessageID": "883953f4-6105-42a2-a16a-77a8eac79483", "Tag": "welcome"},
            {"RecordType": "SubscriptionChange", "MessageID": None, "Origin": "Recipient"},
        ]
        return [self.with_proof_of(json.dumps(record).encode()) for record in records]

    def invalid_requests(self) -> Iterable[tuple[SampleRequest, str | None]]:
        fields = ("Subject", "From", "Date", "TextBody", "HtmlBody", "MessageID")
        return [(self.documented(**{field: 5}), field) for field in fields]
