"""examples/pipe: an email from a mail server's pipe, and the exit code that the mail server reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.redis_server import free_port
from tests.support.server import INGRESS_TOKEN, Server
from tests.support.sink import Reply, Sink
from tests.support.surroundings import ROOT

FORWARD = ROOT / "examples/pipe/forward.py"
KEPT, BAD_EMAIL, REFUSED = 75, 65, 69
EMAIL = (
    b"From ada@example.org Mon Nov 16 09:00:00 2026\nFrom: Ada <ada@example.org>\nTo: in@example.com\n"
    b"Subject: Through the pipe\nDate: Mon, 16 Nov 2026 09:00:00 +0000\nMessage-ID: <p1@example.org>\n\nHello \xff\n"
)


def forward(
    url: str, folder: Path, email: bytes = EMAIL, token: str = INGRESS_TOKEN, *options: str
) -> subprocess.CompletedProcess[str]:
    """With nothing of ours to import: as a mail server's user runs it."""
    (folder / "token").write_text(f"{token}\n")
    ran = subprocess.run(
        [sys.executable, "-I", str(FORWARD), url, str(folder / "token"), *options],
        input=email,
        capture_output=True,
        timeout=120,
        env={},
    )
    assert b"Traceback" not in ran.stderr, ran.stderr
    assert token.encode() not in ran.stderr
    return subprocess.CompletedProcess(ran.args, ran.returncode, ran.stdout.decode(), ran.stderr.decode())


def test_an_email_through_the_pipe_is_delivered_once(tmp_path: Path) -> None:
    with Sink() as sink, Server(tmp_path / "data", WEBHOOK_URL=sink.url) as server:
        url = f"{server.url}/api/ingress/mime"
        assert [forward(url, tmp_path).returncode for _ in range(2)] == [0, 0]
        (received,) = sink.received
        assert (received.payload["subject"], received.payload["sender_email"]) == (
            "Through the pipe",
            "ada@example.org",
        )
        assert forward(url, tmp_path, b"no email").returncode == BAD_EMAIL
        assert forward(url, tmp_path, b"").returncode == BAD_EMAIL
        assert forward(url, tmp_path, token="wrong-token-of-tests").returncode == KEPT
        assert forward(f"{server.url}/api/ingress/nobody", tmp_path).returncode == KEPT
    away = forward(url, tmp_path)
    assert away.returncode == KEPT
    assert "to be tried again" in away.stderr


@pytest.mark.parametrize(
    ("status", "code"),
    [
        *((status, 0) for status in (200, 202, 204)),
        *((status, KEPT) for status in (301, 302, 307, 401, 403, 404, 408, 429, 500, 502, 503, 504)),
        *((status, BAD_EMAIL) for status in (400, 413, 415, 422)),
        *((status, REFUSED) for status in (402, 405, 410, 451)),
    ],
)
def test_every_answer_has_its_exit_code(tmp_path: Path, status: int, code: int) -> None:
    with Sink(otherwise=Reply(status, headers={"Location": "/elsewhere"})) as sink:
        # The sink reads JSON; what is posted to it is of no interest here.
        assert forward(sink.url, tmp_path, b"{}").returncode == code
        assert len(sink.received) == 1, "redirects are not followed"


def test_what_breaks_on_the_way_keeps_the_email(tmp_path: Path) -> None:
    with Sink(otherwise=Reply(0)) as sink:
        assert forward(sink.url, tmp_path, b"{}").returncode == KEPT, "no answer"
    with Sink(otherwise=Reply(200, header_drip_s=5)) as sink:
        assert forward(sink.url, tmp_path, b"{}", INGRESS_TOKEN, "--timeout", "0.5").returncode == KEPT
    for url in (f"http://127.0.0.1:{free_port()}/", "ftp://x/", "nonsense", "http://[", "https://127.0.0.1:1/"):
        assert forward(url, tmp_path).returncode == KEPT, url


def test_a_wrong_token_file_or_command_line_bounces_no_email(tmp_path: Path) -> None:
    for arguments in (["http://127.0.0.1:1/", str(tmp_path / "gone")], [], ["http://127.0.0.1:1/", "x", "--nonsense"]):
        ran = subprocess.run([sys.executable, str(FORWARD), *arguments], input=EMAIL, capture_output=True, timeout=60)
        assert ran.returncode == KEPT
    assert forward("http://127.0.0.1:1/", tmp_path, token="a token\nof two lines").returncode == KEPT
