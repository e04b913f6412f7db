"""Checks the signature of a webhook as a receiver does (Standard Webhooks), and says why it is not valid."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from orchestrator.delivery.signing import PRIVATE, Signer

TOLERANCE_S = 5 * 60
SECONDS = re.compile("[0-9]{1,11}")  # up to the year 5138
HEADERS = ("webhook-id", "webhook-timestamp", "webhook-signature")


class Proof(StrEnum):
    GOOD = "good"
    UNCHECKED = "unchecked"
    MISSING = "missing"
    WRONG = "wrong"


@dataclass(frozen=True)
class Checked:
    """``why`` is the reason in words."""

    proof: Proof
    why: str

    @property
    def is_refused(self) -> bool:
        return self.proof in (Proof.MISSING, Proof.WRONG)


def check_signature(secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: datetime) -> Checked:
    """``headers`` have lower-case names. A secret verifies HMAC signatures (v1), a private key ed25519 ones (v1a).
    Signatures of other versions are ignored."""
    given = {name: headers.get(name, "") for name in HEADERS}
    if not secrets:
        signed = "it is signed" if given["webhook-signature"] else "it is not signed"
        return Checked(Proof.UNCHECKED, f"{signed}; without a --secret it cannot be checked")
    absent = [name for name, value in given.items() if not value]
    if absent:
        return Checked(Proof.MISSING, f"no {' and no '.join(absent)}: does its destination have a secret?")
    written = given["webhook-timestamp"]
    if not SECONDS.fullmatch(written):
        return Checked(Proof.WRONG, "webhook-timestamp must be in seconds since 1970")
    sent = datetime.fromtimestamp(int(written), UTC)
    age_s = (now - sent).total_seconds()
    if abs(age_s) > TOLERANCE_S:
        off = f"{abs(age_s):.0f} s {'old' if age_s > 0 else 'ahead'}"
        return Checked(
            Proof.WRONG, f"webhook-timestamp is {off}, more than {TOLERANCE_S} s: replayed, or a clock is off"
        )
    versions = sorted({"v1a" if secret.startswith(PRIVATE) else "v1" for secret in secrets})
    signatures = [each for each in given["webhook-signature"].split() if each.partition(",")[0] in versions]
    if not signatures:
        return Checked(Proof.WRONG, f"webhook-signature has none of version {' or '.join(versions)}")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return Checked(Proof.WRONG, "the body is not UTF-8, but all signed bodies are")
    for number, secret in enumerate(secrets, 1):
        expected = Signer([secret]).headers(given["webhook-id"], sent, text)["webhook-signature"].encode()
        if any(hmac.compare_digest(expected, each.encode()) for each in signatures):
            return Checked(Proof.GOOD, f"by secret {number} of {len(secrets)}" if len(secrets) > 1 else "by the secret")
    tried = "the secret does not match" if len(secrets) == 1 else f"none of the {len(secrets)} secrets matches"
    return Checked(Proof.WRONG, f"{tried}: it was signed with another one, or changed on the way")
