"""The page as people use it: a real Chromium against a real server that delivers to real sinks."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import requests
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.routes.dashboard.conftest import VIEW_TOKEN
from tests.routes.dashboard.test_access import statuses
from tests.support.browser import fill_in_sign_in, open_browser
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN, ADMIN_TOKEN, Server, email
from tests.support.sink import Reply, Sink
from tests.support.surroundings import ROOT
from tests.support.waiting import wait_for

AXE = ROOT / "tests/fixtures/axe/axe.min.js"
EVIL = "<img src=x onerror=pwned(1)><script>pwned(2)</script>\"'><b id=injected>"
VIEWS = ("/", "/decisions", "/destinations", "/providers", "/servers", "/audit")
_numbers = count()


@dataclass(frozen=True)
class World:
    """``crm`` takes what it gets; ``archive`` gets what has "invoice" in its subject, refuses it, and is tried once."""

    server: Server
    crm: Sink
    archive: Sink

    def send(self, **fields: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.server.post(email(**fields)).json()
        return answer

    @property
    def url(self) -> str:
        return self.server.url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("page")
    with Sink() as crm, Sink(otherwise=Reply(422, body=EVIL.encode())) as archive:
        config = folder / "mailonce.toml"
        config.write_text(
            f'[destinations.crm]\nurl = "{crm.url}"\n[destinations.archive]\nurl = "{archive.url}"\nmax_attempts = 1\n'
            '[[routes]]\nname = "invoices"\ndestinations = ["archive"]\n'
            'match = [{ field = "subject", contains = "invoice" }]\n'
            '[[routes]]\nname = "everything else"\ndestinations = ["crm"]\n'
        )
        settings = {"VIEW_TOKEN": VIEW_TOKEN, "TRUSTED_PROXIES": "127.0.0.1", "MAILONCE_CONFIG": str(config)}
        with Server(folder / "data", WEB_CONCURRENCY="1", **settings) as server:  # one: a pause holds at once
            yield World(server, crm, archive)


SignIn = Callable[..., Page]


@pytest.fixture
def sign_in(browser: Browser, world: World) -> Iterator[SignIn]:
    """A page that is signed in. Each has an address of its own, so that tries to sign in are not counted together."""
    opened: list[BrowserContext] = []

    def start(token: str = ADMIN_TOKEN, url: str = world.url, **options: Any) -> Page:
        headers = {"X-Forwarded-For": f"192.0.2.{next(_numbers) % 250 + 1}"}
        context = browser.new_context(extra_http_headers=headers, **options)
        context.set_default_timeout(30_000)
        opened.append(context)
        page = context.new_page()
        fill_in_sign_in(page, url, token)
        return page

    yield start
    for context in opened:
        context.close()


def settled(page: Page) -> None:
    """Nothing is on its way any more."""
    expect(page.locator(".htmx-request")).to_have_count(0)


def row(page: Page, subject: str) -> Any:
    return page.locator("tr", has_text=subject)


def test_a_duplicate_appears_by_itself_with_its_reason(world: World, sign_in: SignIn) -> None:
    page = sign_in()
    page.goto(f"{world.url}/decisions?q=appears")
    expect(page.locator(".empty")).to_be_visible()
    for _ in range(2):
        world.send(subject="It appears by itself")
    found = row(page, "It appears by itself")
    expect(found).to_contain_text("It was received again once", timeout=30_000)
    expect(found.locator("time")).to_have_text(re.compile(r"^(now|\d+ s ago)$"))


@pytest.mark.parametrize("has_script", [True, False])
def test_a_suppressed_email_is_released_and_the_sink_gets_it_once(
    world: World, sign_in: SignIn, has_script: bool
) -> None:
    lot = f"lot 471{has_script:d}"
    world.send(subject=lot, body="first")
    world.send(subject=f"The {lot} again", body="second", sender="eve@example.org")
    page = sign_in(java_script_enabled=has_script)
    page.goto(f"{world.url}/decisions?status=skipped_subject_group&q={lot}")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(row(page, "again")).to_contain_text(
        f"same subject group {lot.replace(' ', '_')}@example.org as the email of"
    )
    page.get_by_role("link", name=f"The {lot} again").click()
    page.get_by_role("link", name="Release…").click()
    asked = page.get_by_role("dialog") if has_script else page.locator("main")
    expect(asked).to_contain_text("are delivered, once")
    asked.get_by_role("button", name="Release 1 email").click()
    expect(page.locator(".flash")).to_have_text("1 email: released.")
    expect(page.locator(".reason")).to_contain_text("Released at")
    wait_for(lambda: [each.payload["subject"] for each in world.crm.accepted].count(f"The {lot} again") == 1)


def test_all_dead_letters_of_a_filter_are_replayed_and_the_filter_stays(world: World, sign_in: SignIn) -> None:
    for number in range(3):
        world.send(subject=f"Invoice {number} to replay", body=f"number {number}")
    page = sign_in()
    page.goto(f"{world.url}/decisions?outcome=dead_letter")
    page.get_by_text("Filters").click()
    page.get_by_label("Destination").select_option("archive")
    page.wait_for_url("**/decisions?outcome=dead_letter&destination=archive")
    page.get_by_role("link", name="Replay all matching…").click()
    button = page.get_by_role("button", name=re.compile(r"^Replay \d+ emails$"))
    dead = int(re.sub(r"\D", "", button.inner_text()))
    button.click()
    expect(page.locator(".flash")).to_contain_text(f"{dead} emails: sent again.")
    assert page.url.endswith("/decisions?outcome=dead_letter&destination=archive")


def test_selected_emails_are_forgotten_and_count_as_new(world: World, sign_in: SignIn) -> None:
    for subject in ("Forget me one", "Forget me two", "Forget me not"):
        world.send(subject=subject)
    page = sign_in()
    page.goto(f"{world.url}/decisions?q=Forget+me")
    button = page.get_by_role("button", name="Forget selected…")
    expect(button).to_be_disabled()
    for subject in ("Forget me one", "Forget me two"):
        page.get_by_label(f"Select {subject}").check()
    button.click()
    expect(page.get_by_role("dialog")).to_contain_text("it is new and is delivered")
    page.get_by_role("button", name="Forget 2 emails").click()
    expect(page.locator(".flash")).to_contain_text("2 emails: forgotten.")
    statuses = [world.send(subject=f"Forget me {which}")["status"] for which in ("one", "two", "not")]
    assert statuses == ["processed", "processed", "already_processed"]


def test_a_destination_is_paused_and_resumed(world: World, sign_in: SignIn) -> None:
    page = sign_in()
    page.goto(f"{world.url}/destinations")
    card = page.locator(".card", has=page.get_by_role("heading", name="crm"))
    card.get_by_role("link", name="Pause…").click()
    page.get_by_label("Reason").fill("it moves")
    page.get_by_role("button", name="Pause it").click()
    expect(card).to_contain_text("it moves")
    expect(page.locator("#notices")).to_contain_text("crm is paused")
    page.evaluate("document.querySelector('#notices p').isTheSame = true")
    with page.expect_response("**/notices"):
        page.evaluate("poll()")
    settled(page)
    assert page.evaluate("document.querySelector('#notices p').isTheSame"), "what did not change is not announced again"
    card.get_by_role("link", name="Resume…").click()
    page.get_by_role("button", name="Resume it").click()
    expect(card.locator(".badge.good").first).to_have_text("ok")


# What it shows is true


def number(text: str) -> int:
    return int(re.sub(r"\D", "", text))


def test_each_tile_leads_to_exactly_the_emails_that_it_counts(world: World, sign_in: SignIn) -> None:
    """Also what was stopped, and the emails of each destination."""
    page = sign_in()
    act = f"{world.url}/api/admin/destinations/archive"
    for subject in ("Tile one", "Tile one", "Tile one", "Tile lot 88", "Again tile lot 88", "Invoice of a tile"):
        world.send(subject=subject, body=subject)
    requests.post(f"{act}/pause", json={}, headers=ADMIN, timeout=30)
    world.send(subject="Invoice that waits for a tile")
    page.goto(f"{world.url}/decisions?q=Tile+one")
    expect(row(page, "Tile one").locator(".times")).to_have_text("×3", timeout=30_000)  # it is counted every second
    page.goto(world.url)
    tiles = {}
    for tile in page.locator(".tile").all():
        label, value, note = (tile.locator(f".{part}").inner_text() for part in ("label", "value", "note"))
        has_note = label in ("Received", "Duplicates")  # which says of how many emails
        tiles[label] = (number(value), number(note if has_note else value))
    assert tiles["Received"][0] == sum(value for value, _ in tiles.values()) - tiles["Received"][0], "they add up"
    for label, (shown, emails) in tiles.items():
        page.goto(world.url)
        page.locator(".tile", has_text=label).click()
        page.wait_for_url("**/decisions*")
        assert shown and (label, number(page.locator(".tabs [aria-current] .count").inner_text())) == (label, emails)
        expect(page.locator("tbody tr")).to_have_count(min(emails, 50))
        if label == "Duplicates" and emails < 50:
            times = [number(text) - 1 for text in page.locator(".times").all_inner_texts()]
            assert sum(times) == shown
    page.get_by_role("link", name="Stopped").click()
    expect(page.locator("tbody tr", has_text="Again tile lot 88")).to_contain_text("suppressed")
    expect(page.locator("tbody tr", has_text="Tile one")).to_contain_text("×3")
    page.goto(f"{world.url}/destinations")
    card = page.locator(".card#archive")
    for link in card.get_by_role("link", name=re.compile(r"^\d+ emails?$")).all():
        listed = page.context.new_page()
        listed.goto(world.url + str(link.get_attribute("href")))
        assert number(listed.locator(".tabs [aria-current] .count").inner_text()) == number(link.inner_text())
    requests.post(f"{act}/resume", json={}, headers=ADMIN, timeout=30)


def test_there_is_one_clock_and_no_next_try_of_what_is_paused(world: World, sign_in: SignIn) -> None:
    page = sign_in(timezone_id="Asia/Tokyo")
    act = f"{world.url}/api/admin/destinations/archive"
    requests.post(f"{act}/pause", json={"reason": "it moves"}, headers=ADMIN, timeout=30)
    id_ = world.send(subject="Invoice with a clock")["id"]
    page.goto(f"{world.url}/decisions/{id_}")
    expect(page.locator(".timeline .waits")).to_contain_text("archive no attempt for now: paused (it moves)")
    expect(page.locator(".foot")).to_contain_text("Times are in UTC.")
    assert "next attempt" not in page.locator("main").inner_text()
    requests.post(f"{act}/resume", json={}, headers=ADMIN, timeout=30)
    expect(page.locator(".reason")).to_contain_text("Dead letter at archive after 1 attempt", timeout=30_000)
    id_ = world.send(subject="Delivered with a clock")["id"]
    page.goto(f"{world.url}/decisions?q=Delivered+with+a+clock")
    expect(page.get_by_role("columnheader", name="Received (UTC)")).to_be_visible()
    received, delivered = page.locator("td time").get_attribute("title"), page.locator("td.why").inner_text()
    gap = datetime.strptime(delivered, "to crm at %H:%M") - datetime.strptime(str(received)[11:16], "%H:%M")
    assert gap.seconds <= 60, (received, delivered)


def test_attempts_are_counted_alike_everywhere(world: World, sign_in: SignIn) -> None:
    world.crm.answers["Tried three times"] = Reply(503)
    id_ = world.send(subject="Tried three times")["id"]
    world.crm.answers.clear()
    page = sign_in()
    page.goto(f"{world.url}/decisions/{id_}")
    expect(page.locator(".reason")).to_contain_text("Delivered to crm", timeout=60_000)
    attempts = page.locator(".timeline li", has_text="crm answered")
    expect(attempts).to_have_count(3)
    assert [text.partition("answered ")[2][:3] for text in attempts.all_inner_texts()] == ["503", "503", "200"]
    expect(page.locator(".delivery")).to_contain_text("3 attempts.")
    answer = requests.get(f"{world.url}/api/admin/deliveries/{id_}:crm", headers=ADMIN, timeout=30).json()
    assert (answer["tries"], len(answer["attempts"])) == (3, 3)
    page.goto(f"{world.url}/destinations?span=day")
    expect(page.locator(".card#crm")).to_contain_text(f"of {len(world.crm.received)} attempts")


def test_what_is_done_on_one_server_is_in_the_audit_of_the_other(
    tmp_path: Path, sign_in: SignIn, redis_server: RedisServer
) -> None:
    settings = {"REDIS_URL": redis_server.url, "WEB_CONCURRENCY": "1"}
    with Server(tmp_path / "one", **settings) as one, Server(tmp_path / "two", **settings) as two:
        page = sign_in(url=one.url)
        page.goto(f"{one.url}/destinations/default/pause")
        page.get_by_label("Reason").fill("it moves")
        page.get_by_role("button", name="Pause it").click()
        expect(page.locator(".flash")).to_be_visible()
        (cookie,) = page.context.cookies(one.url)
        wait_for(lambda: statuses(two.url, cookie["value"]) == {200}, "both have the same key for sessions")
        page.goto(f"{two.url}/audit")
        expect(row(page, "page, Ada")).to_contain_text("it moves", timeout=60_000)
        page.goto(f"{two.url}/servers")
        expect(page.locator("tbody tr", has_text="up to now")).to_have_count(2, timeout=30_000)


# Hostile contents


def test_markup_from_outside_is_shown_as_text_everywhere(world: World, sign_in: SignIn) -> None:
    sent = [
        world.send(
            subject=f"invoice {EVIL}",
            sender=f"{EVIL} <evil@example.org>",
            html=f"<p>{EVIL}</p>",
            plain=EVIL,
            attachments=[{"name": EVIL, "type": "text/plain", "content": "eA=="}],
        ),
        world.send(subject=f"Lot 666 {EVIL}"),
        world.send(subject=f"Lot 666 again {EVIL}", body=EVIL),
    ]
    assert world.server.post({EVIL: EVIL, "subject": EVIL}).status_code == 400
    page = sign_in()
    page.context.add_init_script("window.pwned = (n) => { window.isPwned = n; };")
    details = [f"/decisions/{each['id']}" for each in sent]
    tabs = [f"{details[0]}?tab={tab}" for tab in ("text", "html", "headers", "json")]
    filtered = [f"/decisions?q={EVIL.replace('#', '')}", f"/decisions?destination={EVIL}", f"/nothing/{EVIL}"]
    asked = [f"/do/forget?id={sent[0]['id']}&back=/{EVIL}", f"/do/replay?id={EVIL}"]
    for path in (*VIEWS, *details, *tabs, *filtered, *asked):
        page.goto(world.url + path)
        settled(page)
        assert page.evaluate("window.isPwned") is None, path
        assert page.locator("#injected").count() == 0, path
    page.goto(f"{world.url}/decisions?q=invoice")
    expect(row(page, "invoice").first).to_contain_text("<script>pwned(2)</script>")


def test_the_email_as_html_runs_nothing_and_fetches_nothing(world: World, sign_in: SignIn) -> None:
    with Sink() as elsewhere:
        there = elsewhere.url
        html = (
            f"<html><head><link rel=stylesheet href='{there}/css'><link rel=preconnect href='{there}'>"
            f"<meta http-equiv=refresh content='0;url={there}/refresh'><base href='{there}/'></head>"
            f"<body style='background: url({there}/style)'><h1>Dear reader</h1><img src='{there}/img'>"
            f"<iframe src='{there}/frame'></iframe><object data='{there}/object'></object>"
            f"<script>parent.isPwned = 1; fetch('{there}/fetch')</script>"
            f"<form action='{there}/form'><button>Go</button></form></body></html>"
        )
        id_ = world.send(subject="Invoice with much inside", html=html, plain="Dear reader")["id"]
        page = sign_in()
        page.goto(f"{world.url}/decisions/{id_}?tab=html")
        frame = page.frame_locator("iframe.email")
        expect(frame.get_by_role("heading", name="Dear reader")).to_be_visible()
        frame.get_by_role("button", name="Go").click()
        page.wait_for_load_state("networkidle")
        expect(frame.get_by_role("heading", name="Dear reader")).to_be_visible()
        assert page.evaluate("window.isPwned") is None
        assert elsewhere.connections == 0


# For everybody


def test_no_page_has_a_serious_accessibility_problem(world: World, sign_in: SignIn) -> None:
    """Neither in light nor in dark, and on a phone nothing is wider than the screen."""
    sent = world.send(subject="Invoice that everybody can read")
    world.send(subject="Lot 99", body="first")
    stopped = world.send(subject="Again lot 99", body="second")
    page = sign_in(bypass_csp=True, reduced_motion="reduce")
    page.context.add_init_script(path=AXE)
    details = [f"/decisions/{each['id']}?tab={tab}" for each, tab in ((sent, "json"), (stopped, "html"))]
    asked = [f"/do/release?id={stopped['id']}", "/destinations/crm/pause", "/forget?scope=subject_group&value=lot_99"]
    found = {}
    for path in (*VIEWS, *details, *asked, "/decisions?q=nothing+is+found", "/nothing/here", "/sign-in"):
        page.set_viewport_size({"width": 1280, "height": 800})
        page.emulate_media(color_scheme="light")
        page.goto(world.url + path)
        settled(page)
        found[path, "light"] = serious(page, "{resultTypes: ['violations']}")
        page.emulate_media(color_scheme="dark")
        found[path, "dark"] = serious(page, "{resultTypes: ['violations'], runOnly: ['color-contrast']}")
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} is wider than a phone"
    assert {where: what for where, what in found.items() if what} == {}


def serious(page: Page, options: str) -> list[tuple[str, str]]:
    violations = page.evaluate(f"axe.run(document, {options})")["violations"]
    return [(each["id"], each["nodes"][0]["html"]) for each in violations if each["impact"] in ("serious", "critical")]


def test_it_works_by_keyboard_alone(world: World, sign_in: SignIn) -> None:
    page = sign_in()
    page.goto(f"{world.url}/destinations")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to content")
    page.get_by_role("link", name="Pause…").first.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name=re.compile("^Pause"))
    expect(dialog).to_be_visible()
    assert page.evaluate("document.getElementById('dialog').contains(document.activeElement)")
    page.keyboard.press("Escape")
    expect(dialog).not_to_be_visible()
