"""What a provider hears while destinations fail, and what is on record of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook as Verifier

from deduplication.journal.entry import DeliveryStatus
from tests.routes.conftest import App, StartApp, bearer
from tests.support.server import ADMIN_TOKEN, email
from tests.support.sink import Reply, Sink

Eventually = Callable[[Callable[[], bool]], None]
SECRET = "whsec_" + "A" * 32
DOWN = Reply(500)
REFUSED = Reply(422)


def toml(path: Path, routes: str = "", **destinations: str) -> Path:
    """A file with these destinations, one route to all of them, and no subject groups."""
    sections = [f"[destinations.{name}]\n{lines}" for name, lines in destinations.items()]
    route = routes or f"[[routes]]\nname = 'all'\ndestinations = {list(destinations)}\nsubject_groups = 'off'\n"
    path.write_text("\n".join([*sections, route]))
    return path


def admin(app: App, path: str, body: object = None) -> Any:
    headers = bearer(ADMIN_TOKEN)
    if body is None:
        return app.http.get(f"/api/admin/{path}", headers=headers).get_json()
    return app.http.post(f"/api/admin/{path}", json=body, headers=headers).get_json()


def records(app: App) -> dict[str, dict[str, Any]]:
    return {each["destination"]: each for each in admin(app, "deliveries")["deliveries"]}


def test_what_fails_for_now_is_stored_and_goes_out_later_and_the_provider_may_forget_it(
    start_app: StartApp, eventually: Eventually
) -> None:
    with Sink(DOWN, DOWN) as sink:
        app = start_app(webhook_url=sink.url)
        answer = app.post(email())
        assert (answer.status_code, answer.get_json()["status"]) == (200, "queued")
        assert answer.get_json()["deliveries"]["default"]["status"] == "waiting"
        waiting = records(app)["default"]
        assert (waiting["tries"], waiting["reason"]) == (1, "default: answered 500")
        assert [attempt["status_code"] for attempt in waiting["attempts"]] == [500, 500], "one quick try more"
        assert admin(app, f"deliveries/{waiting['id']}")["payload"]["subject"] == email()["subject"]
        assert app.status_of(email()) == "queued"
        make_due(app)
        eventually(lambda: records(app)["default"]["status"] == "delivered")
        done = records(app)["default"]
        assert app.status_of(email()) == "already_processed"
    assert (done["tries"], done["reason"]) == (2, None)
    assert [attempt["status_code"] for attempt in done["attempts"]] == [500, 500, 200]
    assert (done["id"], done["created"], done["webhook_id"]) == tuple(
        waiting[each] for each in ("id", "created", "webhook_id")
    )
    assert admin(app, f"deliveries/{done['id']}")["payload"] is None


def test_what_is_refused_for_good_is_a_dead_letter_and_the_provider_may_forget_it(start_app: StartApp) -> None:
    with Sink(REFUSED) as sink:
        app = start_app(webhook_url=sink.url)
        answer = app.post(email(subject="Lot 7"))
        assert (answer.status_code, answer.get_json()["status"]) == (200, "dead_lettered")
        (dead,) = admin(app, "deliveries?status=dead&destination=default")["deliveries"]
        assert (dead["id"], dead["reason"]) == (
            answer.get_json()["deliveries"]["default"]["id"],
            "default: answered 422",
        )
        assert admin(app, f"deliveries/{dead['id']}")["payload"]["subject"] == "Lot 7"
        assert app.status_of(email(subject="Lot 7")) == "dead_lettered"
        assert app.status_of(email(subject="Lot 7", body="Another")) == "processed", "its group was given back"


def test_no_retries_left_is_a_dead_letter(start_app: StartApp, tmp_path: Path, eventually: Eventually) -> None:
    with Sink(otherwise=DOWN) as sink:
        path = toml(tmp_path / "m.toml", crm=f"url = '{sink.url}'\nmax_attempts = 2\nbreaker_failures = 0")
        app = start_app(mailonce_config=path)
        assert app.status_of(email()) == "queued"
        make_due(app)
        eventually(lambda: records(app)["crm"]["status"] == "dead")
        assert app.status_of(email()) == "dead_lettered"
        assert records(app)["crm"]["reason"] == "crm: answered 500; tried 2 times"


def test_one_destination_dead_and_one_delivered_is_dead_lettered_once(start_app: StartApp, tmp_path: Path) -> None:
    with Sink() as crm, Sink(otherwise=REFUSED) as archive:
        path = toml(tmp_path / "m.toml", crm=f"url = '{crm.url}'", archive=f"url = '{archive.url}'")
        app = start_app(mailonce_config=path)
        answer = app.post(email()).get_json()
        assert answer["status"] == "dead_lettered"
        assert {name: each["status"] for name, each in answer["deliveries"].items()} == {
            "crm": "delivered",
            "archive": "dead",
        }
        assert app.status_of(email()) == "dead_lettered"
        assert (len(crm.received), len(archive.received)) == (1, 1)


def test_what_every_destination_refused_gives_its_group_back(start_app: StartApp, tmp_path: Path) -> None:
    with Sink(REFUSED) as crm, Sink(REFUSED) as archive:
        route = "[[routes]]\nname = 'all'\ndestinations = ['crm', 'archive']\n"
        path = toml(tmp_path / "m.toml", route, crm=f"url = '{crm.url}'", archive=f"url = '{archive.url}'")
        app = start_app(mailonce_config=path)
        assert app.status_of(email(subject="Lot 7")) == "dead_lettered"
        assert app.status_of(email(subject="Lot 7", body="Another")) == "processed"
        assert app.status_of(email(subject="Lot 7", body="A third")) == "skipped_subject_group"


def test_a_dead_destination_is_not_asked_again_while_another_still_fails(
    start_app: StartApp, tmp_path: Path, eventually: Eventually
) -> None:
    with Sink(DOWN, DOWN) as crm, Sink(otherwise=REFUSED) as archive:
        path = toml(tmp_path / "m.toml", crm=f"url = '{crm.url}'", archive=f"url = '{archive.url}'")
        app = start_app(mailonce_config=path)
        assert app.status_of(email()) == "queued"
        make_due(app)
        eventually(lambda: records(app)["crm"]["status"] == "delivered")
        assert app.status_of(email()) == "dead_lettered"
        assert (len(crm.accepted), len(archive.received)) == (1, 1)


class MeetingSink(Sink):
    """Answers only once the other has been asked, too."""

    def __init__(self, both: threading.Barrier) -> None:
        super().__init__()
        self._both = both

    def next_reply(self) -> Reply:
        self._both.wait()
        return super().next_reply()


def test_destinations_are_sent_to_at_the_same_time(start_app: StartApp, tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=5)
    with MeetingSink(both) as crm, MeetingSink(both) as archive:
        path = toml(tmp_path / "m.toml", crm=f"url = '{crm.url}'", archive=f"url = '{archive.url}'")
        assert start_app(mailonce_config=path).status_of(email()) == "processed"


def test_a_destination_with_its_breaker_open_is_not_asked(start_app: StartApp, tmp_path: Path) -> None:
    with Sink(otherwise=DOWN) as sink:
        app = start_app(mailonce_config=toml(tmp_path / "m.toml", crm=f"url = '{sink.url}'"))
        for number in range(4):
            app.post(email(subject=f"number {number}"))
        asked = len(sink.received)
        answer = app.post(email(subject="the next one"))
        assert (answer.status_code, answer.get_json()["status"]) == (200, "queued")
        assert len(sink.received) == asked
        assert admin(app, "stats")["destinations"]["crm"]["breaker"] == "open"


def test_what_goes_to_a_disabled_destination_waits_and_is_sent_when_it_is_enabled(
    start_app: StartApp, tmp_path: Path, eventually: Eventually
) -> None:
    with Sink() as sink:
        lines = f"url = '{sink.url}'"
        app = start_app(mailonce_config=toml(tmp_path / "m.toml", crm=f"{lines}\nenabled = false"))
        answer = app.post(email())
        assert (answer.status_code, answer.get_json()["status"]) == (200, "queued")
        assert app.status_of(email()) == "queued"
        (waiting,) = admin(app, "deliveries?status=waiting")["deliveries"]
        assert (waiting["reason"], waiting["tries"]) == ("crm: disabled", 0)
        make_due(app)
        app.service.close()
        enabled = start_app(mailonce_config=toml(tmp_path / "m.toml", crm=lines))
        eventually(lambda: len(sink.accepted) == 1)
        eventually(lambda: records(enabled)["crm"]["status"] == "delivered")


def make_due(app: App) -> None:
    """As if the time of all that waits had come."""
    journal = app.service.journal
    for entry in journal.find():
        for delivery in entry.deliveries:
            if delivery.status is DeliveryStatus.WAITING:
                begun = journal.begin(entry.id, delivery.destination, "test", 60_000)
                assert begun
                journal.finish(entry.id, "test", replace(delivery, next_try_ms=1))


def test_the_webhook_is_signed_and_both_secrets_of_a_rotation_verify_it(start_app: StartApp, sink: Sink) -> None:
    other = "whsec_" + "B" * 32
    app = start_app(webhook_url=sink.url, webhook_secret=f"{SECRET},{other}")
    app.post(email(subject="Signé 🖋"))
    (received,) = sink.received
    for secret in (SECRET, other):
        assert Verifier(secret).verify(received.body, received.headers)["subject"] == "Signé 🖋"
    assert received.headers["Idempotency-Key"] == received.webhook_id
    assert received.headers["User-Agent"].startswith("Mailonce/")


def test_the_receivers_id_is_on_record(start_app: StartApp) -> None:
    with Sink(Reply(201, body=b'{"postId": 4711}')) as sink:
        app = start_app(webhook_url=sink.url)
        app.post(email())
        assert records(app)["default"]["receiver_id"] == "4711"


# Replays


def dead_letter(app: App) -> str:
    answer = app.post(email()).get_json()
    assert answer["status"] == "dead_lettered"
    return str(answer["deliveries"]["default"]["id"])


def test_a_dead_letter_is_replayed_past_identity_under_the_same_webhook_id(start_app: StartApp) -> None:
    with Sink(REFUSED) as sink:
        app = start_app(webhook_url=sink.url)
        delivery_id = dead_letter(app)
        answer = admin(app, f"deliveries/{delivery_id}/replay", {})
        assert (answer["status"], answer["delivery"]["status"]) == ("replayed", "delivered")
        assert [each.webhook_id for each in sink.received] == [answer["delivery"]["webhook_id"]] * 2
        assert sink.accepted[0].payload["subject"] == email()["subject"]
        again = admin(app, f"deliveries/{delivery_id}/replay", {})
        assert (again["status"], again["code"]) == (409, "already_delivered")
        assert len(sink.received) == 2


def test_a_replay_that_fails_for_now_waits_for_its_next_try(start_app: StartApp) -> None:
    with Sink(REFUSED, DOWN, DOWN) as sink:
        app = start_app(webhook_url=sink.url)
        answer = admin(app, f"deliveries/{dead_letter(app)}/replay", {})
        assert answer["delivery"]["status"] == "waiting"
        assert answer["delivery"]["next_try"] is not None, "no provider will send it again"
        assert (answer["delivery"]["tries"], len(sink.received)) == (1, 2)


def test_a_forced_replay_goes_to_a_destination_that_has_it(start_app: StartApp, sink: Sink) -> None:
    app = start_app(webhook_url=sink.url, delivered_payload_days=1)
    delivery_id = app.post(email()).get_json()["deliveries"]["default"]["id"]
    assert admin(app, f"deliveries/{delivery_id}/replay", {"new_id": True})["code"] == "already_delivered"
    answer = admin(app, f"deliveries/{delivery_id}/replay", {"force": True, "new_id": True})
    assert answer["delivery"]["status"] == "delivered"
    first, second = (each.webhook_id for each in sink.accepted)
    assert first != second == answer["delivery"]["webhook_id"]
    assert app.status_of(email()) == "already_processed"


def test_without_its_payload_nothing_is_replayed(start_app: StartApp, sink: Sink) -> None:
    app = start_app(webhook_url=sink.url)
    delivery_id = app.post(email()).get_json()["deliveries"]["default"]["id"]
    answer = admin(app, f"deliveries/{delivery_id}/replay", {"force": True})
    assert (answer["status"], answer["code"]) == (409, "no_payload")
    assert app.status_of(email()) == "already_processed", "nothing was forgotten on the way"


def test_many_are_replayed_by_a_filter_after_a_dry_run(start_app: StartApp, eventually: Eventually) -> None:
    with Sink(REFUSED, REFUSED, REFUSED) as sink:
        app = start_app(webhook_url=sink.url)
        for number in range(4):
            app.post(email(subject=f"number {number}"))
        wanted = {"status": "dead", "destination": "default", "since": "2026-01-01T00:00:00Z"}
        dry = admin(app, "deliveries/replay", {**wanted, "dry_run": True})
        assert (dry["matched"], dry["would_replay"], dry["dry_run"]) == (3, 3, True)
        assert "replayed" not in dry
        assert len(admin(app, "deliveries?status=dead")["deliveries"]) == 3
        assert admin(app, "deliveries/replay", {**wanted, "destination": "other"})["matched"] == 0
        assert admin(app, "deliveries/replay", wanted)["replayed"] == 3
        eventually(lambda: len(sink.accepted) == 4)
        eventually(lambda: admin(app, "deliveries?status=dead")["deliveries"] == [])
        assert set(sink.counts().values()) == {1}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("deliveries/replay", {"status": "deed"}, "status"),
        ("deliveries/replay", {"since": "yesterday"}, "since"),
        ("deliveries/replay", {"dry_run": "yes"}, "dry_run"),
        ("deliveries/replay", {"everything": True}, "everything"),
        ("deliveries/replay", {}, "all"),
        ("deliveries/replay", {"force": True}, "all"),
        ("deliveries/replay", {"destination": None, "status": None}, "all"),
        ("deliveries/replay", {"all": False}, "all"),
        ("deliveries/replay", {"all": True, "status": "dead"}, "all"),
        ("deliveries/replay", {"all": "yes"}, "all"),
        ("deliveries?status=deed", None, "status"),
        ("deliveries?limit=0", None, "limit"),
        ("deliveries?before=1", None, "before"),
    ],
)
def test_a_wrong_question_says_what_it_takes(app: App, path: str, body: object, field: str) -> None:
    answer = admin(app, path, body)
    assert (answer["status"], answer["code"], answer["field"]) == (400, "invalid", field)


def test_an_unknown_delivery_is_not_found_and_a_stranger_is_refused(app: App) -> None:
    assert app.http.get("/api/admin/deliveries/msg_x", headers=bearer(ADMIN_TOKEN)).status_code == 404
    for path in ("deliveries", "stats", "deliveries/msg_x"):
        assert app.http.get(f"/api/admin/{path}").status_code == 401
    assert app.http.post("/api/admin/deliveries/replay", json={}).status_code == 401


def test_logs_and_records_carry_ids_and_no_contents(start_app: StartApp, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with Sink(REFUSED) as sink:
        app = start_app(webhook_url=sink.url, webhook_secret=SECRET)
        app.post(email(subject="Very secret subject", body="Very secret body"))
        listed = str(admin(app, "deliveries"))
    for secret in ("Very secret", "Lovelace", SECRET, "A" * 32):
        assert secret not in caplog.text
        assert secret not in listed
