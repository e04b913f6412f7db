from __future__ import annotations

import base64
import itertools
import json
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import pytest
import standardwebhooks
import trustme

from orchestrator.delivery.http import MAX_ANSWER_BYTES, HttpDestination, HttpOptions, LogDestination
from orchestrator.delivery.webhook import DeliveryFailed, Receipt, Webhook
from orchestrator.version import our_version
from tests.support.proxy import Proxy
from tests.support.sink import Received, Reply, Sink

WEBHOOK = Webhook("msg_7", {"subject": "Hello", "sender": "ada@example.com"})
NOON = datetime(2025, 3, 1, 12, 0, 0, tzinfo=UTC)
OLD = "whsec_" + base64.b64encode(b"the old secret of 24 byt").decode()
NEW = "whsec_" + base64.b64encode(b"the new secret, of thirty-two b.").decode()
TEN_MEGABYTES = b'{"id": 5}' + b" " * 10_000_000
SLOW_BODY = b'{"id": 5}' + b" " * 4000
DRIP_S = 0.02


def destination(url: str, **options: Any) -> HttpDestination:
    return HttpDestination("crm", HttpOptions(url, **options), pool_size=2, now=lambda: NOON)


def deliver(reply: Reply, **options: Any) -> Receipt:
    with Sink(reply) as sink:
        try:
            return destination(sink.url, **options).deliver(WEBHOOK)
        finally:
            assert len(sink.received) == 1, "a POST is never repeated"


def failure(reply: Reply, **options: Any) -> DeliveryFailed:
    with pytest.raises(DeliveryFailed) as failed:
        deliver(reply, **options)
    return failed.value


def failure_at(url: str, webhook: Webhook = WEBHOOK, within_s: float | None = None, **options: Any) -> DeliveryFailed:
    with pytest.raises(DeliveryFailed) as failed:
        destination(url, **options).deliver(webhook, within_s)
    return failed.value


def received(payload: dict[str, Any] | None = None, **options: Any) -> Received:
    with Sink() as sink:
        destination(sink.url, **options).deliver(Webhook("msg_7", WEBHOOK.payload if payload is None else payload))
        return sink.received[0]


class TestALargeOne:
    """Over a line that takes longer than its timeouts."""

    LARGE = Webhook("msg_7", {"body": "x" * (8 << 20)})
    TIMEOUTS: ClassVar = {"connect_timeout_s": 0.5, "read_timeout_s": 0.5}

    def deliver(self, bytes_per_s: int, within_s: float | None = None) -> list[Received]:
        with Sink() as sink, Proxy(int(sink.url.split(":")[2].split("/")[0])) as line:
            line.bytes_per_s = bytes_per_s
            destination(f"{line.url.replace('redis', 'http')}", **self.TIMEOUTS).deliver(self.LARGE, within_s)
            return sink.received

    def test_gets_the_time_that_its_size_takes(self) -> None:
        (received,) = self.deliver(bytes_per_s=2 << 20)
        assert received.payload == self.LARGE.payload
        assert received.headers["Content-Length"] == str(len(received.body))

    def test_ends_with_the_time_that_its_provider_waits(self) -> None:
        with pytest.raises(DeliveryFailed, match="in time|no answer within"):
            self.deliver(bytes_per_s=1 << 20, within_s=1)


def header_names(request: Received) -> set[str]:
    return {name.lower() for name in request.headers}


@contextmanager
def listener(backlog: int = 5) -> Iterator[socket.socket]:
    """The system takes connections on its behalf; nobody reads from them unless the test does."""
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as server:
        yield server


