"""A copied cookie, after its owner has signed out: with real processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import requests

from tests.support.page import PageVisitor
from tests.support.redis_server import RedisServer
from tests.support.server import Server

ENOUGH_FOR_BOTH = 12  # connections: each process of a server takes some of them


def statuses(url: str, cookie: str) -> set[int]:
    """What it is worth, over connections of its own."""
    headers = {"Cookie": f"mailonce_session={cookie}", "Accept": "text/html", "Connection": "close"}
    answers = (
        requests.get(f"{url}/notices", headers=headers, timeout=60, allow_redirects=False)
        for _ in range(ENOUGH_FOR_BOTH)
    )
    return {answer.status_code for answer in answers}


def test_a_copied_cookie_is_worth_nothing_on_any_process_or_server_once_its_owner_signed_out(
    tmp_path: Path, redis_server: RedisServer, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    settings = {"REDIS_URL": redis_server.url, "WEB_CONCURRENCY": "2"}
    with Server(tmp_path / "one", **settings) as one, Server(tmp_path / "other", **settings) as other:
        owner, colleague = PageVisitor(one.url), PageVisitor(one.url)
        copied = owner.http.cookies["mailonce_session"]
        assert statuses(one.url, copied) == {200}
        eventually(lambda: statuses(other.url, copied) == {200})  # the key is shared within a second
        assert owner.post("/sign-out", form_on="/").status_code == 302
        assert statuses(one.url, copied) == {302}
        eventually(lambda: statuses(other.url, copied) == {302})
        assert statuses(other.url, colleague.http.cookies["mailonce_session"]) == {200}, "others stay signed in"
