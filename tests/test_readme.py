"""The README is short, and leads on. That what it shows works is tested with all pages, in tests/docs/."""

from __future__ import annotations

import json
import re

from deduplication.email import address_of
from deduplication.identity import compute_email_id
from tests.docs.pages import blocks, code_in_lines, links
from tests.support.surroundings import ROOT

README = ROOT / "README.md"
LONGEST = 140


def test_it_can_be_read_in_one_go() -> None:
    assert len(README.read_text().splitlines()) <= LONGEST


def test_the_email_it_asks_about_is_the_one_it_sends() -> None:
    (sent,) = [block.text for block in blocks(README) if "/api/ingress/gmail" in block.text]
    (asked,) = [block.text for block in blocks(README) if "mailonce why" in block.text]
    email = json.loads(re.findall(r"-d '(.*)'", sent, re.DOTALL)[0])
    sender = address_of(email["sender"])
    assert compute_email_id(subject=email["subject"], sender=sender, date=email["date"]) in asked


def test_the_receiver_and_the_service_share_a_secret() -> None:
    texts = [block.text for block in blocks(README)]
    (secret,) = {found for text in texts for found in re.findall(r"whsec_\w+", text)}
    assert sum(secret in text for text in texts) == 2


def test_every_page_is_linked_or_one_click_further() -> None:
    linked = {link for link in links(README) if link.endswith(".md")}
    left = {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} - linked
    assert left <= {"docs/vocabularies.md", "docs/features.md"}, "which the start of the documentation has"
    assert "make docs" in code_in_lines(README)
