"""One email for several recipients: which destinations get it, whichever way a provider says whom it is for."""

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from routes.providers.samples import INBOX, Letter, SampleRequest
from tests.routes.conftest import StartApp
from tests.routes.dashboard.conftest import signed_in
from tests.routes.providers.conftest import LETTER, NOW, Fetches, Ingress, request_of, with_body
from tests.routes.providers.everyone import SETTINGS, SNS
from tests.routes.providers.sns_stand_in import received
from tests.routes.providers.test_mailgun import form, signed
from tests.support.sink import Reply, Sink
from tests.support.waiting import wait_for

BILLING, LEGAL, DESK, OUTSIDE = "billing@ours.example", "legal@ours.example", "desk@ours.example", "bob@example.org"
DOWN = Reply(500)
NAMES = ("billing", "legal", "desk")
ROUTES = f"""
[[routes]]
name = "for billing"
match = [{{ field = "recipient", equals = "{BILLING}" }}]
destinations = ["billing"]
[[routes]]
name = "for legal"
match = [{{ field = "recipient", equals = "{LEGAL}" }}]
destinations = ["legal"]
[[routes]]
name = "for others"
destinations = ["desk"]
"""
LEGAL_AND_DESK = ROUTES.replace('destinations = ["legal"]', 'destinations = ["desk", "legal"]')
EACH = "[[routes]]\nname = 'each'\ndestinations = ['desk']\nidentity_by_recipient = true\n"

ONE_BY_ONE = ("mailgun", "mailgun/mime", "postmark", "mailjet", "mandrill", "mime")
ALL_AT_ONCE = ("sendgrid", "cloudmailin", "ses", "brevo", "gmail", "json")
UNKNOWN = ("resend", "mime", "gmail", "json", "brevo", "postmark")


@dataclass(frozen=True)
class Office:
    """The service with three destinations, and what each of them got."""

    ingress: Ingress
    sinks: Mapping[str, Sink]

    def post(self, request: SampleRequest) -> dict[str, Any]:
        answer: dict[str, Any] = self.ingress.post(request).get_json()
        return answer

    @property
    def got(self) -> list[int]:
        """How many webhooks billing, legal and desk have accepted."""
        return [len(self.sinks[name].accepted) for name in NAMES]

    def payloads(self, name: str) -> list[dict[str, Any]]:
        return [each.payload for each in self.sinks[name].accepted]


OpenOffice = Callable[..., Office]


@pytest.fixture
def sinks() -> Iterator[dict[str, Sink]]:
    with ExitStack() as opened:
        yield {name: opened.enter_context(Sink()) for name in NAMES}


@pytest.fixture
def open_office(
    redis_url: str, start_app: StartApp, sinks: dict[str, Sink], tmp_path: Path, fetches: Fetches
) -> OpenOffice:
    """On each store. Machines with different names share a Redis, or nothing."""
    fetches.pages[SNS.certificate_url] = SNS.certificate

    def opened(routes: str = ROUTES, machine: str = "a", **more: str) -> Office:
        lines = (f"[destinations.{name}]\nurl = '{each.url}'\n{more.get(name, '')}\n" for name, each in sinks.items())
        toml = "".join([*lines, routes, SETTINGS.replace("api_key", "# api_key")])
        app = start_app(lambda: NOW, toml, data_dir=tmp_path / machine, redis_url=redis_url)
        return Office(Ingress(app, sinks["desk"]), sinks)

    return opened


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SampleRequest]:
    """A request of that provider: the letter with this To, delivered to the addresses of the envelope."""

    def written(name: str, envelope: tuple[str, ...], to: tuple[str, ...], subject: str = "Invoice") -> SampleRequest:
        letter = replace(LETTER, recipients=to, enclosures=(), subject=subject)
        first = envelope[0] if envelope else ""
        if name.startswith("mailgun"):
            return _mailgun(name, letter, first)
        if name == "ses":
            notification = received(letter)
            notification["receipt"]["recipients"] = list(envelope)
            return SNS.notification(notification)
        if name == "mandrill":
            monkeypatch.setattr("routes.providers.mandrill.INBOX", first)
        request = request_of.__wrapped__(SETTINGS, name, letter)  # not the one of another INBOX
        if name == "mime":
            return with_body(
                request, b"".join(f"Delivered-To: {each}\r\n".encode() for each in envelope) + request.body
            )
        if name in ("gmail", "json"):
            fields = json.loads(request.body)
            del fields["recipient"]
            return with_body(request, json.dumps(fields | {"recipient": list(envelope), "to": list(to)}).encode())
        if name == "brevo":
            document = json.loads(request.body)
            document["items"][0] |= {"Recipients": list(envelope), "To": [{"Address": each} for each in to]}
            return with_body(request, json.dumps(document).encode())
        body = request.body.replace(f'["{INBOX}"]'.encode(), json.dumps(envelope).encode())
        return with_body(request, body.replace(INBOX.encode(), first.encode()))

    return written


