"""make screenshots: every page with data, empty, on a phone and in the dark, as PNGs in build/screenshots.

The emails go through a real server to real sinks; the figures of the day before are made up. The two that the docs
show are written there as well.
"""

from __future__ import annotations

import math
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, ViewportSize, expect

from deduplication.clock import Clock
from deduplication.journal.entry import DeliveryStatus
from deduplication.journal.sqlite import Journal
from orchestrator.metrics.counts import Counts
from orchestrator.metrics.meter import Meter
from tests.support.browser import open_browser
from tests.support.server import ADMIN_TOKEN, Server
from tests.support.sink import Reply, Sink
from tests.support.surroundings import ROOT

SHOTS, DOCS = ROOT / "build/screenshots", ROOT / "docs"
DESKTOP, PHONE = ViewportSize(width=1280, height=860), ViewportSize(width=390, height=844)
IN_THE_README = ViewportSize(width=1080, height=720)
STEP_S, STEPS = 600, 143
PAGES = ("decisions", "deliveries", "destinations", "providers", "system", "audit")
DESTINATIONS = ("crm", "archive", "search")
CONFIG = """
[destinations.crm]
url = "{crm}"
[destinations.archive]
url = "{archive}"
[destinations.search]
url = "{search}"
[[routes]]
name = "invoices"
match = [{{ field = "subject", contains = "invoice" }}]
destinations = ["crm", "archive"]
[[routes]]
name = "reports"
match = [{{ field = "subject", contains = "report" }}]
destinations = ["crm", "search"]
[[routes]]
name = "everything else"
destinations = ["crm"]
"""
PLANS = """<h2 style="color:#14532d;font-family:Georgia">Lot 456, plans of the second floor</h2>
<p>Dear all,</p><p>please find the <b>revised</b> plans below. The kitchen moves to the <i>north side</i>.</p>
<ul><li>Floor plan, 1:50</li><li>Electrical plan</li><li>Schedule until December</li></ul><p>Regards,<br>Grace</p>"""
PLAIN = "Dear all,\n\nplease find the revised plans below. The kitchen moves to the north side.\n\nKind regards,\nGrace"
EMAILS: tuple[dict[str, Any], ...] = (
    {"subject": "Weekly report, numbers of week 46", "sender": "Katherine Johnson <katherine@orbit.example>"},
    {"subject": "Lot 456 - Documents", "sender": "Ada Lovelace <ada@engine.example>"},
    {"subject": "Question about the delivery date", "sender": "Alan Turing <alan@bletchley.example>"},
    {"subject": "Invoice 2026-0117", "sender": "Billing <billing@northwind.example>"},
    {"subject": "Question about the delivery date", "sender": "Alan Turing <alan@bletchley.example>"},
    {"subject": "Désabonnement", "sender": "Margaret Hamilton <margaret@apollo.example>"},
    {"subject": "Invoice 2026-0118", "sender": "Billing <billing@northwind.example>"},
    {"subject": "Monthly report for October", "sender": "Katherine Johnson <katherine@orbit.example>"},
    {"subject": "Meeting on Thursday at ten?", "sender": "Edsger Dijkstra <edsger@ewd.example>"},
    {"subject": "Meeting on Thursday at ten?", "sender": "Edsger Dijkstra <edsger@ewd.example>"},
    {"subject": "Meeting on Thursday at ten?", "sender": "Edsger Dijkstra <edsger@ewd.example>"},
    {"subject": "Re: Fwd: Lot 456", "sender": "Grace Hopper <grace@cobol.example>", "html": PLANS, "plain": PLAIN},
    {"subject": "Photos of the building site", "sender": "Hedy Lamarr <hedy@spectrum.example>"},
)


