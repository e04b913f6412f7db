"""What a provider is answered while destinations fail, and what is recorded of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook as Verifier

from tests.routes.conftest import App, StartApp, bearer
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, email
from tests.support.sink import Reply, Sink

Eventually = Callable[[Callable[[], bool]], None]
SECRET, OTHER_SECRET = "whsec_" + "A" * 32, "whsec_" + "B" * 32
DOWN = Reply(500)
REFUSED = Reply(422)
LOT = email(subject="Lot 7")


@pytest.fixture
def start(start_app: StartApp, tmp_path: Path) -> Callable[..., App]:
    """With these destinations, each a sink or lines of its section, and one route to all of them."""

    def start(groups: str = "off", redis_url: str = "", **destinations: Sink | str) -> App:
        lines = {name: f"url = '{each.url}'" if isinstance(each, Sink) else each for name, each in destinations.items()}
        sections = [f"[destinations.{name}]\n{each}\n" for name, each in lines.items()]
        route = f"[[routes]]\nname = 'all'\ndestinations = {list(lines)}\nsubject_groups = '{groups}'\n"
        file = tmp_path / "mailonce.toml"
        file.write_text("".join([*sections, route]))
        return start_app(mailonce_config=file, redis_url=redis_url)

    return start


def ask(app: App, path: str) -> Any:
    return app.http.get(f"/api/admin/{path}", headers=bearer(ADMIN_TOKEN)).get_json()


def act(app: App, path: str, **document: Any) -> Any:
    return app.http.post(f"/api/admin/{path}", json=document, headers=bearer(ADMIN_TOKEN)).get_json()


def recorded(app: App, destination: str = "crm") -> Any:
    (found,) = ask(app, f"deliveries?destination={destination}")["deliveries"]
    return found


def try_again(app: App) -> None:
    """As if the time of the next try had come."""
    for destination in app.service.config.destinations:
        app.service.coordinator.hasten(destination, 100)
    app.service.retrier.tick()


def test_a_delivery_that_fails_for_now_is_stored_and_sent_later(
    start: Callable[..., App], eventually: Eventually
) -> None:
    with Sink(DOWN, DOWN) as sink:
        app = start(crm=sink)
        answer = app.post(email())
        assert (answer.status_code, answer.get_json()["status"]) == (200, "queued")
        assert answer.get_json()["deliveries"]["crm"]["status"] == "waiting"
        waiting = recorded(app)
        assert (waiting["tries"], waiting["reason"]) == (1, "crm: answered 500")
        assert [attempt["status_code"] for attempt in waiting["attempts"]] == [500, 500], "one quick try more"
        assert ask(app, f"deliveries/{waiting['id']}")["payload"]["subject"] == email()["subject"]
        assert app.status_of(email()) == "queued"
        try_again(app)
        eventually(lambda: recorded(app)["status"] == "delivered")
        done = recorded(app)
        assert app.status_of(email()) == "already_processed"
    assert (done["tries"], done["reason"]) == (2, None)
    assert [attempt["status_code"] for attempt in done["attempts"]] == [500, 500, 200]
    assert all(done[each] == waiting[each] for each in ("id", "created", "webhook_id"))
    assert ask(app, f"deliveries/{done['id']}")["payload"] is None


def test_a_delivery_without_tries_left_is_a_dead_letter(start: Callable[..., App], eventually: Eventually) -> None:
    with Sink(otherwise=DOWN) as sink:
        app = start(crm=f"url = '{sink.url}'\nmax_attempts = 2\nbreaker_failures = 0")
        assert app.status_of(email()) == "queued"
        try_again(app)
        eventually(lambda: recorded(app)["status"] == "dead")
        assert app.status_of(email()) == "dead_lettered"
        assert recorded(app)["reason"] == "crm: answered 500; tried 2 times"


def test_an_email_that_is_refused_everywhere_is_a_dead_letter_and_frees_its_group(start: Callable[..., App]) -> None:
    with Sink(REFUSED) as crm, Sink(REFUSED) as archive:
        app = start("patterns", crm=crm, archive=archive)
        answer = app.post(LOT)
        assert (answer.status_code, answer.get_json()["status"]) == (200, "dead_lettered")
        dead = recorded(app)
        assert (dead["id"], dead["reason"]) == (answer.get_json()["deliveries"]["crm"]["id"], "crm: answered 422")
        assert ask(app, f"deliveries/{dead['id']}")["payload"]["subject"] == "Lot 7"
        statuses = [app.status_of({**LOT, "body": text}) for text in (LOT["body"], "Another", "A third")]
        assert statuses == ["dead_lettered", "processed", "skipped_subject_group"]


@pytest.mark.parametrize(("first", "status"), [((), "dead_lettered"), ((DOWN, DOWN), "queued")])
def test_a_destination_that_refused_is_not_asked_again_for_another(
    start: Callable[..., App], eventually: Eventually, first: tuple[Reply, ...], status: str
) -> None:
    with Sink(*first) as crm, Sink(otherwise=REFUSED) as archive:
        app = start(crm=crm, archive=archive)
        answer = app.post(email()).get_json()
        assert (answer["status"], answer["deliveries"]["archive"]["status"]) == (status, "dead")
        try_again(app)
        eventually(lambda: recorded(app)["status"] == "delivered")
        assert app.status_of(email()) == "dead_lettered"
        assert (len(crm.accepted), len(archive.received)) == (1, 1)


def test_after_the_last_delivery_redis_keeps_no_payload(
    start: Callable[..., App], redis_server: RedisServer, eventually: Eventually
) -> None:
    with Sink(*[DOWN] * 3) as crm, Sink(*[DOWN] * 4) as archive:
        app = start(redis_url=redis_server.url, crm=crm, archive=archive)
        answer = app.post(email())
        assert answer.get_json()["status"] == "queued"
        client = redis_server.client
        stored = {each["webhook_id"] for each in ask(app, "deliveries")["deliveries"]}
        assert {key.partition(":")[2] for key in client.scan_iter("payload:*")} == stored and len(stored) == 2

        def is_delivered() -> bool:
            try_again(app)
            return {each["status"] for each in ask(app, "deliveries")["deliveries"]} == {"delivered"}

        eventually(is_delivered)
        eventually(lambda: [*client.scan_iter("payload:*"), *client.scan_iter("delivery:*")] == [])
        assert {int(each) for each in client.hgetall("room").values()} == {0}
        assert ask(app, f"deliveries/{answer.get_json()['id']}:crm")["payload"] is None
        assert (len(crm.accepted), len(archive.accepted)) == (1, 1)


class MeetingSink(Sink):
    """Answers only once the other has been asked, too."""

    def __init__(self, both: threading.Barrier) -> None:
        super().__init__()
        self._both = both

    def next_reply(self) -> Reply:
        self._both.wait()
        return super().next_reply()


def test_destinations_are_sent_to_at_the_same_time(start: Callable[..., App]) -> None:
    both = threading.Barrier(2, timeout=30)
    with MeetingSink(both) as crm, MeetingSink(both) as archive:
        assert start(crm=crm, archive=archive).status_of(email()) == "processed"


def test_a_destination_with_an_open_breaker_is_not_asked(start: Callable[..., App]) -> None:
    with Sink(otherwise=DOWN) as sink:
        app = start(crm=sink)
        for number in range(4):
            app.post(email(subject=f"number {number}"))
        asked = len(sink.received)
        assert app.status_of(email(subject="the next one")) == "queued"
        assert len(sink.received) == asked
        assert ask(app, "stats")["destinations"]["crm"]["breaker"] == "open"


def test_an_email_for_a_disabled_destination_is_sent_once_it_is_enabled(
    start: Callable[..., App], sink: Sink, eventually: Eventually
) -> None:
    app = start(crm=f"url = '{sink.url}'\nenabled = false")
    assert [app.status_of(email()) for _ in range(2)] == ["queued"] * 2
    assert (recorded(app)["reason"], recorded(app)["tries"]) == ("crm: disabled", 0)
    app.service.close()
    enabled = start(crm=sink)
    try_again(enabled)
    eventually(lambda: recorded(enabled)["status"] == "delivered")
    assert len(sink.accepted) == 1


@pytest.mark.parametrize("store", ["sqlite", "redis"])
@pytest.mark.parametrize(("first_reply", "second_status"), [(Reply(), "skipped"), (REFUSED, "delivered")])
def test_a_second_email_of_a_group_waits_for_the_first(
    start: Callable[..., App],
    eventually: Eventually,
    request: pytest.FixtureRequest,
    store: str,
    first_reply: Reply,
    second_status: str,
) -> None:
    """Rule 27: whether it is sent depends on what becomes of the first, which is still to be delivered."""
    redis_url = request.getfixturevalue("redis_server").url if store == "redis" else ""
    with Sink(DOWN, DOWN, first_reply) as sink:
        app = start("patterns", redis_url, crm=sink)
        _, second = (app.post({**LOT, "body": text}).get_json() for text in ("un", "deux"))
        assert (second["status"], len(sink.received)) == ("queued", 2), "nothing of the second is sent"
        delivery = f"deliveries/{second['id']}:crm"
        assert ask(app, delivery)["reason"] == "another email with the same subject_group is being delivered"

        def has_ended() -> bool:
            try_again(app)
            return bool(ask(app, delivery)["status"] == second_status)

        eventually(has_ended)
        assert len(sink.accepted) == 1


def test_the_webhook_is_signed_with_both_secrets_of_a_rotation(start_app: StartApp) -> None:
    with Sink(Reply(201, body=b'{"postId": 4711}')) as sink:
        app = start_app(webhook_url=sink.url, webhook_secret=f"{SECRET},{OTHER_SECRET}")
        app.post(email(subject="Signé 🖋"))
    (received,) = sink.received
    for secret in (SECRET, OTHER_SECRET):
        assert Verifier(secret).verify(received.body, received.headers)["subject"] == "Signé 🖋"
    assert received.headers["Idempotency-Key"] == received.webhook_id
    assert received.headers["User-Agent"].startswith("Mailonce/")
    assert recorded(app, "default")["receiver_id"] == "4711"


def test_a_replay_that_fails_for_now_waits_for_its_next_try(start: Callable[..., App]) -> None:
    with Sink(REFUSED, DOWN, DOWN) as sink:
        app = start(crm=sink)
        id_ = app.post(email()).get_json()["deliveries"]["crm"]["id"]
        answer = act(app, f"deliveries/{id_}/replay")["delivery"]
        assert (answer["status"], answer["tries"], len(sink.received)) == ("waiting", 1, 2)
        assert answer["next_try"] is not None, "no provider will send it again"


@pytest.mark.parametrize("days", [0, 1])
def test_a_delivered_email_is_replayed_only_by_force_and_with_its_payload(
    start_app: StartApp, sink: Sink, days: int
) -> None:
    app = start_app(webhook_url=sink.url, delivered_payload_days=days)
    path = f"deliveries/{app.post(email()).get_json()['deliveries']['default']['id']}/replay"
    assert act(app, path, new_id=True)["code"] == "already_delivered"
    answer = act(app, path, force=True, new_id=True)
    if days:
        first, second = (each.webhook_id for each in sink.accepted)
        assert first != second == answer["delivery"]["webhook_id"]
    else:
        assert (answer["status"], answer["code"]) == (409, "no_payload")
    assert app.status_of(email()) == "already_processed"


def test_dead_letters_are_replayed_by_a_filter_after_a_dry_run(
    start: Callable[..., App], eventually: Eventually
) -> None:
    with Sink(REFUSED, REFUSED, REFUSED) as sink:
        app = start(crm=sink)
        for number in range(4):
            app.post(email(subject=f"number {number}"))
        wanted = {"status": "dead", "destination": "crm", "since": "2026-01-01T00:00:00Z"}
        dry = act(app, "deliveries/replay", **wanted, dry_run=True)
        assert (dry["matched"], dry["would_replay"], "replayed" in dry) == (3, 3, False)
        assert len(ask(app, "deliveries?status=dead")["deliveries"]) == 3
        assert act(app, "deliveries/replay", **wanted | {"destination": "other"})["matched"] == 0
        assert act(app, "deliveries/replay", **wanted)["replayed"] == 3
        eventually(lambda: len(sink.accepted) == 4)
        eventually(lambda: ask(app, "deliveries?status=dead")["deliveries"] == [])
        assert set(sink.counts().values()) == {1}


def test_logs_carry_ids_and_no_contents(start_app: StartApp, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with Sink(REFUSED) as sink:
        app = start_app(webhook_url=sink.url, webhook_secret=SECRET)
        id_ = app.post(email(subject="Very secret subject", body="Very secret body")).get_json()["id"]
    assert id_ in caplog.text
    for secret in ("Very secret", "Lovelace", SECRET, "A" * 32):
        assert secret not in caplog.text
