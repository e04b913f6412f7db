"""/api/admin/decisions: every verdict with its reason, found again, and let go after all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from deduplication.journal.failover import FailoverJournal
from deduplication.journal.side import Side
from deduplication.redis_client import connect
from routes.api_decisions import FILTERS
from tests.routes.conftest import App, StartApp, bearer
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, Server, email
from tests.support.sink import Reply, Sink

LATER = Reply(503, headers={"Retry-After": "600"})
SUBJECT, SENDER = "Grievance about lot 456", "whistle@blower.example"
LOT = "Lot 456 : nouvelle mission"


def ask(app: App, path: str) -> Any:
    return app.http.get(f"/api/admin/{path}", headers=bearer(ADMIN_TOKEN)).get_json()


def act(app: App, path: str, **document: Any) -> Any:
    return app.http.post(f"/api/admin/{path}", json=document, headers=bearer(ADMIN_TOKEN)).get_json()


def found(app: App, query: str = "") -> list[str]:
    return [each["subject"] for each in ask(app, f"decisions?{query}")["decisions"]]


@pytest.fixture(params=["sqlite", "redis"])
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Of each journal that a service can stand on."""
    if request.param == "sqlite":
        return {}
    server: RedisServer = request.getfixturevalue("redis_server")
    return {"redis_url": server.url}


@pytest.fixture
def stopped(start_app: StartApp, sink: Sink, settings: dict[str, Any]) -> App:
    """A delivered email, and one of the same group that was not sent."""
    app = start_app(webhook_url=sink.url, **settings)
    app.post(email(subject=LOT, sender="first@a.example"))
    assert app.status_of(email(subject=f"{LOT} bis", sender="second@b.example")) == "skipped_subject_group"
    return app


FIELDS = "id email_id status gate reason original repeats provider sender subject received_at deliveries"


def test_each_verdict_is_listed_with_its_reason_the_newest_first(stopped: App) -> None:
    stopped.post(email(subject=LOT, sender="first@a.example"))
    second, first = ask(stopped, "decisions")["decisions"]
    assert set(FIELDS.split()) <= first.keys()
    assert (first["status"], first["gate"], first["original"], first["repeats"]) == ("processed", None, None, 1)
    assert first["reason"].startswith("Delivered to default at ")
    assert first["reason"].endswith(", and was not sent again")
    assert (second["status"], second["gate"]) == ("skipped_subject_group", "subject_group")
    assert second["original"] == first["id"]
    assert second["reason"].startswith("Not sent: same subject group lot_456 as the email of ")
    assert second["reason"].endswith(" from first@a.example, delivered to default")
    assert (second["sender"], second["subject"]) == ("second@b.example", f"{LOT} bis")
    assert (second["provider"], second["deliveries"][0]["status"]) == ("gmail", "skipped")
    assert second["releasable_until"] > second["received_at"]
    assert (first["releasable_until"], first["last_repeat"] > first["received_at"]) == (None, True)
    assert first["took_ms"] >= 0


def test_one_decision_has_its_names_gates_original_and_payload(stopped: App) -> None:
    second, first = ask(stopped, "decisions")["decisions"]
    one = ask(stopped, f"decisions/{second['id']}")
    assert one["payload"]["subject"] == f"{LOT} bis"
    assert one["original_email"]["id"] == first["id"]
    assert {name["gate"] for name in one["names"]} == {"identity"}
    assert [gate["gate"] for gate in one["gates"]] == ["identity", "subject_group"]
    assert one["gates"][1]["said"].startswith("stopped: subject_group:")
    whole = ask(stopped, f"decisions/{first['id']}")
    assert (whole["payload"], len(whole["deliveries"][0]["attempts"])) == (None, 1)
    assert [gate["said"].split(":")[0] for gate in whole["gates"]] == [
        "passed",
        "passed",
        "nothing to ask",
        "nothing to ask",
    ]


@pytest.mark.parametrize("by", ["id", "email_id", "message_id"])
def test_one_is_found_by_any_of_its_ids(start_app: StartApp, sink: Sink, settings: dict[str, Any], by: str) -> None:
    app = start_app(webhook_url=sink.url, **settings)
    app.post(email(subject="another"))
    told = app.post(email(message_id="<one@mail.example>")).get_json()
    text = {"id": told["id"], "email_id": told["email_id"], "message_id": "one@mail.example"}[by]
    assert ask(app, f"decisions/{text}")["id"] == told["id"]
    assert [each["id"] for each in ask(app, f"decisions?q={text}")["decisions"]] == [told["id"]]
    assert ask(app, "decisions/nobody")["code"] == "unknown"


