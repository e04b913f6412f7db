"""POST /api/ingress/message: posts and chat messages are handled like emails."""

from typing import Any

import pytest

from deduplication.message import Message
from tests.routes.conftest import App, StartApp, bearer
from tests.support.redis_server import RedisServer
from tests.support.server import INGRESS_TOKEN
from tests.support.sink import Reply, Sink


def post(app: App, payload: object, token: str = INGRESS_TOKEN) -> Any:
    return app.http.post("/api/ingress/message", json=payload, headers=bearer(token))


def statuses(app: App, payload: object) -> list[str]:
    return [each["status"] for each in post(app, payload).get_json()["results"]]


def message(number: int, **fields: Any) -> dict[str, Any]:
    return {"source": "tg:news", "id": number, "text": f"Message number {number} says something", **fields}


def test_each_message_of_a_list_gets_its_own_answer(app: App, sink: Sink) -> None:
    first = message(1, title="T", date="2026-11-16T09:00:00Z", media=["https://a.example/1"])
    assert statuses(app, first) == ["processed"]
    answer = post(app, [message(2), first, {"text": "no id"}, "no object", message(3)])
    body = answer.get_json()
    assert (answer.status_code, body["success"]) == (200, False)
    expected = ["processed", "already_processed", "invalid", "invalid", "processed"]
    assert [each["status"] for each in body["results"]] == expected
    assert (body["results"][2]["field"], body["results"][0]["key"]) == ("id", "tg:news:2")
    assert len(sink.received) == 3
    payload = sink.received[0].payload
    assert (payload["source"], payload["id"], payload["title"]) == ("tg:news", "1", "T")
    assert (payload["text"], payload["media"]) == (first["text"], ["https://a.example/1"])
    assert payload["received_at"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"source": "tg:a", "id": 1}, {"source": "tg:b", "id": 1}, "processed"),
        ({"source": "tg:a", "id": 1}, {"source": "tg:a", "id": "1"}, "already_processed"),
        ({"name": "t3_x", "id": 1}, {"name": "t3_x", "id": 2}, "already_processed"),
        ({"permalink": "/r/a/1?x=1#y"}, {"permalink": "/r/a/1"}, "already_processed"),
        ({"url": "https://a.example/1?utm=2"}, {"url": "https://a.example/1"}, "already_processed"),
        ({"url": "http://[::1/a?utm=1"}, {"url": "http://[::1/a#top"}, "already_processed"),
        ({"title": "T", "created_utc": 5}, {"title": "T", "created_utc": 6}, "processed"),
        (
            {"id": 1, "media": ["https://a.example/1?s=1"]},
            {"id": 1, "media": ["https://a.example/1"]},
            "already_processed",
        ),
        ({"id": 1, "media": ["https://a.example/1"]}, {"id": 1, "media": []}, "already_processed"),
        ({"id": 1, "media": ["https://a.example/1"]}, {"id": 1, "media": ["https://a.example/2"]}, "processed"),
    ],
)
def test_a_message_is_recognised_by_its_key_and_its_media(app: App, first: Any, second: Any, expected: str) -> None:
    assert statuses(app, [first, second]) == ["processed", expected]


def test_the_same_text_or_medium_is_sent_to_a_destination_once(app: App, sink: Sink) -> None:
    words = "One two three four five six seven eight nine ten"
    both = [message(1, text=f"{words} eleven"), message(2, text=f"{words.upper()}! twelve", source="vk:group")]
    assert statuses(app, both) == ["processed", "skipped_content"]
    assert statuses(app, [message(3, text="🎉"), message(4, text="🎉"), message(5, text="")]) == ["processed"] * 3
    media = [message(6, media=["https://i.redd.it/a.jpg?width=1"]), message(7, media=["https://I.redd.it/a.jpg"])]
    assert statuses(app, media) == ["processed", "skipped_media"]
    assert len(sink.received) == 5


def test_a_failed_message_is_stored_and_does_not_stop_the_others(start_app: StartApp) -> None:
    with Sink(Reply(200), Reply(500), Reply(500)) as sink:
        app = start_app(webhook_url=sink.url)
        messages = [message(1), message(2), message(3)]
        assert statuses(app, messages) == ["processed", "queued", "processed"]
        assert statuses(app, messages) == ["already_processed", "queued", "already_processed"]
        assert len(sink.accepted) == 2


def test_logs_contain_item_ids_and_no_keys(app: App, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    secret = {"title": "Private\nFORGED", "created_utc": 1}
    odd = [secret, {"permalink": "/private/1"}, {"source": "a\nFORGED", "id": 1}, {"id": "private"}]
    results = [post(app, odd).get_json()["results"] for _ in range(2)][0]
    lines = [record.getMessage() for record in caplog.records]
    for line in lines:
        assert "rivate" not in line
        assert "FORGED" not in line
    for result in results:
        assert any(result["item_id"] in line for line in lines), "the answer says by which id the log calls it"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"source": 5}, "source"),
        ({"text": ["x"]}, "text"),
        ({"id": {}}, "id"),
        ({"media": "https://a"}, "media"),
        ({"destinations": ["nowhere"]}, "destinations"),
    ],
)
def test_a_wrong_field_is_named(app: App, fields: dict[str, Any], field: str) -> None:
    answer = post(app, message(1) | fields)
    (result,) = answer.get_json()["results"]
    assert (answer.status_code, result["status"], result["field"]) == (200, "invalid", field)


def test_a_wrong_token_and_more_than_a_thousand_messages_are_refused(app: App, sink: Sink) -> None:
    assert post(app, message(1), token="wrong-token-wrong").status_code == 401
    answer = post(app, [message(number) for number in range(1001)])
    assert (answer.status_code, answer.get_json()["status"]) == (400, "invalid")
    assert sink.received == []


def test_a_realtime_route_skips_old_messages(start_app: StartApp, sink: Sink) -> None:
    toml = "[[routes]]\nname = 'now'\nrealtime_only = true\n"
    app = start_app(webhook_url=sink.url, toml=toml, service_started_at="2026-11-16T12:00:00Z")
    sent = [
        message(1, date="2026-11-16T11:00:00Z"),
        message(2, date="2026-11-16T13:00:00Z"),
        message(3),
        message(4, source="vk:group"),
        message(5, created_utc=1_999_999_999),
    ]
    assert statuses(app, sent) == ["skipped_old", "processed", "processed", "skipped_old", "processed"]


def test_a_message_is_reset_by_key_or_item_id(start_app: StartApp, sink: Sink, redis_server: RedisServer) -> None:
    app = start_app(webhook_url=sink.url, redis_url=redis_server.url)
    (item_id,) = (
        each["item_id"] for each in post(app, message(1, media=["https://a.example/1.jpg"])).get_json()["results"]
    )
    app.settle()
    client = redis_server.client
    assert client.get("post:tg:news:1") == "0"
    assert client.get("media:https://a.example/1.jpg") == "1"
    (content,) = map(str, client.scan_iter("dedup:default:*"))
    assert 0 < client.ttl(content) <= 259_200
    for known_as in ("tg:news:1", item_id):
        assert app.act("reset", scope="email_id", value=known_as)["names"] == 3
        assert statuses(app, message(1, media=["https://a.example/1.jpg"])) == ["processed"]
        app.settle()


def test_the_text_of_a_message_is_text_whatever_it_holds() -> None:
    one, two = (Message(id="1", text=f"Host <web{number}> is down <https://a.example/{number}>") for number in (1, 2))
    assert one.fingerprint != two.fingerprint
    assert (one.links, two.links) == (("https://a.example/1",), ("https://a.example/2",))
