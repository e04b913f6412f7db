"""The command mailonce: what an operator does on the machine itself."""

from __future__ import annotations

import getpass
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from deduplication.claims import Gate
from deduplication.dates import parse_date
from deduplication.email import Email
from deduplication.errors import DeduplicationError
from deduplication.journal.base import Released, Replayed
from deduplication.journal.entry import DeliveryStatus
from deduplication.mime import parse_mime
from orchestrator.audit import audit, keep_audit
from orchestrator.build import Parts, build_parts, check_start
from orchestrator.config.model import Config, load_config
from orchestrator.config.settings import Settings, SettingsError, load_settings, log_where_settings_come_from
from orchestrator.delivery.fetching import fetch
from orchestrator.delivery.signing import new_secret, public_keys
from orchestrator.intake import Status
from orchestrator.item import Item, email_item
from orchestrator.logs import configure_logging
from orchestrator.operations.check import judged, preview
from orchestrator.operations.decision_index import GATES, Filter
from orchestrator.operations.decisions import (
    WOULD_RELEASE,
    ReleaseHow,
    list_decisions,
    read_decision,
    release,
    release_matching,
    shown_in_full,
)
from orchestrator.operations.decisions import shown as shown_decision
from orchestrator.operations.deliveries import (
    WOULD_REPLAY,
    Counts,
    How,
    Wanted,
    delivery_id,
    find_deliveries,
    read_page,
)
from orchestrator.operations.deliveries import replay as replay_delivery
from orchestrator.operations.destinations import InvalidPause
from orchestrator.operations.destinations import pause as pause_destination
from orchestrator.operations.destinations import resume as resume_destination
from orchestrator.operations.explain import shown
from orchestrator.operations.figures import Span, shown_figures
from orchestrator.operations.reset import InvalidReset, Reset, Scope, reset
from orchestrator.operations.words import shown_duration
from orchestrator.service_note import NoService, check_same_redis, find_service
from orchestrator.tokens import ensure_tokens
from routes.providers import gmail
from routes.providers.base import InvalidPayload, Surroundings, json_object, sound
from routes.providers.registry import TYPES, checked_config, missing_setting, open_providers
from routes.providers.samples import SampleUnavailable, curl_line, sample
from routes.terminal import stats_table, table

