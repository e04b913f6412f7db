"""Several destinations, media, content and realtime: what stops an item, where, and what a retry does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from routes.app import create_app
from tests.routes.conftest import App, StartApp, bearer
from tests.routes.test_delivery import Eventually, try_again
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, email
from tests.support.sink import Reply, Sink

Configure = Callable[..., str]
WEEKLY = "https://www.dropbox.com/scl/fi/abc/weekly.zip?rlkey=x"
OTHER = "https://we.tl/t-other"


@pytest.fixture
def sinks() -> Iterator[tuple[Sink, Sink]]:
    with ExitStack() as stack:
        yield stack.enter_context(Sink()), stack.enter_context(Sink(Reply(500), Reply(500)))


@pytest.fixture
def two(sinks: tuple[Sink, Sink], tmp_path: Path) -> Path:
    """crm works, archive fails a round, which is two tries; subjects do not group."""
    path = tmp_path / "two.toml"
    path.write_text(
        f"[destinations.crm]\nurl = '{sinks[0].url}'\n[destinations.archive]\nurl = '{sinks[1].url}'\n"
        "[[routes]]\nname = 'all'\ndestinations = ['crm', 'archive']\nsubject_groups = 'off'\n"
    )
    return path


def linking(*links: str, subject: str) -> dict[str, object]:
    return email(subject=subject, body=" ".join(links), date=f"2026-11-16T09:00:0{len(subject) % 10}Z")


def test_a_retry_goes_only_to_the_destination_that_still_misses_it(
    start_app: StartApp, sinks: tuple[Sink, Sink], two: Path, eventually: Eventually
) -> None:
    app = start_app(mailonce_config=two)
    assert [app.status_of(email()) for _ in range(2)] == ["queued", "queued"]
    try_again(app)
    eventually(lambda: app.status_of(email()) == "already_processed")
    assert [len(sink.accepted) for sink in sinks] == [1, 1]
    assert [len(sink.received) for sink in sinks] == [1, 3]
    ids = {sink.accepted[0].webhook_id for sink in sinks}
    assert len(ids) == 2, "a webhook-id stands for one (email, destination)"


def test_two_servers_and_two_destinations_make_one_post_each(
    start_app: StartApp, redis_server: RedisServer, tmp_path: Path, eventually: Eventually
) -> None:
    with Sink(otherwise=Reply(delay_s=0.2)) as crm, Sink(otherwise=Reply(delay_s=0.2)) as archive:
        path = tmp_path / "two.toml"
        path.write_text(
            f"[destinations.crm]\nurl = '{crm.url}'\n[destinations.archive]\nurl = '{archive.url}'\n"
            "[[routes]]\nname = 'all'\ndestinations = ['crm', 'archive']\n"
        )
        settings = {"mailonce_config": path, "redis_url": redis_server.url}
        servers = [start_app(data_dir=tmp_path / name, **settings) for name in "ab"]
        with ThreadPoolExecutor(8) as clients:
            list(clients.map(lambda number: servers[number % 2].post(email()), range(8)))
        eventually(lambda: [app.status_of(email()) for app in servers] == ["already_processed"] * 2)
        assert (len(crm.received), len(archive.received)) == (1, 1)


def test_a_reset_of_a_destination_sends_again_there_and_only_there(
    start_app: StartApp, sinks: tuple[Sink, Sink], two: Path, eventually: Eventually
) -> None:
    app = start_app(mailonce_config=two)
    app.post(email())
    assert app.reset({"scope": "destination", "value": "archive"}).get_json()["kept"], "it is still to be delivered"
    try_again(app)
    eventually(lambda: app.status_of(email()) == "already_processed")
    assert app.reset({"scope": "destination", "value": "crm"}).get_json()["names"] > 0
    assert app.status_of(email()) == "processed"
    assert [len(sink.accepted) for sink in sinks] == [2, 1]


def test_a_reset_of_an_email_sends_again_everywhere(
    start_app: StartApp, sinks: tuple[Sink, Sink], two: Path, eventually: Eventually
) -> None:
    app = start_app(mailonce_config=two)
    email_id = app.post(email()).get_json()["email_id"]
    try_again(app)
    eventually(lambda: app.status_of(email()) == "already_processed")
    app.reset({"scope": "email_id", "value": email_id})
    assert app.status_of(email()) == "processed"
    assert [len(sink.accepted) for sink in sinks] == [2, 2]


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_what_is_under_way_is_shown_as_a_lock_of_the_server_that_is_at_it(
    start_app: StartApp, redis_server: RedisServer, tmp_path: Path, store: str
) -> None:
    shown: list[dict[str, str]] = []
    heard: list[str] = []

    def look() -> None:
        shown.extend(app.http.get("/api/admin/locks", headers=bearer(ADMIN_TOKEN)).get_json()["locks"])
        heard.append(app.status_of(email()))

    class LookingSink(Sink):
        def next_reply(self) -> Reply:
            look()
            return super().next_reply()

    with LookingSink() as sink:
        path = tmp_path / "patient.toml"  # on a busy machine the look takes longer than a receiver usually may
        path.write_text(f'[destinations.default]\nurl = "{sink.url}"\nread_timeout_s = 60\n')
        app = start_app(mailonce_config=path, redis_url=redis_server.url if store == "redis" else "")
        told = app.post(email()).get_json()
    assert (told["status"], heard) == ("processed", ["already_processing"])
    (lock,) = shown
    assert (lock["content_id"], lock["platform"]) == (told["email_id"], "default")
    assert lock["server_id"] == app.service.server
    assert "owner" not in lock
    assert app.http.get("/api/admin/locks", headers=bearer("x" * 20)).status_code == 401


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_an_email_whose_every_file_was_announced_before_is_skipped(
    start_app: StartApp, sink: Sink, redis_server: RedisServer, store: str
) -> None:
    app = start_app(webhook_url=sink.url, redis_url=redis_server.url if store == "redis" else "")
    first = app.post(linking(WEEKLY, subject="a")).get_json()
    again = app.post(linking(WEEKLY + "&dl=1", subject="bb")).get_json()
    assert again["status"] == "skipped_media"
    assert (again["reason"]["gate"], again["reason"]["original"]) == ("media", first["id"])
    assert app.status_of(linking(WEEKLY + "&dl=1", subject="bb")) == "skipped_media"
    assert app.status_of(linking(WEEKLY, OTHER, subject="ccc")) == "processed", "one of its files is new"
    assert app.status_of(linking(OTHER, subject="dddd")) == "skipped_media"
    if store == "redis":
        assert redis_server.client.get("media:https://we.tl/t-other") == "1"
        assert 0 < redis_server.client.ttl("media:https://we.tl/t-other") <= 604_800


@pytest.mark.parametrize(
    ("media", "expected"), [("off", "processed"), ("listed", "processed"), ("all", "skipped_media")]
)
def test_a_route_says_which_links_count(
    start_app: StartApp, sink: Sink, tmp_path: Path, media: str, expected: str
) -> None:
    path = tmp_path / "media.toml"
    path.write_text(f"[[routes]]\nname = 'all'\nmedia = '{media}'\n")
    app = start_app(webhook_url=sink.url, mailonce_config=path)
    app.post(linking("https://files.example/a.zip", subject="a"))
    assert app.status_of(linking("https://files.example/a.zip", subject="bb")) == expected


def test_identity_group_and_three_links_are_held_in_one_round_trip(
    start_app: StartApp, sink: Sink, redis_server: RedisServer
) -> None:
    app = start_app(webhook_url=sink.url, redis_url=redis_server.url)
    app.post(email(subject="warm-up"))

    def round_trips(number: int) -> int:
        redis_server.client.config_resetstat()
        links = [f"https://we.tl/t-{number}-{each}" for each in range(3)]
        assert app.status_of(linking(*links, subject=f"Lot {number}")) == "processed"
        return int(redis_server.client.info("commandstats")["cmdstat_evalsha"]["calls"])

    assert min(map(round_trips, range(5))) == 1, "publishing follows behind the request"
    assert redis_server.client.exists("media:https://we.tl/t-0-2")


def test_the_medium_of_a_link_is_where_it_leads(start_app: StartApp, sink: Sink) -> None:
    app = start_app(webhook_url=sink.url)
    finals = {"https://we.tl/t-short": "https://wetransfer.com/downloads/final/1"}
    pipeline = replace(app.service.pipeline, resolve=lambda urls: [finals.get(url, url) for url in urls])
    service = replace(app.service, pipeline=pipeline)
    resolving = App(service, create_app(service).test_client())
    assert resolving.status_of(linking("https://we.tl/t-short", subject="a")) == "processed"
    assert app.status_of(linking("https://wetransfer.com/downloads/final/1", subject="bb")) == "skipped_media"
    assert app.status_of(linking("https://we.tl/t-short", subject="ccc")) == "processed", "the raw link is not a name"
    finals["https://we.tl/t-new"] = "https://wetransfer.com/downloads/final/1"
    assert resolving.status_of(linking("https://we.tl/t-new", subject="dddd")) == "skipped_media"


def test_the_links_of_an_email_are_followed_together_under_one_deadline(start_app: StartApp, sink: Sink) -> None:
    app = start_app(webhook_url=sink.url)
    followed: list[list[str]] = []

    def resolve(urls: Sequence[str]) -> Sequence[str]:
        followed.append(list(urls))
        return urls

    service = replace(app.service, pipeline=replace(app.service.pipeline, resolve=resolve))
    links = ["https://we.tl/t-1", "https://we.tl/t-2", "https://we.tl/t-3"]
    assert App(service, create_app(service).test_client()).status_of(linking(*links, subject="a")) == "processed"
    assert followed == [links]


def test_the_content_gate_is_off_for_emails_unless_a_destination_asks_for_it(
    start_app: StartApp, sink: Sink, tmp_path: Path
) -> None:
    same = [email(subject=subject, body="The same ten words at the start of every one of them") for subject in "ab"]
    app = start_app(webhook_url=sink.url)
    assert [app.status_of(each) for each in same] == ["processed", "processed"]
    path = tmp_path / "content.toml"
    path.write_text(f"[destinations.crm]\nurl = '{sink.url}'\ncontent_window_s = 3600\n")
    gated = start_app(mailonce_config=path, data_dir=tmp_path / "gated")
    assert [gated.status_of(each) for each in same] == ["processed", "skipped_content"]


def test_words_that_every_destination_had_are_skipped_with_a_reason(start_app: StartApp, tmp_path: Path) -> None:
    with Sink() as crm, Sink() as archive:
        path = tmp_path / "content.toml"
        path.write_text(
            f"[destinations.crm]\nurl = '{crm.url}'\ncontent_window_s = 60\n"
            f"[destinations.archive]\nurl = '{archive.url}'\ncontent_window_s = 60\n"
            "[[routes]]\nname = 'one'\nmatch = [{ field = 'subject', equals = 'one' }]\ndestinations = ['crm']\n"
            "[[routes]]\nname = 'both'\ndestinations = ['crm', 'archive']\n"
        )
        app = start_app(mailonce_config=path)
        first = app.post(email(subject="one")).get_json()
        assert app.status_of(email(subject="two")) == "processed", "archive did not have it"
        third = app.post(email(subject="three")).get_json()
        assert (third["status"], third["reason"]["gate"]) == ("skipped_content", "content")
        assert third["reason"]["original"] == first["id"]
        assert (len(crm.received), len(archive.received)) == (1, 1)


def test_realtime_only_skips_what_is_older_than_the_service_and_records_nothing(
    start_app: StartApp, sink: Sink, tmp_path: Path
) -> None:
    path = tmp_path / "realtime.toml"
    path.write_text("[[routes]]\nname = 'now'\nrealtime_only = true\nsubject_groups = 'off'\n")
    start = datetime(2026, 11, 16, 12, tzinfo=UTC)
    app = start_app(webhook_url=sink.url, mailonce_config=path, service_started_at=start)
    assert app.status_of(email(date="2026-11-16T11:59:59Z")) == "skipped_old"
    assert app.status_of(email(date="2026-11-16T12:00:00Z")) == "processed"
    later = start_app(webhook_url=sink.url, service_started_at=start)
    assert later.status_of(email(date="2026-11-16T11:59:59Z")) == "processed", "it left no trace"
    assert len(sink.received) == 2


def test_a_retry_for_another_destination_leaves_the_record_of_the_first_delivered(
    start_app: StartApp, sinks: tuple[Sink, Sink], two: Path, eventually: Eventually
) -> None:
    """Its own words at the first destination are no duplicate of anybody's."""
    two.write_text(two.read_text().replace("[destinations.crm]", "[destinations.crm]\ncontent_window_s = 3600"))
    app = start_app(mailonce_config=two)
    assert app.status_of(email()) == "queued"
    try_again(app)
    eventually(lambda: app.status_of(email()) == "already_processed")
    shown = app.http.get("/api/admin/deliveries", headers=bearer(ADMIN_TOKEN)).get_json()["deliveries"]
    assert {each["status"] for each in shown} == {"delivered"}


def test_one_email_to_two_addresses_is_one_unless_each_recipient_counts(
    start_app: StartApp, sink: Sink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    copies = [email(subject="Lot 7", recipient=f"{name}@example.com", body=WEEKLY) for name in ("ada", "bob")]
    app = start_app(webhook_url=sink.url)
    assert [app.status_of(each) for each in copies] == ["processed", "already_processed"]
    path = tmp_path / "each.toml"
    path.write_text("[[routes]]\nname = 'each'\nidentity_by_recipient = true\n")
    each = start_app(webhook_url=sink.url, mailonce_config=path, data_dir=tmp_path / "other")
    assert [each.status_of(copy) for copy in copies * 2] == ["processed"] * 2 + ["already_processed"] * 2
    assert "ada@example.com" not in caplog.text
