"""Erase the emails of a person on every machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from deduplication import erasing
from deduplication.journal.entry import Entry
from orchestrator.audit import audit
from orchestrator.operations.reset import check_redis, wait_for_machines
from orchestrator.operations.search import catch_up, find_entries

if TYPE_CHECKING:
    from orchestrator.build import Service

AT_ONCE = 100


class Erase(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    who: str = Field(
        min_length=3,
        description="The address of a sender, whose emails are all erased; or the Message-ID or id of one.",
    )
    dry_run: StrictBool = False


class Erased(BaseModel):
    emails: int = Field(description="How many emails were erased.")
    kept: list[str] = Field(description="Emails that are being delivered at this moment: erase them again later.")
    behind: list[str] = Field(description="Machines that had not applied it after 3 seconds. They will.")


def erase(service: Service, request: Erase) -> Erased:
    """Removes entries, payloads, files, search rows and events; deliveries that wait are ended. Ids stay as digests.

    Raises StoreUnavailable while Redis is away, except for a dry run.
    """
    coordinator, journal = service.coordinator, service.journal
    if not request.dry_run:
        check_redis(coordinator, "erasing")
    catch_up(journal)
    with journal.reading() as step:
        found = find_entries(step, request.who, service.privacy)
    kept: list[str] = []
    behind: list[str] = []
    if not request.dry_run and found:
        for start in range(0, len(found), AT_ONCE):
            kept += erasing.erase(coordinator, found[start : start + AT_ONCE])
        behind = wait_for_machines(coordinator, even_this=True)  # else some would take what is deleted for a gap
        _delete_traces(service, [entry for entry in found if entry.id not in kept])
    line = "AUDIT erase emails=%d kept=%d dry_run=%s"  # not whose: that would be what was to be erased
    audit.warning(line, len(found) - len(kept), len(kept), request.dry_run)
    return Erased(emails=len(found) - len(kept), kept=kept, behind=behind)


def _delete_traces(service: Service, erased: list[Entry]) -> None:
    registry = service.coordinator.registry
    if registry:
        ids = {entry.id for entry in erased}
        service.coordinator.redis.ask(lambda: erasing.delete_events(registry, ids))
    catch_up(service.journal)  # the words of the search index
    service.files.sweep()
