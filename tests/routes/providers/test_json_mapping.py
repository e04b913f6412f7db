"""POST /api/ingress/<name>, for whatever else sends JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.config.settings import SettingsError
from routes.providers.samples import Letter, SampleRequest
from tests.routes.providers.conftest import (
    LETTER,
    Serve,
    email_in,
    provider_of,
    request_of,
    with_body,
    with_headers,
)
from tests.routes.providers.contract import BasicAuthContract, ProviderContract
from tests.support.server import INGRESS_TOKEN

FIELDS = (
    'fields = { subject = "mail.headers.subject", sender = "mail.from", date = "mail.received.0.at", '
    'body = "mail.html", plain = "mail.text", message_id = "mail.id", event_id = "event.number", '
    'recipient = "mail.to" }'
)
DESK = f"[providers.desk]\ntype = 'json'\n{FIELDS}"
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
    without_secret = f"{DESK}\ntoken = ''"
    complaint = r"providers\.desk takes no empty token or password"
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
        email = email_in(provider_of(self.settings, self.name), self.document(DOCUMENT))
        assert email.clean_subject == "Été"
        assert email.sender == "Ada <ada@example.org>"
        assert email.date_utc is not None
        assert email.date_utc.isoformat() == "2026-11-16T09:00:00+00:00"
        assert (email.body, email.plain) == ("<p>Voilà</p>", "Voilà")
        assert (email.message_id, email.event_id) == ("<1@example.org>", "desk:4711")
        assert email.recipients == ("inbox@in.example.com", "bob@example.org")
        assert email.provider == "desk"

    @pytest.mark.parametrize(
        ("mail", "html", "plain"),
        [
            ({"html": "Host <web1> is down"}, "", "Host <web1> is down"),
            ({"html": "Host <b>web1</b> is down"}, "Host <b>web1</b> is down", ""),
            ({"html": "Fish &amp; chips", "text": "Fish & chips"}, "Fish &amp; chips", "Fish & chips"),
        ],
    )
    def test_a_body_is_html_where_it_looks_like_it_or_stands_beside_a_text(
        self, mail: dict[str, str], html: str, plain: str
    ) -> None:
        kept = {name: value for name, value in DOCUMENT["mail"].items() if name not in ("html", "text")}
        email = email_in(provider_of(self.settings, self.name), self.document(DOCUMENT | {"mail": kept | mail}))
        assert (email.html, email.plain) == (html, plain)

    def test_html_is_html_where_the_mapping_says_so(self) -> None:
        settings = "[providers.json]\nfields = { sender = 'sender', html = 'content' }"
        document = {"sender": "ada@example.org", "content": "Fish &amp; chips"}
        request = with_body(request_of(settings, "json"), json.dumps(document).encode())
        email = email_in(provider_of(settings, "json"), request)
        assert (email.html, email.plain, email.text) == ("Fish &amp; chips", "", "Fish & chips")

    @pytest.mark.parametrize("part", ["headers", "received", "html", "text", "id", "to"])
    def test_all_but_the_sender_may_be_missing(self, serve: Serve, part: str) -> None:
        mail = {name: value for name, value in DOCUMENT["mail"].items() if name != part}
        assert serve(self.settings).post(self.document({"mail": mail})).status_code == 200

    @pytest.mark.parametrize("received", [[], {}, "x", 5, [5], None])
    def test_a_path_without_a_value_finds_nothing(self, received: Any) -> None:
        document = {"mail": DOCUMENT["mail"] | {"received": received}}
        assert email_in(provider_of(self.settings, self.name), self.document(document)).date == ""

    @pytest.mark.parametrize(
        ("mail", "field"),
        [
            ({}, "mail.from"),
            ({"from": "nobody"}, "mail.from"),
            ({"from": ["a@b.org"]}, "mail.from"),
            ({"from": "a@b.org", "html": {"x": 1}}, "mail.html"),
            ({"from": "a@b.org", "html": True}, "mail.html"),
        ],
    )
    def test_an_invalid_value_is_named_by_its_path(self, serve: Serve, mail: dict[str, Any], field: str) -> None:
        answer = serve(self.settings).post(self.document({"mail": mail}))
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

    @pytest.mark.parametrize("body", [[], [{}] * 1001])
    def test_a_list_has_one_to_a_thousand(self, serve: Serve, body: Any) -> None:
        answer = serve(self.settings).post(self.document(body))
        assert (answer.status_code, answer.get_json()["error"]) == (400, "the body takes 1 to 1000 emails")

    @pytest.mark.parametrize(
        ("said", "complaint"),
        [
            ("fields = { subject = 'a', colour = 'b' }", "providers.desk.fields takes .*; not colour"),
            ("fields = { subject = 5 }", "providers.desk.fields.subject is wrong"),
            ("fields = { subject = 'a' }", "providers.desk.fields takes where the sender stands"),
            ("username = 'u'", "providers.desk needs username and password together"),
            ("password = 'u'", "providers.desk needs username and password together"),
            ("username = 'u'\npassword = ' '", "providers.desk takes no empty token or password"),
        ],
    )
    def test_an_invalid_mapping_stops_the_start(self, serve: Serve, said: str, complaint: str) -> None:
        with pytest.raises(SettingsError, match=complaint):
            serve(f"[providers.desk]\ntype = 'json'\n{said}")


class TestJsonWithAPassword(BasicAuthContract):
    name = "desk"
    section = DESK
    probed = 200
    complaint = r"providers\.desk needs username and password together"
    empty_password_complaint = r"takes no empty token or password|needs username and password together"
    no_username_complaint = complaint

    test_a_provider_without_settings_is_refused = TestJson.test_a_provider_without_settings_is_refused


class TestPlainJson:
    """[providers.json] without a word: open to the ingress token, every part under its own name."""

    settings = "[providers.json]"

    def request(self, letter: Letter = LETTER) -> SampleRequest:
        return request_of(self.settings, "json", letter)

    def test_it_takes_the_services_token(self, serve: Serve) -> None:
        ingress = serve(self.settings)
        assert ingress.status_of(self.request()) == "processed"
        assert ingress.post(with_headers(self.request(), authorization="Bearer x")).status_code == 401
        (payload,) = ingress.delivered
        assert (payload["subject"], payload["plain"]) == (LETTER.subject, LETTER.text)
        assert payload["recipients"] == ["inbox@in.example.com", "bob@example.org"]

    def test_ids_of_two_senders_do_not_get_mixed_up(self, serve: Serve) -> None:
        ingress = serve("[providers.one]\ntype = 'json'\n[providers.two]\ntype = 'json'")
        document = {"sender": "ada@example.org", "event_id": "1"}
        for name in ("one", "two"):
            request = replace(self.request(), path=f"/api/ingress/{name}")
            body = json.dumps(document | {"subject": name}).encode()
            assert ingress.status_of(with_body(request, body)) == "processed"