WATCHED_EVERY_S = 2.0


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

    All commands take their settings from the environment and .env, and destinations and routes from mailonce.toml.
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
    config = load_config(settings)
    check_start(settings, config)
    from orchestrator.worker import Supervisor  # needs the extra "queue"
    from routes.metrics import serving_metrics  # Flask, which no other command needs

    with serving_metrics(settings, config):
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

    With --email or --json, say which route, names and gates that email would meet, which of its names are taken in the
    store of the service, and what would become of it now. Nothing is sent or recorded.
    """
    settings = _settings()
    config = checked_config(settings)
    click.echo(shown(config))
    email = _email_from(email_file, json_file)
    if email:
        item = email_item(email, settings.ids_kept_ms)
        click.echo("\n" + preview(settings, config, item))
        click.echo(_judged(settings, config, item))


def _judged(settings: Settings, config: Config, item: Item) -> str:
    try:
        note = find_service(settings)
    except NoService as error:
        return f"would be new: {error}"
    check_same_redis(note, settings)
    settings = settings.model_copy(update={"data_dir": Path(note.data_dir)})
    with _opened(settings, config.in_trial(note.is_trial)) as parts:
        return judged(parts, item)


def _email_from(email_file: Path | None, json_file: Path | None) -> Email | None:
    """Read as the doors for such a file read it, and refused where they refuse it."""
    try:
        if email_file:
            return sound(parse_mime(email_file.read_bytes()))
        return gmail.parse(json_object("application/json", json_file.read_bytes())) if json_file else None
    except InvalidPayload as error:
        raise click.ClickException(f"{email_file or json_file} would be refused: {error}") from error


@main.command("reset")
@click.argument("scope", type=click.Choice([scope.value for scope in Scope]))
@click.argument("value", default="")
@click.option("--dry-run", is_flag=True, help="Only say how many names would be forgotten.")
@click.option("--yes", is_flag=True, help="Do not ask; needed for the scope all.")
def forget(scope: str, value: str, dry_run: bool, yes: bool) -> None:
    """Forget names, so that the emails behind them are delivered again when they come.

    \b
    mailonce reset email_id fe4fc385494173f61585825e95d25317
    mailonce reset subject_group 2026-11:lot_456 --dry-run
    """
    try:
        wanted = Reset(Scope(scope), value, dry_run)
    except InvalidReset as error:
        raise click.ClickException(str(error)) from error
    if wanted.scope is Scope.ALL and not dry_run and not yes:
        click.confirm("Forget everything? Every email that comes again is then delivered again.", abort=True)
    with _parts() as parts:
        done = reset(parts.journal, wanted)
    click.echo(f"{done.names} names {'would be ' if dry_run else ''}forgotten")
    if done.kept:
        click.echo(f"{len(done.kept)} emails kept: still to be delivered")


@main.command()
@click.option("--status", type=click.Choice([status.value for status in DeliveryStatus]), help="Only these.")
@click.option("--destination", help="Only this destination.")
@click.option("--since", type=time_ms, metavar="TIME", help="Only those that came in at this time or later.")
@click.option("--until", type=time_ms, metavar="TIME", help="Only those that came in before this time.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="All that is known of them, as JSON.")
def deliveries(limit: int, as_json: bool, **options: Any) -> None:
    """What was sent where, what waits and why, and what is dead.

    What waits is in the order of its next try, what is dead in that of its death, all else by when it came in.

    \b
    mailonce deliveries --status waiting
    mailonce deliveries --status dead --destination crm --since 2026-11-01T00:00:00Z
    """
    status = DeliveryStatus(options["status"]) if options["status"] else None
    wanted = Wanted(status, options["destination"], options["since"], options["until"])
    with _parts() as parts:
        page = read_page(parts, wanted, limit)
    if as_json:
        click.echo(json.dumps({"deliveries": page["deliveries"], "more": page["more"]}, indent=2))
        return
    rows = [
        (
            each["id"],
            each["destination"],
            each["status"],
            f"{each['tries']}/{each['max_attempts'] or '?'}",
            shown_duration(each["age_s"]),
            (each["next_try"] or "-")[:19],
            each["reason"] or "",
        )
        for each in page["deliveries"]
    ]
    heads = ("ID", "DESTINATION", "STATUS", "TRIES", "AGE", "NEXT TRY (UTC)", "REASON")
    if rows:
        click.echo(table(heads, rows))
    more = f"; there are more, --limit {limit} was reached" if page["more"] else ""
    click.echo(f"{len(rows)} deliveries{more}", err=True)


@main.command()
@click.argument("ids", nargs=-1)
@click.option(
    "--status",
    type=click.Choice([status.value for status in DeliveryStatus]),
    help="Without ids: which ones. Default: dead.",
)
@click.option("--all", "everything", is_flag=True, help="All of that status, where neither ids nor a filter are given.")
@click.option("--destination", help="Only this destination.")
@click.option("--since", type=time_ms, metavar="TIME", help="Only those that came in at this time or later.")
@click.option("--until", type=time_ms, metavar="TIME", help="Only those that came in before this time.")
@click.option("--force", is_flag=True, help="Also what the destination has already.")
@click.option("--new-id", is_flag=True, help="Under a new webhook-id: the receiver takes it for another one.")
@click.option("--dry-run", is_flag=True, help="Only say what would be sent again.")
def replay(ids: tuple[str, ...], everything: bool, **options: Any) -> None:
    """Send deliveries again: those given, or all that fit. The running service or worker sends them.

    What waits is tried now, and its schedule begins anew; what is under way is left alone.

    \b
    mailonce replay k3v7c2m9x4qa:crm
    mailonce replay --destination crm --since 2026-11-01T00:00:00Z --dry-run
    mailonce replay --status waiting
    """
    how = How(options["force"], options["new_id"], options["dry_run"])
    has_filter = any(options[name] for name in ("status", "destination", "since", "until"))
    _check_aim(is_aimed=bool(ids) or has_filter, everything=everything, dry_run=how.dry_run)
    status = DeliveryStatus(options["status"] or DeliveryStatus.DEAD)
    with _parts() as parts:
        wanted = Wanted(status, options["destination"], options["since"], options["until"])
        found = () if ids else find_deliveries(parts.journal, wanted)
        chosen = [*ids, *(delivery_id(each.entry.id, each.delivery.destination) for each in found)]
        with click.progressbar(chosen, label="Dry run" if how.dry_run else "Replaying", file=sys.stderr) as progress:
            answers = Counter(replay_delivery(parts.journal, id_, how, parts.sources.new_token) for id_ in progress)
    for answer, count in answers.items():
        click.echo(f"{answer.replace('_', ' ')}: {count}")
    if not answers:
        click.echo("nothing to replay")
    if ids and answers[Replayed.REPLAYED] + answers[WOULD_REPLAY] < len(ids):
        sys.exit(1)


def _filtered(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which decisions."""
    statuses, gates = [status.value for status in Status], [gate.value for gate in GATES]
    options = (
        click.option("--status", type=click.Choice(statuses), help="Only these."),
        click.option("--gate", type=click.Choice(gates), help="Only what was stopped there."),
        click.option("--provider", help="Only of this provider."),
        click.option("--destination", help="Only those for this destination."),
        click.option("-q", "--search", "q", help="A part of the sender or subject; or an id, email id or Message-ID."),
        click.option("--since", type=time_ms, metavar="TIME", help="Only those that came in at this time or later."),
        click.option("--until", type=time_ms, metavar="TIME", help="Only those that came in before this time."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _check_aim(*, is_aimed: bool, everything: bool, dry_run: bool) -> None:
    """Nothing is done to everything because a filter was forgotten, here as by HTTP."""
    if is_aimed and everything:
        raise click.UsageError("--all takes neither ids nor a filter beside it.")
    if not (is_aimed or everything or dry_run):
        raise click.UsageError("Give ids, a filter such as --destination, or --all.")


def _filter(options: dict[str, Any]) -> Filter:
    status, gate = options["status"], options["gate"]
    texts = {name: options[name] or None for name in ("provider", "destination", "q")}
    return Filter(
        Status(status) if status else None,
        Gate(gate) if gate else None,
        **texts,
        since_ms=options["since"],
        until_ms=options["until"],
    )


@main.command("decisions")
@_filtered
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="All that is known of them, as JSON.")
def decided(limit: int, as_json: bool, **options: Any) -> None:
    """What became of each email and why, the newest first.

    \b
    mailonce decisions --gate subject_group
    mailonce decisions -q ada@example.org --since 2026-11-01T00:00:00Z
    """
    with _parts() as parts:
        page = list_decisions(parts, _filter(options), limit)
    found = [shown_decision(each) for each in page.decisions]
    if as_json:
        click.echo(json.dumps({"decisions": found, "more": page.next is not None}, indent=2))
        return
    rows = [
        (each["received_at"][:19], each["id"], each["status"], _one_line(each["sender"]), each["reason"])
        for each in found
    ]
    if rows:
        click.echo(table(("CAME IN (UTC)", "ID", "STATUS", "FROM", "REASON"), rows))
    more = f"; there are more, --limit {limit} was reached" if page.next else ""
    click.echo(f"{len(rows)} decisions{more}", err=True)


def _one_line(text: str) -> str:
    """What a sender wrote must not move the cursor of a terminal."""
    return "".join(each if each.isprintable() else " " for each in text)


@main.command()
@click.argument("text", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="All that is known of it, with its payload, as JSON.")
def why(text: str, as_json: bool) -> None:
    """Say what became of an email and why. ID is its id, its email id or its Message-ID.

    \b
    mailonce why k3v7c2m9x4qa
    mailonce why "<CAF=1@mail.example.org>"
    """
    with _parts() as parts:
        found = read_decision(parts, text)
        shown_whole = shown_in_full(parts, found) if found else None
    if shown_whole is None:
        raise click.ClickException("no email is known by that id, or it is no longer kept")
    if as_json:
        click.echo(json.dumps(shown_whole, indent=2))
        return
    click.echo(_one_line(f"{shown_whole['reason']}."))
    told = {
        "id": shown_whole["id"],
        "email id": shown_whole["email_id"],
        "status": shown_whole["status"],
        "came in": shown_whole["received_at"],
        "by": f"{shown_whole['provider']}, route {shown_whole['route']}",
        "from": shown_whole["sender"],
        "subject": shown_whole["subject"],
        "repeats": shown_whole["original"],
        "names": ", ".join(name["name"] for name in shown_whole["names"]),
        "releasable until": shown_whole["releasable_until"],
    }
    for name, value in told.items():
        if value:
            click.echo(f"  {name:18} {_one_line(str(value))}")
    for gate in shown_whole["gates"]:
        click.echo(f"  gate {gate['gate']:13} {_one_line(gate['said'])}")
    for delivery in shown_whole["deliveries"]:
        click.echo(
            f"  to {delivery['destination']:15} {delivery['status']}, attempts kept: {len(delivery['attempts'])}"
        )


@main.command("release")
@click.argument("ids", nargs=-1)
@_filtered
@click.option("--force", is_flag=True, help="Also where the same email was delivered under another id.")
@click.option("--dry-run", is_flag=True, help="Only say what would be released.")
@click.option(
    "--all", "everything", is_flag=True, help="All that were stopped, where neither ids nor a filter are given."
)
def let_go(ids: tuple[str, ...], force: bool, dry_run: bool, everything: bool, **options: Any) -> None:
    """Send after all what a gate stopped: those given, or all that fit. The running service or worker sends them.

    \b
    mailonce release k3v7c2m9x4qa
    mailonce release --gate subject_group -q "lot 456" --dry-run
    """
    how, wanted = ReleaseHow(force, dry_run), _filter(options)
    _check_aim(is_aimed=bool(ids) or wanted != Filter(), everything=everything, dry_run=dry_run)
    with _parts() as parts:
        if ids:
            answers = Counter(release(parts, id_, how, _user()) for id_ in ids)
        else:
            answers = Counter(answer for _, answer in release_matching(parts, wanted, how, _user()))
    for answer, count in answers.items():
        click.echo(f"{answer.replace('_', ' ')}: {count}")
    if not answers:
        click.echo("nothing to release")
    if ids and answers[Released.RELEASED] + answers[WOULD_RELEASE] < len(ids):
        sys.exit(1)


@main.command()
@click.argument("destination")
@click.option("--reason", default="", help="Why, for whoever looks.")
def pause(destination: str, reason: str) -> None:
    """Send nothing to a destination until it is resumed: on every server, also over restarts. What comes for it waits.

    \b
    mailonce pause crm --reason "moves to another host"
    """
    with _parts() as parts, _told_what_it_takes():
        pause_destination(parts, destination, reason, _user())
    click.echo(f"{destination} is paused; what comes for it waits until: mailonce resume {destination}")


@main.command()
@click.argument("destination")
def resume(destination: str) -> None:
    """Send to a paused destination again; what waits for it goes out."""
    with _parts() as parts, _told_what_it_takes():
        state = resume_destination(parts, destination, _user())
    click.echo(f"{destination} {'is resumed; what waits for it goes out' if state else 'was not paused'}")


@contextmanager
def _told_what_it_takes() -> Iterator[None]:
    try:
        yield
    except InvalidPause as error:
        raise click.ClickException(str(error)) from error


@main.command("stats")
@click.option(
    "--span",
    type=click.Choice([span.value for span in Span]),
    default=Span.DAY.value,
    show_default=True,
    help="So far back.",
)
@click.option("--json", "as_json", is_flag=True, help="As GET /api/admin/stats has it.")
@click.option("--watch", is_flag=True, help="Show it again every two seconds, until Ctrl+C.")
def numbers(span: str, as_json: bool, watch: bool) -> None:
    """What came, what was delivered, stopped or failed, what waits, and how each destination is.

    \b
    mailonce stats --span week
    mailonce stats --watch
    """
    with _parts() as parts, suppress(KeyboardInterrupt):
        counts = Counts(parts.journal)
        while True:
            figures = shown_figures(parts, counts, Span(span))
            text = json.dumps(figures, indent=None if watch else 2) if as_json else stats_table(figures)
            if watch and not as_json:
                click.clear()
            click.echo(text)
            if not watch:
                return
            time.sleep(WATCHED_EVERY_S)


@main.command()
def locks() -> None:
    """The publication locks that are active now: who delivers what, where, until when."""
    with _parts() as parts:
        active = parts.locks.active_locks()
    for lock in active:
        click.echo(f"{lock.id}  {lock.server_id}  until {lock.expires.isoformat(timespec='seconds')}")
    click.echo(f"{len(active)} active locks", err=True)


@main.command("sample")
@click.argument("provider", default="")
@click.option("--url", help="Where the service is. Default: HOST and PORT.")
def signed_sample(provider: str, url: str | None) -> None:
    """Print a signed sample request of a provider, as a curl line that works against the running service.

    \b
    mailonce sample mailgun | sh
    """
    if not provider:
        raise click.UsageError(f"provider takes one of {', '.join(TYPES)}, or another name from mailonce.toml")
    settings = _settings()
    if not settings.ingress_token:
        settings, _ = _of_service(settings)
    config = load_config(settings)
    opened = open_providers(config, Surroundings(ensure_tokens(settings).ingress, fetch))
    if provider not in opened:
        known = f"; {missing_setting(provider)}" if provider in TYPES else ""
        raise click.ClickException(f"provider takes one of {', '.join(sorted(opened))}{known}")
    try:
        request = sample(opened[provider], datetime.now(UTC))
    except SampleUnavailable as error:
        raise click.ClickException(str(error)) from error
    click.echo(curl_line(request, url or settings.address))


@main.command("new-secret")
@click.option("--private", is_flag=True, help="An ed25519 key: the receiver gets its public key, and cannot sign.")
def show_new_secret(private: bool) -> None:
    """Print a new secret to sign webhooks with: for `secret` of a destination, and for its receiver.

    \b
    mailonce new-secret
    mailonce new-secret --private
    """
    secret = new_secret(is_private=private)
    click.echo(secret)
    for key in public_keys([secret]):
        click.echo(f"{key}  (public: this one goes to the receiver)", err=True)


def _settings() -> Settings:
    settings = load_settings()
    configure_logging(settings.log_level, settings.log_format)
    log_where_settings_come_from()
    return settings


@contextmanager
def _parts() -> Iterator[Parts]:
    """On the journal of the service, and with what is done to it in the service's audit.log."""
    settings, config = _of_service(_settings())
    handler = keep_audit(settings.data_dir, by=f"mailonce, by {_user()}")
    try:
        with _opened(settings, config) as parts:
            yield parts
    finally:
        audit.removeHandler(handler)
        handler.close()


def _of_service(here: Settings) -> tuple[Settings, Config]:
    """As the service has them: its .env and its mailonce.toml are where it was started."""
    note = find_service(here)
    given = {"mailonce_config": here.mailonce_config.resolve()} if here.mailonce_config else {}
    if Path(note.folder) != Path.cwd():
        click.echo(f"mailonce: on the service in {note.data_dir}, started in {note.folder}", err=True)
        with suppress(OSError):
            os.chdir(note.folder)
    settings = load_settings(data_dir=Path(note.data_dir), **given)
    check_same_redis(note, settings)
    return settings, load_config(settings).in_trial(note.is_trial)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())


@contextmanager
def _opened(settings: Settings, config: Config) -> Iterator[Parts]:
    """Without the lines that a service logs when it starts."""
    log, level = logging.getLogger(), logging.getLogger().level
    log.setLevel(logging.ERROR)
    parts = build_parts(settings, config, slot="command")  # what it delivers counts, too
    try:
        yield parts
    finally:
        parts.close()
        log.setLevel(level)
