"""Requests that are too large, too slow or incomplete, over real sockets to the server that users run."""

from __future__ import annotations

import hmac
import io
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPResponse
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
import pytest
from gunicorn.config import Config
from gunicorn.http.errors import NoMoreData
from werkzeug.test import EnvironBuilder, run_wsgi_app

from orchestrator.item import Item
from orchestrator.logs import JsonFormatter, LineFormatter
from orchestrator.pipeline import Outcome, Pipeline
from routes.connections import ByteBudget, ClientSocket, JsonLog, Log, PatientRequest, Workplaces
from tests.routes.conftest import StartApp
from tests.support.server import INGRESS_TOKEN, Server, email

HALF_SENT = 40
MEGABYTE = b"x" * 1024 * 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One process with two threads."""
    folder: Path = tmp_path_factory.mktemp("server")
    config = folder / "mailonce.toml"
    config.write_text("[providers.mailgun]\nsigning_key = 'key'\n")
    with Server(folder / "data", WEB_CONCURRENCY="1", WEB_THREADS="2", MAILONCE_CONFIG=str(config)) as server:
        yield server


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def head(path: str = "/api/ingress/gmail", token: str = INGRESS_TOKEN, **headers: str) -> bytes:
    named = {"Host": "x", "Authorization": f"Bearer {token}", "Content-Type": "application/json"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def answer(client: socket.socket) -> tuple[int, dict[str, Any]]:
    response = HTTPResponse(client)
    response.begin()
    return response.status, json.loads(response.read())


# Too large


@pytest.mark.parametrize(("token", "status"), [(INGRESS_TOKEN, 413), ("wrong", 401)])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_client_that_sends_too_large_a_body_before_it_reads_gets_its_answer(
    server: Server, is_chunked: bool, token: str, status: int
) -> None:
    size = {"Transfer-Encoding": "chunked"} if is_chunked else {"Content-Length": str(30 * len(MEGABYTE))}
    with connect(server) as client:
        client.sendall(head(token=token, **size))
        for _ in range(30):
            client.sendall(b"100000\r\n" + MEGABYTE + b"\r\n" if is_chunked else MEGABYTE)
        client.sendall(b"0\r\n\r\n" if is_chunked else b"")
        given, body = answer(client)
    assert given == status
    if status == 413:
        assert body == {
            "success": False,
            "status": "invalid",
            "error": "the request takes at most 25 MB (MAX_BODY_MB)",
        }


def test_a_chunked_email_is_not_truncated_at_the_limit(server: Server) -> None:
    """Truncated, it would still be parsed as an email."""
    with connect(server) as client:
        client.sendall(head("/api/ingress/mime", Content_Type="message/rfc822", Transfer_Encoding="chunked"))
        client.sendall(b"100000\r\n" + b"From: a@b.org\r\n\r\n".ljust(len(MEGABYTE)) + b"\r\n")
        for _ in range(25):
            client.sendall(b"100000\r\n" + MEGABYTE + b"\r\n")
        client.sendall(b"0\r\n\r\n")
        assert answer(client)[0] == 413


def test_an_email_just_below_the_limit_is_accepted(server: Server) -> None:
    assert server.post(email(body="x" * (24 * len(MEGABYTE)))).json()["status"] == "processed"


# Incomplete


@pytest.mark.parametrize(
    "half",
    [
        b"",
        b"POST /api/ingress/gmail HTTP/1.1\r\nHo",
        head(Content_Length="1000") + b"{",
        head(token="wrong", Content_Length="1000") + b"{",
        head("/api/ingress/mailgun", Content_Length="1000", Content_Type="multipart/form-data; boundary=x") + b"--x",
        head(Transfer_Encoding="chunked") + b"3e8\r\n{",
    ],
    ids=["nothing", "half a head", "half a body", "a stranger's", "with its proof in the body", "half a chunk"],
)
def test_incomplete_requests_do_not_delay_others(server: Server, half: bytes) -> None:
    with ExitStack() as open_ones:
        for _ in range(HALF_SENT):
            open_ones.enter_context(connect(server)).sendall(half)
        for number in range(4):
            sent = email(subject=f"{number} beside {half!r}")
            assert server.post(sent, timeout_s=20).json()["status"] == "processed"


@pytest.mark.parametrize(
    ("path", "status"), [("/api/ingress/gmail", 503), ("/api/ingress/mime", 503), ("/api/ingress/message", 408)]
)
@pytest.mark.parametrize("size", [{"Content-Length": "1000"}, {"Transfer-Encoding": "chunked"}])
def test_an_incomplete_body_is_to_be_retried(server: Server, path: str, status: int, size: dict[str, str]) -> None:
    """Half an email may be parsed as an email."""
    half = b"From: ada@example.org\r\n\r\nHello"
    with connect(server) as client:
        client.sendall(head(path, Content_Type="message/rfc822", **size))
        client.sendall(b"3e8\r\n" + half if "Transfer-Encoding" in size else half)
        client.shutdown(socket.SHUT_WR)
        given, body = answer(client)
    assert (given, body["status"]) == (status, "retry_later")


@pytest.mark.parametrize("end", [b"2\r\n{}", b"2\r\n{}\r", b"2\r\n{}\r\n0\r\n"])
def test_a_body_that_ends_between_two_chunks_is_to_be_retried(server: Server, end: bytes) -> None:
    with connect(server) as client:
        client.sendall(head("/api/ingress/mailgun", Transfer_Encoding="chunked") + end)
        client.shutdown(socket.SHUT_WR)
        given, body = answer(client)
    assert (given, body["status"]) == (503, "retry_later")


@pytest.mark.parametrize(
    "chunks", [b"ZZ\r\n", b"-1\r\n", b"2\r\n{}XX", b"0\r\nbad trailer\r\n\r\n", b"2;\r=\r\n{}\r\n"]
)
@pytest.mark.parametrize("path", ["/api/ingress/mailgun", "/api/ingress/message"])
def test_invalid_chunks_are_refused_and_end_the_connection(server: Server, path: str, chunks: bytes) -> None:
    logged = len(server.log.read_text())
    with connect(server) as client:
        client.sendall(head(path, Transfer_Encoding="chunked") + chunks)
        assert answer(client) == (
            400,
            {"success": False, "status": "invalid", "error": "Transfer-Encoding takes valid chunks"},
        )
        assert client.recv(1) == b""
    (line,) = server.log.read_text()[logged:].splitlines()
    assert f"POST {path}: the body is no chunked one" in line


def test_a_connection_is_reused(server: Server) -> None:
    with connect(server) as client:
        for _ in range(3):
            client.sendall(head(Content_Length="2") + b"{}")
            assert answer(client)[0] == 400


# Unverified bodies


def large_head() -> bytes:
    return head("/api/ingress/mailgun", Content_Length=str(25 * len(MEGABYTE)), Content_Type="multipart/form-data")


def test_incomplete_bodies_are_kept_on_disk(server: Server) -> None:
    (worker,) = map(psutil.Process, server.worker_pids())
    before = worker.memory_info().rss
    with ExitStack() as open_ones:
        for _ in range(5):
            client = open_ones.enter_context(connect(server))
            client.sendall(large_head())
            client.sendall(24 * MEGABYTE)  # returns once the server has read all but what the sockets hold
        assert worker.memory_info().rss - before < 50 * len(MEGABYTE)


def test_large_unverified_bodies_share_a_budget_and_do_not_delay_others(server: Server) -> None:
    """Five of 25 MB have room in 128 MB; the sixth waits, and is then asked for again."""
    with ExitStack() as open_ones:
        clients = [open_ones.enter_context(connect(server)) for _ in range(6)]
        for client in clients:
            client.sendall(large_head() + MEGABYTE)
        answered, _, _ = select.select(clients, [], [], 60)
        given, body = answer(*answered)
        assert (given, body["status"]) == (503, "retry_later")
        sent = email(subject="large", body="x" * (24 * len(MEGABYTE)))
        assert server.post(sent).json()["status"] == "processed"
        small = open_ones.enter_context(connect(server))
        small.sendall(head("/api/ingress/mailgun", Content_Length="2", Content_Type="multipart/form-data") + b"{}")
        assert answer(small)[0] == 401
        assert select.select(clients, [], [], 0)[0] in ([], answered)


def test_a_body_counts_until_its_sender_is_verified_or_refused(
    start_app: StartApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget has room for one at a time, and nobody waits: while one is delivered, the next is read."""
    config = tmp_path / "mailonce.toml"
    config.write_text("[providers.mailgun]\nsigning_key = 'key'\n")
    monkeypatch.setattr("routes.app.UNPROVEN_BYTES", 0)
    monkeypatch.setattr("routes.connections.UNPROVEN_WAIT_S", 0)
    app = start_app(max_body_mb=1, mailonce_config=config)
    receive = Pipeline.receive
    inner: list[int | None] = []

    def send(token: str, key: str = "key") -> int:
        now = str(int(time.time()))
        signature = hmac.new(key.encode(), f"{now}{token}".encode(), "sha256").hexdigest()
        fields = {"timestamp": now, "token": token, "signature": signature, "body-plain": "x" * 900_000}
        headers = {"message-headers": json.dumps([["From", "ada@example.org"], ["Message-Id", f"<{token}@x>"]])}
        return app.http.post("/api/ingress/mailgun", data=fields | headers).status_code

    def receive_and_send_another(pipeline: Pipeline, item: Item) -> Outcome:
        if not inner:
            inner.append(None)
            inner.append(send("second"))
        return receive(pipeline, item)

    assert [send(f"stranger {number}", "another key") for number in range(3)] == [401] * 3
    monkeypatch.setattr(Pipeline, "receive", receive_and_send_another)
    assert (send("first"), inner) == (200, [None, 200])


