"""Commands on emails: decisions, why, deliveries, release, replay, reset. They use the models of the API."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import click
from pydantic import BaseModel

from deduplication.journal.entry import DeliveryStatus
from orchestrator.operations.decisions import (
    GATES,
    RELEASED,
    WOULD_RELEASE,
    Release,
    list_decisions,
    read_decision,
    release,
    release_matching,
)
from orchestrator.operations.deliveries import (
    REPLAYED,
    WOULD_REPLAY,
    Replay,
    list_deliveries,
    replay,
    replay_matching,
    shown_time,
)
from orchestrator.operations.reset import Reset, Scope, reset
from orchestrator.operations.search import DecisionFilter, DeliveryFilter
from orchestrator.operations.words import shown_duration
from orchestrator.pipeline import Status
from routes.commands.service import open_service, user_name
from routes.providers.base import InvalidPayload
from routes.questions import MOST_LISTED, ReleaseMany, ReplayMany, only, read
from routes.terminal import one_line, table

AT_MOST = click.IntRange(1, MOST_LISTED)


def _filtered(statuses: list[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options of a filter."""
    options = (
        click.option("--status", type=click.Choice(statuses), help="Only this status."),
        click.option("--gate", type=click.Choice([gate.value for gate in GATES]), help="Only emails it stopped."),
        click.option("--provider", help="Only from this provider."),
        click.option("--route", help="Only by this route."),
        click.option("--destination", help="Only for this destination."),
        click.option("--sender", help="A part of the sender."),
        click.option("-q", "--search", "q", help="Words of sender and subject; or an id, Message-ID or webhook-id."),
        click.option("--since", metavar="TIME", help="Only emails received at this time or later."),
        click.option("--until", metavar="TIME", help="Only emails received before this time."),
    )

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


of_decisions = _filtered([status.value for status in Status])
of_deliveries = _filtered([status.value for status in DeliveryStatus])


def _read(model: type[Any], options: dict[str, Any]) -> Any:
    """As by HTTP, with the words of a command line."""
    try:
        return read(model, {name: value for name, value in options.items() if value})
    except InvalidPayload as error:
        raise click.UsageError(f"--{error}") from error


def _print(found: BaseModel, as_json: bool, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], more: str) -> None:
    if as_json:
        click.echo(json.dumps(found.model_dump(mode="json", exclude={"next"}), indent=2))
        return
    if rows:
        click.echo(table(heads, rows))
    click.echo(f"{len(rows)} {more}", err=True)


@click.command()
@of_decisions
@click.option("--limit", type=AT_MOST, default=50, show_default=True, help="At most this many.")
@click.option("--json", "as_json", is_flag=True, help="All fields, as JSON.")
def decisions(limit: int, as_json: bool, **options: Any) -> None:
    """Show what happened to each email and why, newest first.

    \b
    mailonce decisions --gate subject_group
    mailonce decisions -q ada@example.org --since 2026-11-01T00:00:00Z
    """
    wanted = _read(DecisionFilter, options)
    with open_service() as service:
        page = list_decisions(service, wanted, limit)
    rows = [
        (shown_time(each.received_at)[:19], each.id, each.status, one_line(each.sender), one_line(each.reason))
        for each in page.decisions
    ]
    more = f"; there are more than --limit {limit}" if page.more else ""
    _print(page, as_json, ("RECEIVED (UTC)", "ID", "STATUS", "FROM", "REASON"), rows, f"decisions{more}")


@click.command()
@of_deliveries
@click.option("--limit", type=AT_MOST, default=100, show_default=True, help="At most this many.")
@click.option("--json", "as_json", is_flag=True, help="All fields, as JSON.")
def deliveries(limit: int, as_json: bool, **options: Any) -> None:
    """Show what was sent where, what waits and why, and what is dead.

    Waiting deliveries are ordered by their next attempt, dead ones by their end, all others by receipt of the email.

    \b
    mailonce deliveries --status waiting
    mailonce deliveries --status dead --destination crm --since 2026-11-01T00:00:00Z
    """
    wanted = _read(DeliveryFilter, options)
    with open_service() as service:
        page = list_deliveries(service, wanted, limit)
    rows = [
        (
            each.id,
            each.destination,
            each.status,
            f"{each.tries}/{each.max_attempts or '?'}",
            shown_duration(each.age_s),
            shown_time(each.next_try)[:19] if each.next_try is not None else "-",
            one_line(each.reason or ""),
        )
        for each in page.deliveries
    ]
    more = f"; there are more than --limit {limit}" if page.more else ""
    heads = ("ID", "DESTINATION", "STATUS", "TRIES", "AGE", "NEXT TRY (UTC)", "REASON")
    _print(page, as_json, heads, rows, f"deliveries{more}")


