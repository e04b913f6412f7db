"""Whether a program sent an email: real headers and reports, and nothing that only looks like them."""

import pytest

from deduplication.automated import Automated
from deduplication.email import Attachment, Email
from routes.mime import parse_mime

CASES: dict[str, tuple[list[str], str | None]] = {
    "a person": (["Subject: Automatic reply: out of office", "X-Mailer: Outlook"], None),
    "a person who says so": (["Auto-Submitted: no", "X-Autoreply: no", "Precedence: first-class"], None),
    "RFC 3834": (["Auto-Submitted: auto-replied (vacation)", "Precedence: bulk", "List-Id: <a.b>"], "auto_reply"),
    "Gmail's vacation responder": (["Precedence: bulk", "X-Autoreply: yes"], "auto_reply"),
    "Exchange's": (
        ["Auto-Submitted: auto-generated", "X-MS-Exchange-Generated-Message-Source: Mailbox Rules Agent"],
        "auto_reply",
    ),
    "FreeScout's": (["X-FreeScout-Mail-Type: auto.reply"], "auto_reply"),
    "FreeScout, an answer": (["X-FreeScout-Mail-Type: reply.to.customer"], None),
    "OTRS": (["X-OTRS-Loop: yes"], "auto_reply"),
    "a read receipt": (
        ["Content-Type: multipart/report; boundary=x; report-type=disposition-notification"],
        "auto_reply",
    ),
    "an empty return path": (["Return-Path: <>"], "auto_reply"),
    "a return path": (["Return-Path: <a@b.example>"], None),
    "a cron job": (["Auto-Submitted: auto-generated"], "bulk"),
    "a newsletter": (["List-Unsubscribe: <https://a.example/u>"], "bulk"),
    "junk": (["Precedence: junk"], "bulk"),
    "a notification of Exchange": (["X-Auto-Response-Suppress: DR, OOF, AutoReply"], "bulk"),
    "one that wants no receipts": (["X-Auto-Response-Suppress: DR"], None),
    "Zammad": (["X-Loop: yes"], "bulk"),
    "a list": (["List-Id: News <news.example.org>", "Precedence: bulk"], "list"),
    "an old list": (["Precedence: list"], "list"),
    "a calendar": (["Content-Class: urn:content-classes:calendarmessage"], "calendar"),
    "a bounce": (['Content-Type: multipart/report;\r\n\treport-type="delivery-status"; boundary=x'], "bounce"),
    "Exim's bounce": (["X-Failed-Recipients: Ada@Example.org", "Auto-Submitted: auto-replied"], "bounce"),
}


def automated(*headers: str, body: str = "Hello") -> Automated | None:
    return parse_mime("\r\n".join(["From: a@b.example", *headers, "", body]).encode()).automated


@pytest.mark.parametrize(("headers", "kind"), CASES.values(), ids=CASES)
def test_headers_say_what_sent_an_email(headers: list[str], kind: str | None) -> None:
    found = automated(*headers)
    assert found and (found.kind, bool(found.why)) == (kind, kind is not None)


REPORT = """\
--x
Content-Type: text/plain

Nobody is there.
--x
Content-Type: message/delivery-status

Reporting-MTA: dns; mx.example.org

Final-Recipient: rfc822; bob@example.org
Action: {action}
Status: 4.2.2

Original-Recipient: rfc822;Ada@Example.org
Final-Recipient: rfc822; ada@inner.example.org
Action: {action}
Status: 5.1.1 (no such user)
--x
Content-Type: {original}

From: desk@example.com
Message-ID:
 <original@example.com>
Subject: Lot 1

Message-ID: <quoted@example.com>
--x--
""".replace("\n", "\r\n")
AS_REPORT = "Content-Type: multipart/report; report-type=delivery-status; boundary=x"


@pytest.mark.parametrize("original", ["message/rfc822", "text/rfc822-headers"])
def test_a_bounce_names_the_failed_recipient_the_status_and_the_original(original: str) -> None:
    text = REPORT.format(action="failed", original=original).replace("Action: failed", "Action: delayed", 1)
    found = automated(AS_REPORT, body=text)
    why = "Content-Type: message/delivery-status"
    assert found == Automated("bounce", why, "ada@example.org", "5.1.1", "original@example.com")
    assert automated(AS_REPORT, body=REPORT.format(action="delayed", original=original)) == Automated(
        "auto_reply", "Action: delayed"
    )
    damaged = automated(AS_REPORT, "In-Reply-To: <1@a>", body="no parts")
    assert damaged == Automated("bounce", why, None, None, "1@a")


def test_a_report_is_read_from_attachments_of_a_provider_too() -> None:
    report = b"Final-Recipient: rfc822; ada@example.org\nAction: failed\nStatus: 5.1.1\n"
    email = Email.received(files=[Attachment("status", "Message/Delivery-Status; charset=utf-8", data=report)])
    assert email.automated and (email.automated.kind, email.automated.failed_recipient) == ("bounce", "ada@example.org")


@pytest.mark.parametrize(
    ("method", "kind"),
    [("METHOD:REQUEST", "calendar"), ("METHOD:REPLY", "calendar"), ("METHOD:PUBLISH", None), ("", None)],
)
def test_an_invitation_is_of_a_calendar_and_a_file_with_dates_is_not(method: str, kind: str | None) -> None:
    calendar = f"BEGIN:VCALENDAR\r\n{method}\r\nEND:VCALENDAR\r\n".encode()
    email = Email.received(
        files=[Attachment("invite.ics", "text/calendar", data=calendar)], headers=(("Subject", "Tea"),)
    )
    assert email.automated and email.automated.kind == kind


def test_without_headers_it_is_unknown() -> None:
    assert Email(subject="Out of office").automated is None
