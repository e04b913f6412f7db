"""mailonce import: remember emails that were handled before Mailonce, or see what it would have done with them."""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import click

from orchestrator.audit import audit
from orchestrator.build import make_data_dir
from orchestrator.config.model import load_config
from orchestrator.config.settings import MB, Settings
from orchestrator.data_dir import NoService, is_trial_service
from orchestrator.importing.remember import COUNTED, REMEMBERED, rehearse, remember
from orchestrator.importing.sources import Piece, open_source, row_item
from orchestrator.item import Item, email_item
from routes.commands.service import build_quietly, one_line, read_settings, show
from routes.mime import parse_mime
from routes.payload import InvalidPayload
from routes.providers.base import require_email
from routes.providers.registry import TYPES

BATCH = 100  # emails in one transaction
BATCH_BYTES = 8 * MB  # parsing an email takes several times its size
MOST_NAMED = 10


@dataclass
class Reader:
    """Parses messages and rows in batches, and counts those that are no email."""

    pieces: Iterable[Piece]
    provider: str
    ids_kept_ms: int | None
    read: int = 0
    unreadable: int = 0
    unreadable_examples: list[str] = field(default_factory=list)

    def batches(self) -> Iterator[list[Item]]:
        """Shows on a terminal how many were read."""
        batch, size, is_hidden = list[Item](), 0, not sys.stderr.isatty()
        with click.progressbar(self.pieces, show_pos=True, show_eta=False, file=sys.stderr, hidden=is_hidden) as pieces:
            for piece in pieces:
                self.read += 1
                try:
                    batch.append(self._parse(piece))
                except Exception as error:  # a bug that one message triggers must not stop the import of the others
                    self.unreadable += 1
                    if self.unreadable <= MOST_NAMED:
                        self.unreadable_examples.append(one_line(f"{piece.where}: {error or type(error).__name__}"))
                size += len(piece.raw)
                if len(batch) >= BATCH or size > BATCH_BYTES:
                    yield batch
                    batch, size = [], 0
        yield batch

    def _parse(self, piece: Piece) -> Item:
        """Accepts what the endpoint for raw MIME accepts."""
        if piece.error:
            raise InvalidPayload(piece.error)
        if piece.row is not None:
            return row_item(piece.row, self.provider, self.ids_kept_ms)
        return email_item(require_email(parse_mime(piece.raw, provider=self.provider)), self.ids_kept_ms)


@click.command("import")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Remember nothing; show what the service would have done.")
@click.option("--provider", default="mime", show_default=True, help="The provider of these emails, for your routes.")
@click.option("--yes", is_flag=True, help="Create DATA_DIR if no service has run with it yet.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def import_mail(path: Path, dry_run: bool, provider: str, yes: bool, as_json: bool) -> None:
    """Remember emails that were handled before, so that they are recognised if they arrive again. Nothing is ever sent.

    PATH is an mbox, a Maildir, a folder of .eml files, or a .csv whose first line names its columns: email_id and date;
    or subject, sender and date; or message_id. The service may be running. Importing the same emails twice changes
    nothing, so an interrupted run can be repeated.

    \b
    mailonce import --dry-run ~/mail/inbox.mbox
    mailonce import ~/mail/inbox.mbox
    """
    settings = read_settings()
    known = sorted({*TYPES, *load_config(settings).providers})
    if provider not in known:
        raise click.ClickException(f"--provider must be one of {', '.join(known)}")
    reader = Reader(open_source(path.resolve(), int(settings.max_body_mb * MB)), provider, settings.ids_kept_ms)
    summary = _rehearse(settings, reader) if dry_run else _import(settings, reader, creates=yes)
    summary |= {name: getattr(reader, name) for name in ("read", "unreadable", "unreadable_examples")}
    lines = [f"{summary[name]:>9,} {words}" for name, words in (COUNTED if dry_run else REMEMBERED).items()]
    lines.append(f"{reader.read:>9,} read, of which {reader.unreadable:,} were unreadable")
    lines += [f"For example, {example}" for example in (*summary.get("examples", ()), *reader.unreadable_examples)]
    show(summary, as_json, *lines, *(["Nothing was sent or remembered."] if dry_run else []), indent=2)


def _import(settings: Settings, reader: Reader, *, creates: bool) -> dict[str, Any]:
    try:
        is_trial_service(settings)
    except NoService as error:
        if not creates:
            raise click.ClickException(f"{error}; --yes creates it") from error
        make_data_dir(settings)
    counts = Counter[str](dict.fromkeys(REMEMBERED, 0))
    # The real journal remembers, even during a trial.
    with build_quietly(settings, load_config(settings), is_trial=False) as service:
        audit.warning("AUDIT import begins")
        for items in reader.batches():
            counts.update(remember(service.pipeline, items))
        audit.warning("AUDIT import ends: %d imported, %d known", counts["imported"], counts["known"])
    return {**counts, "data_dir": str(settings.data_dir.resolve())}


def _rehearse(settings: Settings, reader: Reader) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="mailonce-import-") as folder:
        alone = settings.model_copy(update={"data_dir": Path(folder), "redis_url": ""})
        with build_quietly(alone, load_config(settings), is_trial=True) as service:
            items = chain.from_iterable(reader.batches())
            counts, examples = rehearse(service.pipeline, Path(folder, "rehearsal.db"), items)
    return {**counts, "examples": examples}