@click.command()
@click.argument("text", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="All fields and the payload, as JSON.")
def why(text: str, as_json: bool) -> None:
    """Say what happened to an email and why. ID is its id, email id or Message-ID, or a webhook-id.

    \b
    mailonce why k3v7c2m9x4qa
    mailonce why "<CAF=1@mail.example.org>"
    """
    with open_service() as service:
        found = read_decision(service, text)
    if found is None:
        raise click.ClickException("no email is known by that id, or it is no longer stored")
    if as_json:
        click.echo(json.dumps(found.model_dump(mode="json"), indent=2))
        return
    click.echo(one_line(f"{found.reason}."))
    facts = {
        "id": found.id,
        "email id": found.email_id,
        "status": found.status,
        "received": shown_time(found.received_at),
        "by": f"{found.provider}, route {found.route}",
        "from": found.sender,
        "subject": found.subject,
        "repeats": found.original,
        "names": ", ".join(each.name for each in found.names),
        "releasable until": found.releasable_until and shown_time(found.releasable_until),
        "payload on": found.payload_machine and f"machine {found.payload_machine}",
    }
    for name, value in facts.items():
        if value:
            click.echo(f"  {name:18} {one_line(value)}")
    for report in found.gates:
        click.echo(f"  gate {report.gate:13} {one_line(report.said)}")
    for each in found.deliveries:
        click.echo(f"  to {each.destination:15} {each.status}, attempts: {len(each.attempts)}")


def _report(answers: Counter[str], given: tuple[str, ...], good: tuple[str, ...], nothing: str) -> None:
    """One line for each result; exit code 1 if one of the given ids was refused."""
    for answer, count in answers.items():
        click.echo(f"{answer.replace('_', ' ')}: {count}")
    if not answers:
        click.echo(nothing)
    if given and sum(answers[each] for each in good) < len(given):
        sys.exit(1)


def _check_ids(ids: tuple[str, ...], model: type[Any], options: dict[str, Any]) -> Any:
    """None if ids are given; otherwise the request by filter. Never both, and everything only with --all."""
    if not ids:
        return _read(model, options)
    if any(value for name, value in options.items() if name not in ("force", "new_id", "dry_run")):
        raise click.UsageError("Give either ids or a filter.")
    return None


def _how(model: type[Any], options: dict[str, Any]) -> Any:
    return model(**{name: options[name] for name in model.model_fields})


@click.command("release")
@click.argument("ids", nargs=-1)
@of_decisions
@click.option("--force", is_flag=True, help="Even if the same email was delivered under another id.")
@click.option("--dry-run", is_flag=True, help="Only say what would be released.")
@click.option("--all", is_flag=True, help="All emails that were stopped.")
def release_emails(ids: tuple[str, ...], **options: Any) -> None:
    """Release suppressed emails: the given IDs, or all matching the filters. The running service sends them.

    \b
    mailonce release k3v7c2m9x4qa
    mailonce release --gate subject_group -q "lot 456" --dry-run
    """
    asked, how, by = _check_ids(ids, ReleaseMany, options), _how(Release, options), user_name()
    with open_service() as service:
        if asked:
            answers = release_matching(service, only(DecisionFilter, asked), how, by)
        else:
            answers = Counter(release(service, id_, how, by) for id_ in ids)
    _report(answers, ids, (RELEASED, WOULD_RELEASE), "nothing to release")


@click.command("replay")
@click.argument("ids", nargs=-1)
@of_deliveries
@click.option("--force", is_flag=True, help="Include deliveries already received.")
@click.option("--new-id", is_flag=True, help="With a new webhook-id: the receiver sees another event.")
@click.option("--dry-run", is_flag=True, help="Only say what would be sent again.")
@click.option("--all", is_flag=True, help="All dead deliveries.")
def replay_deliveries(ids: tuple[str, ...], **options: Any) -> None:
    """Send deliveries again: the given IDs, or all matching the filters (dead ones, unless --status says otherwise).

    The running service or worker sends them; waiting ones are attempted at once, those in progress are left alone.

    \b
    mailonce replay k3v7c2m9x4qa:crm
    mailonce replay --destination crm --since 2026-11-01T00:00:00Z --dry-run
    mailonce replay --status waiting
    """
    asked, how = _check_ids(ids, ReplayMany, options), _how(Replay, options)
    with open_service() as service:
        if asked:
            wanted = only(DeliveryFilter, asked)
            dead = {"status": wanted.status or DeliveryStatus.DEAD}
            answers = replay_matching(service, wanted.model_copy(update=dead), how)
        else:
            answers = Counter(replay(service, id_, how) for id_ in ids)
    _report(answers, ids, (REPLAYED, WOULD_REPLAY), "nothing to replay")


@click.command("reset")
@click.argument("scope", type=click.Choice([scope.value for scope in Scope]))
@click.argument("value", default="")
@click.option("--dry-run", is_flag=True, help="Only say how many names would be forgotten.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation of the scope all.")
def reset_names(scope: str, value: str, dry_run: bool, yes: bool) -> None:
    """Forget names, so that the emails behind them are delivered again when they are received again.

    \b
    mailonce reset email_id fe4fc385494173f61585825e95d25317
    mailonce reset subject_group 2026-11:lot_456 --dry-run
    """
    try:
        wanted = read(Reset, {"scope": scope, "value": value, "dry_run": dry_run})
    except InvalidPayload as error:
        raise click.ClickException(str(error)) from error
    if wanted.scope is Scope.ALL and not dry_run and not yes:
        click.confirm("Forget everything? Every email that is received again is then delivered again.", abort=True)
    with open_service() as service:
        done = reset(service.coordinator, wanted)
    click.echo(f"{done.names} names {'would be ' if dry_run else ''}forgotten")
    if done.kept:
        click.echo(f"{len(done.kept)} emails kept: still to be delivered")
    if done.behind:
        click.echo(f"not yet applied by {', '.join(done.behind)}; they will when they read it")


COMMANDS = (decisions, deliveries, why, release_emails, replay_deliveries, reset_names)
