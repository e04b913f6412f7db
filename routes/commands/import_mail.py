"""mailonce import: take the mail before Mailonce into its memory, or see first what it would have done to it."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from deduplication.claims import Gate, Kind
from deduplication.errors import DeduplicationError
from deduplication.mime import parse_mime
from orchestrator.audit import audit
from orchestrator.build import build_intake, follow_redis, make_data_dir
from orchestrator.config.model import Config, load_config
from orchestrator.config.settings import Settings
from orchestrator.importing.note import Notes
from orchestrator.importing.rehearsal import Findings, Shown, rehearsing
from orchestrator.importing.remember import Importer
from orchestrator.importing.rows import InvalidRow, row_item
from orchestrator.importing.sources import NoSource, Piece, Source, open_source
from orchestrator.item import Item, email_item
from orchestrator.operations.decision_index import GATES
from orchestrator.service_note import NoService, find_service
from routes.commands.progress import Progress
from routes.commands.service import as_the_service_has_them, audited, opened, read_settings
from routes.providers.base import InvalidPayload, sound
from routes.providers.registry import TYPES
from routes.terminal import one_line

AT_ONCE = 200
BYTES_AT_ONCE = 8 * 1024 * 1024  # what is read of an email takes several times as much
MOST_NAMED = 10
INTERRUPTED = 130


@dataclass
class Run:
    """One way through a source. Counts what it holds that is no email, and remembers where the first of them are."""

    settings: Settings
    config: Config
    source: Source
    read: Callable[[Piece], Item]
    unreadable: int = 0
    unreadable_examples: list[str] = field(default_factory=list)
    _count: int = 0
    _items: Iterator[tuple[Piece, Item | None]] | None = None
    _progress: Progress | None = None
    _began: float = field(default_factory=time.monotonic)

    def next_batch(self, after: str) -> list[tuple[Piece, Item | None]]:
        """None in place of what is no email. ``after``: where to begin, at the first call."""
        if self._items is None:
            self._items = self._read_from(after)
        batch: list[tuple[Piece, Item | None]] = []
        size = 0
        for piece, item in self._items:
            size += len(piece.raw)
            batch.append((replace(piece, raw=b""), item))
            if len(batch) == AT_ONCE or size > BYTES_AT_ONCE:
                break
        self._count += len(batch)
        return batch

    def _read_from(self, after: str) -> Iterator[tuple[Piece, Item | None]]:
        for piece in self.source.pieces(after):
            try:
                item: Item | None = self.read(piece)
            except (InvalidPayload, InvalidRow) as error:
                self._pass_over(piece, str(error))
                item = None
            except Exception as error:  # a bug of ours that one message meets must not keep the others out
                self._pass_over(piece, f"{type(error).__name__} while it was read")
                item = None
            yield piece, item

    def _pass_over(self, piece: Piece, why: str) -> None:
        self.unreadable += 1
        if len(self.unreadable_examples) < MOST_NAMED:
            self.unreadable_examples.append(one_line(f"{piece.where}: {why}"))

    def tell_progress(self, batch: list[tuple[Piece, Item | None]]) -> None:
        if self._progress is None:
            self._progress = Progress(sys.stderr, batch[0][0].read, self.source.total, self._began)
        self._progress.tell(batch[-1][0].read, self._count)

    def ended(self) -> dict[str, Any]:
        if self._progress:
            self._progress.end()
        seconds = time.monotonic() - self._began
        return {
            "read": self._count,
            "unreadable": self.unreadable,
            "unreadable_examples": self.unreadable_examples,
            "seconds": round(seconds, 3),
            "per_second": round(self._count / max(seconds, 0.001)),
        }


@click.command("import")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Remember nothing: say what the service would have done to these emails.")
@click.option("--provider", default="mime", show_default=True, help="Whose emails they are, for routes that ask.")
@click.option("--from-start", is_flag=True, help="Do not go on where a run before was stopped.")
@click.option("--yes", is_flag=True, help="Also into a service that was started in another folder.")
@click.option("--json", "as_json", is_flag=True, help="The summary as JSON.")
def import_mail(path: Path, dry_run: bool, provider: str, from_start: bool, yes: bool, as_json: bool) -> None:
    """Remember mail that was handled before: what of it comes again is recognised. Nothing is ever sent of it.

    PATH is an mbox, a Maildir, a folder of .eml files, or a .csv with a line of column names: email_id and date; or
    subject, sender and date; or message_id. The service may run meanwhile. A run that was stopped goes on where it
    was; to import the same twice changes nothing.

    \b
    mailonce import --dry-run ~/mail/inbox.mbox
    mailonce import ~/mail/inbox.mbox
    """
    path = path.resolve()  # before anyone goes to the folder of the service
    here = read_settings()
    settings, config = (here, load_config(here)) if dry_run else _settings_of_service(here, yes)
    known = sorted({*TYPES, *config.providers})
    if provider not in known:
        raise click.ClickException(f"--provider takes one of {', '.join(known)}")
    try:
        source = open_source(path, int(settings.max_body_mb * 1024 * 1024))
    except NoSource as error:
        raise click.ClickException(one_line(str(error))) from error
    run = Run(settings, config, source, _reader(provider, settings.ids_kept_ms))
    if dry_run:
        _rehearse(run, as_json)
    else:
        _import(run, from_start, as_json)


def _settings_of_service(here: Settings, is_any_meant: bool) -> tuple[Settings, Config]:
    """Before the first start there is none: then those of this folder, as it will have them.

    Other commands take the service that was started last, wherever that was. Ten thousand emails in the memory of
    another one than was meant are hard to get out again.
    """
    try:
        note = find_service(here)
    except NoService:
        return here, load_config(here)
    is_meant = is_any_meant or "data_dir" in here.model_fields_set or Path(note.folder) == Path.cwd()
    if not is_meant:
        how = f"DATA_DIR={note.data_dir} or --yes says that it is meant"
        raise click.ClickException(f"the service was started in {note.folder}, not here; {how}")
    return as_the_service_has_them(here)


def _reader(provider: str, ids_kept_ms: int | None) -> Callable[[Piece], Item]:
    def read(piece: Piece) -> Item:
        """As the door for raw MIME reads it, and refused where that refuses it."""
        if piece.error:
            raise InvalidPayload(piece.error)
        if piece.row is not None:
            return row_item(piece.row, provider, ids_kept_ms)
        if not piece.raw.strip():
            raise InvalidPayload("it is empty")
        return email_item(sound(parse_mime(piece.raw, provider=provider)), ids_kept_ms)

    return read


# Remembering


def _import(run: Run, from_start: bool, as_json: bool) -> None:
    counts, stopped = Counter[str](), ""
    make_data_dir(run.settings)  # there may have been no service yet, and audit.log lies in it
    with audited(run.settings, run.config) as parts:
        follow_redis(parts.journal)
        importer, notes = Importer(build_intake(parts)), Notes(run.settings.data_dir, run.source)
        note = None if from_start else notes.read()
        after, seen = (note.after, note.seen) if note else ("", 0)
        if note:
            click.echo(f"mailonce: a run before was stopped after {seen:,}; going on there", err=True)
        audit.warning("AUDIT import of a %s begins, after %d", run.source.kind, seen)
        try:
            while batch := run.next_batch(after):
                for became in importer.remember([item for _, item in batch if item]):
                    counts[became.what] += 1
                    counts["groups"] += any(name.kind is Kind.SUBJECT_GROUP for name in became.shared)
                seen += len(batch)
                notes.write(batch[-1][0].after, seen)
                run.tell_progress(batch)
            notes.remove()
        except KeyboardInterrupt:
            stopped = "stopped"
        except (DeduplicationError, OSError) as error:
            stopped = f"stopped, since {error}"
        audit.warning(
            "AUDIT import ends%s: %d imported, %d known",
            " early" if stopped else "",
            counts["imported"],
            counts["known"],
        )
    told = {name: counts[name] for name in ("imported", "groups", "known", "left")} | run.ended()
    told["data_dir"] = str(run.settings.data_dir.resolve())
    click.echo(json.dumps(told | {"is_whole": not stopped}, indent=2) if as_json else _imported_in_words(told))
    if stopped:
        click.echo(f"mailonce: {stopped}; run the same again to go on", err=True)
        sys.exit(INTERRUPTED if stopped == "stopped" else 1)


def _imported_in_words(told: dict[str, Any]) -> str:
    where = f"remembered by the service in {told['data_dir']}"
    lines = [f"{told['imported']:,} imported, with {told['groups']:,} subject groups of this month; {where}"]
    if told["known"]:
        lines.append(f"{told['known']:,} known before, or more than once in there")
    if told["left"]:
        lines.append(f"{told['left']:,} left to the service, which is at them or has given them back to their provider")
    return "\n".join([*lines, *_reading_in_words(told)])


# Rehearsing


def _rehearse(run: Run, as_json: bool) -> None:
    stopped = False
    with tempfile.TemporaryDirectory(prefix="mailonce-import-") as folder:
        alone = run.settings.model_copy(update={"data_dir": Path(folder, "data"), "redis_url": ""})
        with opened(alone, run.config) as parts, rehearsing(parts, Path(folder), datetime.now(UTC)) as rehearsal:
            try:
                while batch := run.next_batch(""):
                    for _, item in batch:
                        if item:
                            rehearsal.receive(item)
                    run.tell_progress(batch)
            except KeyboardInterrupt:
                stopped = True
    told = _shown_findings(rehearsal.findings) | run.ended()
    click.echo(json.dumps(told | {"is_whole": not stopped}, indent=2) if as_json else _findings_in_words(told))
    if stopped:
        click.echo("mailonce: stopped; these are the findings so far", err=True)
        sys.exit(INTERRUPTED)


def _shown_findings(findings: Findings) -> dict[str, Any]:
    def shown(email: Shown | None) -> dict[str, str] | None:
        at = email.at.isoformat(timespec="seconds") if email else ""
        return {"subject": email.subject, "sender": email.sender, "date": at} if email else None

    return {
        "emails": findings.emails,
        "first": findings.first.isoformat(timespec="seconds") if findings.first else None,
        "last": findings.last.isoformat(timespec="seconds") if findings.last else None,
        "undated": findings.undated,
        "new": findings.new,
        "duplicates": findings.duplicates,
        "stopped": {gate.value: findings.stopped[gate] for gate in GATES if gate is not Gate.IDENTITY},
        "left_out": findings.left_out,
        "groups": findings.groups,
        "examples": {
            gate.value: [
                {"name": each.name, "email": shown(each.stopped), "first": shown(each.first)} for each in examples
            ]
            for gate, examples in findings.examples.items()
        },
    }


def _findings_in_words(told: dict[str, Any]) -> str:
    between = f", of {told['first'][:10]} to {told['last'][:10]}" if told["first"] else ""
    rows = [
        (told["new"], "new: their webhooks would have been sent"),
        (told["duplicates"], "duplicates, each the same as an email before it"),
        *((count, f"stopped by {gate}") for gate, count in told["stopped"].items() if count),
        (told["groups"], "subject groups, each of one month"),
    ]
    lines = [f"{told['emails']:,} emails{between}", *(f"{count:>9,} {what}" for count, what in rows)]
    if told["left_out"]:
        lines.append(
            f"{told['left_out']:>9,} deliveries of the new ones left out, as the destination had the same words"
        )
    for gate, examples in told["examples"].items():
        lines.append(f"For example, {'the same' if gate == Gate.IDENTITY else f'stopped by {gate}'}:")
        for each in examples:
            lines += [f"  {_one(each['email'])}", f"    after {_one(each['first'])} ({one_line(each['name'])[:80]})"]
    return "\n".join([*lines, *_reading_in_words(told), "Nothing was sent or remembered."])


def _one(email: dict[str, str] | None) -> str:
    if email is None:
        return "one that is not known"
    return one_line(f'"{email["subject"]}" from {email["sender"] or "nobody"}, {email["date"]}')


def _reading_in_words(told: dict[str, Any]) -> Iterator[str]:
    if told["unreadable"]:
        yield f"{told['unreadable']:,} could not be read:"
        yield from (f"  {each}" for each in told["unreadable_examples"])
    yield f"{told['read']:,} read in {told['seconds']:,.1f} s, {told['per_second']:,.0f}/s"
