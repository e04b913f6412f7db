"""The command mailonce: what an operator does on the machine itself."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from deduplication.dates import parse_date
from deduplication.email import Email
from deduplication.errors import DeduplicationError
from deduplication.mime import parse_mime
from orchestrator.config import load_config
from orchestrator.delivery.fetching import fetch
from orchestrator.delivery.ledger.base import Wanted
from orchestrator.delivery.record import DeliveryStatus
from orchestrator.delivery.replay import Answer, How
from orchestrator.explain import shown
from orchestrator.item import email_item
from orchestrator.logs import configure_logging
from orchestrator.parts import Parts, build_parts, make_data_dir
from orchestrator.preview import preview
from orchestrator.reset import InvalidReset, Reset, Scope, reset
from orchestrator.settings import Settings, SettingsError, load_settings
from orchestrator.stats import stats
from orchestrator.tokens import ensure_tokens
from routes.providers import gmail
from routes.providers.base import InvalidPayload, Surroundings, json_object
from routes.providers.registry import TYPES, checked_config, missing_setting, open_providers
from routes.providers.samples import SampleUnavailable, curl_line, sample


class Mailonce(click.Group):
    """Wrong settings and stores that are away are told in one line, as everywhere."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (SettingsError, DeduplicationError) as error:
            raise click.ClickException(f"mailonce: {error}") from error


def time_ms(text: str) -> int:
    moment = parse_date(text)
    if moment is None:
        raise click.BadParameter("takes a time such as 2026-11-16T09:00:00Z")
    return int(moment.timestamp() * 1000)


