"""A proof that does not cover the body is good for one email: Mailgun's token, once accepted, proves no other.

It is remembered together with the acceptance only, so that a try that failed does not block its own retry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deduplication.claims import Claim, Duplicate, InFlight
from deduplication.reservations import post_name
from deduplication.stores.base import Store
from orchestrator.item import Item
from orchestrator.leases import LeaseKeeper
from routes.auth import Unauthorized


class InUse(Exception):
    """Another request with the same proof is under way; what becomes of it decides."""


@dataclass(frozen=True)
class Replays:
    store: Store
    leases: LeaseKeeper
    new_token: Callable[[], str]

    def guard(self, nonce: str, items: Sequence[Item], receive: Callable[[], bool]) -> None:
        """Runs ``receive``, which says whether it accepted the items, unless the nonce was accepted for others.

        For the same items again it runs, too: they are known by their own names. Raises Unauthorized or InUse.
        """
        mark = _mark(items)
        claim = Claim(mark, (post_name(nonce),), "", self.new_token(), self.leases.lease_ms)
        verdict = self.store.claim(claim)
        if isinstance(verdict, InFlight):
            raise InUse("another request with the same token is under way")
        if not isinstance(verdict, Duplicate):
            self._receive_holding(claim, receive)
        elif verdict.original == mark:
            receive()
        else:
            raise Unauthorized

    def _receive_holding(self, claim: Claim, receive: Callable[[], bool]) -> None:
        accepted = False
        try:
            with self.leases.holding(claim):
                accepted = receive()
        finally:
            if accepted:
                self.leases.commit(claim)
            else:
                self.leases.release(claim, None)


def _mark(items: Sequence[Item]) -> str:
    contents = json.dumps([[item.key, item.fingerprint] for item in items])
    return hashlib.sha256(contents.encode()).hexdigest()