def test_a_request_waits_for_bytes_of_the_budget(eventually: Callable[[Callable[[], bool]], None]) -> None:
    budget, reserved = ByteBudget(10), []
    assert budget.reserve(8, timeout_s=0) and not budget.reserve(3, timeout_s=0)
    waiting = Thread(target=lambda: reserved.append(budget.reserve(3, timeout_s=3600)), daemon=True)
    waiting.start()
    eventually(lambda: bool(vars(budget._returned)["_waiters"]))
    budget.give_back(8)
    eventually(lambda: reserved == [True])
    assert not budget.reserve(8, timeout_s=0)


# The end of the server


def test_ctrl_c_ends_all_processes(tmp_path: Path) -> None:
    """A terminal sends SIGINT to all of them."""
    with Server(tmp_path, WEB_CONCURRENCY="1") as server:
        assert server.process
        workers = server.worker_pids()
        for _ in range(20):
            for pid in workers:
                os.kill(pid, signal.SIGINT)
        assert server.post(email()).json()["status"] == "processed"
        assert server.worker_pids() == workers
        for pid in (server.process.pid, *workers):
            os.kill(pid, signal.SIGINT)
        assert server.process.wait(timeout=60) == 0


# Parts


def test_a_silent_client_is_disconnected_at_the_deadline() -> None:
    ours, theirs = socket.socketpair()
    with ClientSocket(fileno=ours.detach()) as client, theirs:
        client.expect_within(60)
        theirs.sendall(b"half")
        assert client.recv(10) == b"half"
        client.expect_within(0.01)
        with pytest.raises(NoMoreData):
            client.recv(10)
        theirs.sendall(b"late")
        with pytest.raises(NoMoreData):
            client.recv(10)