@click.group(cls=Mailonce, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mailonce")
def main() -> None:
    """Every inbound email fires its downstream webhooks once.

    All commands take their settings from the environment, and destinations and routes from mailonce.toml.
    """


@main.command()
def serve() -> None:
    """Take emails in: the web server. SIGTERM ends it gracefully, SIGHUP reloads mailonce.toml."""
    settings = _settings()
    from routes.server import Server  # gunicorn reads the environment on import; wrong settings are told before that

    Server(settings).run()


@main.command()
@click.option("--processes", type=click.IntRange(1, 64), help="Instead of WORKER_PROCESSES.")
@click.option("--threads", type=click.IntRange(1, 256), help="For each destination; instead of WORKER_THREADS.")
def worker(processes: int | None, threads: int | None) -> None:
    """Deliver what requests have queued (QUEUE_URL). SIGTERM ends it gracefully, SIGHUP reloads mailonce.toml."""
    settings = _settings()
    given = {"worker_processes": processes, "worker_threads": threads}
    settings = settings.model_copy(update={name: value for name, value in given.items() if value})
    if not settings.queue_url:
        raise SettingsError("QUEUE_URL takes the address of a queue; without one requests deliver, and need no worker")
    from orchestrator.worker import Supervisor  # needs the extra "queue"

    Supervisor(settings).run()


@main.command()
@click.option(
    "--email", "email_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A .eml file."
)
@click.option(
    "--json", "json_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="As for /gmail."
)
def check(email_file: Path | None, json_file: Path | None) -> None:
    """Check mailonce.toml and say what it means.

    With --email or --json, say which route, names and gates that email would meet. Nothing is sent or recorded.
    """
    settings = _settings()
    config = checked_config(settings)
    click.echo(shown(config))
    email = _email_from(email_file, json_file)
    if email:
        click.echo("\n" + preview(settings, config, email_item(email, settings.ids_kept_ms)))


def _email_from(email_file: Path | None, json_file: Path | None) -> Email | None:
    if email_file:
        return parse_mime(email_file.read_bytes())
    if json_file is None:
        return None
    try:
        return gmail.parse(json_object("application/json", json_file.read_bytes()))
    except InvalidPayload as error:
        raise click.ClickException(f"{json_file}: {error}") from error


@main.command("reset")
@click.argument("scope", type=click.Choice([scope.value for scope in Scope]))
@click.argument("value", default="")
@click.option("--dry-run", is_flag=True, help="Only say how many names would be forgotten.")
@click.option("--yes", is_flag=True, help="Do not ask; needed for the scope all.")
def forget(scope: str, value: str, dry_run: bool, yes: bool) -> None:
    """Forget names, so that the emails behind them are delivered again when they come.

    \b
    mailonce reset email_id 9571d0921eaa99ffdc3caf85ec7ebae4
    mailonce reset subject_group 2026-11:lot_456 --dry-run
    """
    try:
        wanted = Reset(Scope(scope), value, dry_run)
    except InvalidReset as error:
        raise click.ClickException(str(error)) from error
    if wanted.scope is Scope.ALL and not dry_run and not yes:
        click.confirm("Forget everything? Every email that comes again is then delivered again.", abort=True)
    with _parts(_settings()) as parts:
        count = reset(parts.store, parts.ledger, wanted)
    click.echo(f"{count} names {'would be ' if dry_run else ''}forgotten")


@main.command()
@click.argument("ids", nargs=-1)
@click.option(
    "--status",
    type=click.Choice([status.value for status in DeliveryStatus]),
    help="Without ids: which ones. Default: dead.",
)
@click.option("--destination", help="Only this destination.")
@click.option("--since", type=time_ms, metavar="TIME", help="Only those that came in at this time or later.")
@click.option("--until", type=time_ms, metavar="TIME", help="Only those that came in before this time.")
@click.option("--force", is_flag=True, help="Also what the destination has already.")
@click.option("--new-id", is_flag=True, help="Under a new webhook-id: the receiver takes it for another one.")
@click.option("--dry-run", is_flag=True, help="Only say what would be sent again.")
def replay(ids: tuple[str, ...], **options: Any) -> None:
    """Send deliveries again: those given, or all that fit. The running service or worker sends them.

    \b
    mailonce replay msg_5f0c...
    mailonce replay --destination crm --since 2026-11-01T00:00:00Z --dry-run
    """
    how = How(options["force"], options["new_id"], options["dry_run"])
    status = DeliveryStatus(options["status"] or DeliveryStatus.DEAD)
    with _parts(_settings()) as parts:
        wanted = Wanted(status, options["destination"], options["since"], options["until"])
        chosen = list(ids) or [delivery.id for delivery in parts.ledger.find(wanted)]
        with click.progressbar(chosen, label="Dry run" if how.dry_run else "Replaying", file=sys.stderr) as progress:
            answers = Counter(parts.replays.replay(delivery_id, how) for delivery_id in progress)
    for answer in Answer:
        if answers[answer]:
            click.echo(f"{answer}: {answers[answer]}")
    if not answers:
        click.echo("nothing to replay")
    if ids and answers[Answer.REPLAYED] < len(ids):
        sys.exit(1)


@main.command("stats")
def numbers() -> None:
    """How each destination is: breaker, and deliveries by status, as JSON."""
    with _parts(_settings()) as parts:
        click.echo(json.dumps(stats(parts), indent=2))


@main.command()
def locks() -> None:
    """The publication locks that are active now: who delivers what, where, until when."""
    with _parts(_settings()) as parts:
        active = parts.locks.active_locks()
    for lock in active:
        click.echo(f"{lock.id}  {lock.server_id}  until {lock.expires.isoformat(timespec='seconds')}")
    click.echo(f"{len(active)} active locks", err=True)


@main.command("sample")
@click.argument("provider")
@click.option("--url", help="Where the service is. Default: HOST and PORT.")
def signed_sample(provider: str, url: str | None) -> None:
    """Print a signed sample request of a provider, as a curl line that works against the running service.

    \b
    mailonce sample mailgun | sh
    """
    settings = _settings()
    config = load_config(settings)
    make_data_dir(settings)
    opened = open_providers(config, Surroundings(ensure_tokens(settings).ingress, fetch))
    if provider not in opened:
        known = f"; {missing_setting(provider)}" if provider in TYPES else ""
        raise click.ClickException(f"provider takes one of {', '.join(sorted(opened))}{known}")
    try:
        request = sample(opened[provider], datetime.now(UTC))
    except SampleUnavailable as error:
        raise click.ClickException(str(error)) from error
    click.echo(curl_line(request, url or settings.address))


def _settings() -> Settings:
    settings = load_settings()
    configure_logging(settings.log_level)
    return settings


@contextmanager
def _parts(settings: Settings) -> Iterator[Parts]:
    configure_logging("ERROR")
    parts = build_parts(settings, load_config(settings))
    try:
        yield parts
    finally:
        parts.close()
