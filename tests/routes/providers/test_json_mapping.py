"""POST /api/ingress/<name>, for whatever else sends JSON."""

import json
from dataclasses import replace
from typing import Any

import pytest

from routes.providers.samples import SampleRequest
from tests.routes.providers.conftest import Serve, email_in, provider_of, request_of, with_body, with_headers
from tests.routes.providers.contract import BasicAuthContract, ProviderContract
from tests.support.server import INGRESS_TOKEN

FIELDS = (
    'fields = { subject = "mail.headers.subject", sender = "mail.from", date = "mail.received.0.at", '
    'body = "mail.html", plain = "mail.text", message_id = "mail.id", event_id = "event.number", '
    'recipient = "mail.to" }'
)
UNMAPPED = "[providers.desk]\ntype = 'json'"
DESK = f"{UNMAPPED}\n{FIELDS}"
DOCUMENT: dict[str, dict[str, Any]] = {
    "event": {"number": 4711},
    "mail": {
        "headers": {"subject": "=?utf-8?q?=C3=89t=C3=A9?="},
        "from": "Ada <ada@example.org>",
        "received": [{"at": 1794819600}, {"at": 5}],
        "html": "<p>Voilà</p>",
        "text": "Voilà",
        "id": "<1@example.org>",
        "to": ["inbox@in.example.com", "Bob <bob@example.org>"],
    },
}


