"""Whether a sender is authentic: what trusted hosts and providers say, and what senders would like them to say."""

from typing import Any

import pytest

from deduplication.authentication import UNKNOWN, Authentication, Result
from routes.mime import parse_mime

TRUSTED = ("mx.example.com", "mx2.example.com")
PASSED = "spf=pass smtp.mailfrom=ada@bank.example; dkim=pass header.d=bank.example; dmarc=pass header.from=bank.example"
GOOD = Authentication("pass", "pass", "pass", True, "mx.example.com")
OURS = "mx.example.com; spf=fail smtp.mailfrom=x.example; dkim=none; dmarc=fail header.from=bank.example"
FAILED = Authentication("fail", "none", "fail", False, "mx.example.com")


def authentication(*headers: str, sender: str = "Ada <ada@bank.example>", **fields: Any) -> Authentication:
    lines = [f"Authentication-Results: {header}" for header in headers]
    raw = "\r\n".join([*lines, f"From: {sender}", "", "Hello"]).encode()
    return parse_mime(raw, **{"trusted_authserv_ids": TRUSTED, "provider": "postmark"} | fields).authentication


HEADERS: dict[str, tuple[list[str], Authentication]] = {
    "of a trusted host": ([f"mx.example.com; {PASSED}"], GOOD),
    "in capitals, with a version": ([f"MX.example.com 1; {PASSED.upper()}"], GOOD),
    "folded": ([f"mx.example.com;\r\n\t{PASSED.replace('; ', ';' + chr(13) + chr(10) + chr(9))}"], GOOD),
    "with comments": (
        [f"mx.example.com (a (nested; dmarc=fail) one); {PASSED.replace('spf=pass', 'spf=pass (good; dkim=fail)')}"],
        GOOD,
    ),
    "of another host": ([f"mx.evil.example; {PASSED}"], UNKNOWN),
    "of a host that is a part of the name": ([f"mx.example.com.evil.example; {PASSED}"], UNKNOWN),
    "of nobody": ([PASSED], UNKNOWN),
    "forged below ours": ([OURS, f"mx.example.com; {PASSED}", f"mx2.example.com; {PASSED}"], FAILED),
    "forged above, of another host": ([f"evil.example; {PASSED}", OURS], FAILED),
    "ours says less than the forged one below": (
        ["mx.example.com; spf=none", f"mx.example.com; {PASSED}"],
        Authentication("none", None, None, None, "mx.example.com"),
    ),
    "forged in a comment": (
        ["mx.example.com; dmarc=fail (x; dmarc=pass) header.from=bank.example"],
        Authentication(None, None, "fail", False, "mx.example.com"),
    ),  # noqa: E501
    "a quote in a comment is no quote": (
        ['mx.example.com; spf=fail (5") smtp.mailfrom=x.example; dkim=none (6") header.d=a; dmarc=fail'],
        FAILED,
    ),
    "forged in quotes": (
        ['mx.example.com; spf=fail reason="x; dmarc=pass" smtp.mailfrom="a;dmarc=pass "@bank.example; dkim=none'],
        Authentication("fail", "none", None, False, "mx.example.com"),
    ),
    "forged below one of ours that cannot be read": (
        ["mx.example.com; spf=fail (", f"mx.example.com; {PASSED}"],
        UNKNOWN,
    ),
    "with an open comment": (["mx.example.com; spf=fail (; dmarc=pass"], UNKNOWN),
    "with open quotes": (['mx.example.com; spf=fail reason="; dmarc=pass'], UNKNOWN),
    "with a comment that closes twice": (["mx.example.com; spf=fail ()); dmarc=pass"], UNKNOWN),
    "about another From": (
        ["mx.example.com; dmarc=pass header.from=evil.example"],
        UNKNOWN,
    ),
    "several signatures": (
        ["mx.example.com; spf=none; dkim=fail header.d=bank.example; dkim=pass header.i=@evil.example"],
        Authentication("none", "pass", None, False, "mx.example.com"),
    ),
    "a domain above the sender's": (
        ["mx.example.com; spf=softfail; dkim=pass header.d=example"],
        Authentication("fail", "pass", None, False, "mx.example.com"),
    ),
    "a domain below the sender's": (
        ["mx.example.com; spf=neutral; dkim=pass header.d=evil.bank.example"],
        Authentication("none", "pass", None, None, "mx.example.com"),
    ),
    "errors": (["mx.example.com; spf=temperror; dkim=permerror; dmarc=temperror"], UNKNOWN),
    "nothing checked": (["mx.example.com; none"], UNKNOWN),
    "a method that only begins alike": (["mx.example.com; spf-x=pass; dkim-atps=pass; x-dmarc=pass"], UNKNOWN),
    "a result that only begins alike": (["mx.example.com; spf=pass-ish; dkim=pass_"], UNKNOWN),
    "far too long": ([f"mx.example.com; {PASSED}; x={'y' * 20_000}"], UNKNOWN),
}


@pytest.mark.parametrize(("headers", "expected"), HEADERS.values(), ids=HEADERS)
def test_a_header_counts_if_a_trusted_host_wrote_it(headers: list[str], expected: Authentication) -> None:
    assert authentication(*headers) == expected


def test_without_trusted_hosts_no_header_counts() -> None:
    assert authentication(f"mx.example.com; {PASSED}", trusted_authserv_ids=()) == UNKNOWN


def test_the_providers_own_verdict_comes_first() -> None:
    own = (Result("spf", "FAIL"), Result("dkim", "GRAY"), Result("dmarc", "PROCESSING_FAILED"))
    both = authentication(f"mx.example.com; {PASSED}", verdicts=own)
    assert both == Authentication("fail", "none", "pass", True, "postmark, mx.example.com")
    assert authentication(verdicts=own) == Authentication("fail", "none", None, False, "postmark")
    assert authentication(verdicts=(Result("spf", ""), Result("dkim", "odd"))) == UNKNOWN


@pytest.mark.parametrize(
    ("domain", "sender", "aligned"),
    [
        ("bank.example", "ada@bank.example", True),
        ("bank.example", "ada@mail.bank.example", True),
        ("mail.bank.example", "ada@bank.example", None),
        ("notbank.example", "ada@bank.example", False),
        ("", "ada@bank.example", None),
        ("bank.example", "", None),
    ],
)
def test_alignment_of_a_signature_with_the_sender(domain: str, sender: str, aligned: bool | None) -> None:
    own = (Result("spf", "none"), Result("dkim", "pass", domain))
    assert authentication(sender=sender, verdicts=own).from_aligned is aligned