def make_up_a_day(data_dir: Path) -> None:
    """Of figures, as a service would have counted them."""
    drawn = random.Random(46)  # noqa: S311  # the same picture each time
    data_dir.mkdir(parents=True)
    began_s = now_s = int(time.time() // STEP_S) * STEP_S - STEPS * STEP_S
    journal, meter = Journal(data_dir / "journal.db", Clock(lambda: now_s * 1000, lambda: 0)), Meter(DESTINATIONS)
    counts = Counts(journal, meter)
    meter.know_providers(["gmail"])
    for step in range(STEPS):
        daylight = max(0.0, math.sin((step - 20) / STEPS * math.pi * 1.15))
        received = round(6 + 70 * daylight + drawn.uniform(0, 14))
        is_down = 88 <= step < 94
        for number in range(received):
            kind = drawn.random()
            if kind < 0.12:
                meter.count_email("gmail", "already_processed", "identity")
            elif kind < 0.16:
                meter.count_email("gmail", "skipped_subject_group", "subject_group")
            else:
                meter.count_email("gmail", "processed")
                name = DESTINATIONS[number % 7 % 3]
                failed = is_down and name == "search"
                meter.count_attempt(name, DeliveryStatus.WAITING if failed else DeliveryStatus.DELIVERED)
                meter.time_delivery(name, drawn.lognormvariate(-3.2 + DESTINATIONS.index(name) * 0.6, 0.6))
        now_s = began_s + step * STEP_S
        counts.flush()
    journal.close()


@contextmanager
def service(folder: Path, *, has_data: bool) -> Iterator[Server]:
    gone = b'{"error": "the mailbox of this client is closed"}'
    with Sink() as crm, Sink(otherwise=Reply(422, body=gone)) as archive, Sink(otherwise=Reply(503)) as search:
        config = folder / "mailonce.toml"
        config.write_text(CONFIG.format(crm=crm.url, archive=archive.url, search=search.url))
        if has_data:
            make_up_a_day(folder / "data")
        settings = {"MAILONCE_CONFIG": str(config), "WEB_CONCURRENCY": "1"}
        with Server(folder / "data", **settings) as server:
            first = datetime.now(UTC) - timedelta(minutes=40)
            for number, fields in enumerate(EMAILS if has_data else ()):
                written = first + timedelta(minutes=2 * number)
                again = [n for n, each in enumerate(EMAILS) if each == fields][0]
                date = (first + timedelta(minutes=2 * again) if again != number else written).isoformat()
                body = fields.get("body", f"Dear all,\n\nabout: {fields['subject']}.\n\nKind regards")
                server.post({"date": date, "body": body} | fields if "html" not in fields else {"date": date} | fields)
            yield server


def sign_in(browser: Browser, server: Server, **options: Any) -> Page:
    page = browser.new_context(**{"viewport": DESKTOP, "reduced_motion": "reduce"} | options).new_page()
    page.goto(f"{server.url}/sign-in")
    page.fill("#token", ADMIN_TOKEN)
    page.fill("#name", "Ada")
    page.click("button.primary")
    page.wait_for_url(f"{server.url}/")
    return page


def pause(page: Page, server: Server, destination: str) -> None:
    """So that there is something in the audit list."""
    page.goto(f"{server.url}/destinations/{destination}/pause")
    page.fill("[name=reason]", "moves to another host")
    page.click("button.primary")
    page.wait_for_url(f"{server.url}/destinations")


def shoot(page: Page, address: str, name: str, *, whole: bool = False) -> None:
    page.goto(address)
    expect(page.locator(".htmx-request")).to_have_count(0)
    if page.locator("iframe.email").count():
        expect(page.frame_locator("iframe.email").locator("body")).to_be_visible()
    page.screenshot(path=SHOTS / f"{name}.png", full_page=whole)
    print(SHOTS / f"{name}.png")


def main() -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, open_browser() as browser:
        folder = Path(temporary)
        (folder / "empty").mkdir()
        with service(folder / "empty", has_data=False) as server:
            anonymous = browser.new_context(viewport=DESKTOP).new_page()
            shoot(anonymous, f"{server.url}/sign-in", "sign-in")
            page = sign_in(browser, server)
            shoot(page, f"{server.url}/", "empty", whole=True)
            for name in PAGES:
                shoot(page, f"{server.url}/{name}", f"empty-{name}", whole=True)
        (folder / "full").mkdir()
        with service(folder / "full", has_data=True) as server:
            page = sign_in(browser, server)
            for name in PAGES:
                shoot(page, f"{server.url}/{name}", name, whole=True)
            shoot(page, f"{server.url}/", "overview", whole=True)
            page.goto(f"{server.url}/decisions?q=Re:+Fwd")
            page.get_by_role("link", name="Re: Fwd: Lot 456").click()
            page.wait_for_url("**/decisions/*")
            detail = page.url.partition("?")[0]
            shoot(page, f"{detail}?tab=html", "decision", whole=True)
            page.set_viewport_size(IN_THE_README)
            shoot(page, f"{server.url}/", "page-overview")
            shoot(page, f"{detail}?tab=html", "page-decision")
            page.get_by_role("link", name="Release…").click()
            expect(page.get_by_role("dialog")).to_be_visible()
            page.screenshot(path=SHOTS / "question.png")
            pause(page, server, "archive")
            page.set_viewport_size(DESKTOP)
            shoot(page, f"{server.url}/audit", "audit")
            dark = sign_in(browser, server, color_scheme="dark")
            shoot(dark, f"{server.url}/", "overview-dark", whole=True)
            shoot(dark, detail, "decision-dark", whole=True)
            for name in PAGES:
                shoot(dark, f"{server.url}/{name}", f"{name}-dark")
            phone = sign_in(browser, server, viewport=PHONE, device_scale_factor=2)
            shoot(phone, f"{server.url}/", "overview-phone", whole=True)
            shoot(phone, detail, "decision-phone", whole=True)
            for name in PAGES:
                shoot(phone, f"{server.url}/{name}", f"{name}-phone")
    for name in ("overview", "decision"):
        shutil.copy(SHOTS / f"page-{name}.png", DOCS)


if __name__ == "__main__":
    main()
