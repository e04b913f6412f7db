"""mailonce import: remember emails that were handled before Mailonce, or see what it would have done with them."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from deduplication.errors import DeduplicationError
from deduplication.mime import parse_mime
from deduplication.names import Gate
from orchestrator.audit import audit
from orchestrator.build import Service, make_data_dir
from orchestrator.config.model import load_config
from orchestrator.config.settings import Settings
from orchestrator.importing.items import InvalidRow, row_item
from orchestrator.importing.rehearsal import Findings, Rehearsal
from orchestrator.importing.remember import Importer
from orchestrator.importing.sources import NoSource, Piece, Source, open_source
from orchestrator.item import Item, email_item
from orchestrator.service_note import NoService, find_service
from routes.commands.service import audited, opened, read_settings
from routes.providers.base import InvalidPayload, sound
from routes.providers.registry import TYPES
from routes.terminal import one_line

AT_ONCE = 100  # emails in one transaction
BYTES_AT_ONCE = 8 * 1024 * 1024  # parsing an email takes several times its size
MOST_NAMED = 10
INTERRUPTED = 130
SUPPRESSING = (Gate.SUBJECT_GROUP, Gate.MEDIA, Gate.CONTENT)


@dataclass
class Reader:
    """Reads a source in batches. ``read`` counts messages and rows; those that are no email are ``unreadable``."""

    source: Source
    parse: Callable[[Piece], Item]
    read: int = 0
    unreadable: int = 0
    unreadable_examples: list[str] = field(default_factory=list)

    def batches(self, after: str = "") -> Iterator[tuple[list[Item], str]]:
        """The items of a batch, and the position behind it. Shows progress on a terminal."""
        items, count, size = list[Item](), 0, 0
        hidden = not sys.stderr.isatty()
        with click.progressbar(length=self.source.total, label="Reading", file=sys.stderr, hidden=hidden) as bar:
            piece = None
            for piece in self.source.pieces(after):
                items += self._parse(piece)
                count, size = count + 1, size + len(piece.raw)
                if count >= AT_ONCE or size > BYTES_AT_ONCE:
                    yield items, piece.after
                    bar.update(piece.read - bar.pos)
                    items, count, size = [], 0, 0
            if count and piece:
                yield items, piece.after

    def _parse(self, piece: Piece) -> Iterator[Item]:
        self.read += 1
        try:
            yield self.parse(piece)
            return
        except (InvalidPayload, InvalidRow) as error:
            reason = str(error)
        except Exception as error:  # a bug that one message triggers must not keep the others out
            reason = f"{type(error).__name__} while parsing it"
        self.unreadable += 1
        if len(self.unreadable_examples) < MOST_NAMED:
            self.unreadable_examples.append(one_line(f"{piece.where}: {reason}"))


@click.command("import")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Remember nothing; show what the service would have done.")
@click.option("--provider", default="mime", show_default=True, help="The provider of these emails, for your routes.")
@click.option("--from-start", is_flag=True, help="Do not resume an interrupted run.")
@click.option("--yes", is_flag=True, help="Create DATA_DIR if no service has run with it yet.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def import_mail(path: Path, dry_run: bool, provider: str, from_start: bool, yes: bool, as_json: bool) -> None:
    """Remember emails that were handled before, so that they are recognised if they come again. Nothing is ever sent.

    PATH is an mbox, a Maildir, a folder of .eml files, or a .csv whose first line names its columns: email_id and date;
    or subject, sender and date; or message_id. The service may be running. An interrupted run resumes where it stopped;
    importing the same emails twice changes nothing.

    \b
    mailonce import --dry-run ~/mail/inbox.mbox
    mailonce import ~/mail/inbox.mbox
    """
    settings = read_settings()
    known = sorted({*TYPES, *load_config(settings).providers})
    if provider not in known:
        raise click.ClickException(f"--provider must be one of {', '.join(known)}")
    try:
        source = open_source(path.resolve(), int(settings.max_body_mb * 1024 * 1024))
    except NoSource as error:
        raise click.ClickException(one_line(str(error))) from error

    def parse(piece: Piece) -> Item:
        """Accepts what the endpoint for raw MIME accepts."""
        if piece.error:
            raise InvalidPayload(piece.error)
        if piece.row is not None:
            return row_item(piece.row, provider, settings.ids_kept_ms)
        if not piece.raw.strip():
            raise InvalidPayload("empty")
        return email_item(sound(parse_mime(piece.raw, provider=provider)), settings.ids_kept_ms)

    started = time.monotonic()
    reader = Reader(source, parse)
    if dry_run:
        summary, stopped = _rehearse(settings, reader)
    else:
        summary, stopped = _import(settings, reader, from_start, yes)
    seconds = time.monotonic() - started
    summary |= {
        "read": reader.read,
        "unreadable": reader.unreadable,
        "unreadable_examples": reader.unreadable_examples,
        "seconds": round(seconds, 3),
        "per_second": round(reader.read / max(seconds, 0.001)),
        "is_whole": not stopped,
    }
    in_words = _dry_run_in_words if dry_run else _import_in_words
    click.echo(json.dumps(summary, indent=2) if as_json else "\n".join(in_words(summary)))
    if stopped:
        click.echo(f"mailonce: {stopped}", err=True)
        sys.exit(INTERRUPTED if "interrupted" in stopped else 1)


def _import(settings: Settings, reader: Reader, from_start: bool, creates: bool) -> tuple[dict[str, Any], str]:
    """The summary, and why it stopped early. The position of the last complete batch is kept in the journal."""
    config = load_config(settings).in_trial(False)  # what is imported counts for the real journal
    try:
        find_service(settings)
    except NoService as error:
        if not creates:
            raise click.ClickException(f"{error}; --yes creates it") from error
        make_data_dir(settings)
    counts, stopped, note = Counter[str](), "", f"import:{reader.source.key}"
    with audited(settings, config) as service:
        importer = Importer(service.journal, service.coordinator.registry, service.pipeline)
        after, seen = ("", 0) if from_start else _position(service, note)
        if seen:
            click.echo(f"mailonce: resuming an interrupted run after {seen:,} emails", err=True)
        audit.warning("AUDIT import of a %s begins, after %d", reader.source.kind, seen)
        try:
            for items, position in reader.batches(after):
                counts += importer.remember(items)
                _set_position(service, note, position, seen + reader.read)
            _set_position(service, note, "", 0)
        except KeyboardInterrupt:
            stopped = "interrupted; run the same command again to resume"
        except (DeduplicationError, OSError) as error:
            stopped = f"stopped: {error}; run the same command again to resume"
        early = " early" if stopped else ""
        audit.warning("AUDIT import ends%s: %d imported, %d known", early, counts["imported"], counts["known"])
    summary = {name: counts[name] for name in ("imported", "groups", "known", "left")}
    return summary | {"data_dir": str(settings.data_dir.resolve())}, stopped


def _position(service: Service, note: str) -> tuple[str, int]:
    with service.journal.reading() as step:
        after, _, seen = step.meta(note).rpartition(" ")
    return after, int(seen or 0)


def _set_position(service: Service, note: str, after: str, seen: int) -> None:
    with service.journal.step() as step:
        step.set_meta(note, f"{after} {seen}" if seen else "")


def _import_in_words(summary: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{summary['imported']:,} imported, with {summary['groups']:,} subject groups of this month, into "
        f"{summary['data_dir']}"
    )
    if summary["known"]:
        yield f"{summary['known']:,} already known, or repeated in the source"
    if summary["left"]:
        yield f"{summary['left']:,} skipped: in progress, returned to their provider, or with the id of another email"
    yield from _reading_in_words(summary)


def _rehearse(settings: Settings, reader: Reader) -> tuple[dict[str, Any], str]:
    stopped = ""
    with tempfile.TemporaryDirectory(prefix="mailonce-import-") as folder:
        alone = settings.model_copy(update={"data_dir": Path(folder, "data"), "redis_url": "", "queue_url": ""})
        make_data_dir(alone)
        with opened(alone, load_config(settings)) as service:
            rehearsal = Rehearsal(service.pipeline, Path(folder, "rehearsal.db"))
            try:
                for items, _ in reader.batches():
                    for item in items:
                        rehearsal.receive(item)
            except KeyboardInterrupt:
                stopped = "interrupted; these are the findings so far"
            rehearsal.close()
    return _summary(rehearsal.findings), stopped


def _summary(findings: Findings) -> dict[str, Any]:
    return {
        "emails": findings.emails,
        "first": findings.first.isoformat(timespec="seconds") if findings.first else None,
        "last": findings.last.isoformat(timespec="seconds") if findings.last else None,
        "undated": findings.undated,
        "new": findings.new,
        "duplicates": findings.stopped[Gate.IDENTITY],
        "stopped": {gate.value: findings.stopped[gate] for gate in SUPPRESSING},
        "left_out": findings.left_out,
        "groups": findings.groups,
        "examples": {gate.value: examples for gate, examples in findings.examples.items()},
    }


def _dry_run_in_words(summary: dict[str, Any]) -> Iterator[str]:
    dates = f", {summary['first'][:10]} to {summary['last'][:10]}" if summary["first"] else ""
    yield f"{summary['emails']:,} emails{dates}"
    yield f"{summary['new']:>9,} new: their webhooks would have been sent"
    yield f"{summary['duplicates']:>9,} duplicates of an earlier email"
    for gate, count in summary["stopped"].items():
        if count:
            yield f"{count:>9,} stopped by {gate}"
    yield f"{summary['groups']:>9,} subject groups, counted by month"
    if summary["left_out"]:
        yield f"{summary['left_out']:>9,} deliveries of new emails skipped by the content gate of their destination"
    for gate, examples in summary["examples"].items():
        yield f"For example, {'duplicates' if gate == Gate.IDENTITY else f'stopped by {gate}'}:"
        for each in examples:
            yield f"  {_one(each['email'])}"
            yield f"    after {_one(each['first'])} ({one_line(each['name'])[:80]})"
    yield from _reading_in_words(summary)
    yield "Nothing was sent or remembered."


def _one(email: dict[str, str] | None) -> str:
    return one_line(f'"{email["subject"]}" from {email["sender"]}, {email["date"]}') if email else "an unknown email"


def _reading_in_words(summary: dict[str, Any]) -> Iterator[str]:
    if summary["unreadable"]:
        yield f"{summary['unreadable']:,} could not be read:"
        yield from (f"  {each}" for each in summary["unreadable_examples"])
    yield f"{summary['read']:,} read in {summary['seconds']:,.1f} s, {summary['per_second']:,.0f}/s"
