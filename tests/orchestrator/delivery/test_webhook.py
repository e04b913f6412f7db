import base64
import itertools
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import standardwebhooks
import trustme

from orchestrator.config.model import DestinationConfig
from orchestrator.delivery.webhook import MAX_ANSWER_BYTES, Destination, PostResult, Webhook
from tests.support.proxy import Proxy
from tests.support.sink import Received, Reply, Sink

WEBHOOK = Webhook("msg_7", {"subject": "Hello", "sender": "ada@example.com"})
NOON_S = datetime(2025, 3, 1, 12, 0, 0, 500_000, tzinfo=UTC).timestamp()
SECRET = "whsec_" + base64.b64encode(b"the secret, of 24 bytes.").decode()
TEN_MEGABYTES = b'{"id": 5}' + b" " * 10_000_000
SLOW_BODY = b'{"id": 5}' + b" " * 4000
DRIP_S = 0.02
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def destination(url: str, **options: Any) -> Destination:
    """The options are not validated: tests use timeouts and addresses that mailonce.toml may not have."""
    config = DestinationConfig.model_construct(url=url, **options)
    return Destination("crm", config, pool_size=2)


def failure_at(url: str, webhook: Webhook = WEBHOOK, within_s: float | None = None, **options: Any) -> PostResult:
    failed = destination(url, **options).deliver(webhook, within_s)
    assert failed.error
    return failed


def deliver(reply: Reply, **options: Any) -> PostResult:
    with Sink(reply) as sink:
        try:
            return destination(sink.url, **options).deliver(WEBHOOK)
        finally:
            assert len(sink.received) == (reply.delay_s == 0), "a POST is never repeated"


def failure(reply: Reply, **options: Any) -> PostResult:
    failed = deliver(reply, **options)
    assert failed.error
    return failed


def received(payload: dict[str, Any] | None = None, traceparent: str = "", **options: Any) -> Received:
    with Sink() as sink:
        sent = Webhook("msg_7", WEBHOOK.payload if payload is None else payload, traceparent)
        destination(sink.url, **options).deliver(sent)
        return sink.received[0]


def header_names(request: Received) -> set[str]:
    return {name.lower() for name in request.headers}