def _mailgun(name: str, letter: Letter, recipient: str) -> SampleRequest:
    token = f"{recipient}{letter.subject}"
    if name == "mailgun/mime":
        raw = letter.mime.as_bytes().decode("latin-1")
        return form(signed({"recipient": recipient, "body-mime": raw}, token), "/api/ingress/mailgun/mime")
    headers = json.dumps([*map(list, letter.headers.items())])
    fields = {"recipient": recipient, "body-plain": letter.text, "body-html": letter.html, "message-headers": headers}
    return form(signed(fields, token))


Written = Callable[..., SampleRequest]


@pytest.mark.parametrize("name", [*ONE_BY_ONE, *ALL_AT_ONCE])
def test_each_recipients_destination_gets_the_email_once(open_office: OpenOffice, written: Written, name: str) -> None:
    """To both, as a blind copy for one, or with a third one: the provider delivers once for each recipient."""
    office = open_office()
    to_both, bcc = [BILLING, LEGAL], [BILLING, OUTSIDE]
    for count, (subject, to) in enumerate({"Invoice": to_both, "Contract": bcc}.items(), 1):
        copies = [written(name, (each,), tuple(to), subject) for each in (BILLING, LEGAL)]
        first, second = map(office.post, copies)
        assert (first["status"], second["status"]) == ("processed", "processed")
        assert (list(first["deliveries"]), set(second["deliveries"])) == (["billing"], {"billing", "legal"})
        assert "had_already" not in second, "billing is no destination of the second copy"
        again = [office.post(each) for each in copies]
        assert [(each["status"], each["had_already"]) for each in again] == [
            ("already_processed", ["billing"]),
            ("already_processed", ["legal"]),
        ]
        assert office.got == [count, count, 0]
    assert [each["delivered_to"] for each in office.payloads("legal")] == [[LEGAL]] * 2


@pytest.mark.parametrize("name", ALL_AT_ONCE)
def test_a_request_is_routed_for_each_of_its_recipients(open_office: OpenOffice, written: Written, name: str) -> None:
    office = open_office(LEGAL_AND_DESK)
    answer = office.post(written(name, (BILLING, LEGAL, DESK), (BILLING,)))
    assert (answer["status"], list(answer["deliveries"])) == ("processed", ["billing", "desk", "legal"])
    assert office.got == [1, 1, 1], "each destination once"
    (payload,) = office.payloads("desk")
    assert payload["delivered_to"] == [BILLING, LEGAL, DESK]
    assert office.post(written(name, (LEGAL,), (BILLING,)))["had_already"] == ["desk", "legal"]
    (row,) = office.ingress.app.ask("decisions")["decisions"]
    assert row["route"] == "for billing + for legal + for others"


@pytest.mark.parametrize("name", UNKNOWN)
def test_without_an_envelope_addresses_in_routes_count(open_office: OpenOffice, written: Written, name: str) -> None:
    """An address of somebody else in To is no recipient of ours: the route for all others is not taken for it."""
    office = open_office()
    assert office.post(written(name, (), (OUTSIDE, BILLING, LEGAL)))["status"] == "processed"
    assert office.got == [1, 1, 0]
    assert office.post(written(name, (), (OUTSIDE, DESK), "Contract"))["status"] == "processed"
    assert office.got == [1, 1, 1]


@pytest.mark.parametrize("name", ["mailgun", *ALL_AT_ONCE])
def test_one_destination_gets_a_copy_for_each_recipient(open_office: OpenOffice, written: Written, name: str) -> None:
    office = open_office(EACH)
    if name == "mailgun":
        requests = [written(name, (each,), (BILLING, LEGAL)) for each in (BILLING, LEGAL)]
    else:
        requests = [written(name, (BILLING, LEGAL), (BILLING, LEGAL))]
        (results,) = [office.post(each)["results"] for each in requests]
        assert [each["status"] for each in results] == ["processed", "processed"]
    for request in requests * 2:
        assert office.post(request)["success"]
    assert [each["delivered_to"] for each in office.payloads("desk")] == [[BILLING], [LEGAL]]


def test_recipients_whose_routes_have_other_gates_keep_their_own(open_office: OpenOffice, written: Written) -> None:
    routes = ROUTES.replace('destinations = ["billing"]', 'destinations = ["billing"]\nsubject_groups = "patterns"')
    office = open_office(routes.replace('destinations = ["legal"]', 'destinations = ["legal"]\nsubject_groups = "off"'))
    assert office.post(written("postmark", (BILLING,), (BILLING,), "Lot 7"))["status"] == "processed"
    letter = replace(LETTER, recipients=(BILLING,), enclosures=(), subject="Lot 7", date="Mon, 16 Nov 2026 12:00:00 Z")
    other = request_of(SETTINGS, "sendgrid", replace(letter, message_id="<7@b.example>", text="Other", html=""))
    body = other.body.replace(f'["{INBOX}"]'.encode(), json.dumps([BILLING, LEGAL]).encode())
    results = office.post(with_body(other, body))["results"]
    assert [each["status"] for each in results] == ["skipped_subject_group", "processed"]
    assert office.got == [1, 1, 0]


