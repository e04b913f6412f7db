"""What the pages show: the same figures as the API, filters in the URL, one email in full, and errors."""

import re
from unittest.mock import Mock

import pytest

from deduplication.errors import StoreUnavailable
from orchestrator.version import our_version
from routes.dashboard.page import COOKIE
from routes.providers.registry import TYPES
from tests.routes.conftest import App, StartApp, bearer
from tests.routes.dashboard.conftest import HTML, Visitor, signed_in
from tests.support.server import INGRESS_TOKEN, email
from tests.support.sink import Reply, Sink

# Overview


TILE = (
    r'href="([^"]+)"><span class="label">([^<]+)</span><span class="value">([\d,]+)</span><span class="note">([^<]*)<'
)


def test_every_span_can_be_shown_and_no_other(operator: Visitor) -> None:
    """tests/test_end_to_end.py compares all tiles with what clients and destinations saw."""
    for _ in range(2):
        operator.app.post(email())
    operator.app.service.coordinator.tend()  # as every second
    for span in ("hour", "day", "week", "month", ""):
        page = operator.text(f"/?span={span}")
        shown = {label: (value, note) for _, label, value, note in re.findall(TILE, page)}
        assert (shown["Received"], shown["Duplicates"]) == (("2", "1 email"), ("1", "of 1 email"))
        assert f"in the last {span or 'day'}" in page
        assert f"in the last {span or 'day'}" in operator.text(f"/destinations?span={span}")
    answer = operator.get("/?span=century")
    assert (answer.status_code, "span must be" in answer.text) == (400, True)


def test_problems_version_and_locks_are_shown(operator: Visitor) -> None:
    assert "notice" not in operator.text("/notices")
    operator.post("/destinations/default/pause", reason="it moves")
    assert "default is paused" in operator.text("/notices") and "it moves" in operator.text("/notices")
    page = operator.text("/servers")
    assert "This server works on its own" in page
    assert f"Mailonce {our_version()}" in page and "No lock is held now" in page
    assert operator.app.service.locks.acquire_lock("post-1", "telegram")
    page = operator.text("/servers")
    assert "post-1" in page and "telegram" in page


# Providers


def test_configured_providers_have_an_address_and_all_others_what_they_lack(start_app: StartApp) -> None:
    shop = "[providers.shop]\ntype = 'postmark'\nusername = 'sender'\npassword = 'a long password'\n"
    visitor = signed_in(start_app(toml=shop))
    page, configured = visitor.text("/providers"), ["gmail", "mime", "shop", "message"]
    assert re.findall(r"api/ingress/(\w+)<", page) == configured
    missing = page.partition('<dl class="missing">')[2]
    assert re.findall(r"<dt>(\w+)</dt>", missing) == sorted(TYPES.keys() - set(configured))
    (choices,) = re.findall(r'<select name="provider".*?</select>', visitor.text("/decisions"), re.DOTALL)
    assert re.findall(r'<option value="(\w+)"', choices) == sorted(configured), "decisions can be filtered by each"


def test_a_provider_shows_its_last_email_and_its_last_refusal(app: App, operator: Visitor) -> None:
    assert "none yet" in operator.text("/providers")
    app.post(email())
    app.http.post("/api/ingress/gmail", json={"subject": 1}, headers=bearer(INGRESS_TOKEN))
    page = re.sub(r"\s+", " ", operator.text("/providers"))
    assert re.search(r"Last email</dt><dd><time [^>]+>[^<]+</time>, answered processed", page)
    assert re.search(r"Last refused</dt><dd><time [^>]+>[^<]+</time>: \w+", page)
    assert "mailonce sample gmail | sh" in page


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"public_url": "https://mail.example.org/"}, "https://mail.example.org"),
        ({"host": "192.0.2.1", "port": 8025}, "http://192.0.2.1:8025"),
    ],
)
def test_addresses_come_from_the_settings_whatever_host_the_client_names(
    start_app: StartApp, settings: dict[str, object], url: str
) -> None:
    http = signed_in(start_app(**settings)).http
    cookie = http.get_cookie(COOKIE)
    assert cookie is not None
    http.set_cookie(COOKIE, cookie.value, domain="evil.example")
    for path in ("/providers", "/", "/decisions"):
        page = http.get(path, base_url="http://evil.example").text
        assert f"{url}/api/ingress/gmail" in page and "evil.example" not in page


# Emails


def test_filters_and_search_are_in_the_url(app: App, operator: Visitor) -> None:
    """What each filter finds is tested in tests/orchestrator/operations."""
    for subject in ("Lot 1", "Again lot 1", "Hello"):
        app.post(email(subject=subject, body=subject))
    for query, shown in (
        ("", {"Lot 1", "Again lot 1", "Hello"}),
        ("?gate=subject_group", {"Again lot 1"}),
        ("?q=HELLO", {"Hello"}),
        ("?destination=default&status=processed&last=hour", {"Lot 1", "Hello"}),
        ("?status=&gate=&provider=&q=", {"Lot 1", "Again lot 1", "Hello"}),
        ("?until=2020-01-01T00:00:00Z", set()),
    ):
        page = operator.text(f"/decisions{query}")
        assert {each for each in ("Lot 1", "Again lot 1", "Hello") if f">{each}</a>" in page} == shown, query


