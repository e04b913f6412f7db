"""POST /api/ingress/brevo."""

from __future__ import annotations

import json
from typing import Any

import pytest

from routes.providers.samples import SampleRequest
from tests.routes.providers.conftest import Ingress, Serve, email_in, provider_of, with_body
from tests.routes.providers.contract import BasicAuthContract
from tests.support.redis_server import free_port

# As in https://developers.brevo.com/docs/inbound-parse-webhooks, and as observed
DOCUMENTED: dict[str, Any] = {
    "Uuid": ["aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"],
    "MessageId": "<ABCDE12345@mail.example.com>",
    "InReplyTo": None,
    "From": {"Name": "Sender Name", "Address": "from@example.com"},
    "To": [{"Name": None, "Address": "test@in.example.dev"}, {"Name": "Second", "Address": "Second@in.example.dev"}],
    "Cc": [{"Name": None, "Address": "cc@in.example.dev"}],
    "ReplyTo": None,
    "SentAtDate": "Mon, 17 Jul 2023 11:11:22 -0700",
    "Subject": "Testing Brevo inbound",
    "Attachments": [
        {
            "Name": "facture.pdf",
            "ContentType": "application/pdf",
            "ContentLength": 4711,
            "ContentID": None,
            "DownloadToken": "eyJmb2xkZXIiOiIyMDIz",
        }
    ],
    "Headers": {
        "Received": ["by outbound.example.com for <test@in.example.dev>", "from [10.10.1.22] by smtp.example.com"],
        "From": "Sender Name <from@example.com>",
        "Date": "Mon, 17 Jul 2023 11:11:22 -0700",
        "Message-ID": "<ABCDE12345@mail.example.com>",
        "Subject": "Testing Brevo inbound",
        "List-Id": "<list.example.com>",
    },
    "SpamScore": 2.9,
    "ExtractedMarkdownMessage": "This is a test message.  \n",
    "RawHtmlBody": '<div dir="ltr">This is a <u>test message</u>.</div>\r\n',
    "RawTextBody": "This is a *test message*.\r\n",
}


class TestBrevo(BasicAuthContract):
    """A 5xx would make it throw the email away."""

    name = "brevo"
    retry = 429
    failure = 429

    def documented(self, *items: Any) -> SampleRequest:
        return with_body(self.request(self.settings), json.dumps({"items": items or [DOCUMENTED]}).encode())

    def test_the_documented_email_is_parsed(self) -> None:
        email = email_in(provider_of(self.settings, self.name), self.documented())
        assert email.subject == "Testing Brevo inbound"
        assert email.sender == "Sender Name <from@example.com>"
        assert email.date == "Mon, 17 Jul 2023 11:11:22 -0700"
        assert email.message_id == "<ABCDE12345@mail.example.com>"
        assert email.event_id == "brevo:aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
        assert email.recipients == ("test@in.example.dev", "second@in.example.dev", "cc@in.example.dev")
        assert email.body.startswith("<div")
        assert email.plain == "This is a *test message*.\r\n"
        assert email.spam == {"SpamScore": "2.9"}
        (attachment,) = email.attachments
        assert (attachment.name, attachment.size_bytes, attachment.sha256) == ("facture.pdf", 4711, "")
        assert email.extra == {"list_id": "<list.example.com>", "attachments": DOCUMENTED["Attachments"]}

    def test_the_sender_is_found_without_headers_too(self) -> None:
        provider = provider_of(self.settings, self.name)
        for person, written in [
            ({"Name": "Sender Name", "Address": "from@example.com"}, "Sender Name <from@example.com>"),
            ({"Name": None, "Address": "from@example.com"}, "from@example.com"),
            ("from@example.com", ""),
        ]:
            assert email_in(provider, self.documented(DOCUMENTED | {"Headers": {}, "From": person})).sender == written

    # Several emails in one request

    def several(self, count: int = 3) -> list[dict[str, Any]]:
        return [
            DOCUMENTED | {"Uuid": [f"uuid-{each}"], "MessageId": f"<{each}@x.org>", "RawHtmlBody": f"<p>{each}</p>"}
            for each in range(count)
        ]

    def test_each_of_several_gets_its_own_verdict(self, serve: Serve) -> None:
        ingress = serve(self.settings)
        first, second, third = self.several()
        ingress.post(self.documented(second))
        answer = ingress.post(self.documented(first, second, third))
        assert answer.status_code == 200
        body = answer.get_json()
        assert body["success"] is True
        assert [each["status"] for each in body["results"]] == ["processed", "already_processed", "processed"]
        assert all(each["email_id"] for each in body["results"])
        assert len(ingress.delivered) == 3

    def test_a_retry_of_the_whole_request_repeats_nothing(self, serve: Serve) -> None:
        ingress = serve(self.settings)
        request = self.documented(*self.several())
        assert [ingress.post(request).status_code for _ in range(2)] == [200, 200]
        assert len(ingress.delivered) == 3

    @pytest.mark.parametrize("bad", [5, None, [], "x", {}, DOCUMENTED | {"Subject": 5}])
    def test_an_invalid_email_does_not_stop_the_others(self, serve: Serve, bad: Any) -> None:
        ingress = serve(self.settings)
        first, second = self.several(2)
        answer = ingress.post(self.documented(first, bad, second))
        assert answer.status_code == 400, "rejected for good: trying again would help nobody"
        statuses = [each["status"] for each in answer.get_json()["results"]]
        assert statuses == ["processed", "invalid", "processed"]
        assert len(ingress.delivered) == 2

    def test_if_one_has_to_be_retried_the_whole_request_is(self, serve: Serve) -> None:
        away = f"redis://127.0.0.1:{free_port()}/0"
        ingress: Ingress = serve(self.settings, redis_url=away, on_store_failure="closed")
        answer = ingress.post(self.documented(*self.several(2), 5))
        assert answer.status_code == 429
        assert int(answer.headers["Retry-After"]) > 0
        assert [each["status"] for each in answer.get_json()["results"]] == ["retry_later", "retry_later", "invalid"]

    @pytest.mark.parametrize("items", [None, [], {}, "x", 5])
    def test_a_request_without_items_is_rejected(self, serve: Serve, items: Any) -> None:
        request = with_body(self.request(self.settings), json.dumps({"items": items}).encode())
        answer = serve(self.settings).post(request)
        assert (answer.status_code, answer.get_json()["field"]) == (400, "items")

    @pytest.mark.parametrize("odd", [5, "x", {}, [], [5], [{}], {"Score": 1}])
    @pytest.mark.parametrize("field", ["Uuid", "To", "Cc", "Attachments", "SpamScore", "From"])
    def test_invalid_optional_parts_do_not_reject_the_email(self, serve: Serve, field: str, odd: Any) -> None:
        assert serve(self.settings).post(self.documented(DOCUMENTED | {field: odd})).status_code == 200