def url_of(server: socket.socket, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{server.getsockname()[1]}/s3cret-path?token=s3cret"


@contextmanager
def answering(
    parts: Iterable[bytes], pause_s: float = 0, scheme: str = "http", tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """A receiver that reads one request and answers these bytes, with a pause before each part."""

    def serve() -> None:
        with server.accept()[0] as plain, suppress(OSError):
            connection = tls.wrap_socket(plain, server_side=True) if tls else plain
            connection.recv(65536)
            for part in parts:
                time.sleep(pause_s)
                connection.sendall(part)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield url_of(server, scheme)
        thread.join()


@pytest.fixture
def closed_port() -> Iterator[socket.socket]:
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        yield nobody_listens


# Delivered


def test_any_2xx_is_delivered() -> None:
    for status in (200, 201, 202, 204, 299):
        assert deliver(Reply(status)) == PostResult(status)
    chunks = b'5\r\n{"id"\r\n4\r\n: 5}\r\n0\r\n\r\n'
    assert deliver(Reply(body=chunks, headers={"Transfer-Encoding": "chunked"})) == PostResult(200, receiver_id="5")


@pytest.mark.parametrize(
    ("body", "receiver_id"),
    [
        (b'{"id": "rec-1"}', "rec-1"),
        (b'{"id": 42, "postId": 7}', "42"),
        (b'{"id": null, "postId": "p"}', "p"),
        (b'{"id": 12345678901234567890123}', "12345678901234567890123"),
        (b'{"id": 1.50}', "1.50"),
        ('{"id": "é"}'.encode(), "é"),
        (b'{"id": "' + b"x" * 200 + b'"}', "x" * 200),
        (b'{"id": 5}'.rjust(MAX_ANSWER_BYTES), "5"),
        (b'{"id": 5}'.rjust(MAX_ANSWER_BYTES + 1), None),
        *((body, None) for body in (b'{"id": "' + b"x" * 201 + b'"}', b'{"id": ' + b"9" * 5000 + b"}")),
        *((body, None) for body in (b'{"id": ""}', b'{"id": true}', b'{"id": NaN}', b'{"id": {"a": 1}}')),
        *((body, None) for body in (b'{"id": "two\\nlines"}', b'{"id": "\\ud800"}', b'[{"id": 1}]', b'"id"')),
        *((body, None) for body in (b"{}", b"", b"OK", b'{"id": 5', b"\xff\xfe\x00", b'{"id": ' + b"[" * 60_000)),
    ],
)
def test_the_receivers_own_id_is_kept(body: bytes, receiver_id: str | None) -> None:
    assert deliver(Reply(201, body=body)) == PostResult(201, receiver_id=receiver_id)


@pytest.mark.parametrize("status", [200, 302])
def test_a_huge_answer_is_not_read_to_its_end(status: int) -> None:
    with Sink(Reply(status, headers={"Location": "/elsewhere"}, body=TEN_MEGABYTES)) as sink:
        result = destination(sink.url).deliver(WEBHOOK)
        assert result == PostResult(200, receiver_id="5") or (status == 302 and result.error)
        assert sink.cut_off.wait(30)


LOST: dict[str, dict[str, Any]] = {
    "reset": {"reset_after_bytes": 4},
    "reset at once": {"reset_after_bytes": 0},
    "too short": {"body": b'{"id"', "headers": {"Content-Length": "9", "Retry-After": "9"}, "hangs_up": True},
    "too slow": {"body": SLOW_BODY, "body_drip_s": DRIP_S},
}


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
def test_the_status_counts_even_if_the_rest_of_the_answer_is_lost(lost: dict[str, Any]) -> None:
    answer = {"body": b'{"id": 5}', "headers": {"Retry-After": "9"}} | lost
    assert deliver(Reply(200, **answer), read_timeout_s=1) == PostResult(200)
    failed = failure(Reply(503, **answer), read_timeout_s=1)
    assert (failed.status_code, failed.retry_after_s) == (503, 9)


# Refused


@pytest.mark.parametrize(
    ("status", "remark", "is_about_this_webhook"),
    [
        *((status, "", True) for status in (400, 408, 409, 413, 415, 422, 425, 429, 451)),
        *((status, "", False) for status in (103, 401, 403, 404, 405, 500, 502, 503, 504, 599)),
        *((status, "", False) for status in (301, 302, 303, 304, 307, 308)),
        (410, " Gone", True),
    ],
)
def test_what_a_status_means(status: int, remark: str, is_about_this_webhook: bool) -> None:
    for location in ("/elsewhere", "http://[nonsense"):
        failed = failure(Reply(status, headers={"Retry-After": "2", "Location": location}))
        shown = (failed.error, failed.is_about_this_webhook)
        assert shown == (f"crm: answered {status}{remark}", is_about_this_webhook)
        assert (failed.status_code, failed.retry_after_s) == (status, 2)


@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [
        ("2", 2),
        ("0", 0),
        (" 30 ", 30),
        ("Sat, 01 Mar 2025 12:00:07 GMT", 7),
        ("Sat, 01 Mar 2025 13:00:07 +0100", 7),
        ("Saturday, 01-Mar-25 12:00:07 GMT", 7),
        ("Sat, 01 Mar 2025 11:59:00 GMT", 0),
        *((text, None) for text in ("-5", "1.5", "soon", "", "9" * 5000)),
        ("Sat, 01 Mar 99999999999999999999 12:00:07 GMT", None),
    ],
)
def test_retry_after_seconds_or_date(monkeypatch: pytest.MonkeyPatch, retry_after: str, seconds: int | None) -> None:
    monkeypatch.setattr("time.time", lambda: NOON_S)
    assert failure(Reply(503, headers={"Retry-After": retry_after})).retry_after_s == seconds


# Unanswered: it is retried, and the reason shows neither the address nor the path


@pytest.mark.parametrize(
    ("parts", "pause_s", "reason"),
    [
        ([b"HTTP/1.1 200 OK\r\n"], 1, "no answer within 0.4 s"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", b"\r\n"], 0.3, "no answer within 0.4 s"),
        ([b"HTTP/1.1 200 OK\r\nX-Slow: ", *[b"x"] * 99], DRIP_S, "no answer within 0.4 s"),
        (itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000), 0, "no answer within 0.4 s"),
        ([], 0, "connection closed without an answer"),
        ([b"220 mail ready\r\n"], 0, "the answer is not HTTP"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\nOK"], 0, "the answer is not HTTP"),
    ],
    ids=["silent", "one limit for all parts", "slow headers", "interim", "closed", "not HTTP", "contradictory length"],
)
def test_a_receiver_that_does_not_answer(parts: Iterable[bytes], pause_s: float, reason: str) -> None:
    with answering(parts, pause_s) as url:
        failed = failure_at(url, read_timeout_s=0.4)
    assert (failed.error, failed.is_about_this_webhook) == (f"crm: {reason}", False)
    assert (failed.status_code, failed.retry_after_s) == (None, None)


@pytest.mark.parametrize("speaks_tls", [True, False])
def test_a_receiver_without_a_trusted_certificate(speaks_tls: bool) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with answering([b"HTTP/1.1 400 Bad Request\r\n\r\n"], 0, "https", context if speaks_tls else None) as url:
        failed = failure_at(url)
    reason = "TLS certificate not accepted" if speaks_tls else "TLS connection failed"
    assert (failed.error, failed.is_about_this_webhook) == (f"crm: {reason}", False)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://nowhere.invalid/", "host name not found"),
        ("http://224.0.0.1/", "no connection"),  # nobody connects to a multicast group
        *((url, "its URL cannot be used") for url in ("http://a..b/", "http:///", "ftp://127.0.0.1/")),
    ],
)
def test_an_address_that_cannot_be_reached(url: str, reason: str) -> None:
    failed = failure_at(url)
    assert (failed.error, failed.is_about_this_webhook) == (f"crm: {reason}", False)


