"""Sending again what operators choose: releasing emails that a gate stopped, and replaying deliveries."""

import secrets
from collections import Counter
from collections.abc import Sequence

from pydantic import Field, StrictBool

from deduplication import again
from deduplication.again import Refusal
from deduplication.journal.entry import DeliveryStatus
from orchestrator.audit import audit
from orchestrator.build import Service
from orchestrator.operations.search import Filter, Request, find_ids

RELEASED, WOULD_RELEASE = "released", "would_release"
REPLAYED, WOULD_REPLAY = "replayed", "would_replay"


class Release(Request):
    force: StrictBool = Field(default=False, description="Even if the same email was delivered under another id.")
    dry_run: StrictBool = Field(default=False, description="Only show what would happen.")


class Replay(Request):
    force: StrictBool = Field(default=False, description="Include deliveries already received.")
    new_id: StrictBool = Field(default=False, description="Use a new webhook-id, so that it counts as a new event.")
    dry_run: StrictBool = Field(default=False, description="Only show what would happen.")


def send_again(service: Service, id_: str, how: Release | Replay) -> str:
    """Releases an email, once, or makes a delivery ("email:destination") due now. Returns RELEASED, WOULD_RELEASE,
    REPLAYED, WOULD_REPLAY or a Refusal."""
    entry_id, _, destination = id_.partition(":")
    if isinstance(how, Release):
        to, webhook_id = None, ""
        done, would, line = RELEASED, WOULD_RELEASE, f"release entry={id_} force={how.force}"
    else:
        to, webhook_id = destination, f"msg_{secrets.token_hex(16)}" if how.new_id else ""
        done, would, line = REPLAYED, WOULD_REPLAY, f"replay delivery={id_} force={how.force} new_id={how.new_id}"
    refusal = again.replay(service.coordinator, entry_id, to, how.force, webhook_id, dry_run=how.dry_run)
    if refusal or how.dry_run:
        return refusal or would
    audit.warning("AUDIT %s", line)
    return done


def send_many(service: Service, wanted: Filter | Sequence[str], how: Release | Replay) -> Counter[str]:
    """The given ids, or all that match; only emails with a skipped delivery are released. Returns how many had which
    result."""
    has = DeliveryStatus.SKIPPED if isinstance(how, Release) else None
    ids = find_ids(service, wanted, has=has)[0] if isinstance(wanted, Filter) else wanted
    return Counter(send_again(service, id_, how) for id_ in ids)


def replay_email(service: Service, id_: str, how: Replay, only: str = "") -> str:
    """All its deliveries but those that were received; ``only`` that to one destination, if it is given. Returns
    REPLAYED if there was one, otherwise the reason."""
    with service.journal.reading() as step:
        entry = step.read(id_)
    deliveries = entry.deliveries if entry else ()
    wanted = [delivery.destination for delivery in deliveries if only in ("", delivery.destination)]
    results = [send_again(service, f"{id_}:{destination}", how) for destination in wanted]
    return min(
        results, key=lambda result: (result != REPLAYED, result == Refusal.ALREADY_DELIVERED), default=Refusal.UNKNOWN
    )
