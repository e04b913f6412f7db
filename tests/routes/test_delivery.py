"""What a provider is answered while destinations fail, and what is recorded of it."""

from tests.routes.conftest import StartApp, bearer, impatient
from tests.support.server import INGRESS_TOKEN, email
from tests.support.sink import Received, Reply, Sink
from tests.support.waiting import wait_for

SECRET, OTHER_SECRET = "whsec_" + "A" * 32, "whsec_" + "B" * 32
LOT = "Lot 456 : nouvelle mission"
DOWN = Reply(500)
REFUSED = Reply(422)


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_the_traceparent_is_passed_on_even_by_a_stored_webhook(start_with: StartApp) -> None:
    with Sink(DOWN, DOWN) as sink:
        app = start_with(crm=sink)
        app.http.post("/api/ingress/gmail", json=email(), headers={**bearer(INGRESS_TOKEN), "traceparent": TRACE})
        app.try_again()
        wait_for(lambda: app.delivery_to("crm")["status"] == "delivered")
    assert [each.headers.get("traceparent") for each in sink.received] == [TRACE] * 3
    assert all("traceparent" not in str(each.payload) for each in sink.received)


def test_a_disabled_destination_gets_its_emails_later(start_with: StartApp, sink: Sink) -> None:
    app = start_with(crm=f"url = '{sink.url}'\nenabled = false")
    assert [app.status_of(email()) for _ in range(2)] == ["queued"] * 2
    assert (app.delivery_to("crm")["reason"], app.delivery_to("crm")["tries"]) == ("crm: disabled", 0)
    app.service.close()
    enabled = start_with(crm=sink)
    enabled.try_again()
    wait_for(lambda: enabled.delivery_to("crm")["status"] == "delivered")
    assert len(sink.accepted) == 1


def test_a_replay_that_fails_for_now_waits_for_its_next_try(start_with: StartApp) -> None:
    with Sink(REFUSED, REFUSED, DOWN) as sink:
        app = start_with(crm=f"url = '{sink.url}'\nmax_attempts = 2")
        id_ = app.post(email()).get_json()["deliveries"]["crm"]["id"]
        wait_for(lambda: app.delivery_to("crm")["status"] == "dead")  # an early attempt would count as no try
        assert app.act(f"deliveries/{id_}/replay")["status"] == "replayed"
        wait_for(lambda: app.delivery_to("crm")["tries"] == 1)
        shown = app.delivery_to("crm")
        assert (shown["status"], len(sink.received)) == ("waiting", 3)
        assert shown["next_try"] is not None, "no provider will send it again"


def test_dead_letters_are_replayed_by_a_filter_after_a_dry_run(start_with: StartApp) -> None:
    with Sink(REFUSED, REFUSED, REFUSED) as sink:
        app = start_with(crm=f"url = '{sink.url}'\nmax_attempts = 1")
        for number in range(4):
            app.post(email(subject=f"number {number}"))
        wanted = {"status": "dead", "destination": "crm", "since": "2026-01-01T00:00:00Z"}
        dry = app.act("deliveries/replay", **wanted, dry_run=True)
        assert (dry["matched"], dry["would_replay"], "replayed" in dry) == (3, 3, False)
        assert len(app.ask("deliveries?status=dead")["deliveries"]) == 3
        assert app.act("deliveries/replay", **wanted | {"destination": "other"})["matched"] == 0
        assert app.act("deliveries/replay", **wanted)["replayed"] == 3
        wait_for(lambda: len(sink.accepted) == 4)
        wait_for(lambda: app.ask("deliveries?status=dead")["deliveries"] == [])
        assert set(sink.counts().values()) == {1}


# Every webhook says what it is, and when that happened


def event(webhook: Received) -> tuple[str, str]:
    return webhook.payload["type"], webhook.payload["timestamp"]


def test_every_attempt_of_a_released_email_says_released(start_app: StartApp, sink: Sink) -> None:
    app = start_app(toml=impatient(sink))
    app.post(email(subject=LOT))
    id_ = app.post(email(subject=f"{LOT} bis")).get_json()["id"]
    sink.otherwise = Reply(422)
    released_at = app.act(f"decisions/{id_}/release")["decision"]["released_at"]
    wait_for(lambda: app.ask(f"deliveries/{id_}:default")["status"] == "dead")
    sink.otherwise = Reply()
    assert app.act(f"deliveries/{id_}:default/replay")["status"] == "replayed"
    wait_for(lambda: len(sink.accepted) == 2)
    _, refused, accepted = sink.received
    assert event(refused) == event(accepted) == ("email.released", f"{released_at[:19]}Z")
    assert accepted.payload["subject"] == f"{LOT} bis"
