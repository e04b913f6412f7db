"""POST /api/ingress/postmark, as in https://postmarkapp.com/developer/webhooks/inbound-webhook"""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from routes.providers.samples import SampleRequest
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
