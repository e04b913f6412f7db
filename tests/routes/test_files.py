"""Attachments and raw emails by link: what the webhook says, what the link gives, and what happens without room."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from werkzeug.test import TestResponse

from deduplication.members import share_notes
from deduplication.spool import LARGE_BYTES
from orchestrator import files
from orchestrator.config.settings import DAY_MS, MB
from routes.providers.samples import Enclosure, Letter
from tests.routes.conftest import App, StartApp, bearer
from tests.support.redis_server import RedisServer
from tests.support.s3_server import BUCKET, aim_at, s3_server
from tests.support.server import INGRESS_TOKEN
from tests.support.sink import Sink

SMALL, LARGE = b"small \0 content", os.urandom(3 * LARGE_BYTES)
NAMES = ("a.pdf", "Übersicht <1>.html")


def letter(number: int = 1, sender: str = "Ada <ada@example.org>", *contents: bytes) -> Letter:
    enclosures = [Enclosure(name, "application/pdf", each) for name, each in zip(NAMES, contents, strict=False)]
    date = f"Mon, 16 Nov 2026 09:00:{number:02} +0000"
    return Letter(f"Files {number}", sender, ("in@example.com",), date, f"<{number}@x>", "text", "", tuple(enclosures))


def send(app: App, sent: Letter | bytes) -> TestResponse:
    """As a mail server pipes it on."""
    raw = sent if isinstance(sent, bytes) else sent.mime.as_bytes()
    headers = {**bearer(INGRESS_TOKEN), "Content-Type": "message/rfc822"}
    return app.http.post("/api/ingress/mime", data=raw, headers=headers)


def fetch(app: App, url: str, **headers: str) -> TestResponse:
    return app.http.get(urlsplit(url).path, headers=headers, buffered=True)


def rows(app: App, query: str) -> list[tuple[Any, ...]]:
    with app.service.journal.reading() as step:
        return step.query(query)


def on_disk(app: App) -> list[Path]:
    return [path for path in (app.service.settings.data_dir / "files").rglob("*") if path.is_file()]


def test_each_attachment_and_the_raw_email_have_a_link(start_app: StartApp, sink: Sink) -> None:
    app = start_app(webhook_url=sink.url, public_url="https://mail.example/in")
    sent = letter(1, "Ada <ada@example.org>", LARGE, SMALL).mime.as_bytes()
    assert send(app, sent).status_code == 200
    payload = sink.accepted[0].payload
    for described, content in zip(payload["attachments"], (LARGE, SMALL), strict=True):
        digest = hashlib.sha256(content).hexdigest()
        known = {"size": len(content), "size_bytes": len(content), "sha256": digest, "inline": False}
        assert described.items() >= known.items() and described["url"].startswith("https://mail.example/in/files/")
        answer = fetch(app, described["url"].replace("/in/", "/"))
        assert (answer.status_code, answer.data) == (200, content)
        assert answer.headers["Content-Disposition"].startswith("attachment; filename=")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Security-Policy"] == "sandbox; default-src 'none'"
        part = fetch(app, described["url"].replace("/in/", "/"), Range="bytes=2-5")
        assert (part.status_code, part.data) == (206, content[2:6])
    assert fetch(app, payload["raw_url"].replace("/in/", "/")).data == sent
    assert len(on_disk(app)) == 2, "the large attachment and the raw email; what is small is in the journal"


def test_a_content_is_stored_once_and_a_repeat_stores_nothing(start_app: StartApp, sink: Sink) -> None:
    app = start_app(webhook_url=sink.url)
    first, second = letter(1, "a@one.example", LARGE), letter(2, "b@two.example", LARGE)
    assert [send(app, each).get_json()["status"] for each in (first, second, first)] == [
        "processed", "processed", "already_processed",
    ]  # fmt: skip
    keys = {urlsplit(each.payload["attachments"][0]["url"]).path[14:61] for each in sink.accepted}
    assert len(keys) == 1 and len(on_disk(app)) == 3, "two raw emails, one attachment"
    assert rows(app, "SELECT count(*) FROM files") == [(3,)]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda url: url.replace("/files/A", "/files/B").replace("/files/", "/files/x", 1), 404),
        (lambda url: url[:40] + ("A" if url[40] != "A" else "B") + url[41:], 404),
        (lambda url: url.replace("a.pdf", "a.exe"), 404),
        (lambda url: url.rpartition("/")[0], 404),
        (lambda url: "/files/%FF/é", 404),
    ],
)
def test_a_link_that_was_changed_is_none(
    start_app: StartApp, sink: Sink, change: Callable[[str], str], status: int
) -> None:
    app = start_app(webhook_url=sink.url)
    send(app, letter(1, "a@one.example", LARGE))
    path = urlsplit(sink.accepted[0].payload["attachments"][0]["url"]).path
    assert fetch(app, path).status_code == 200
    assert fetch(app, change(path)).status_code == status


def test_a_link_of_another_service_is_none_and_one_that_expired_or_lost_its_file_is_gone(
    start_app: StartApp, sink: Sink, tmp_path: Path
) -> None:
    app = start_app(webhook_url=sink.url)
    other = start_app(webhook_url=sink.url, data_dir=tmp_path / "other")
    send(app, letter(1, "a@one.example", LARGE, SMALL))
    large, small = (each["url"] for each in sink.accepted[0].payload["attachments"])
    assert fetch(other, large).status_code == 404
    on_disk(app)[0].unlink()
    on_disk(app)[0].unlink()
    assert [fetch(app, each).status_code for each in (large, small)] == [410, 200]
    clock = app.service.journal.clock
    app.service.journal.clock = replace(clock, now_ms=lambda: clock.now_ms() + 8 * DAY_MS)
    assert fetch(app, small).status_code == 410
    for _ in range(2):
        app.service.files.sweep()
    assert rows(app, "SELECT key FROM files UNION SELECT entry FROM file_links") == []
    assert rows(app, "SELECT bytes FROM file_room") == [(0,)]
    assert not on_disk(app)


def test_a_sender_domain_that_sends_much_leaves_room_for_others(start_app: StartApp, sink: Sink) -> None:
    app = start_app(webhook_url=sink.url, files_mb=20 * LARGE_BYTES / MB)
    hog = [letter(number, "Hog <hog@hog.example>", os.urandom(2 * LARGE_BYTES)) for number in range(9)]
    assert {send(app, each).get_json()["status"] for each in hog} == {"processed"}
    missing = [each.payload["attachments"][0].get("missing") for each in sink.accepted]
    assert missing[0] is None and set(missing[-3:]) == {files.OVER_QUOTA}
    assert sink.accepted[-1].payload["raw_missing"] == files.OVER_QUOTA
    send(app, letter(20, "Ada <ada@example.org>", os.urandom(LARGE_BYTES)))
    assert fetch(app, sink.accepted[-1].payload["attachments"][0]["url"]).status_code == 200
    (decision,) = app.ask("decisions?limit=1&q=Files+8")["decisions"]
    assert app.ask(f"decisions/{decision['id']}")["missing_files"][0]["missing"] == files.OVER_QUOTA
    shown = app.http.get("/metrics", headers=bearer("admin-token-for-tests-only")).text
    assert 'mailonce_files_total{result="over quota"} 0' not in shown and 'files_total{result="over quota"}' in shown


def test_on_a_full_disk_the_email_is_delivered_and_says_what_is_missing(
    start_app: StartApp, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = start_app(webhook_url=sink.url)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    send(app, letter(1, "a@one.example", LARGE, SMALL))
    first, second = sink.accepted[0].payload["attachments"]
    assert (first["url"], first["missing"]) == (None, files.NO_ROOM) and second["url"]
    monkeypatch.undo()
    app.service.files.sweep()
    assert not on_disk(app), "half a file"
    monkeypatch.setattr(files.Folder, "has_room", lambda *_: False)
    send(app, letter(2, "a@one.example", SMALL + b"2", LARGE + b"2"))
    assert [each["missing"] for each in sink.accepted[1].payload["attachments"]] == [files.NO_ROOM] * 2


def test_with_s3_a_fleet_shares_files_and_goes_on_while_it_is_away(
    start_app: StartApp, sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RedisServer() as redis:
        with s3_server() as s3:
            aim_at(s3.url, monkeypatch)
            shared = {"webhook_url": sink.url, "redis_url": redis.url, "files_url": f"s3://{BUCKET}/mail/once"}
            one, other = (start_app(data_dir=tmp_path / name, **shared) for name in ("one", "other"))
            send(one, letter(1, "a@one.example", LARGE, SMALL))
            for each in (one, other):
                assert each.service.coordinator.registry
                share_notes(each.service.coordinator.registry, each.service.journal)
            for described, content in zip(sink.accepted[0].payload["attachments"], (LARGE, SMALL), strict=True):
                answer = fetch(other, described["url"])
                assert answer.status_code == 302
                assert s3.get(answer.headers["Location"]) == content
            before = start_app(data_dir=tmp_path / "one", webhook_url=sink.url)  # when FILES_URL was not set yet
            send(before, letter(2, "a@one.example", LARGE + b"2"))
            send(one, letter(3, "a@one.example", LARGE + b"2"))
            was, now = (each.payload["attachments"][0]["url"] for each in sink.accepted[1:3])
            assert [fetch(one, each).status_code for each in (was, now)] == [200, 302]
            with one.service.journal.step() as step:
                step.query("UPDATE files SET until_ms = 1")
            one.service.files.sweep()
            assert fetch(other, now).status_code == 410 and not on_disk(one)
            send(one, letter(4, "a@one.example", LARGE))
        send(one, letter(5, "a@one.example", LARGE + b"5", SMALL + b"5"))
        assert [each["missing"] for each in sink.accepted[4].payload["attachments"]] == [files.UNAVAILABLE] * 2
        assert fetch(other, sink.accepted[3].payload["attachments"][0]["url"]).status_code == 503


def test_a_fleet_without_s3_sends_a_megabyte_inline_unless_told_otherwise(
    start_app: StartApp, sink: Sink, tmp_path: Path
) -> None:
    toml = "[providers.mime]\nattachments = 'link'\nraw = false\n"
    with RedisServer() as redis:
        app = start_app(webhook_url=sink.url, redis_url=redis.url)
        send(app, letter(1, "a@one.example", SMALL, os.urandom(MB)))
        small, large = sink.accepted[0].payload["attachments"]
        assert small["content"] and "content" not in large and large["url"] is None
        told = start_app(webhook_url=sink.url, redis_url=redis.url, toml=toml, data_dir=tmp_path / "told")
        send(told, letter(2, "a@one.example", SMALL))
        payload = sink.accepted[1].payload
        assert payload["attachments"][0]["url"] and payload["raw_url"] is None