def test_a_client_that_sends_without_end_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("routes.connections.MOST_DISCARDED_BYTES", 3 * len(MEGABYTE))
    ours, theirs = socket.socketpair()
    with ClientSocket(fileno=ours.detach()) as client, theirs:
        hanging_up = Thread(target=client.hang_up)
        hanging_up.start()
        with pytest.raises(BrokenPipeError):
            while True:
                theirs.sendall(MEGABYTE)
        hanging_up.join()


def test_the_number_of_requests_is_limited_and_waiting_for_a_body_does_not_count() -> None:
    body_may_come, is_reading, done = Event(), Event(), []

    class SlowBody(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            is_reading.set()
            body_may_come.wait(30)
            return super().read(size)

    def app(environ: Any, start_response: Any) -> list[bytes]:
        asked = PatientRequest(environ)
        asked.max_content_length = 10
        done.append(asked.get_data())
        start_response("200 OK", [])
        return []

    bounded = Workplaces(app, 1)
    slow = EnvironBuilder(method="POST", input_stream=SlowBody(b"slow"), content_length=4).get_environ()
    waiting = Thread(target=run_wsgi_app, args=(bounded, slow))
    waiting.start()
    is_reading.wait(30)
    run_wsgi_app(bounded, EnvironBuilder(method="POST", data=b"quick").get_environ())
    assert done == [b"quick"]
    body_may_come.set()
    waiting.join()
    assert done == [b"quick", b"slow"]


@pytest.mark.parametrize(("kind", "formatter"), [(Log, LineFormatter), (JsonLog, JsonFormatter)])
def test_gunicorn_logs_in_our_format(kind: type[Log], formatter: type) -> None:
    config = Config()
    config.set("accesslog", "-")
    log = kind(config)
    known = (*log.error_log.handlers, *log.access_log.handlers)
    handlers = [each for each in known if hasattr(each, "_gunicorn")]  # pytest has some, too
    assert len(handlers) == 2
    assert all(isinstance(handler.formatter, formatter) for handler in handlers)
