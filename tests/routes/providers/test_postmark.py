"""POST /api/ingress/postmark."""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from typing import Any

import pytest

from routes.providers.samples import SampleRequest
from tests.routes.providers.conftest import LETTER, Serve, email_in, provider_of, with_body
from tests.routes.providers.contract import BasicAuthContract, json_with

CHECK_ID = "73e6d360-66eb-11e1-8e72-a8904824019b"

# As in https://postmarkapp.com/developer/webhooks/inbound-webhook, but for the MessageID, which there is CHECK_ID
DOCUMENTED: dict[str, Any] = {
    "FromName": "Postmarkapp Support",
    "MessageStream": "inbound",
    "From": "support@postmarkapp.com",
    "FromFull": {"Email": "support@postmarkapp.com", "Name": "Postmarkapp Support", "MailboxHash": ""},
    "To": '"Lastname, other@example.net" <yourhash+SampleHash@inbound.postmarkapp.com>',
    "ToFull": [{"Email": "yourhash+SampleHash@inbound.postmarkapp.com", "Name": "", "MailboxHash": "SampleHash"}],
    "Cc": '"First Cc" <firstcc@postmarkapp.com>, secondCc@postmarkapp.com',
    "Bcc": '"First Bcc" <firstbcc@postmarkapp.com>',
    "OriginalRecipient": "yourhash+SampleHash@inbound.postmarkapp.com",
    "Subject": "Test subject",
    "MessageID": "b7bc2f4a-e38e-4336-af7d-e6c392c2f817",
    "ReplyTo": "replyto@postmarkapp.com",
    "MailboxHash": "SampleHash",
    "Date": "Fri, 1 Aug 2014 16:45:32 -04:00",
    "TextBody": "This is a test text body.",
    "HtmlBody": "<html><body><p>This is a test html body.</p></body></html>",
    "StrippedTextReply": "This is the reply text",
    "Tag": "TestTag",
    "Headers": [
        {"Name": "X-Spam-Status", "Value": "No"},
        {"Name": "X-Spam-Score", "Value": "-0.1"},
        {"Name": "X-Spam-Tests", "Value": "DKIM_SIGNED,DKIM_VALID,DKIM_VALID_AU,SPF_PASS"},
        {"Name": "Message-ID", "Value": "<original@mail.example.org>"},
        {"Name": "In-Reply-To", "Value": "<earlier@mail.example.org>"},
    ],
    "Attachments": [
        {
            "Name": "test.txt",
            "Content": "VGhpcyBpcyBhdHRhY2htZW50IGNvbnRlbnRzLCBiYXNlLTY0IGVuY29kZWQu",
            "ContentType": "text/plain",
            "ContentLength": 45,
        }
    ],
}

# As in https://postmarkapp.com/developer/webhooks/bounce-webhook
BOUNCE: dict[str, Any] = {
    "RecordType": "Bounce",
    "MessageStream": "outbound",
    "ID": 4323372036854775807,
    "Type": "HardBounce",
    "TypeCode": 1,
    "Name": "Hard bounce",
    "Tag": "Test",
    "MessageID": "883953f4-6105-42a2-a16a-77a8eac79483",
    "ServerID": 23,
    "Description": "The server was unable to deliver your message (ex: unknown user, mailbox not found).",
    "Details": "Test bounce details",
    "Email": "john@example.com",
    "From": "sender@example.com",
    "BouncedAt": "2026-11-05T16:33:54.9070259Z",
    "DumpAvailable": True,
    "Inactive": True,
    "CanActivate": True,
    "Subject": "Test subject",
    "Content": "<Full dump of bounce>",
}


