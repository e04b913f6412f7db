"""make screenshots: every page with data, empty, on a phone and in the dark, as PNGs in build/screenshots.

The newest emails go through a real server to real sinks; the day before is made up. The two that the docs
show are written there as well.
"""

import math
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parseaddr
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, ViewportSize, expect

from deduplication.clock import Clock
from deduplication.journal.entry import About, Delivery, DeliveryStatus, Entry, Stop, new_entry_id
from deduplication.journal.sqlite import Journal, Step
from deduplication.names import Kind, Name
from orchestrator.metrics.meter import DELIVERIES, DELIVERY_S, Meter
from tests.support.browser import fill_in_sign_in, open_browser
from tests.support.server import ADMIN_TOKEN, Server
from tests.support.sink import Reply, Sink
from tests.support.surroundings import ROOT

SHOTS, DOCS = ROOT / "build/screenshots", ROOT / "docs"
DESKTOP, PHONE = ViewportSize(width=1280, height=860), ViewportSize(width=390, height=844)
IN_THE_README = ViewportSize(width=1080, height=720)
STEP_S, STEPS = 600, 143
PAGES = ("decisions", "destinations", "providers", "servers", "audit")
DESTINATIONS = ("crm", "archive", "search")
RECIPIENTS = ("intake@example.com", "sales@example.com", "support@example.com")
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
    """Of emails and figures, as a service would have them."""
    drawn = random.Random(46)  # noqa: S311  # the same picture each time
    data_dir.mkdir(parents=True)
    began_s = now_s = int(time.time() // STEP_S) * STEP_S - STEPS * STEP_S
    journal = Journal(data_dir / "journal.db", Clock(lambda: now_s * 1000, lambda: 0))
    meter = Meter(journal)
    for step in range(STEPS):
        now_s = began_s + step * STEP_S
        daylight = max(0.0, math.sin((step - 20) / STEPS * math.pi * 1.15))
        with journal.step() as writing:
            for _ in range(round(3 + 28 * daylight + drawn.uniform(0, 7))):
                add_email(writing, meter, drawn)
        meter.flush()
    journal.close()


def add_email(step: Step, meter: Meter, drawn: random.Random) -> None:
    """Delivered, now and then again, or suppressed by its group."""
    (subject, sender), name = drawn.choice(EMAILS), drawn.choice(DESTINATIONS)
    is_suppressed = drawn.random() < 0.04
    status = DeliveryStatus.SKIPPED if is_suppressed else DeliveryStatus.DELIVERED
    entry = Entry(
        new_entry_id(),
        step.machine,
        (Name(Kind.EMAIL_ID, "2026-11-16", f"{drawn.getrandbits(128):032x}"),),
        created_ms=step.now_ms,
        about=About("", "gmail", "all", subject, parseaddr(sender)[1], recipient=drawn.choice(RECIPIENTS)),
        deliveries=(Delivery(name, f"msg_{drawn.getrandbits(64):x}", status, tries=1, ended_ms=step.now_ms),),
        stop=Stop(Name(Kind.SUBJECT_GROUP, "2026-11", "lot_456")) if is_suppressed else None,
    )
    step.put(entry, None, publishes=False)
    if is_suppressed:
        meter.count((1, "emails", "gmail", "skipped_subject_group", "subject_group"))
        return
    meter.count((1, "emails", "gmail", "processed", ""))
    meter.count((1, DELIVERIES, name, DeliveryStatus.DELIVERED))
    meter.count((drawn.lognormvariate(-3.2 + DESTINATIONS.index(name) * 0.6, 0.6), DELIVERY_S, name))
    if drawn.random() < 0.13:
        step.add_repeats(entry.id, step.machine, 1, step.now_ms)
        meter.count((1, "emails", "gmail", "already_processed", "identity"))


@contextmanager
def service(folder: Path, *, has_data: bool, is_well: bool = True) -> Iterator[Server]:
    gone = b'{"error": "the mailbox of this client is closed"}'
    refused, down = (Reply(), Reply()) if is_well else (Reply(422, body=gone), Reply(503))
    with Sink() as crm, Sink(otherwise=refused) as archive, Sink(otherwise=down) as search:
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
                sent = {"subject": subject, "sender": sender, "date": date.isoformat(), "to": RECIPIENTS[0], **text}
                server.post(sent)
            yield server


def sign_in(browser: Browser, server: Server, **options: Any) -> Page:
    page = browser.new_context(**{"viewport": DESKTOP, "reduced_motion": "reduce"} | options).new_page()
    fill_in_sign_in(page, server.url, ADMIN_TOKEN)
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


def find_decision(page: Page, server: Server) -> str:
    """The address of an email that was suppressed."""
    page.goto(f"{server.url}/decisions?q=revised&last=hour")
    page.get_by_role("link", name="Lot 456, revised plans").first.click()
    page.wait_for_url("**/decisions/*")
    return page.url


def main() -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, open_browser() as browser:
        with service(Path(temporary, "empty"), has_data=False) as server:
            shoot(browser.new_context(viewport=DESKTOP).new_page(), f"{server.url}/sign-in", "sign-in")
            shoot_pages(sign_in(browser, server), server, "empty")
        with service(Path(temporary, "well"), has_data=True) as server:
            page = sign_in(browser, server, viewport=IN_THE_README)
            shoot(page, f"{server.url}/", "page-overview", whole=False)
            shoot(page, find_decision(page, server), "page-decision", whole=False)
        with service(Path(temporary, "full"), has_data=True, is_well=False) as server:
            looks: dict[str, dict[str, Any]] = {
                "light": {},
                "dark": {"color_scheme": "dark"},
                "phone": {"viewport": PHONE, "device_scale_factor": 2},
            }
            for name, options in looks.items():
                page = sign_in(browser, server, **options)
                shoot_pages(page, server, name)
                shoot(page, find_decision(page, server), f"{name}-decision")
    for name in ("overview", "decision"):
        shutil.copy(SHOTS / f"page-{name}.png", DOCS)


if __name__ == "__main__":
    main()