def url_of(server: socket.socket, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{server.getsockname()[1]}/s3cret-path?token=s3cret"


@contextmanager
def answering(parts: Iterable[bytes], pause_s: float = 0) -> Iterator[str]:
    """A receiver that reads one request and says just this, with a pause before each part, until nobody listens."""

    def serve() -> None:
        with server.accept()[0] as connection, suppress(ConnectionError):
            request = b""
            while not request.endswith(b"}"):
                request += connection.recv(65536)
            for part in parts:
                time.sleep(pause_s)
                connection.sendall(part)

    with listener() as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield url_of(server)
        thread.join()


class TestDelivered:
    @pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
    def test_any_2xx_is_delivered(self, status: int) -> None:
        assert deliver(Reply(status)) == Receipt(status, None)

    @pytest.mark.parametrize(
        ("body", "receiver_id"),
        [
            (b'{"id": "rec-1"}', "rec-1"),
            (b'{"id": 42, "postId": 7}', "42"),
            (b'{"postId": 7}', "7"),
            (b'{"id": null, "postId": "p"}', "p"),
            (b'{"id": 12345678901234567890123}', "12345678901234567890123"),
            (b'{"id": 1.50}', "1.50"),
            (b'{"id": 0}', "0"),
            ('{"id": "é"}'.encode(), "é"),
            (b'{"id": "' + b"x" * 200 + b'"}', "x" * 200),
            (b'{"id": "' + b"x" * 201 + b'"}', None),
            (b'{"id": ' + b"9" * 5000 + b"}", None),
            (b'{"id": ""}', None),
            (b'{"id": true}', None),
            (b'{"id": NaN}', None),
            (b'{"id": {"a": 1}}', None),
            (b'{"id": "two\\nlines"}', None),
            (b'{"id": "\\ud800"}', None),
            (b'[{"id": 1}]', None),
            (b'"id"', None),
            (b"{}", None),
            (b"", None),
            (b"OK", None),
            (b'{"id": 5', None),
            (b"\xff\xfe\x00garbage", None),
            (b'{"id": ' + b"[" * 60_000, None),
        ],
    )
    def test_the_receivers_own_id_is_read_where_there_is_one(self, body: bytes, receiver_id: str | None) -> None:
        assert deliver(Reply(201, body=body)) == Receipt(201, receiver_id)

    def test_an_id_in_a_chunked_answer_is_read(self) -> None:
        chunks = b'5\r\n{"id"\r\n4\r\n: 5}\r\n0\r\n\r\n'
        assert deliver(Reply(body=chunks, headers={"Transfer-Encoding": "chunked"})) == Receipt(200, "5")

    def test_a_huge_answer_is_not_read_to_its_end(self) -> None:
        with Sink(Reply(body=TEN_MEGABYTES)) as sink:
            assert destination(sink.url).deliver(WEBHOOK) == Receipt(200, "5")
            assert sink.cut_off.wait(30)

    def test_the_id_must_be_within_the_part_that_is_read(self) -> None:
        assert deliver(Reply(body=b'{"id": 5}'.rjust(MAX_ANSWER_BYTES))) == Receipt(200, "5")
        assert deliver(Reply(body=b'{"id": 5}'.rjust(MAX_ANSWER_BYTES + 1))) == Receipt(200, None)

    def test_it_was_taken_even_if_the_rest_of_the_answer_is_lost(self) -> None:
        assert deliver(Reply(body=b'{"id": 5}', reset_after_bytes=4)) == Receipt(200, None)
        assert deliver(Reply(body=b'{"id": 5}', reset_after_bytes=0)) == Receipt(200, None)

    def test_it_was_taken_even_if_the_answer_ends_too_early(self) -> None:
        assert deliver(Reply(body=b'{"id"', headers={"Content-Length": "9"}, hangs_up=True)) == Receipt(200, None)

    def test_it_was_taken_even_if_the_answer_drips_in_too_slowly(self) -> None:
        assert deliver(Reply(body=SLOW_BODY, body_drip_s=DRIP_S), read_timeout_s=3) == Receipt(200, None)

    def test_a_dripping_answer_is_left_when_the_callers_time_is_over(self) -> None:
        with Sink(Reply(body=SLOW_BODY, body_drip_s=DRIP_S)) as sink:
            assert destination(sink.url).deliver(WEBHOOK, within_s=3) == Receipt(200, None)
            assert sink.cut_off.wait(30)


class TestRefused:
    @pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 415, 422, 451])
    def test_other_4xx_are_permanent(self, status: int) -> None:
        failed = failure(Reply(status, headers={"Retry-After": "2"}))
        assert (str(failed), failed.permanent) == (f"crm: answered {status}", True)
        assert (failed.status_code, failed.retry_after_s) == (status, None)

    def test_410_says_that_the_destination_is_gone_not_that_this_webhook_is_refused(self) -> None:
        failed = failure(Reply(410))
        assert (str(failed), failed.permanent, failed.is_gone) == ("crm: answered 410 Gone", False, True)
        assert not failure(Reply(404)).is_gone

    @pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 599])
    def test_what_may_pass_is_tried_again(self, status: int) -> None:
        failed = failure(Reply(status))
        assert (str(failed), failed.permanent) == (f"crm: answered {status}", False)
        assert (failed.status_code, failed.retry_after_s) == (status, None)

    @pytest.mark.parametrize("status", [408, 429, 500, 503])
    @pytest.mark.parametrize(
        ("retry_after", "seconds"),
        [
            ("2", 2),
            ("0", 0),
            (" 30 ", 30),
            ("86400", 86400),
            ("Sat, 01 Mar 2025 12:00:07 GMT", 7),
            ("Sat, 01 Mar 2025 13:00:07 +0100", 7),
            ("Saturday, 01-Mar-25 12:00:07 GMT", 7),
            ("Sat, 01 Mar 2025 12:00:07 -0000", 7),
            ("Sat, 01 Mar 2025 11:59:00 GMT", 0),
            ("-5", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
            ("9" * 5000, None),
            ("Sat, 01 Mar 99999999999999999999 12:00:07 GMT", None),
            ("Sat, 99 Mar 2025 12:00:07 GMT", None),
        ],
    )
    def test_retry_after_is_seconds_or_a_date(self, status: int, retry_after: str, seconds: int | None) -> None:
        assert failure(Reply(status, headers={"Retry-After": retry_after})).retry_after_s == seconds

    def test_a_date_is_waited_for_to_its_end(self) -> None:
        half_past = NOON.replace(microsecond=500_000)
        with Sink(Reply(503, headers={"Retry-After": "Sat, 01 Mar 2025 12:00:07 GMT"})) as sink:
            options = HttpOptions(sink.url)
            with pytest.raises(DeliveryFailed) as failed:
                HttpDestination("crm", options, 1, now=lambda: half_past).deliver(WEBHOOK)
        assert failed.value.retry_after_s == 7

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_redirects_are_permanent_and_not_followed(self, status: int) -> None:
        failed = failure(Reply(status, headers={"Location": "/elsewhere"}))
        assert str(failed) == f"crm: answered {status}, and redirects are not followed"
        assert (failed.permanent, failed.status_code) == (True, status)

    def test_where_a_redirect_leads_does_not_matter(self) -> None:
        assert failure(Reply(302, headers={"Location": "http://[nonsense"})).status_code == 302
        assert failure(Reply(304)).status_code == 304

    def test_a_redirects_huge_body_is_not_read_to_its_end(self) -> None:
        with Sink(Reply(302, headers={"Location": "/elsewhere"}, body=TEN_MEGABYTES)) as sink:
            assert failure_at(sink.url).status_code == 302
            assert sink.cut_off.wait(30)

    def test_the_status_counts_even_if_the_rest_of_the_answer_is_lost(self) -> None:
        for status, permanent in ((500, False), (404, True)):
            failed = failure(Reply(status, body=b"sorry", reset_after_bytes=2))
            assert (failed.status_code, failed.permanent) == (status, permanent)

    def test_retry_after_counts_even_if_the_answer_drips_in_too_slowly(self) -> None:
        reply = Reply(503, headers={"Retry-After": "9"}, body=SLOW_BODY, body_drip_s=DRIP_S)
        failed = failure(reply, read_timeout_s=3)
        assert (failed.status_code, failed.retry_after_s) == (503, 9)

    def test_an_interim_answer_is_no_verdict(self) -> None:
        assert not failure(Reply(103)).permanent


class TestUnanswered:
    def test_no_answer_in_time_is_tried_again(self) -> None:
        with Sink(Reply(delay_s=1)) as sink:
            failed = failure_at(sink.url, read_timeout_s=0.2)
        assert (str(failed), failed.permanent) == ("crm: no answer within 0.2 s", False)
        assert (failed.status_code, failed.retry_after_s) == (None, None)

    def test_headers_that_drip_in_too_slowly_are_no_answer(self) -> None:
        reply = Reply(headers={"X-Slow": "x" * 300}, header_drip_s=DRIP_S)
        failed = failure(reply, read_timeout_s=0.3)
        assert (str(failed), failed.permanent) == ("crm: no answer within 0.3 s", False)

    def test_all_parts_of_an_answer_share_one_time_limit(self) -> None:
        parts = [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", b"\r\n"]
        with answering(parts, pause_s=0.8) as url:
            failed = failure_at(url, read_timeout_s=1)
        assert str(failed) == "crm: no answer within 1 s"

    def test_a_flood_of_interim_answers_is_no_answer(self) -> None:
        with answering(itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)) as url:
            failed = failure_at(url, read_timeout_s=0.3)
        assert (str(failed), failed.permanent) == ("crm: no answer within 0.3 s", False)

    def test_a_refused_connection_is_tried_again(self) -> None:
        with socket.socket() as nobody_listens:
            nobody_listens.bind(("127.0.0.1", 0))
            failed = failure_at(url_of(nobody_listens))
        assert (str(failed), failed.permanent) == ("crm: connection refused", False)

    @pytest.mark.parametrize("reply", [Reply(0), Reply(0, reset_after_bytes=0)], ids=["closed", "reset"])
    def test_a_connection_closed_before_the_answer_is_tried_again(self, reply: Reply) -> None:
        failed = failure(reply)
        assert (str(failed), failed.permanent) == ("crm: connection closed without an answer", False)

    def test_a_connection_that_does_not_come_about_is_tried_again(self) -> None:
        with listener(backlog=0) as full, socket.create_connection(full.getsockname()):
            failed = failure_at(url_of(full), connect_timeout_s=0.2)
        assert (str(failed), failed.permanent) == ("crm: no connection within 0.2 s", False)

    def test_a_receiver_that_does_not_read_is_tried_again(self) -> None:
        with listener() as server:
            failed = failure_at(url_of(server), Webhook("msg_7", {"body": "x" * 30_000_000}), connect_timeout_s=0.2)
        assert (str(failed), failed.permanent) == ("crm: not sent in time", False)

    def test_an_address_that_cannot_be_reached_is_tried_again(self) -> None:
        nobody_connects_to_a_multicast_group = "http://224.0.0.1/"
        failed = failure_at(nobody_connects_to_a_multicast_group)
        assert (str(failed), failed.permanent) == ("crm: no connection", False)

    def test_an_unknown_host_is_tried_again(self) -> None:
        failed = failure_at("http://nowhere.invalid/")
        assert (str(failed), failed.permanent) == ("crm: host name not found", False)

    @pytest.mark.parametrize(
        "answer",
        [b"220 mail ready\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\nOK"],
        ids=["another protocol", "contradictory length"],
    )
    def test_an_answer_that_is_not_http_is_tried_again(self, answer: bytes) -> None:
        with answering([answer]) as url:
            failed = failure_at(url)
        assert (str(failed), failed.permanent) == ("crm: the answer is not HTTP", False)

    def test_a_certificate_of_nobody_knows_whom_is_not_accepted(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(context)

        def shake_hands() -> None:
            with pytest.raises(OSError), server.accept()[0] as plain:
                context.wrap_socket(plain, server_side=True)

        with listener() as server:
            thread = threading.Thread(target=shake_hands)
            thread.start()
            failed = failure_at(url_of(server, "https"))
            thread.join()
        assert (str(failed), failed.permanent) == ("crm: TLS certificate not accepted", False)

    def test_a_receiver_that_speaks_no_tls_is_tried_again(self) -> None:
        def speak_plainly() -> None:
            with server.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        with listener() as server:
            thread = threading.Thread(target=speak_plainly)
            thread.start()
            failed = failure_at(url_of(server, "https"))
            thread.join()
        assert (str(failed), failed.permanent) == ("crm: TLS connection failed", False)

    @pytest.mark.parametrize("url", ["http://a..b/", "http:///", "nowhere", "ftp://127.0.0.1/", "http://[::1/"])
    def test_a_url_that_cannot_be_used_is_permanent(self, url: str) -> None:
        failed = failure_at(url)
        assert (str(failed), failed.permanent) == ("crm: its URL cannot be used", True)

    def test_not_even_the_traceback_of_a_failure_tells_the_url(self) -> None:
        with socket.socket() as nobody_listens:
            nobody_listens.bind(("127.0.0.1", 0))
            failed = failure_at(url_of(nobody_listens))
        told = "".join(traceback.format_exception(failed))
        assert "s3cret" not in told
        assert "127.0.0.1" not in told
        assert failed.__context__ is None


class TestTimeLeft:
    @pytest.mark.parametrize("within_s", [0, -1.5])
    def test_without_time_nothing_is_sent(self, within_s: float) -> None:
        with Sink() as sink:
            failed = failure_at(sink.url, within_s=within_s)
            assert sink.connections == 0
        assert (str(failed), failed.permanent) == ("crm: no time left", False)

    def test_the_callers_time_caps_the_wait_for_an_answer(self) -> None:
        with Sink(Reply(delay_s=2)) as sink:
            failed = failure_at(sink.url, within_s=0.2)
        assert str(failed).startswith("crm: no answer within 0.")

    def test_the_callers_time_caps_the_wait_for_a_connection(self) -> None:
        with listener(backlog=0) as full, socket.create_connection(full.getsockname()):
            failed = failure_at(url_of(full), within_s=0.2)
        assert str(failed).startswith("crm: no connection within 0.")

    def test_the_callers_time_is_one_for_json_and_form_together(self) -> None:
        with Sink(Reply(415, delay_s=0.6), Reply(delay_s=0.6)) as sink:
            failed = failure_at(sink.url, within_s=1, fallback_form=True)
        assert failed.status_code is None

    def test_more_time_than_the_destinations_own_changes_nothing(self) -> None:
        with Sink(Reply(delay_s=1)) as sink:
            failed = failure_at(sink.url, within_s=1e12, read_timeout_s=0.2)
        assert str(failed) == "crm: no answer within 0.2 s"


class TestRequest:
    def test_it_is_one_post_of_the_payload_as_json(self) -> None:
        request = received()
        assert request.payload == WEBHOOK.payload
        assert request.path == "/hook"
        assert request.headers["Content-Type"] == "application/json"
        assert request.headers["Content-Length"] == str(len(request.body))

    def test_the_id_is_told_twice_and_who_sends_once(self) -> None:
        headers = received().headers
        assert headers["webhook-id"] == headers["Idempotency-Key"] == "msg_7"
        assert headers["User-Agent"] == f"Mailonce/{metadata.version('mailonce')}"

    def test_no_compressed_answer_is_asked_for(self) -> None:
        assert received().headers["Accept-Encoding"] == "identity"

    def test_without_an_installed_version_it_is_version_0(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unknown(name: str) -> str:
            raise metadata.PackageNotFoundError(name)

        monkeypatch.setattr(metadata, "version", unknown)
        our_version.cache_clear()
        try:
            assert received().headers["User-Agent"] == "Mailonce/0"
        finally:
            our_version.cache_clear()

    def test_without_secrets_there_is_no_signature(self) -> None:
        names = header_names(received())
        assert {name for name in names if name.startswith("webhook-")} == {"webhook-id"}

    def test_a_form_has_a_field_for_each_key(self) -> None:
        payload = {
            "subject": "Grüße & co = \N{PARTY POPPER}",
            "nothing": None,
            "yes": True,
            "no": False,
            "count": 3,
            "ratio": 1.5,
            "links": ["a", "b"],
            "extra": {"a": None},
        }
        request = received(payload, format="form")
        assert request.headers["Content-Type"] == "application/x-www-form-urlencoded"
        assert request.payload == {
            "subject": "Grüße & co = \N{PARTY POPPER}",
            "nothing": "",
            "yes": "true",
            "no": "false",
            "count": "3",
            "ratio": "1.5",
            "links": '["a", "b"]',
            "extra": '{"a": null}',
        }

    def test_an_emoji_arrives_as_it_is(self) -> None:
        assert received({"subject": "\N{PARTY POPPER}"}).payload == {"subject": "\N{PARTY POPPER}"}

    def test_half_a_character_does_not_stop_it(self) -> None:
        broken = {"subject": "a\udc80b", "links": ["\ud83d"], "k\udc80": ""}
        assert received(broken, secrets=(OLD,)).payload == broken
        assert received(broken, secrets=(OLD,), format="form").payload == {
            "subject": "a?b",
            "links": '["\\ud83d"]',
            "k?": "",
        }

    def test_chosen_headers_are_sent_and_may_name_another_sender(self) -> None:
        headers = received(headers={"Authorization": "Bearer t0ken", "user-agent": "Acme", "X-Team": ""}).headers
        told = {name.lower(): value for name, value in headers.items()}
        assert (told["authorization"], told["user-agent"], told["x-team"]) == ("Bearer t0ken", "Acme", "")

    @pytest.mark.parametrize(
        "name",
        [
            "webhook-id",
            "Webhook-Signature",
            "WEBHOOK-TIMESTAMP",
            "webhook-anything",
            "idempotency-key",
            "content-type",
            "Content-Length",
            "transfer-encoding",
            "HOST",
        ],
    )
    def test_what_identifies_and_frames_the_request_is_not_for_choosing(self, name: str) -> None:
        with Sink() as sink:
            destination(sink.url).deliver(WEBHOOK)
            destination(sink.url, headers={name: "chosen"}).deliver(WEBHOOK)
            plain, tried = sink.received
        assert tried.headers == plain.headers

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("X-Two", "lines\r\nHost: evil"),
            ("X-Two", "lines\n"),
            ("X-Name", "é"),
            ("X-Name", " led by a space"),
            ("Content-Length ", "5"),
            ("X:Y", "z"),
            ("", "z"),
        ],
    )
    def test_headers_that_cannot_be_sent_are_refused_at_the_start(self, name: str, value: str) -> None:
        with pytest.raises(ValueError, match="takes ASCII text on one line") as refused:
            HttpOptions("http://127.0.0.1/", headers={name: value})
        assert value not in str(refused.value).replace(repr(name), "")

    def test_no_cookie_is_kept(self) -> None:
        with Sink(Reply(headers={"Set-Cookie": "session=1; Path=/"})) as sink:
            crm = destination(sink.url)
            crm.deliver(WEBHOOK)
            crm.deliver(WEBHOOK)
            assert "cookie" not in header_names(sink.received[1])

    def test_neither_proxy_nor_netrc_of_the_environment_is_used(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login ada password s3cret\n")
        (tmp_path / "netrc").chmod(0o600)
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with socket.socket() as nobody_listens:
            nobody_listens.bind(("127.0.0.1", 0))
            monkeypatch.setenv("http_proxy", url_of(nobody_listens))
            assert "authorization" not in header_names(received())

    def test_the_options_do_not_show_their_secrets(self) -> None:
        shown = repr(HttpOptions("https://u:s3cret@x/", (OLD,), headers={"Authorization": "Bearer s3cret"}))
        assert "s3cret" not in shown
        assert OLD not in shown

    def test_a_wrong_secret_is_refused_at_the_start(self) -> None:
        with pytest.raises(ValueError, match="takes a Standard Webhooks secret"):
            destination("http://127.0.0.1/", secrets=("wrong",))


class TestSignature:
    @pytest.mark.parametrize("known_to_the_receiver", [OLD, NEW])
    @pytest.mark.parametrize("format", ["json", "form"])
    def test_a_receiver_can_verify_what_it_got_by_either_secret(self, known_to_the_receiver: str, format: str) -> None:
        with Sink() as sink:
            options = HttpOptions(sink.url, (OLD, NEW), format=format)  # type: ignore[arg-type]
            HttpDestination("crm", options, 1).deliver(Webhook("msg_7", {"subject": "\N{PARTY POPPER} é"}))
            got = sink.received[0]
        receiver = standardwebhooks.Webhook(known_to_the_receiver)
        receiver.verify(got.body, got.headers, json_parse=False)
        with pytest.raises(standardwebhooks.WebhookVerificationError):
            receiver.verify(got.body + b" ", got.headers, json_parse=False)

    def test_the_moment_is_that_of_the_clock_handed_in(self) -> None:
        assert received(secrets=(OLD,)).headers["webhook-timestamp"] == str(int(NOON.timestamp()))


class TestFallbackForm:
    def test_a_415_is_answered_by_a_form_in_the_same_call(self) -> None:
        with Sink(Reply(415), Reply(body=b'{"id": 5}')) as sink:
            options = HttpOptions(sink.url, (OLD,), fallback_form=True)
            assert HttpDestination("crm", options, 1).deliver(WEBHOOK) == Receipt(200, "5")
            json_try, form_try = sink.received
        assert json_try.headers["Content-Type"] == "application/json"
        assert form_try.headers["Content-Type"] == "application/x-www-form-urlencoded"
        assert form_try.payload == json_try.payload == WEBHOOK.payload
        assert form_try.webhook_id == json_try.webhook_id == "msg_7"
        standardwebhooks.Webhook(OLD).verify(form_try.body, form_try.headers, json_parse=False)

    def test_that_a_form_is_wanted_is_remembered(self) -> None:
        with Sink(Reply(415), Reply(503)) as sink:
            crm = destination(sink.url, fallback_form=True)
            with pytest.raises(DeliveryFailed, match="answered 503"):
                crm.deliver(WEBHOOK)
            crm.deliver(WEBHOOK)
            crm.deliver(WEBHOOK)
            formats = [each.headers["Content-Type"].rpartition("/")[2] for each in sink.received]
        assert formats == ["json", "x-www-form-urlencoded", "x-www-form-urlencoded", "x-www-form-urlencoded"]

    def test_if_the_form_is_turned_away_too_it_is_permanent_and_json_comes_first_again(self) -> None:
        with Sink(Reply(415), Reply(415)) as sink:
            crm = destination(sink.url, fallback_form=True)
            with pytest.raises(DeliveryFailed) as failed:
                crm.deliver(WEBHOOK)
            crm.deliver(WEBHOOK)
            formats = [each.headers["Content-Type"].rpartition("/")[2] for each in sink.received]
        assert (failed.value.permanent, failed.value.status_code) == (True, 415)
        assert formats == ["json", "x-www-form-urlencoded", "json"]

    def test_no_other_refusal_makes_it_a_form(self) -> None:
        assert failure(Reply(400), fallback_form=True).status_code == 400

    def test_a_form_that_is_turned_away_has_nothing_to_fall_back_to(self) -> None:
        assert failure(Reply(415), format="form", fallback_form=True).permanent


class TestConnections:
    def test_a_connection_is_used_again(self) -> None:
        with Sink(Reply(200), Reply(500), Reply(204), Reply(302, headers={"Location": "/"})) as sink:
            crm = destination(sink.url)
            for expected in (200, 500, 204, 302, 200):
                try:
                    assert crm.deliver(WEBHOOK).status_code == expected
                except DeliveryFailed as failed:
                    assert failed.status_code == expected
            assert (len(sink.received), sink.connections) == (5, 1)

    def test_a_connection_with_an_unread_rest_is_not_used_again(self) -> None:
        with Sink(Reply(body=TEN_MEGABYTES)) as sink:
            crm = destination(sink.url)
            crm.deliver(WEBHOOK)
            assert crm.deliver(WEBHOOK) == Receipt(200, None)
            assert sink.connections == 2

    def test_a_connection_closed_between_two_sends_is_noticed_before_the_second(self) -> None:
        with Sink(Reply(hangs_up=True)) as sink:
            crm = destination(sink.url)
            crm.deliver(WEBHOOK)
            assert sink.connection_ended.wait(30)
            assert crm.deliver(WEBHOOK) == Receipt(200, None)
            assert (len(sink.received), sink.connections) == (2, 2)

    def test_a_used_connection_closed_during_a_send_is_left_to_the_caller_to_retry(self) -> None:
        with Sink(Reply(200), Reply(0)) as sink:
            crm = destination(sink.url)
            crm.deliver(WEBHOOK)
            with pytest.raises(DeliveryFailed, match="connection closed without an answer") as failed:
                crm.deliver(WEBHOOK)
            assert not failed.value.permanent
            assert (len(sink.received), sink.connections) == (2, 1)

    def test_an_earlier_short_wait_does_not_shorten_the_next_on_the_same_connection(self) -> None:
        with Sink(Reply(200), Reply(delay_s=4)) as sink:
            crm = destination(sink.url)
            crm.deliver(WEBHOOK, within_s=3)
            assert crm.deliver(WEBHOOK) == Receipt(200, None)
            assert sink.connections == 1


def test_the_log_destination_shows_what_it_would_send() -> None:
    shown: list[str] = []
    assert LogDestination(shown.append).deliver(WEBHOOK, within_s=1) == Receipt()
    first_line, _, rest = shown[0].partition("\n")
    assert first_line == "webhook msg_7 would be sent:"
    assert json.loads(rest) == WEBHOOK.payload
