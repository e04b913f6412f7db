"""Erasing a person's emails: nothing of them is left on any machine, and nothing brings them back."""

import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from deduplication.journal.entry import pack_event, read_event
from deduplication.redis_client import connect
from orchestrator.item import email_item
from orchestrator.operations.reset import Erase, erase
from routes.providers.gmail import parse
from tests.routes.conftest import App, StartApp, write_toml
from tests.routes.test_files import LARGE, fetch, letter, on_disk, send
from tests.support.redis_server import RedisServer
from tests.support.server import email
from tests.support.sink import Reply, Sink
from tests.support.waiting import wait_for

PERSON, WORDS = "grace@person.example", "Nightingale"
TRACES = (b"grace@", b"nightingale")


def plain(value: object) -> bytes:
    """What is compressed, as text: a payload or an event."""
    raw = value if isinstance(value, bytes) else str(value).encode()
    with suppress(zlib.error):
        return zlib.decompress(raw)
    return str(read_event(raw) or "").encode() or raw


def in_journal(app: App) -> Iterator[tuple[str, bytes]]:
    """Everything in a journal and in its folder of files."""
    with app.service.journal.reading() as step:
        for (table,) in step.query("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'search_%'"):
            yield from ((table, plain(each)) for row in step.query(f"SELECT * FROM {table}") for each in row)  # noqa: S608
    yield from ((path.name, path.read_bytes()) for path in on_disk(app))


def in_redis(url: str) -> Iterator[tuple[str, bytes]]:
    readers: dict[bytes, Callable[[Any, bytes], Iterable[Any]]] = {
        b"string": lambda client, key: [client.get(key)],
        b"hash": lambda client, key: [each for pair in client.hgetall(key).items() for each in pair],
        b"set": lambda client, key: client.smembers(key),
        b"zset": lambda client, key: client.zrange(key, 0, -1),
        b"stream": lambda client, key: [fields[b"e"] for _, fields in client.xrange(key)],
    }
    with connect(url, 5.0, decode_responses=False) as client:
        for key in client.scan_iter(count=1000):
            yield from ((key.decode(), plain(each)) for each in (key, *readers[client.type(key)](client, key)))


def traces(found: Iterator[tuple[str, bytes]]) -> set[str]:
    return {where.partition(":")[0] for where, value in found if any(trace in value.lower() for trace in TRACES)}


def test_everything_of_a_person_is_gone_on_every_machine(
    start_app: StartApp, tmp_path: Path, redis_url: str, sink: Sink
) -> None:
    with Sink(otherwise=Reply(503)) as fails:
        waits, dies = f"url = '{fails.url}'", f"url = '{fails.url}'\nmax_attempts = 1"
        config = write_toml(tmp_path, works=sink, waits=waits, dies=dies)
        config.write_text(config.read_text() + "[providers.mime]\nattachments = 'link'\n")
        names = ("one", "other") if redis_url else ("one",)
        apps = [start_app(mailonce_config=config, data_dir=tmp_path / name, redis_url=redis_url) for name in names]
        app, last = apps[0], apps[-1]
        theirs = letter(1, f"Grace <{PERSON}>", LARGE)
        send(app, theirs)
        app.post(email(subject=WORDS, sender=PERSON))
        send(app, letter(4, "Other <other@else.example>", LARGE))
        mine, others = (sink.accepted[at].payload for at in (0, -1))
        app.settle()
        wait_for(lambda: len(last.entries) == 3)
        app.ask("decisions?q=Files")  # which brings the search index up to date
        assert traces(in_journal(app)) >= {"entries", "payloads", "search"}
        if redis_url:
            assert traces(in_redis(redis_url)) >= {"events", "delivery", "payload"}
        assert app.act("erase", who=PERSON, dry_run=True)["emails"] == 2 and len(app.entries) == 3
        done = last.act("erase", who=PERSON.upper())
        assert (done["emails"], done["kept"], done["behind"]) == (2, [], [])
        for each in apps:
            wait_for(lambda each=each: len(each.entries) == 1)  # type: ignore[misc]
            each.ask("decisions?q=Files")
            each.service.files.sweep()
            assert traces(in_journal(each)) == set()
        if redis_url:
            assert traces(in_redis(redis_url)) == set()
    assert fetch(app, mine["raw_url"]).status_code == 410
    assert [fetch(app, each["attachments"][0]["url"]).status_code for each in (mine, others)] == [200, 200], "shared"
    assert send(app, theirs).get_json()["status"] == "already_processed", "its id is still known, as a digest"
    assert traces(in_journal(app)) == set()


def test_late_news_of_another_machine_does_not_bring_an_email_back(
    start_app: StartApp, redis_server: RedisServer, sink: Sink
) -> None:
    redis_server.client.flushall()
    app = start_app(webhook_url=sink.url, redis_url=redis_server.url)
    app.post(email(sender=PERSON))
    app.settle()
    (entry,) = app.entries
    assert app.act("erase", who=PERSON)["emails"] == 1
    nameless = replace(entry, own=tuple(name.with_value(f"another {name.value[:3]}") for name in entry.own))
    with connect(redis_server.url, 5.0, decode_responses=False) as client:
        for late in (entry, nameless):
            position = client.xadd("events", {"e": pack_event("E", "0123456789", late)}).decode()

    def has_read_all() -> bool:
        with app.service.journal.reading() as step:
            return bool(step.meta("position") >= position)

    wait_for(has_read_all)
    assert app.entries == []


def test_what_is_being_delivered_is_kept_and_said(start_app: StartApp) -> None:
    answer = threading.Event()
    with Sink(otherwise=Reply(200, after=answer)) as slow:
        app = start_app(webhook_url=slow.url)
        item = email_item(parse(email(sender=PERSON)), None)
        request = threading.Thread(target=app.service.pipeline.receive, args=(item,))
        request.start()
        assert slow.arrived.wait(20)
        done = erase(app.service, Erase(who=PERSON))
        assert (done.emails, len(done.kept)) == (0, 1)
        answer.set()
        request.join()
    assert erase(app.service, Erase(who=PERSON)).emails == 1