def test_a_released_email_is_delivered_once_and_says_so(
    stopped: App, sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    second, _ = ask(stopped, "decisions")["decisions"]
    path = f"decisions/{second['id']}/release"
    assert act(stopped, path, dry_run=True)["status"] == "would_release"
    assert len(sink.accepted) == 1
    answer = act(stopped, path)
    assert (answer["success"], answer["status"]) == (True, "released")
    assert [each.payload["subject"] for each in sink.accepted] == [LOT, f"{LOT} bis"]
    decision = answer["decision"]
    assert (decision["status"], decision["releasable_until"]) == ("processed", None)
    assert decision["reason"].startswith("Released at ")
    again = stopped.http.post(f"/api/admin/{path}", headers=bearer(ADMIN_TOKEN))
    assert (again.status_code, again.get_json()["code"]) == (409, "already_released")
    assert act(stopped, path, dry_run=True)["code"] == "already_released"
    assert len(sink.accepted) == 2
    assert caplog.text.count(f"AUDIT release entry={second['id']} force=False by=api") == 1


def test_what_was_not_stopped_is_not_released(stopped: App) -> None:
    _, first = ask(stopped, "decisions")["decisions"]
    for document in ({}, {"dry_run": True}):
        answer = act(stopped, f"decisions/{first['id']}/release", **document)
        assert (answer["status"], answer["code"]) == (409, "not_suppressed")
    assert act(stopped, "decisions/nobody/release")["code"] == "unknown"


def test_all_that_match_are_released_with_the_count_first(
    stopped: App, sink: Sink, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    stopped.post(email(subject=f"{LOT} ter", sender="third@c.example"))
    filters = {"gate": "subject_group", "q": "third@c"}
    counted = act(stopped, "decisions/release", dry_run=True, **filters)
    assert (counted["matched"], counted["would_release"]) == (1, 1)
    assert act(stopped, "decisions/release", dry_run=True, gate="subject_group")["matched"] == 2
    done = act(stopped, "decisions/release", **filters)
    assert (done["matched"], done["released"], done["dry_run"]) == (1, 1, False)
    eventually(lambda: len(sink.accepted) == 2)
    assert sink.accepted[1].payload["sender"] == "third@c.example"
    assert act(stopped, "decisions/release", **filters)["matched"] == 0


def test_what_is_not_kept_cannot_be_released_and_says_so(
    start_app: StartApp, sink: Sink, settings: dict[str, Any]
) -> None:
    app = start_app(webhook_url=sink.url, keep_suppressed="0", **settings)
    for name in ("first", "second"):
        app.post(email(subject=f"{LOT} {name}", sender=f"{name}@a.example"))
    second, _ = ask(app, "decisions")["decisions"]
    assert (second["status"], second["releasable_until"]) == ("skipped_subject_group", None)
    for document in ({}, {"dry_run": True}):
        assert act(app, f"decisions/{second['id']}/release", **document)["code"] == "no_payload"
    assert app.service.journal.payload(second["id"]) is None


def test_one_that_follows_keeps_its_payload_in_any_case(start_app: StartApp) -> None:
    with Sink(otherwise=LATER) as sink:
        app = start_app(webhook_url=sink.url, keep_suppressed="0")
        for name in ("first", "second"):
            app.post(email(subject=f"{LOT} {name}", sender=f"{name}@a.example"))
        second, first = ask(app, "decisions")["decisions"]
    assert (first["status"], second["follows"]) == ("queued", True)
    assert "which waits for default. If that one fails for good" in second["reason"]
    assert app.service.journal.payload(second["id"]) is not None


@pytest.fixture
def many(start_app: StartApp, settings: dict[str, Any], tmp_path: Path) -> Iterator[App]:
    """Two providers, two destinations, and each verdict."""
    with Sink() as crm, Sink(otherwise=LATER) as slow, Sink(otherwise=Reply(404)) as gone:
        config = tmp_path / "m.toml"
        sinks = {"crm": crm, "slow": slow, "gone": gone}
        to = "".join(f"[destinations.{name}]\nurl = '{sink.url}'\n" for name, sink in sinks.items())
        routes = "".join(
            f"[[routes]]\nname = '{name}'\ndestinations = ['{name}']\n"
            + (f"match = [{{ field = 'subject', contains = 'to {name}' }}]\n" if name != "crm" else "")
            for name in reversed(sinks)
        )
        config.write_text(f"{to}{routes}")
        app = start_app(mailonce_config=config, **settings)
        for subject in ("to crm", "to slow", "to gone", "to crm, Lot 456", "to crm, again lot 456", "to crm, Ünïcode"):
            app.post(email(subject=subject))
        message = {"source": "tg:news", "id": "1", "text": "Hello", "title": "to crm, a message"}
        app.http.post("/api/ingress/message", json=message, headers=bearer(INGRESS_TOKEN))
        yield app


@pytest.mark.parametrize(
    ("query", "subjects"),
    [
        ("status=queued", ["to slow"]),
        ("status=dead_lettered", ["to gone"]),
        ("status=skipped_subject_group", ["to crm, again lot 456"]),
        ("gate=subject_group", ["to crm, again lot 456"]),
        ("gate=media", []),
        ("provider=message", ["to crm, a message"]),
        ("provider=message&destination=slow", []),
        ("destination=slow", ["to slow"]),
        ("destination=crm&provider=gmail&status=processed", ["to crm, Ünïcode", "to crm, Lot 456", "to crm"]),
        ("q=LOT 456", ["to crm, again lot 456", "to crm, Lot 456"]),
        ("q=ünïcode", ["to crm, Ünïcode"]),
        ("q=ada@example&destination=gone", ["to gone"]),
        ("q=%25", []),
        ('q="', []),
        ("q=nothing like it", []),
        ("since=2020-01-01&status=queued", ["to slow"]),
        ("until=2020-01-01", []),
        ("since=2100-01-01", []),
    ],
)
def test_the_filters_find_what_they_say(many: App, query: str, subjects: list[str]) -> None:
    assert found(many, query) == subjects


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_page_by_page_each_decision_is_shown_once(many: App, limit: int) -> None:
    whole, pages, cursor = found(many), [], ""
    for _ in range(20):
        answer = ask(many, f"decisions?limit={limit}{cursor}")
        pages.append([each["subject"] for each in answer["decisions"]])
        assert answer["more"] is (answer["next"] is not None)
        if not answer["more"]:
            break
        cursor = f"&cursor={answer['next']}"
    assert [subject for page in pages for subject in page] == whole
    assert len(whole) == 7
    assert all(len(page) == limit for page in pages[:-1])


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("status=gone", "status"),
        ("gate=lock", "gate"),
        ("since=yesterday", "since"),
        ("until=x", "until"),
        ("limit=0", "limit"),
        ("cursor=x", "cursor"),
        ("cursor=WzEsMiwzXQ", "cursor"),
        ("colour=red", "colour"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_its_name(app: App, query: str, field: str) -> None:
    answer = ask(app, f"decisions?{query}")
    assert (answer["status"], answer["field"]) == (400, field)


@pytest.mark.parametrize(
    ("path", "document", "field"),
    [
        ("decisions/release", {"status": 1}, "status"),
        ("decisions/release", {"q": ["x"]}, "q"),
        ("decisions/release", {"dry_run": "yes"}, "dry_run"),
        ("decisions/release", {"limit": 1}, "limit"),
        ("decisions/release", {}, "all"),
        ("decisions/release", {"force": True, "q": ""}, "all"),
        ("decisions/release", {"all": True, "gate": "media"}, "all"),
        ("decisions/x/release", {"q": "x"}, "q"),
        ("decisions/x/release", {"force": 1}, "force"),
    ],
)
def test_what_cannot_be_released_so_is_refused_by_its_name(app: App, path: str, document: Any, field: str) -> None:
    answer = act(app, path, **document)
    assert (answer["status"], answer["field"]) == (400, field)


def test_to_do_it_to_everything_has_to_be_said(app: App, sink: Sink) -> None:
    """`{}` is what a program sends whose filter got lost."""
    app.post(email(subject=LOT))
    app.post(email(subject=f"{LOT} bis"))
    refused = act(app, "decisions/release")
    assert ", ".join(FILTERS) in refused["detail"]
    assert '"all": true' in refused["detail"]
    assert act(app, "decisions/release", dry_run=True)["would_release"] == 1
    assert len(sink.accepted) == 1
    assert act(app, "decisions/release", all=True)["released"] == 1


@pytest.mark.parametrize("path", ["decisions", "decisions/x"])
def test_a_stranger_sees_nothing(app: App, path: str) -> None:
    assert app.http.get(f"/api/admin/{path}").status_code == 401
    assert app.http.post(f"/api/admin/{path}/release").status_code == 401


def test_what_is_too_old_is_listed_and_counted_and_nothing_else(
    start_app: StartApp, sink: Sink, settings: dict[str, Any], tmp_path: Path
) -> None:
    config = tmp_path / "m.toml"
    config.write_text("[[routes]]\nname = 'now'\ndestinations = ['default']\nrealtime_only = true\n")
    app = start_app(webhook_url=sink.url, mailonce_config=config, **settings)
    old = email(subject="Yesterday's news", date="2020-01-01T00:00:00Z")
    for _ in range(3):
        assert app.status_of(old) == "skipped_old"
    (listed,) = ask(app, "decisions?status=skipped_old&q=yesterday")["decisions"]
    assert listed["reason"].startswith("Not sent: it is older than the service, and its route takes new ones only")
    assert (listed["repeats"], listed["deliveries"], listed["releasable_until"]) == (2, [], None)
    one = ask(app, f"decisions/{listed['id']}")
    assert (one["subject"], one["payload"]) == ("Yesterday's news", None)
    assert ask(app, f"decisions/{listed['email_id']}")["id"] == listed["id"]
    assert list(app.service.journal.find()) == [], "it marks nothing"
    assert act(app, f"decisions/{listed['id']}/release")["code"] == "unknown"
    assert ask(app, "decisions?status=processed")["decisions"] == []


def test_which_store_decided_is_told(stopped: App, settings: dict[str, Any]) -> None:
    store = "redis" if settings else "local"
    assert {each["store"] for each in ask(stopped, "decisions")["decisions"]} == {store}


def test_what_was_decided_alone_says_so_on_redis_too(
    start_app: StartApp, sink: Sink, redis_server: RedisServer, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    app = start_app(webhook_url=sink.url, redis_url=redis_server.url)
    journal = app.service.journal
    assert isinstance(journal, FailoverJournal)
    journal._side.change_to(Side.LOCAL)
    journal._try_at_ms = journal.local.clock.steady_ms() + 3_600_000
    told = app.post(email()).get_json()
    assert ask(app, f"decisions/{told['id']}")["store"] == "local"
    journal._try_at_ms = 0
    eventually(lambda: journal.standing.side is Side.REDIS)
    assert ask(app, f"decisions/{told['id']}")["store"] == "local"
    after = app.post(email(subject="after")).get_json()
    assert {each["id"]: each["store"] for each in ask(app, "decisions")["decisions"]} == {
        told["id"]: "local",
        after["id"]: "redis",
    }


def test_nothing_that_is_kept_says_who_wrote_or_about_what(
    start_app: StartApp,
    sink: Sink,
    settings: dict[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    app = start_app(webhook_url=sink.url, privacy="strict", **settings)
    told = app.post(email(subject=SUBJECT, sender=SENDER)).get_json()
    again = app.post(email(subject=SUBJECT, sender="other@b.example", body="more"))
    assert again.get_json()["status"] == "skipped_subject_group"
    assert sink.accepted[0].payload["subject"] == SUBJECT, "who is to have it gets all of it"
    post = {"source": "tg:news", "title": SUBJECT, "created_utc": "1763348000", "text": "A post"}
    for status in ("processed", "already_processed"):
        posted = app.http.post("/api/ingress/message", json=[post], headers=bearer(INGRESS_TOKEN)).get_json()
        assert posted["results"][0]["status"] == status
    entry = app.service.journal.read(told["id"])
    assert entry and not [text for text in (SUBJECT, SENDER) if text in repr(entry)]
    _, second, first = ask(app, "decisions")["decisions"]
    assert {first["subject"], first["sender"], second["subject"], second["sender"]} == {""}
    assert second["reason"].startswith("Not sent: same subject group lot_456 as the email of ")
    assert second["reason"].endswith(", delivered to default"), "without from whom"
    assert " from " not in ask(app, f"decisions/{second['id']}")["reason"]
    for q in (SENDER, SENDER.upper(), SUBJECT, f"  {SUBJECT} "):
        assert told["id"] in [each["id"] for each in ask(app, f"decisions?q={q}")["decisions"]]
    assert ask(app, "decisions?q=whistle")["decisions"] == [], "a part of it is not found"
    assert ask(app, f"decisions/{second['id']}")["payload"]["subject"] == SUBJECT, "while it may be released"
    app.service.parts.decisions.follow()
    # a payload is compressed, and so says nothing here
    kept = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    if settings:
        on_redis = connect(settings["redis_url"], 10, decode_responses=False)
        kept += b"".join(key + (on_redis.dump(key) or b"") for key in on_redis.scan_iter())
    for secret in (SUBJECT, SENDER, "whistle", "Grievance"):
        assert secret.encode() not in kept
        assert secret not in caplog.text


def test_what_was_kept_before_is_shown_no_more_and_found_by_the_whole_of_it(
    start_app: StartApp,
    sink: Sink,
    tmp_path: Path,
) -> None:
    before = start_app(webhook_url=sink.url)
    told = before.post(email(subject=SUBJECT, sender=SENDER)).get_json()
    assert [each["sender"] for each in ask(before, "decisions?q=whistle")["decisions"]] == [SENDER]
    before.service.close()
    strict = start_app(webhook_url=sink.url, privacy="strict")
    assert [each["sender"] for each in ask(strict, f"decisions?q={SENDER}")["decisions"]] == [""]
    assert SENDER.encode() not in (tmp_path / "data/decisions.db").read_bytes()
    in_full = repr(ask(strict, f"decisions/{told['id']}"))
    assert "post::sha256:" in in_full and SENDER not in in_full and SUBJECT not in in_full, "nor do its names say it"


def test_every_process_lists_all_also_after_a_power_cut(tmp_path: Path) -> None:
    def listed(server: Server) -> set[str]:
        headers, url = bearer(ADMIN_TOKEN), f"{server.url}/api/admin/decisions"
        answers = [requests.get(url, headers=headers, timeout=60).json()["decisions"] for _ in range(6)]
        subjects = [[each["subject"] for each in answer] for answer in answers]
        assert all(each == subjects[0] for each in subjects), "whichever process is asked"
        return set(subjects[0])

    with Sink() as sink:
        server = Server(tmp_path / "data", WEBHOOK_URL=sink.url, WEB_CONCURRENCY="3")
        with server:
            for number in range(4):
                server.post(email(subject=f"number {number}"))
            assert listed(server) == {f"number {number}" for number in range(4)}
            server.kill()
            server.start()
            server.post(email(subject="number 4"))
            assert listed(server) == {f"number {number}" for number in range(5)}


@pytest.mark.real_redis
def test_while_redis_is_down_this_machine_lists_what_it_knows(
    start_app: StartApp, sink: Sink, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    redis = RedisServer().start()
    app = start_app(webhook_url=sink.url, redis_url=redis.url)
    app.post(email(subject="before"))
    assert found(app) == ["before"]
    redis.stop()
    journal = app.service.journal
    assert isinstance(journal, FailoverJournal)
    eventually(lambda: journal.standing.side is Side.LOCAL)
    assert app.status_of(email(subject="alone")) == "processed"
    assert found(app) == ["alone", "before"]
    assert found(app, "q=alone") == ["alone"]


@pytest.mark.parametrize(
    ("query", "count"),
    [("since=9999-12-31T23:59:59Z", 0), ("since=0001-01-01T00:00:00Z", 2), ("until=9999-12-31T23:59:59Z", 2)],
)
def test_any_year_can_be_asked_for(stopped: App, query: str, count: int) -> None:
    answer = stopped.http.get(f"/api/admin/decisions?{query}", headers=bearer(ADMIN_TOKEN))
    assert (answer.status_code, len(answer.get_json()["decisions"])) == (200, count)
