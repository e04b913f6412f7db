"""Requests that are too large, too slow or incomplete, over real sockets to the server that users run."""

import hmac
import io
import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPResponse
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
import pytest
from gunicorn.http.errors import NoMoreData
from werkzeug.test import EnvironBuilder, run_wsgi_app

from orchestrator.item import Item
from orchestrator.pipeline import Outcome, Pipeline
from routes.connections import BoundedRequest, ClientSocket, RequestLimit
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


@pytest.mark.parametrize(
    ("path", "token", "is_chunked", "status"),
    [
        ("/api/ingress/gmail", INGRESS_TOKEN, False, 413),
        ("/api/ingress/gmail", "wrong", False, 401),
        ("/api/ingress/gmail", "wrong", True, 401),
        ("/api/ingress/mime", INGRESS_TOKEN, True, 413),
    ],
    ids=["too large", "a stranger's", "a stranger's chunks", "chunks that are an email up to the limit"],
)
def test_too_large_bodies_are_answered(server: Server, path: str, token: str, is_chunked: bool, status: int) -> None:
    size = {"Transfer-Encoding": "chunked"} if is_chunked else {"Content-Length": str(30 * len(MEGABYTE))}
    with connect(server) as client:
        client.sendall(head(path, token=token, Content_Type="message/rfc822", **size))
        for number in range(30):
            piece = MEGABYTE if number else b"From: a@b.org\r\n\r\n".ljust(len(MEGABYTE))
            client.sendall(b"100000\r\n" + piece + b"\r\n" if is_chunked else piece)
        client.sendall(b"0\r\n\r\n" if is_chunked else b"")
        given, body = answer(client)
    assert given == status
    assert status != 413 or body["error"] == "the request must have at most 25 MB (MAX_BODY_MB)"


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
    ("path", "size", "sent"),
    [
        ("gmail", {"Content-Length": "1000"}, b"{"),
        ("mime", {"Content-Length": "1000"}, b"From: ada@example.org\r\n\r\nHello"),
        ("mime", {"Transfer-Encoding": "chunked"}, b"3e8\r\nFrom: ada@example.org\r\n\r\nHello"),
        ("message", {"Content-Length": "1000"}, b"{"),
        ("mailgun", {"Transfer-Encoding": "chunked"}, b"2\r\n{}"),
        ("mailgun", {"Transfer-Encoding": "chunked"}, b"2\r\n{}\r"),
        ("mailgun", {"Transfer-Encoding": "chunked"}, b"2\r\n{}\r\n0\r\n"),
    ],
)
def test_an_incomplete_body_is_to_be_retried(server: Server, path: str, size: dict[str, str], sent: bytes) -> None:
    """Half an email may be parsed as an email."""
    with connect(server) as client:
        client.sendall(head(f"/api/ingress/{path}", Content_Type="message/rfc822", **size) + sent)
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
        given, body = answer(client)
        assert (given, body["status"]) == (400, "invalid")
        assert body["error"] == "the body must have valid chunks (Transfer-Encoding: chunked)"
        assert client.recv(1) == b""
    (line,) = server.log.read_text()[logged:].splitlines()
    assert f"POST {path}: invalid chunked body" in line


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
    start_app: StartApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget has room for one at a time, and nobody waits: while one is delivered, the next is read."""
    monkeypatch.setattr("routes.app.UNPROVEN_BYTES", 0)
    monkeypatch.setattr("routes.connections.UNPROVEN_WAIT_S", 0)
    app = start_app(max_body_mb=1, toml="[providers.mailgun]\nsigning_key = 'key'\n")
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
    monkeypatch.setattr("routes.connections.LINGER_S", 0.05)
    ours, theirs = socket.socketpair()
    with ClientSocket(fileno=ours.detach()) as client, theirs:
        hanging_up = Thread(target=client.hang_up)
        hanging_up.start()
        with pytest.raises(BrokenPipeError):
            while True:
                theirs.sendall(MEGABYTE)
        hanging_up.join()


def test_requests_are_processed_one_at_a_time_and_waiting_for_a_body_does_not_count() -> None:
    """The slow one begins first; its body arrives when all others are done."""
    is_awaited, may_arrive = Event(), Event()
    running: list[bytes] = []
    done: list[tuple[bytes, int]] = []

    class SlowBody(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            is_awaited.set()
            may_arrive.wait(30)
            return super().read(size)

    def app(environ: Any, start_response: Any) -> list[bytes]:
        received = BoundedRequest(environ)
        received.max_content_length = 10
        running.append(received.get_data())
        time.sleep(0.01)
        done.append((running[0], len(running)))
        running.pop()
        start_response("200 OK", [])
        return []

    limited = RequestLimit(app, 1)
    quick = [EnvironBuilder(method=method, data=b"quick").get_environ() for method in ("POST", "GET") * 3]
    slow = EnvironBuilder(method="POST", input_stream=SlowBody(b"slow"), content_length=4).get_environ()
    with ThreadPoolExecutor(len(quick) + 1) as clients:
        clients.submit(run_wsgi_app, limited, slow)
        is_awaited.wait(30)
        list(clients.map(lambda environ: run_wsgi_app(limited, environ), quick))
        may_arrive.set()
    assert done == [(b"quick", 1)] * 6 + [(b"slow", 1)]