def test_the_pages_of_a_list_follow_each_other(app: App, operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("routes.dashboard.views.PAGE_LENGTH", 2)
    for number in range(3):
        app.post(email(subject=f"Number {number}", body=f"{number}"))
    first = operator.text("/decisions?status=processed")
    assert ">Number 2</a>" in first and ">Number 0</a>" not in first
    following = first.partition('href="/decisions?status=processed&amp;cursor=')[2].partition('"')[0]
    second = operator.text(f"/decisions?status=processed&cursor={following}")
    assert ">Number 0</a>" in second and ">Number 1</a>" not in second
    assert operator.get("/decisions?cursor=nonsense").status_code == 400


def test_one_decision_shows_all_that_is_known_of_it(start_with: StartApp) -> None:
    with Sink(otherwise=Reply(422)) as sink:
        app = start_with(crm=f"url = '{sink.url}'\nmax_attempts = 1")
        body = {"html": "<p>Bonjour</p>", "plain": "Bonjour, the text", "headers": [["X-One", "the first"]]}
        files = [{"name": "plan.pdf", "content_type": "application/pdf", "content": "eA=="}]
        id_ = app.post(email(subject="Lot 7", attachments=files, recipient="to@b.example", **body)).get_json()["id"]
        operator = signed_in(app)
        page = operator.text(f"/decisions/{id_}")
        assert "answered 422" in operator.text("/destinations"), "the last error"
    assert "Bonjour, the text" in operator.text(f"/decisions/{id_}?tab=text")
    assert "<strong>crm</strong> answered 422" in page and "Dead letter at crm after 1 attempt: answered 422" in page
    assert "email_id:2026-11-16:" in page
    assert "<h3>Gates</h3>" in page
    assert "Ada Lovelace &lt;Ada@Example.org&gt;" in page and "to@b.example" in page
    assert "<dt>X-One</dt><dd>the first</dd>" in operator.text(f"/decisions/{id_}?tab=headers")
    assert re.search("plan.pdf.*application/pdf, 1 Byte", operator.text(f"/decisions/{id_}?tab=files"))
    assert "&#34;plain&#34;: &#34;Bonjour, the text&#34;" in operator.text(f"/decisions/{id_}?tab=json")
    assert f'src="/decisions/{id_}/html"' in operator.text(f"/decisions/{id_}?tab=html")
    frame = operator.get(f"/decisions/{id_}/html")
    assert frame.text == "<p>Bonjour</p>"
    assert frame.headers["Content-Security-Policy"].split("; ")[:2] == ["sandbox", "default-src 'none'"]
    assert frame.headers["X-Frame-Options"] == "SAMEORIGIN"


def test_the_page_says_that_content_is_no_longer_stored(app: App, operator: Visitor) -> None:
    id_ = app.post(email()).get_json()["id"]
    assert "Its content is no longer stored: it was delivered" in operator.text(f"/decisions/{id_}")
    assert operator.get(f"/decisions/{id_}/html").status_code == 404
    assert operator.get("/decisions/nobody").status_code == 404


# Errors


def test_an_unknown_address_is_a_page_for_a_browser_and_json_for_a_program(app: App) -> None:
    page = app.http.get("/nothing/here", headers=HTML)
    assert (page.status_code, page.mimetype) == (404, "text/html")
    assert "There is no page at this address" in page.text
    assert "Set-Cookie" not in page.headers
    program = app.http.get("/nothing/here")
    assert (program.status_code, program.get_json()["code"]) == (404, "invalid")
    for path in ("/api/nothing", "/api/ingress/nobody", "/api/admin/deliveries"):
        kind = "application/json" if path.startswith("/api/ingress") else "application/problem+json"
        assert app.http.get(path, headers=HTML).mimetype == kind


@pytest.mark.parametrize(
    ("error", "status", "shown"),
    [
        (StoreUnavailable("inner text"), 503, "The journal cannot answer"),
        (RuntimeError("inner text"), 500, "an error in"),
    ],
)
def test_an_error_of_ours_is_a_page_without_details(
    operator: Visitor, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, shown: str
) -> None:
    monkeypatch.setattr("routes.dashboard.views.list_decisions", Mock(side_effect=error))
    answer = operator.get("/decisions")
    assert (answer.status_code, answer.mimetype) == (status, "text/html")
    assert shown in answer.text and "inner text" not in answer.text
    assert answer.headers["Retry-After"]
