"""The figures on the page are those of the API, and what is wrong is said on top."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.operations.figures import totals
from orchestrator.version import our_version
from tests.routes.conftest import App, StartApp, bearer
from tests.routes.dashboard.conftest import Visitor, signed_in
from tests.routes.test_api_destinations import DOWN, toml
from tests.support.server import INGRESS_TOKEN, email
from tests.support.sink import Reply, Sink

Eventually = Callable[[Callable[[], bool]], None]


def tiles(page: str) -> dict[str, str]:
    found = re.findall(r'class="label">([^<]+)</span><span class="value">([^<]+)<.*?class="note">([^<]*)<', page)
    return {label: f"{value} | {note}" for label, value, note in found}


def test_the_tiles_are_the_figures_of_everywhere_else(
    start_app: StartApp, tmp_path: Path, eventually: Eventually
) -> None:
    with Sink(otherwise=DOWN) as dead, Sink(otherwise=DOWN) as down, Sink() as well:
        names = {"dead": (dead, 1), "down": (down, 5), "well": (well, 5)}
        destinations = "".join(
            f"[destinations.{name}]\nurl = '{sink.url}'\nmax_attempts = {tries}\n"
            for name, (sink, tries) in names.items()
        )
        routes = "".join(
            f"[[routes]]\nname = '{name}'\nmatch = [{{ field = 'subject', contains = '{name}' }}]\n"
            f"destinations = ['{name}']\n"
            for name in ("dead", "down")
        )
        (tmp_path / "m.toml").write_text(f"{destinations}{routes}[[routes]]\nname = 'rest'\ndestinations = ['well']\n")
        app = start_app(mailonce_config=tmp_path / "m.toml")
        for subject in ("dead 1", "dead 2", "down 1", "Lot 5", "Re: lot 5", "Hello", "Hello", "Hello"):
            app.post(email(subject=subject, body=subject))
        operator = signed_in(app)
        eventually(lambda: "Received: 8" in str(tiles(operator.text("/"))).replace("': '", ": "))
        shown, counted = tiles(operator.text("/?span=hour")), totals(app.service)
    assert (counted.received, counted.duplicates, counted.suppressed) == (8, 2, 1)
    assert shown["Received"] == "8 | 8 in all"
    assert shown["Delivered"] == "2 | 2 in all"
    assert shown["Duplicates stopped"] == "2 | 25 %, 2 in all"
    assert shown["Suppressed"] == "1 | 1 in all"
    assert shown["Waiting now"].startswith("1 | the oldest for")
    assert shown["Dead letters"] == "2 | can be replayed"


def test_a_newcomer_is_told_what_to_do_with_the_token_hidden(operator: Visitor, onlooker: Visitor) -> None:
    page = operator.text("/")
    assert "No email has been received yet" in page and "Show the token" in page
    assert INGRESS_TOKEN not in page
    assert "Show the token" not in onlooker.text("/")


@pytest.mark.parametrize("span", ["hour", "day", "week", "month", ""])
def test_every_span_can_be_shown(operator: Visitor, span: str) -> None:
    operator.app.post(email())
    shown = span or "day"
    assert f"over the last {shown}" in operator.text(f"/?span={span}")
    assert f"in the last {shown}" in operator.text(f"/destinations?span={span}")


def test_another_span_is_refused_by_its_name(operator: Visitor) -> None:
    answer = operator.get("/?span=century")
    assert answer.status_code == 400
    assert "span must be one of" in answer.text


def test_a_destination_shows_how_it_fares_and_its_last_error(start_app: StartApp, tmp_path: Path) -> None:
    with Sink(otherwise=Reply(422)) as sink:
        app = start_app(mailonce_config=toml(tmp_path / "m.toml", crm=f"url = '{sink.url}'"))
        app.post(email())
        page = signed_in(app).text("/destinations")
    assert "crm: answered 422" in page


def test_a_provider_shows_its_last_email_and_what_was_refused_and_why(app: App, operator: Visitor) -> None:
    assert "none yet" in operator.text("/providers")
    app.post(email())
    app.http.post("/api/ingress/gmail", json={"subject": 1}, headers=bearer(INGRESS_TOKEN))
    page = re.sub(r"\s+", " ", operator.text("/providers"))
    assert re.search(r"Last email</dt><dd><time [^>]+>[^<]+</time> <span class=\"badge good\">delivered", page)
    assert re.search(r"Last refused</dt><dd><time [^>]+>[^<]+</time>: \w+", page)
    assert "mailonce sample gmail | sh" in page
    assert "takes [providers.mailgun] with signing_key" in page


def test_the_system_shows_version_store_and_locks(operator: Visitor) -> None:
    page = operator.text("/system")
    assert f"Mailonce {our_version()}" in page and "No lock is held now" in page
    lock = operator.app.service.locks.acquire_lock("post-1", "telegram")
    assert lock
    shown = operator.text("/system")
    assert "post-1" in shown and "telegram" in shown


def test_what_is_wrong_is_said_on_top(operator: Visitor) -> None:
    assert "notice" not in operator.text("/notices")
    operator.post("/destinations/default/pause", reason="it moves")
    assert "default is paused" in operator.text("/notices") and "it moves" in operator.text("/notices")
