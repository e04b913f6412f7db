"""mailonce check: what mailonce.toml means, and what would happen to an email."""

from __future__ import annotations

from pathlib import Path

import click

from deduplication.mime import parse_mime
from orchestrator.item import email_item
from orchestrator.operations.check import describe_config, predict, preview
from orchestrator.service_note import NoService, find_service
from routes.commands.service import build_quietly, read_settings
from routes.payload import InvalidPayload, parse_json
from routes.providers import gmail
from routes.providers.base import require_email
from routes.providers.registry import checked_config

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--email", "email_file", type=_FILE, help="A .eml file.")
@click.option("--json", "json_file", type=_FILE, help="A JSON file, as sent to /api/ingress/gmail.")
def check(email_file: Path | None, json_file: Path | None) -> None:
    """Check mailonce.toml and explain it.

    With --email or --json, show the route, names and gates of that email, which of its names are taken in the journal
    of the service, and what would happen to it now. Nothing is sent or recorded.
    """
    settings = read_settings()
    config = checked_config(settings)
    click.echo(describe_config(config))
    try:
        if email_file:
            email = require_email(parse_mime(email_file.read_bytes()))
        elif json_file:
            email = gmail.parse(parse_json(json_file.read_bytes()))
        else:
            return
    except InvalidPayload as error:
        raise click.ClickException(f"{email_file or json_file} would be refused: {error}") from error
    item = email_item(email, settings.ids_kept_ms)
    click.echo("\n" + preview(settings, config, item))
    try:
        note = find_service(settings)
    except NoService as error:
        click.echo(f"would be new: {error}")
    else:
        with build_quietly(settings, config, is_trial=note.is_trial) as service:
            click.echo(predict(service, item))
