"""mailonce check, stats, pause and resume: how the service is doing, and what it would do with an email."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from deduplication.email import Email
from deduplication.mime import parse_mime
from orchestrator.config.model import Config
from orchestrator.config.settings import Settings
from orchestrator.item import Item, email_item
from orchestrator.operations.check import judged, preview
from orchestrator.operations.destinations import InvalidPause
from orchestrator.operations.destinations import pause as pause_destination
from orchestrator.operations.destinations import resume as resume_destination
from orchestrator.operations.explain import shown
from orchestrator.operations.figures import Span
from orchestrator.operations.figures import stats as read_stats
from orchestrator.service_note import NoService, find_service
from routes.commands.service import open_service, opened, read_settings, user_name
from routes.providers import gmail
from routes.providers.base import InvalidPayload, json_object, sound
from routes.providers.registry import checked_config
from routes.terminal import stats_table

WATCHED_EVERY_S = 2.0
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--email", "email_file", type=_FILE, help="A .eml file.")
@click.option("--json", "json_file", type=_FILE, help="As for /gmail.")
def check(email_file: Path | None, json_file: Path | None) -> None:
    """Check mailonce.toml and explain it.

    With --email or --json, show the route, names and gates of that email, which of its names are taken in the journal
    of the service, and what would happen to it now. Nothing is sent or recorded.
    """
    settings = read_settings()
    config = checked_config(settings)
    click.echo(shown(config))
    email = _read_email(email_file, json_file)
    if email:
        item = email_item(email, settings.ids_kept_ms)
        click.echo("\n" + preview(settings, config, item))
        click.echo(_judged(settings, config, item))


def _judged(settings: Settings, config: Config, item: Item) -> str:
    try:
        note = find_service(settings)
    except NoService as error:
        return f"would be new: {error}"
    with opened(settings, config.in_trial(note.is_trial)) as service:
        return judged(service, item)


def _read_email(email_file: Path | None, json_file: Path | None) -> Email | None:
    """Read and refused as the endpoints for such a file do it."""
    try:
        if email_file:
            return sound(parse_mime(email_file.read_bytes()))
        return gmail.parse(json_object("application/json", json_file.read_bytes())) if json_file else None
    except InvalidPayload as error:
        raise click.ClickException(f"{email_file or json_file} would be refused: {error}") from error


@click.command()
@click.argument("destination")
@click.option("--reason", default="", help="Reason (visible to operators).")
def pause(destination: str, reason: str) -> None:
    """Send nothing to a destination until it is resumed, on any server. New emails for it are queued.

    \b
    mailonce pause crm --reason "moves to another host"
    """
    with open_service() as service, _one_line_errors():
        pause_destination(service, destination, reason, user_name())
    click.echo(f"{destination} is paused; new emails for it are queued until: mailonce resume {destination}")


@click.command()
@click.argument("destination")
def resume(destination: str) -> None:
    """Send to a paused destination again, starting with what waits for it."""
    with open_service() as service, _one_line_errors():
        was_paused = resume_destination(service, destination, user_name())
    click.echo(f"{destination} {'is resumed; what waits for it is sent' if was_paused else 'was not paused'}")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except InvalidPause as error:
        raise click.ClickException(str(error)) from error


@click.command()
@click.option(
    "--span", type=click.Choice(list(map(str, Span))), default=str(Span.DAY), show_default=True, help="How far back."
)
@click.option("--json", "as_json", is_flag=True, help="As GET /api/admin/stats has it.")
@click.option("--watch", is_flag=True, help="Show it again every two seconds, until Ctrl+C.")
def stats(span: str, as_json: bool, watch: bool) -> None:
    """What was received, delivered, stopped and failed, what waits, and the state of each destination.

    \b
    mailonce stats --span week
    mailonce stats --watch
    """
    with open_service() as service, suppress(KeyboardInterrupt):
        while True:
            figures = read_stats(service, Span(span))
            text = json.dumps(figures, indent=None if watch else 2) if as_json else stats_table(figures)
            if watch and not as_json:
                click.clear()
            click.echo(text)
            if not watch:
                return
            time.sleep(WATCHED_EVERY_S)