class TestPostmark(BasicAuthContract):
    name = "postmark"
    rejected = 403
    wrong_content_type = 403

    def documented(self, **changes: Any) -> SampleRequest:
        return json_with(with_body(self.request(self.settings), json.dumps(DOCUMENTED).encode()), **changes)

    @pytest.mark.parametrize(
        ("name", "sender"),
        [
            ("Ada Lovelace", "Ada Lovelace <support@postmarkapp.com>"),
            ("Lovelace, Ada", '"Lovelace, Ada" <support@postmarkapp.com>'),
            ('Ada "the" <ceo@bank.example>', '"Ada \\"the\\" <ceo@bank.example>" <support@postmarkapp.com>'),
            ("", "support@postmarkapp.com"),
            (None, "support@postmarkapp.com"),
        ],
    )
    def test_the_senders_name_is_kept_and_brings_in_no_address(self, name: str | None, sender: str) -> None:
        request = self.documented(FromFull={"Email": "support@postmarkapp.com", "Name": name})
        email = email_in(provider_of(self.settings, self.name), request)
        assert (email.sender, email.sender_email) == (sender, "support@postmarkapp.com")

    def test_the_documented_email_is_parsed(self) -> None:
        email = email_in(provider_of(self.settings, self.name), self.documented())
        assert (email.subject, email.sender) == ("Test subject", "Postmarkapp Support <support@postmarkapp.com>")
        assert email.date_utc is not None
        assert email.date_utc.isoformat() == "2014-08-01T20:45:32+00:00"
        assert email.body == "<html><body><p>This is a test html body.</p></body></html>"
        assert email.plain == "This is a test text body."
        assert email.message_id == "<original@mail.example.org>"
        assert email.event_id == "postmark:b7bc2f4a-e38e-4336-af7d-e6c392c2f817"
        assert email.recipients == (
            "yourhash+samplehash@inbound.postmarkapp.com",
            "firstcc@postmarkapp.com",
            "secondcc@postmarkapp.com",
            "firstbcc@postmarkapp.com",
        )
        (attachment,) = email.attachments
        assert (attachment.name, attachment.content_type, attachment.size_bytes) == ("test.txt", "text/plain", 45)
        assert attachment.sha256 == sha256(b"This is attachment contents, base-64 encoded.").hexdigest()
        assert attachment.content is None
        assert email.spam == {
            "X-Spam-Status": "No",
            "X-Spam-Score": "-0.1",
            "X-Spam-Tests": "DKIM_SIGNED,DKIM_VALID,DKIM_VALID_AU,SPF_PASS",
        }
        assert email.extra == {"in_reply_to": "<earlier@mail.example.org>"}

    def test_the_request_of_its_check_button_is_accepted(self, serve: Serve) -> None:
        data = [{"Name": "a.txt", "Data": b64encode(b"abc").decode(), "ContentType": "text/plain"}]
        email = email_in(provider_of(self.settings, self.name), self.documented(Attachments=data))
        assert [each.size_bytes for each in email.attachments] == [3]
        assert serve(self.settings).post(self.documented(Attachments=data)).status_code == 200

    @pytest.mark.parametrize("constant", [CHECK_ID, "22c74902-a0c1-4511-804f2-341342852c90"])
    def test_each_test_by_its_check_button_is_an_email_of_its_own(self, serve: Serve, constant: str) -> None:
        """They all carry the same MessageID, and no Message-ID at all."""
        dates = [f"Mon, 16 Nov 2026 09:0{minute}:00 -05:00" for minute in (1, 2)]
        ingress = serve(self.settings)
        tests = [self.documented(MessageID=constant, Headers=[], Date=date) for date in dates]
        assert [ingress.status_of(each) for each in (*tests, tests[0])] == [
            "processed",
            "processed",
            "already_processed",
        ]

    @pytest.mark.parametrize(
        "record",
        [
            BOUNCE,
            {name: value for name, value in BOUNCE.items() if name != "RecordType"},
            BOUNCE | {"RecordType": "SpamComplaint", "Type": "SpamComplaint", "TypeCode": 512},
            {"RecordType": "Delivery", "MessageID": "883953f4-6105-42a2-a16a-77a8eac79483", "Tag": "welcome"},
            {"RecordType": "SubscriptionChange", "MessageID": None, "Origin": "Recipient"},
        ],
    )
    def test_events_of_its_other_webhooks_are_ignored(self, serve: Serve, record: dict[str, Any]) -> None:
        ingress = serve(self.settings)
        answer = ingress.post(with_body(self.request(self.settings), json.dumps(record).encode()))
        assert (answer.status_code, answer.get_json()["status"]) == (200, "no_email")
        assert (ingress.recorded, ingress.delivered) == ([], [])

    def test_an_email_may_say_that_it_is_one(self, serve: Serve) -> None:
        assert serve(self.settings).status_of(self.documented(RecordType="Inbound")) == "processed"

    @pytest.mark.parametrize("field", ["Subject", "From", "Date", "TextBody", "HtmlBody", "MessageID"])
    def test_a_part_of_another_type_is_named(self, serve: Serve, field: str) -> None:
        answer = serve(self.settings).post(self.documented(**{field: 5}))
        assert (answer.status_code, answer.get_json()["field"]) == (403, field)

    @pytest.mark.parametrize("odd", [5, "x", {}, [5], [{}], [{"Name": 5, "Content": "!", "ContentType": []}], [[]]])
    @pytest.mark.parametrize("field", ["Headers", "Attachments", "To", "Cc"])
    def test_invalid_optional_parts_do_not_reject_the_email(self, serve: Serve, field: str, odd: Any) -> None:
        assert serve(self.settings).post(self.documented(**{field: odd})).status_code == 200

    def test_by_default_not_even_an_empty_attachment_comes_along(self) -> None:
        empty = [{"Name": "empty.txt", "Content": "", "ContentType": "text/plain", "ContentLength": 0}]
        email = email_in(provider_of(self.settings, self.name), self.documented(Attachments=empty))
        assert [(each.size_bytes, each.content) for each in email.attachments] == [(0, None)]

    def test_attachments_come_along_where_they_are_wanted(self, serve: Serve) -> None:
        settings = f"{self.settings}\nattachments = 'inline'\nattachments_max_mb = 0.000983"
        ingress = serve(settings)
        ingress.post(self.request(settings))
        (payload,) = ingress.delivered
        small, big = payload["attachments"]
        assert small["content"] == b64encode(LETTER.enclosures[0].content).decode()
        assert "content" not in big, "1030 bytes is the limit, for all of an email together"
        assert big["sha256"] == sha256(LETTER.enclosures[1].content).hexdigest()
