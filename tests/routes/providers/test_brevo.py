"""POST /api/ingress/brevo, as in https://developers.brevo.com/docs/inbound-parse-webhooks, and as observed."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from orchestrator.item import Item
from orchestrator.pipeline import Outcome, Pipeline
from routes.providers.samples import SampleRequest
from tests.routes.providers.conftest import Serve, email_in, provider_of, with_body
from tests.routes.providers.contract import BasicAuthContract, DocumentedContract


class TestBrevo(DocumentedContract, BasicAuthContract):
    """A 5xx would make it discard the email."""

    name = "brevo"
    retry = 429
    failure = 429
    optional = ("Uuid", "To", "Cc", "Attachments", "SpamScore", "From")

    def items(self, *items: Any) -> SampleRequest:
        return with_body(self.request(self.settings), json.dumps({"items": items}).encode())

    def documented(self, **changes: Any) -> SampleRequest:
        return self.items(self.documented_email | changes)

    def invalid_requests(self) -> Iterable[tuple[SampleRequest, str | None]]:
        without: list[Any] = [None, [], {}, "x", 5]
        return [(self.with_proof_of(json.dumps({"items": items}).encode()), "items") for items in without]

    def test_the_download_tokens_of_attachments_are_handed_on(self) -> None:
        email = self.read(self.documented())
        files = self.documented_email["Attachments"]
        assert (email.header("List-Id"), email.extra["attachments"]) == ("<list.example.com>", files)

    def test_the_sender_is_found_without_headers_too(self) -> None:
        provider = provider_of(self.settings, self.name)
        for person, written in [
            ({"Name": "Sender Name", "Address": "from@example.com"}, "Sender Name <from@example.com>"),
            ({"Name": None, "Address": "from@example.com"}, "from@example.com"),
            ("from@example.com", ""),
        ]:
            assert email_in(provider, self.documented(Headers={}, From=person)).sender == written

    # Several emails in one request

    def several(self, count: int = 3) -> list[dict[str, Any]]:
        ids = [{"Uuid": [f"uuid-{n}"], "MessageId": f"<{n}@x.org>", "RawHtmlBody": f"<p>{n}</p>"} for n in range(count)]
        return [self.documented_email | {"Headers": {}} | each for each in ids]

    @pytest.mark.parametrize("bad", [5, None, [], "x", {}, {"Subject": 5}])
    def test_an_invalid_email_does_not_stop_the_others(self, serve: Serve, bad: Any) -> None:
        ingress = serve(self.settings)
        first, second = self.several(2)
        answer = ingress.post(self.items(first, bad, second))
        assert answer.status_code == 400, "rejected for good: trying again would help nobody"
        statuses = [each["status"] for each in answer.get_json()["results"]]
        assert statuses == ["processed", "invalid", "processed"]
        assert len(ingress.delivered) == 2

    def test_an_internal_error_with_one_stops_no_others(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        receive = Pipeline.receive

        def fail_once(pipeline: Pipeline, item: Item) -> Outcome:
            if "0@x.org" in item.payload(())["message_id"]:
                raise RuntimeError("inner details")
            return receive(pipeline, item)

        monkeypatch.setattr(Pipeline, "receive", fail_once)
        answer = serve(self.settings).post(self.items(*self.several(2), 5))
        assert (answer.status_code, "inner details" in answer.text) == (429, False)
        assert int(answer.headers["Retry-After"]) > 0
        assert [each["status"] for each in answer.get_json()["results"]] == ["retry_later", "processed", "invalid"]
