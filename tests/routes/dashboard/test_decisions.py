"""Decisions on the page: the list with its filters, and one with all that is known of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.routes.conftest import App, StartApp
from tests.routes.dashboard.conftest import Visitor, signed_in
from tests.support.server import email
from tests.support.sink import Reply, Sink


def toml(path: Path, **destinations: str) -> Path:
    """A file with these destinations, and one route to all of them."""
    sections = [f"[destinations.{name}]\n{lines}\n" for name, lines in destinations.items()]
    route = f"[[routes]]\nname = 'all'\ndestinations = {list(destinations)}\nsubject_groups = 'off'\n"
    path.write_text("".join([*sections, route]))
    return path


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", {"Lot 1", "Re: lot 1", "Hello"}),
        ("?status=skipped_subject_group", {"Re: lot 1"}),
        ("?gate=subject_group", {"Re: lot 1"}),
        ("?q=HELLO", {"Hello"}),
        ("?q=eve@", {"Re: lot 1"}),
        ("?provider=mime", set()),
        ("?destination=default&status=processed&last=hour", {"Lot 1", "Hello"}),
        ("?status=&gate=&provider=&q=", {"Lot 1", "Re: lot 1", "Hello"}),
        ("?until=2020-01-01T00:00:00Z", set()),
    ],
)
def test_filters_and_search_stand_in_the_address(app: App, operator: Visitor, query: str, shown: set[str]) -> None:
    app.post(email(subject="Lot 1", body="first"))
    app.post(email(subject="Re: lot 1", body="second", sender="eve@example.org"))
    app.post(email(subject="Hello"))
    page = operator.text(f"/decisions{query}")
    assert {subject for subject in ("Lot 1", "Re: lot 1", "Hello") if f">{subject}</a>" in page} == shown


@pytest.mark.parametrize("path", ["/decisions", "/deliveries"])
def test_a_filter_has_statuses_in_words_names_as_they_are_and_what_was_chosen(
    start_app: StartApp, tmp_path: Path, sink: Sink, path: str
) -> None:
    config = toml(tmp_path / "m.toml", my_crm=f"url = '{sink.url}'", dead=f"url = '{sink.url}'")
    page = signed_in(start_app(mailonce_config=config)).text(f"{path}?destination=my_crm&last=day")
    assert '<option value="my_crm" selected>my_crm</option><option value="dead">dead</option>' in page
    assert '<option value="day" selected>last 24 hours</option>' in page
    assert f'<a class="button quiet" href="{path}">Clear</a>' in page
    words = {"/decisions": "same group", "/deliveries": "in progress"}[path]
    assert f">{words}</option>" in page


def test_the_pages_of_a_list_follow_each_other(app: App, operator: Visitor) -> None:
    for number in range(60):
        app.post(email(subject=f"Number {number}", body=f"{number}"))
    first = operator.text("/decisions?status=processed")
    assert ">Number 59</a>" in first and ">Number 9</a>" not in first
    following = first.partition('href="/decisions?status=processed&amp;cursor=')[2].partition('"')[0]
    second = operator.text(f"/decisions?status=processed&cursor={following}")
    assert ">Number 9</a>" in second and ">Number 10</a>" not in second
    assert operator.get("/decisions?cursor=nonsense").status_code == 400


def test_one_decision_tells_all_that_is_known_of_it(start_app: StartApp, tmp_path: Path) -> None:
    with Sink(Reply(503), otherwise=Reply(422)) as sink:
        config = toml(tmp_path / "m.toml", crm=f"url = '{sink.url}'\nmax_attempts = 3")
        app = start_app(mailonce_config=config)
        id_ = app.post(email(subject="Lot 7", html="<p>Bonjour</p>", plain="Bonjour, the text", X="y")).get_json()["id"]
        operator = signed_in(app)
        page = operator.text(f"/decisions/{id_}")
    assert "Bonjour, the text" in page
    assert "answered 503" in page and "answered 422" in page and "given up</li>" in page
    assert "email_id:2026-11-16:" in page
    assert "<h2>Gates</h2>" in page
    assert "Ada@Example.org" in operator.text(f"/decisions/{id_}?tab=headers")
    assert "&#34;plain&#34;: &#34;Bonjour, the text&#34;" in operator.text(f"/decisions/{id_}?tab=json")
    assert f'src="/decisions/{id_}/html"' in operator.text(f"/decisions/{id_}?tab=html")
    frame = operator.get(f"/decisions/{id_}/html")
    assert frame.text == "<p>Bonjour</p>"
    policy = frame.headers["Content-Security-Policy"].split("; ")
    assert policy[:2] == ["sandbox", "default-src 'none'"]
    assert frame.headers["X-Frame-Options"] == "SAMEORIGIN"


def test_what_is_no_longer_kept_is_said_to_be(app: App, operator: Visitor) -> None:
    id_ = app.post(email()).get_json()["id"]
    assert "Its content is no longer stored: it was delivered" in operator.text(f"/decisions/{id_}")
    assert operator.get(f"/decisions/{id_}/html").status_code == 404
    assert operator.get("/decisions/nobody").status_code == 404


def test_all_that_match_are_released_of_which_only_the_stopped_count(
    app: App, operator: Visitor, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    for number, subject in enumerate(("Lot 1", "Re: lot 1", "Fwd: lot 1", "Hello")):
        app.post(email(subject=subject, body=f"{number}"))
    assert "Release 2 emails?" in operator.text("/do/release?all=yes")
    operator.post("/do/release", all="yes", total="2")
    assert "2 emails: released." in operator.text("/")
    eventually(lambda: operator.text("/decisions?status=processed").count("Released at") == 2)


def test_one_email_is_replayed_wherever_it_is_dead(start_app: StartApp, tmp_path: Path) -> None:
    with Sink(otherwise=Reply(422)) as dead, Sink() as well:
        config = toml(tmp_path / "m.toml", crm=f"url = '{dead.url}'", archive=f"url = '{well.url}'")
        app = start_app(mailonce_config=config)
        id_ = app.post(email()).get_json()["id"]
        operator = signed_in(app)
        operator.post("/do/replay-emails", id=id_)
        assert "1 email: sent again." in operator.text("/")
        dead.otherwise = Reply()
        app.service.retrier.tick()
        assert len(well.received) == 1
        operator.post("/do/replay-emails", id="nobody")
        assert "1 email: unknown, or no longer stored." in operator.text("/")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("scope=subject_group&value=lot_1", "4 names will be forgotten"),
        ("scope=media&value=https://files.example/1", "0 names will be forgotten"),
    ],
)
def test_a_question_says_how_many_names_go(app: App, operator: Visitor, query: str, said: str) -> None:
    app.post(email(subject="Lot 1"))
    asked = operator.text(f"/forget?{query}")
    assert said in asked
    assert app.status_of(email(subject="Lot 1")) == "already_processed", "asking forgets nothing"


@pytest.mark.parametrize("query", ["scope=all&value=x", "scope=nothing&value=x", "scope=subject_group&value="])
def test_what_cannot_be_forgotten_here_is_refused(operator: Visitor, query: str) -> None:
    assert operator.get(f"/forget?{query}").status_code == 400
    assert operator.post("/forget", **dict(each.split("=") for each in query.split("&"))).status_code == 400


def test_what_still_waits_keeps_its_names(start_app: StartApp) -> None:
    with Sink(otherwise=Reply(503)) as sink:
        app = start_app(webhook_url=sink.url)
        id_ = app.post(email()).get_json()["id"]
        operator = signed_in(app)
        operator.post("/do/forget", id=id_)
        assert "1 email: kept: still to be delivered." in operator.text("/")
        assert app.status_of(email()) == "queued"


def test_an_act_on_nothing_in_particular_is_refused(app: App, operator: Visitor) -> None:
    app.post(email())
    answer = operator.post("/do/forget", total="1")
    assert answer.status_code == 400
    assert app.status_of(email()) == "already_processed"