@pytest.mark.parametrize("is_each", [False, True])
def test_a_captured_signature_proves_one_recipient(open_office: OpenOffice, written: Written, is_each: bool) -> None:
    office = open_office(EACH if is_each else ROUTES)
    fields = dict(signed(dict(recipient=BILLING, subject="Invoice", **{"body-plain": "Pay A"}), "t" * 50))
    fields |= {"from": "ada@example.org", "message-headers": json.dumps([["Message-Id", "<1@a.example>"]])}
    assert office.post(form(fields))["status"] == "processed"
    for forged in ({"recipient": LEGAL}, {"body-plain": "Pay B"}, {"recipient": LEGAL, "body-plain": "Pay B"}):
        assert office.ingress.post(form(fields | forged)).status_code == 401
    assert office.post(form(fields))["status"] == "already_processed", "its own retry"
    assert sum(office.got) == 1


# What has become of the first copy when the second arrives


@pytest.mark.parametrize("first", ["waiting", "dead"])
def test_a_copy_for_another_place_is_sent(open_office: OpenOffice, written: Written, first: str) -> None:
    office = open_office(LEGAL_AND_DESK, billing="max_attempts = 1" if first == "dead" else "")
    for_billing, for_legal = (written("postmark", (each,), (BILLING, LEGAL)) for each in (BILLING, LEGAL))
    office.sinks["billing"].otherwise = office.sinks["legal"].otherwise = DOWN
    stored = office.post(for_billing)
    assert stored["deliveries"]["billing"]["status"] == first
    second = office.post(for_legal)
    statuses = {name: each["status"] for name, each in second["deliveries"].items()}
    assert (second["status"], statuses) == ("queued", {"billing": first, "desk": "delivered", "legal": "waiting"})
    again = office.post(for_billing)
    assert (again["status"], again["had_already"]) == (stored["status"], ["billing"])
    for name in NAMES:
        office.sinks[name].otherwise = Reply()
    office.ingress.app.act(f"deliveries/{stored['id']}:billing/replay")
    office.ingress.app.try_again()
    wait_for(lambda: office.got == [1, 1, 1])
    recipients = [office.payloads(name)[0]["delivered_to"] for name in NAMES]
    assert recipients[0][0] == BILLING and LEGAL in recipients[1]


def test_concurrent_copies_make_one_webhook(open_office: OpenOffice, written: Written) -> None:
    office = open_office(LEGAL_AND_DESK)
    for sink in office.sinks.values():
        sink.otherwise = Reply(delay_s=0.1)
    copies = [written("postmark", (each,), (BILLING, LEGAL)) for each in (BILLING, LEGAL, DESK)]
    with ThreadPoolExecutor(6) as clients:
        answers = list(clients.map(office.post, copies * 2))
    assert {each["status"] for each in answers} <= {"processed", "already_processed", "already_processing"}
    wait_for(lambda: all(office.post(each)["status"] == "already_processed" for each in copies))
    assert office.got == [1, 1, 1]


def _is_processed(machine: Office) -> bool:
    return bool(machine.ingress.app.ask("decisions")["decisions"][0]["status"] == "processed")


@pytest.mark.parametrize("redis_url", ["redis"], indirect=True)
def test_the_second_copy_may_arrive_at_another_machine(
    open_office: OpenOffice, written: Written, redis_url: str
) -> None:
    first, second = open_office(LEGAL_AND_DESK, "a"), open_office(LEGAL_AND_DESK, "b")
    first.sinks["billing"].otherwise = DOWN
    assert first.post(written("postmark", (BILLING,), (BILLING, LEGAL)))["status"] == "queued"
    assert first.post(written("postmark", (DESK,), (BILLING, LEGAL)))["status"] == "processed"
    first.ingress.app.settle()
    answer = second.post(written("postmark", (LEGAL,), (BILLING, LEGAL)))
    assert (answer["status"], answer["had_already"]) == ("processed", ["desk"])
    first.sinks["billing"].otherwise = Reply()
    second.ingress.app.try_again()
    wait_for(lambda: first.got == [1, 1, 1])
    for machine in (first, second):
        wait_for(partial(_is_processed, machine))
        assert machine.post(written("postmark", (BILLING,), (BILLING,)))["status"] == "already_processed"


def test_the_row_and_the_page_say_which_destinations_had_it_already(open_office: OpenOffice, written: Written) -> None:
    office = open_office(LEGAL_AND_DESK)
    app = office.ingress.app
    first = office.post(written("postmark", (DESK,), (DESK, LEGAL)))
    second = office.post(written("postmark", (LEGAL,), (DESK, LEGAL)))
    assert (second["id"], second["had_already"]) == (first["id"], ["desk"])
    said = "; delivered to legal when it was received again at "
    assert said in app.ask("decisions")["decisions"][0]["reason"]
    assert said in signed_in(app).text(f"/decisions/{first['id']}")