def test_a_receiver_that_accepts_no_connection_or_reads_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.create_connection(full.getsockname()):
        failures = [failure_at(url_of(full), connect_timeout_s=0.2), failure_at(url_of(full), within_s=0.2)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        large = Webhook("msg_7", {"body": "x" * 30_000_000})
        failures.append(failure_at(url_of(server), large, connect_timeout_s=0.2))
    assert [failed.is_about_this_webhook for failed in failures] == [False] * 3
    assert failures[0].error == "crm: no connection within 0.2 s"
    assert str(failures[1].error).startswith("crm: no connection within 0.")
    assert failures[2].error == "crm: not sent in time"


def test_nothing_of_a_failure_shows_the_url(closed_port: socket.socket) -> None:
    failed = failure_at(url_of(closed_port))
    assert (failed.error, failed.is_about_this_webhook) == ("crm: connection refused", False)
    assert "s3cret" not in repr(failed) and "127.0.0.1" not in repr(failed)


# The caller's time


def test_without_time_nothing_is_sent() -> None:
    with Sink() as sink:
        failures = [failure_at(sink.url, within_s=within_s) for within_s in (0, -1.5)]
        assert sink.connections == 0
    assert {(failed.error, failed.is_about_this_webhook) for failed in failures} == {("crm: no time left", False)}


def test_the_callers_time_is_one_for_json_and_form_together() -> None:
    with Sink(Reply(415, delay_s=0.6), Reply(delay_s=0.6)) as sink:
        failed = failure_at(sink.url, within_s=1, fallback_form=True)
    assert str(failed.error).startswith("crm: no answer within 0.")


def test_an_earlier_short_limit_does_not_shorten_the_next_on_the_same_connection() -> None:
    with Sink(Reply(200), Reply(delay_s=1)) as sink:
        crm = destination(sink.url)
        crm.deliver(WEBHOOK, within_s=0.9)
        assert crm.deliver(WEBHOOK) == PostResult(200)
        assert sink.connections == 1


@pytest.mark.parametrize(("megabytes", "within_s"), [(4, None), (20, 1)])
def test_a_large_webhook_gets_the_time_that_its_size_takes(megabytes: int, within_s: float | None) -> None:
    large = Webhook("msg_7", {"body": "x" * (megabytes << 20)})
    with Sink() as sink, Proxy(int(sink.url.split(":")[2].split("/")[0])) as line:
        line.bytes_per_s = 2 << 20
        crm = destination(line.url.replace("redis", "http"), connect_timeout_s=0.5, read_timeout_s=0.5)
        if within_s:
            assert crm.deliver(large, within_s).error == "crm: not sent in time"
            return
        crm.deliver(large)
        assert sink.received[0].payload == large.payload
        assert sink.received[0].headers["Content-Length"] == str(len(sink.received[0].body))


# The request


def test_it_is_one_post_of_the_payload_as_json() -> None:
    request = received({"subject": "\N{PARTY POPPER}"})
    headers = request.headers
    assert (request.payload, request.path) == ({"subject": "\N{PARTY POPPER}"}, "/hook")
    assert (headers["Content-Type"], headers["Content-Length"]) == ("application/json", str(len(request.body)))
    assert headers["webhook-id"] == headers["Idempotency-Key"] == "msg_7"
    assert headers["User-Agent"] == f"Mailonce/{metadata.version('mailonce')}"
    assert headers["Accept-Encoding"] == "identity"
    assert {name for name in header_names(request) if name.startswith("webhook-")} == {"webhook-id"}, "no secret"


def test_a_form_has_a_field_for_each_key() -> None:
    text = "Grüße & co = \N{PARTY POPPER}"
    payload = {"subject": text, "nothing": None, "yes": True, "count": 3, "links": ["a", "b"], "extra": {"a": None}}
    request = received(payload, format="form")
    assert request.headers["Content-Type"] == "application/x-www-form-urlencoded"
    as_text = {"nothing": "", "yes": "true", "count": "3", "links": '["a", "b"]', "extra": '{"a": null}'}
    assert request.payload == {"subject": text, **as_text}


def test_half_a_character_does_not_stop_it() -> None:
    broken = {"subject": "a\udc80b", "links": ["\ud83d"], "k\udc80": ""}
    shown = {"subject": "a?b", "links": '["\\ud83d"]', "k?": ""}
    assert received(broken, secret=(SECRET,)).payload == broken
    assert received(broken, secret=(SECRET,), format="form").payload == shown


def test_the_traceparent_of_the_caller_is_handed_on_if_it_is_one() -> None:
    for traceparent in (TRACEPARENT, "", TRACEPARENT[:-1], f"{TRACEPARENT}\r\nX: y"):
        sent = received(traceparent=traceparent).headers.get("traceparent")
        assert sent == (traceparent if traceparent == TRACEPARENT else None)


def test_chosen_headers_are_sent_but_never_instead_of_those_that_identify_the_webhook() -> None:
    chosen = {"Authorization": "Bearer t0ken", "user-agent": "Acme", "X-Team": ""}
    ours = {"webhook-id": "x", "IDEMPOTENCY-KEY": "x", "content-type": "x", "webhook-timestamp": "0"}
    sent = {name.lower(): value for name, value in received(headers=chosen | ours, secret=(SECRET,)).headers.items()}
    assert (sent["authorization"], sent["user-agent"], sent["x-team"]) == ("Bearer t0ken", "Acme", "")
    assert sent["webhook-id"] == sent["idempotency-key"] == "msg_7"
    assert sent["content-type"] == "application/json"
    assert abs(int(sent["webhook-timestamp"]) - time.time()) < 300


def test_credentials_in_the_url_are_sent_as_basic_auth() -> None:
    with Sink() as sink:
        destination(sink.url.replace("//", "//ada:p%40ss@")).deliver(WEBHOOK)
    assert sink.received[0].headers["authorization"] == f"Basic {base64.b64encode(b'ada:p@ss').decode()}"


def test_no_cookies_proxy_or_netrc_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, closed_port: socket.socket
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login ada password s3cret\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("http_proxy", url_of(closed_port))
    with Sink(Reply(headers={"Set-Cookie": "session=1; Path=/"})) as sink:
        crm = destination(sink.url)
        crm.deliver(WEBHOOK)
        crm.deliver(WEBHOOK)
    assert not {"authorization", "cookie"} & header_names(sink.received[1])


def verify(request: Received) -> None:
    receiver = standardwebhooks.Webhook(SECRET)
    receiver.verify(request.body, request.headers, json_parse=False)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        receiver.verify(request.body + b" ", request.headers, json_parse=False)


def test_after_a_415_a_form_is_sent_in_the_same_call_and_both_are_signed() -> None:
    webhook = Webhook("msg_7", {"subject": "\N{PARTY POPPER} é"})
    with Sink(Reply(415), Reply(body=b'{"id": 5}')) as sink:
        config = DestinationConfig(url=sink.url, secret=(SECRET,), fallback_form=True)
        assert Destination("crm", config, 1).deliver(webhook) == PostResult(200, receiver_id="5")
    for request in sink.received:
        assert (request.payload, request.webhook_id) == (webhook.payload, "msg_7")
        verify(request)


@pytest.mark.parametrize(
    ("second", "formats"),
    [(503, ["json", "form", "form", "form"]), (415, ["json", "form", "json", "json"])],
    ids=["the form is remembered", "unless it is refused too"],
)
def test_the_accepted_format_comes_first(second: int, formats: list[str]) -> None:
    with Sink(Reply(415), Reply(second)) as sink:
        crm = destination(sink.url, fallback_form=True)
        failed = crm.deliver(WEBHOOK)
        crm.deliver(WEBHOOK)
        crm.deliver(WEBHOOK)
        sent = ["form" if "form" in each.headers["Content-Type"] else "json" for each in sink.received]
    assert failed.status_code == second
    assert sent == formats


def test_no_other_refusal_is_followed_by_a_form() -> None:
    assert failure(Reply(400), fallback_form=True).status_code == 400
    assert failure(Reply(415), format="form", fallback_form=True).status_code == 415


# Connections


def test_a_connection_is_used_again() -> None:
    with Sink(Reply(200), Reply(500), Reply(204), Reply(302, headers={"Location": "/"})) as sink:
        crm = destination(sink.url)
        for _ in range(5):
            crm.deliver(WEBHOOK)
        assert [each.status for each in sink.received] == [200, 500, 204, 302, 200]
        assert sink.connections == 1


@pytest.mark.parametrize("reply", [Reply(body=TEN_MEGABYTES), Reply(hangs_up=True)], ids=["unread rest", "closed"])
def test_a_connection_that_cannot_be_used_again_is_replaced_before_the_next_send(reply: Reply) -> None:
    with Sink(reply) as sink:
        crm = destination(sink.url)
        crm.deliver(WEBHOOK)
        assert not reply.hangs_up or sink.connection_ended.wait(30)
        assert crm.deliver(WEBHOOK) == PostResult(200)
        assert (len(sink.received), sink.connections) == (2, 2)


def test_a_used_connection_closed_during_a_send_is_left_to_the_caller_to_retry() -> None:
    with Sink(Reply(200), Reply(0)) as sink:
        crm = destination(sink.url)
        crm.deliver(WEBHOOK)
        failed = crm.deliver(WEBHOOK)
        assert failed.error == "crm: connection closed without an answer"
        assert not failed.is_about_this_webhook
        assert (len(sink.received), sink.connections) == (2, 1)


def test_the_log_destination_shows_what_it_would_send(capsys: pytest.CaptureFixture[str]) -> None:
    assert destination("log:").deliver(WEBHOOK, within_s=1) == PostResult()
    (line,) = capsys.readouterr().out.splitlines()
    said, _, payload = line.partition(": ")
    assert (said, json.loads(payload)) == ("webhook msg_7 would be sent", WEBHOOK.payload)
