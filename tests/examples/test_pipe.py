"""examples/pipe: an email from a mail server's pipe, and the exit code that the mail server reads."""

import io
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.redis_server import free_port
from tests.support.server import INGRESS_TOKEN, Server
from tests.support.sink import Reply, Sink
from tests.support.surroundings import ROOT

SCRIPT = ROOT / "examples/pipe/forward.py"
KEPT, BAD_EMAIL, REFUSED = 75, 65, 69
EMAIL = (
    b"From ada@example.org Mon Nov 16 09:00:00 2026\nFrom: Ada <ada@example.org>\nTo: in@example.com\n"
    b"Subject: Through the pipe\nDate: Mon, 16 Nov 2026 09:00:00 +0000\nMessage-ID: <p1@example.org>\n\nHello \xff\n"
)
CODES = {
    0: (200, 202, 204),
    KEPT: (301, 302, 307, 401, 403, 404, 408, 429, 500, 502, 503, 504),
    BAD_EMAIL: (400, 413, 415, 422),
    REFUSED: (402, 405, 410, 451),
}

Forward = Callable[..., object]


@pytest.fixture
def forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Forward:
    """Runs the script with an email on stdin: its exit code. The token is never shown."""

    def run(url: str, *options: str, email: bytes = b"{}", token: str = INGRESS_TOKEN) -> object:
        (tmp_path / "token").write_text(f"{token}\n")
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), url, str(tmp_path / "token"), *options])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(email)))
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        assert token not in capsys.readouterr().err
        return ended.value.code

    return run


def test_an_email_through_the_pipe_is_delivered_once(tmp_path: Path, forward: Forward) -> None:
    (tmp_path / "token").write_text(f"{INGRESS_TOKEN}\n")
    with Sink() as sink, Server(tmp_path / "data", WEBHOOK_URL=sink.url) as server:
        url = f"{server.url}/api/ingress/mime"
        # With nothing of ours to import: as a mail server's user runs it.
        command = [sys.executable, "-I", str(SCRIPT), url, str(tmp_path / "token")]
        assert [subprocess.run(command, input=EMAIL, env={}, timeout=120).returncode for _ in range(2)] == [0, 0]
        (received,) = sink.received
        shown = (received.payload["subject"], received.payload["sender_email"])
        assert shown == ("Through the pipe", "ada@example.org")
        envelope = ["--from=", "--to=jürgen@ours.example", "--to=-x@ours.example"]
        assert forward(url, *envelope, email=EMAIL.replace(b"p1@", b"p2@").replace(b"pipe", b"gate")) == 0
        payload = sink.received[-1].payload
        assert (payload["delivered_to"], payload["return_path"]) == (["jürgen@ours.example", "-x@ours.example"], "")
        assert [forward(url, email=bad) for bad in (b"no email", b"")] == [BAD_EMAIL] * 2
        assert forward(url, email=EMAIL, token="wrong-token-of-tests") == KEPT
        assert forward(f"{server.url}/api/ingress/nobody", email=EMAIL) == KEPT
    away = subprocess.run(command, input=EMAIL, env={}, capture_output=True, timeout=120)
    assert away.returncode == KEPT and b"to be tried again" in away.stderr and b"Traceback" not in away.stderr


def test_every_answer_has_its_exit_code(forward: Forward) -> None:
    with Sink() as sink:
        for code, statuses in CODES.items():
            for status in statuses:
                sink.otherwise = Reply(status, headers={"Location": "/elsewhere"})
                assert forward(sink.url) == code, status
        assert len(sink.received) == sum(map(len, CODES.values())), "redirects are not followed"


def test_what_breaks_on_the_way_keeps_the_email(forward: Forward) -> None:
    with Sink(Reply(0), Reply(200, header_drip_s=5)) as sink:
        assert forward(sink.url) == KEPT, "no answer"
        assert forward(sink.url, "--timeout", "0.5") == KEPT, "too slow"
    for url in (f"http://127.0.0.1:{free_port()}/", "ftp://x/", "nonsense", "http://[", "https://127.0.0.1:1/"):
        assert forward(url) == KEPT, url


def test_a_wrong_token_file_or_command_line_bounces_no_email(tmp_path: Path, forward: Forward) -> None:
    assert forward("http://127.0.0.1:1/", "--nonsense") == KEPT
    assert forward("http://127.0.0.1:1/", token="a token\nof two lines") == KEPT
    for arguments in (["http://127.0.0.1:1/", str(tmp_path / "gone")], []):
        ran = subprocess.run([sys.executable, str(SCRIPT), *arguments], input=EMAIL, capture_output=True, timeout=60)
        assert ran.returncode == KEPT
