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
from orchestrator.metrics.meter import DELIVERIES, DELIVERY_S, Meter
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
CONFIG = (
    "".join(f'[destinations.{name}]\nurl = "{{{name}}}"\n' for name in DESTINATIONS)
    + """
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
)
PLANS = """<h2 style="color:#14532d;font-family:Georgia">Lot 456, plans of the second floor</h2>
<p>Dear all,</p><p>please find the <b>revised</b> plans below. The kitchen moves to the <i>north side</i>.</p>
<ul><li>Floor plan, 1:50</li><li>Electrical plan</li><li>Schedule until December</li></ul><p>Regards,<br>Grace</p>"""
PLAIN = "Dear all,\n\nplease find the revised plans below. The kitchen moves to the north side.\n\nKind regards,\nGrace"
KATHERINE, ALAN = "Katherine Johnson <katherine@orbit.example>", "Alan Turing <alan@bletchley.example>"
BILLING, EDSGER = "Billing <billing@northwind.example>", "Edsger Dijkstra <edsger@ewd.example>"
EMAILS = (
    ("Weekly report, numbers of week 46", KATHERINE),
    ("Lot 456 - Documents", "Ada Lovelace <ada@engine.example>"),
    ("Question about the delivery date", ALAN),
    ("Invoice 2026-0117", BILLING),
    ("Question about the delivery date", ALAN),
    ("Désabonnement", "Margaret Hamilton <margaret@apollo.example>"),
    ("Invoice 2026-0118", BILLING),
    ("Monthly report for October", KATHERINE),
    *[("Meeting on Thursday at ten?", EDSGER)] * 3,
    ("Lot 456, revised plans", "Grace Hopper <grace@engine.example>"),
    ("Photos of the building site", "Hedy Lamarr <hedy@spectrum.example>"),
)


def make_up_a_day(data_dir: Path) -> None:
    """Of figures, as a service would have counted them."""
    drawn = random.Random(46)  # noqa: S311  # the same picture each time
    data_dir.mkdir(parents=True)
    began_s = now_s = int(time.time() // STEP_S) * STEP_S - STEPS * STEP_S
    journal = Journal(data_dir / "journal.db", Clock(lambda: now_s * 1000, lambda: 0))
    meter = Meter(journal)
    for step in range(STEPS):
        daylight = max(0.0, math.sin((step - 20) / STEPS * math.pi * 1.15))
        received = round(6 + 70 * daylight + drawn.uniform(0, 14))
        is_down = 88 <= step < 94
        for number in range(received):
            kind = drawn.random()
            if kind < 0.16:
                gate = ("already_processed", "identity") if kind < 0.12 else ("skipped_subject_group", "subject_group")
                meter.count((1, "emails", "gmail", *gate))
                continue
            name = DESTINATIONS[number % 7 % 3]
            failed = is_down and name == "search"
            meter.count((1, "emails", "gmail", "processed", ""))
            meter.count((1, DELIVERIES, name, DeliveryStatus.WAITING if failed else DeliveryStatus.DELIVERED))
            meter.count((drawn.lognormvariate(-3.2 + DESTINATIONS.index(name) * 0.6, 0.6), DELIVERY_S, name))
        now_s = began_s + step * STEP_S
        meter.flush()
    journal.close()


@contextmanager
def service(folder: Path, *, has_data: bool) -> Iterator[Server]:
    gone = b'{"error": "the mailbox of this client is closed"}'
    with Sink() as crm, Sink(otherwise=Reply(422, body=gone)) as archive, Sink(otherwise=Reply(503)) as search:
        folder.mkdir()
        config = folder / "mailonce.toml"
        written = CONFIG.format(crm=crm.url, archive=archive.url, search=search.url)
        once = "[destinations.archive]\nmax_attempts = 1"  # what it refuses is a dead letter at once
        config.write_text(written.replace("[destinations.archive]", once))
        if has_data:
            make_up_a_day(folder / "data")
        settings = {"MAILONCE_CONFIG": str(config), "WEB_CONCURRENCY": "1"}
        with Server(folder / "data", **settings) as server:
            first = datetime.now(UTC) - timedelta(minutes=40)
            for subject, sender in EMAILS if has_data else ():
                body = f"Dear all,\n\nabout: {subject}.\n\nKind regards"
                text = {"html": PLANS, "plain": PLAIN} if "revised" in subject else {"body": body}
                date = first + timedelta(minutes=2 * EMAILS.index((subject, sender)))
                server.post({"subject": subject, "sender": sender, "date": date.isoformat(), **text})
            yield server


def sign_in(browser: Browser, server: Server, **options: Any) -> Page:
    page = browser.new_context(**{"viewport": DESKTOP, "reduced_motion": "reduce"} | options).new_page()
    page.goto(f"{server.url}/sign-in")
    page.fill("#token", ADMIN_TOKEN)
    page.fill("#name", "Ada")
    page.click("button.primary")
    page.wait_for_url(f"{server.url}/")
    return page


def shoot(page: Page, address: str, name: str, *, whole: bool = True) -> None:
    page.goto(address)
    expect(page.locator(".htmx-request")).to_have_count(0)
    if page.locator("iframe.email").count():
        expect(page.frame_locator("iframe.email").locator("body")).to_be_visible()
    page.screenshot(path=SHOTS / f"{name}.png", full_page=whole)
    print(SHOTS / f"{name}.png")


def shoot_pages(page: Page, server: Server, prefix: str) -> None:
    for name in ("", *PAGES):
        shoot(page, f"{server.url}/{name}", f"{prefix}-{name or 'overview'}")


def shoot_decision(page: Page, server: Server) -> str:
    """Returns its address."""
    page.goto(f"{server.url}/decisions?q=revised")
    page.get_by_role("link", name="Lot 456, revised plans").click()
    page.wait_for_url("**/decisions/*")
    address = page.url.partition("?")[0]
    page.set_viewport_size(IN_THE_README)
    shoot(page, f"{server.url}/", "page-overview", whole=False)
    shoot(page, f"{address}?tab=html", "page-decision", whole=False)
    return address


def main() -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, open_browser() as browser:
        with service(Path(temporary, "empty"), has_data=False) as server:
            shoot(browser.new_context(viewport=DESKTOP).new_page(), f"{server.url}/sign-in", "sign-in")
            shoot_pages(sign_in(browser, server), server, "empty")
        with service(Path(temporary, "full"), has_data=True) as server:
            page = sign_in(browser, server)
            decision = shoot_decision(page, server)
            looks: dict[str, dict[str, Any]] = {
                "light": {},
                "dark": {"color_scheme": "dark"},
                "phone": {"viewport": PHONE, "device_scale_factor": 2},
            }
            for name, options in looks.items():
                page = sign_in(browser, server, **options)
                shoot_pages(page, server, name)
                shoot(page, f"{decision}?tab=html", f"{name}-decision")
    for name in ("overview", "decision"):
        shutil.copy(SHOTS / f"page-{name}.png", DOCS)


if __name__ == "__main__":
    main()
