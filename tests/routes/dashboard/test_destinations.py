"""Destinations on the page: what they answer is shown as text."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from markupsafe import escape

from tests.routes.conftest import App, StartApp
from tests.routes.dashboard.conftest import signed_in

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def evil_destination() -> Iterator[str]:
    """Answers every connection with markup where the status should stand."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                client.recv(65536)
                client.sendall(f"{EVIL}\r\n\r\n".encode())

    thread = threading.Thread(target=answer)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/hook"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_what_a_destination_answers_is_text_in_the_notice_and_in_its_last_error(
    start_app: StartApp, evil_destination: str
) -> None:
    app = start_app(webhook_url=evil_destination)
    visitor = signed_in(app)
    form = "/destinations/default/test"
    assert visitor.post(form, form_on=form).status_code == 303
    notice = visitor.text("/destinations")
    assert "did not accept the test event" in notice and "the answer is not HTTP" in notice
    assert EVIL not in notice


def test_the_reason_of_a_pause_is_text_wherever_it_is_shown(app: App) -> None:
    visitor = signed_in(app)
    form = "/destinations/default/pause"
    assert visitor.post(form, form_on=form, reason=EVIL).status_code == 303
    pages = {path: visitor.text(path) for path in ("/destinations", "/", "/audit", "/deliveries", "/system")}
    assert str(escape(EVIL)) in pages["/destinations"]
    assert [path for path, text in pages.items() if EVIL in text] == []