class TestJson(ProviderContract):
    """With a token of its own."""

    name = "desk"
    settings = f"{DESK}\ntoken = 'first token'"
    other_secret = f"{DESK}\ntoken = 'second token'"
    rotated = f"{DESK}\ntoken = ['second token', 'first token']"
    invalid = {
        f"{DESK}\ntoken = ''": r"providers\.desk\.token must not be empty",
        f"{UNMAPPED}\nfields = {{ subject = 'a', colour = 'b' }}": "desk.fields must be some of .*, got 'colour'",
        f"{UNMAPPED}\nfields = {{ subject = 5 }}": "providers.desk.fields must be a table",
        f"{UNMAPPED}\nfields = {{ subject = 'a' }}": "providers.desk.fields must say where the sender is",
        f"{UNMAPPED}\nfields = {{ sender = 'a', date = 'b' }}": "desk.fields must say where the body or an event id is",
    }
    probed = 200

    def test_a_provider_without_settings_is_refused(self, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
        ingress = serve()
        assert ingress.post(self.request(self.settings)).status_code == 404
        answer = ingress.post(replace(self.request(self.settings), path="/api/ingress/json"))
        assert (answer.status_code, "[providers.json]" in answer.get_json()["error"]) == (404, True)

    def test_with_a_token_of_its_own_the_services_is_not_taken(self, serve: Serve) -> None:
        ingress = serve(self.settings)
        request = with_headers(self.request(self.settings), authorization=f"Bearer {INGRESS_TOKEN}")
        self.assert_unauthorized(ingress, ingress.post(request))

    def document(self, document: Any) -> SampleRequest:
        return with_body(self.request(self.settings), json.dumps(document).encode())

    def test_every_part_is_found_where_the_mapping_says(self) -> None:
        email = self.read(self.document(DOCUMENT))
        assert email.clean_subject == "Été"
        assert email.sender == "Ada <ada@example.org>"
        assert email.date_utc is not None
        assert email.date_utc.isoformat() == "2026-11-16T09:00:00+00:00"
        assert (email.body, email.plain) == ("<p>Voilà</p>", "Voilà")
        assert (email.message_id, email.event_id) == ("<1@example.org>", "desk:4711")
        assert email.recipients == ("inbox@in.example.com", "bob@example.org")
        assert email.provider == "desk"

    def test_html_is_html_where_the_mapping_says_so(self) -> None:
        settings = "[providers.json]\nfields = { sender = 'sender', html = 'content' }"
        document = {"sender": "ada@example.org", "content": "Fish &amp; chips"}
        request = with_body(request_of(settings, "json"), json.dumps(document).encode())
        email = email_in(provider_of(settings, "json"), request)
        assert (email.html, email.plain, email.text) == ("Fish &amp; chips", "", "Fish & chips")

    def test_all_but_the_sender_may_be_missing_or_at_another_path(self) -> None:
        provider = provider_of(self.settings, self.name)
        for part in ("headers", "received", "html", "text", "id", "to"):
            mail = {name: value for name, value in DOCUMENT["mail"].items() if name != part}
            assert email_in(provider, self.document({"mail": mail})).sender
        without: list[Any] = [[], {}, "x", 5, [5], None]
        for received in without:
            document = {"mail": DOCUMENT["mail"] | {"received": received}}
            assert email_in(provider, self.document(document)).date == ""

    def test_a_forged_email_does_not_suppress_one_whose_mapped_body_is_missing(self, serve: Serve) -> None:
        mail = {"headers": {"subject": "Alarm"}, "from": "a@b.org", "received": [{"at": 1794819600}]}
        ingress = serve(self.settings)
        requests = [self.document({"mail": sent}) for sent in (mail | {"text": "forged"}, mail, mail)]
        assert [ingress.status_of(request) for request in requests] == ["processed", "processed", "already_processed"]

    def test_without_a_body_the_event_id_decides(self, serve: Serve) -> None:
        settings = f"{UNMAPPED}\nfields = {{ sender = 'from', event_id = 'number' }}\ntoken = 'first token'"
        mail = {"from": "a@b.org", "subject": "Alarm", "date": "2026-11-16T09:00:00Z"}
        ingress = serve(settings)
        requests = [self.document(mail | {"number": number}) for number in (1, 2, 1, 2)]
        expected = ["processed", "processed", "already_processed", "already_processed"]
        assert [ingress.status_of(request) for request in requests] == expected

    def test_an_invalid_value_is_named_by_its_path(self, serve: Serve) -> None:
        ingress = serve(self.settings)
        for mail, field in (
            ({}, "mail.from"),
            ({"from": "nobody"}, "mail.from"),
            ({"from": ["a@b.org"]}, "mail.from"),
            ({"from": "a@b.org", "html": {"x": 1}}, "mail.html"),
            ({"from": "a@b.org", "html": True}, "mail.html"),
        ):
            answer = ingress.post(self.document({"mail": mail}))
            assert (answer.status_code, answer.get_json()["field"]) == (400, field)

    @pytest.mark.parametrize("items", ["", "events.0.list"])
    def test_a_list_is_several_emails(self, serve: Serve, items: str) -> None:
        settings = f"{self.settings}\nitems = '{items}'"
        several: list[Any] = [
            {"mail": {"from": "a@b.org", "text": "1"}},
            {"mail": {"from": "a@b.org", "text": "2"}},
            {"mail": {"from": "a@b.org", "text": "1"}},
        ]
        body = {"events": [{"list": several}]} if items else several
        ingress = serve(settings)
        answer = ingress.post(self.document(body))
        assert answer.status_code == 200
        statuses = [each["status"] for each in answer.get_json()["results"]]
        assert statuses == ["processed", "processed", "already_processed"]
        assert ingress.post(self.document(body)).status_code == 200
        assert [each["body"] for each in ingress.delivered] == ["1", "2"]

    def test_a_list_has_one_to_a_thousand(self, serve: Serve) -> None:
        ingress = serve(self.settings)
        for count in (0, 1001):
            answer = ingress.post(self.document([{}] * count))
            error = f"the body must have 1 to 1000 emails, got {count}"
            assert (answer.status_code, answer.get_json()["error"]) == (400, error)


class TestJsonWithAPassword(BasicAuthContract):
    name = "desk"
    section = DESK
    probed = 200

    test_a_provider_without_settings_is_refused = TestJson.test_a_provider_without_settings_is_refused


def test_ids_of_two_senders_do_not_get_mixed_up(serve: Serve) -> None:
    """[providers.name] without anything else accepts the ingress token, and each part has its own name."""
    toml = "[providers.one]\ntype = 'json'\n[providers.two]\ntype = 'json'"
    ingress = serve(toml)
    for name in ("one", "two"):
        body = json.dumps({"sender": "ada@example.org", "event_id": "1", "subject": name}).encode()
        assert ingress.status_of(with_body(request_of(toml, name), body)) == "processed"
