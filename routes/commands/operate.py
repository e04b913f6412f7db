"""What operators do: commands on emails and destinations. They use the models of the API."""

import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from enum import EnumType
from typing import Any, get_args

import click
from pydantic import BaseModel

from deduplication.journal.entry import DeliveryStatus
from orchestrator.operations import destinations
from orchestrator.operations.decisions import DecisionInFull, list_decisions, list_deliveries, read_decision
from orchestrator.operations.resend import RELEASED, REPLAYED, WOULD_RELEASE, WOULD_REPLAY, send_many
from orchestrator.operations.reset import Erase, Erased, Forgotten, Reset, Scope, erase, reset
from orchestrator.operations.search import FIELDS, DecisionFilter, DeliveryFilter, EmailOutcome
from orchestrator.operations.times import shown_duration, shown_moment
from routes.commands.service import json_option, open_service, show, show_page, user_name
from routes.payload import InvalidPayload, Model, read
from routes.schemas import MOST_LISTED, ReleaseMany, ReplayMany

Command = Callable[..., None]

limit_option = click.option(
    "--limit", type=click.IntRange(1, MOST_LISTED), default=100, show_default=True, help="Show at most this many."
)


def options_of(model: type[BaseModel]) -> Callable[[Command], Command]:
    """An option for each field of a filter or action."""

    def add(command: Command) -> Command:
        for name, field in reversed(model.model_fields.items()):
            kind, *_ = get_args(field.annotation) or (bool,)  # all but flags may be None, too
            values = list(map(str, kind)) if isinstance(kind, EnumType) else get_args(kind)
            command = click.option(
                *(("-q", "--search", "q") if name == "q" else (f"--{name.replace('_', '-')}",)),
                type=click.Choice(values) if values else kind if kind is bool else str,
                is_flag=kind is bool,
                metavar="TIME" if kind is datetime else None,
                help=field.description or f"Only this {name}.",
            )(command)
        return command

    return add


def _read(model: type[Model], options: dict[str, Any]) -> Model:
    """Checked like a request to the API; an error names the option."""
    try:
        return read(model, {name: value for name, value in options.items() if value})
    except InvalidPayload as error:
        raise click.UsageError(f"--{error}") from error


@click.command()
@options_of(DecisionFilter)
@click.option("--stopped", is_flag=True, help="Only duplicates and suppressed emails, as --outcome stopped.")
@limit_option
@json_option
def decisions(limit: int, as_json: bool, stopped: bool, **options: Any) -> None:
    """Show what happened to each email and why, newest first.

    \b
    mailonce decisions --stopped --since 7d
    mailonce decisions -q ada@example.org --since 2026-11-01T00:00:00Z
    """
    if stopped:
        options["outcome"] = options["outcome"] or EmailOutcome.STOPPED
    wanted = _read(DecisionFilter, options)
    with open_service() as service:
        page = list_decisions(service, wanted, limit).model_dump(mode="json", exclude={"next"})
    rows = [
        (email["received_at"][:19], email["id"], email["outcome"].replace("_", " "), email["sender"], email["subject"])
        + (email["reason"],)
        for email in page["decisions"]
    ]
    show_page(page, as_json, ("RECEIVED (UTC)", "ID", "OUTCOME", "FROM", "SUBJECT", "REASON"), rows)


@click.command()
@options_of(DeliveryFilter)
@limit_option
@json_option
def deliveries(limit: int, as_json: bool, **options: Any) -> None:
    """Show each delivery: delivered, waiting and why, or a dead letter.

    Waiting deliveries are ordered by their next try, dead letters by when they died, newest first, and all others by
    when the email was received.

    \b
    mailonce deliveries --status waiting
    mailonce deliveries --status dead --destination crm --since 7d
    """
    wanted = _read(DeliveryFilter, options)
    with open_service() as service:
        page = list_deliveries(service, wanted, limit).model_dump(mode="json", exclude={"next"})
    heads = ("ID", "DESTINATION", "STATUS", "TRIES", "AGE", "NEXT TRY (UTC)", "REASON")
    rows = [
        (delivery["id"], delivery["destination"], delivery["status"])
        + (f"{delivery['tries']}/{delivery['max_attempts'] or '?'}", shown_duration(delivery["age_s"]))
        + ((delivery["next_try"] or "-")[:19], delivery["reason"] or "")
        for delivery in page["deliveries"]
    ]
    show_page(page, as_json, heads, rows)


@click.command()
@click.argument("text", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="All fields and the payload, as JSON.")
def why(text: str, as_json: bool) -> None:
    """Explain what happened to an email. ID is its id, email id or Message-ID, or a webhook-id."""
    with open_service() as service:
        found = read_decision(service, text)
    if found is None:
        raise click.ClickException("no stored email has this id")
    facts = [f"  {fact:12} {value}" for fact, value in _facts(found) if value]
    show(found.model_dump(mode="json"), as_json, f"{found.reason}.", *facts, indent=2)


def _facts(email: DecisionInFull) -> Iterator[tuple[str, str]]:
    """What a person asks next, in the order of what happened."""
    yield "subject", email.subject
    to = f" to {email.recipient}" if email.recipient else ""
    yield "received", f"{shown_moment(email.received_at)} from {email.sender}{to}, by {email.provider}"
    yield "ids", f"{email.id}, email id {email.email_id}"
    yield "route", email.route
    for report in email.gates:
        yield report.gate.replace("_", " "), "" if report.said == "not asked" else report.said
    for delivery in email.deliveries:
        next_try = f", next try at {shown_moment(delivery.next_try)}" if delivery.next_try else ""
        reason = f": {delivery.reason}" if delivery.reason else ""
        yield f"to {delivery.destination}", f"{delivery.status}, attempts: {len(delivery.attempts)}{next_try}{reason}"
    if email.releasable_until:
        yield "release", f"possible until {shown_moment(email.releasable_until)}: mailonce release {email.id}"
    if any(delivery.status is DeliveryStatus.DEAD for delivery in email.deliveries):
        yield "replay", f"mailonce replay {email.id}:DESTINATION"


def _send_again(model: type[ReleaseMany | ReplayMany], ids: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Shows a line for each result; exit code 1 if one of the given ids was refused.

    IDs take the place of a filter, so the model, which requires a filter or --all, is not validated with them.
    """
    if ids and any(options[name] for name in ("all", *FIELDS)):
        raise click.UsageError("Give either ids or a filter.")
    asked = wanted = model.model_construct(**options) if ids else _read(model, options)
    if isinstance(asked, ReplayMany):
        wanted = asked.model_copy(update={"status": asked.status or DeliveryStatus.DEAD})
    with open_service() as service:
        results = send_many(service, ids or wanted, asked)
    lines = [f"{result.replace('_', ' ')}: {count}" for result, count in results.items()]
    show(results, as_json, *(lines or [f"nothing to {click.get_current_context().info_name}"]))
    if ids and results.keys() - {RELEASED, WOULD_RELEASE, REPLAYED, WOULD_REPLAY}:
        sys.exit(1)


@click.command("release")
@click.argument("ids", nargs=-1)
@options_of(ReleaseMany)
@json_option
def release_emails(ids: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Release suppressed emails: the given IDs, or all matching the filters. The running service sends them.

    \b
    mailonce release k3v7c2m9x4qa
    mailonce release --gate subject_group -q "lot 456" --dry-run
    """
    _send_again(ReleaseMany, ids, as_json, **options)


@click.command("replay")
@click.argument("ids", nargs=-1)
@options_of(ReplayMany)
@json_option
def replay_deliveries(ids: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Send deliveries again: the given IDs, or all matching the filters (dead letters, unless --status is given).

    The running service or worker sends them. Waiting ones are tried at once; those in progress are skipped.

    \b
    mailonce replay k3v7c2m9x4qa:crm
    mailonce replay --destination crm --since 7d --dry-run
    """
    _send_again(ReplayMany, ids, as_json, **options)


@click.command("reset")
@click.argument("scope", type=click.Choice(list(map(str, Scope))))
@click.argument("value", default="")
@click.option("--dry-run", is_flag=True, help="Only show how many names would be forgotten.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation of the scope all.")
@json_option
def reset_names(scope: str, value: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Forget names, so that emails with these names are delivered if they are received again.

    \b
    mailonce reset email_id fe4fc385494173f61585825e95d25317
    mailonce reset subject_group lot_456@example.org --dry-run
    mailonce reset subject_group 2026-11:lot_456    (of that month, for all senders)
    """
    wanted = read(Reset, {"scope": scope, "value": value, "dry_run": dry_run})
    if wanted.scope is Scope.ALL and not dry_run and not yes:
        click.confirm("Forget everything? Every email that is received again is then delivered again.", abort=True)
    with open_service() as service:
        done = reset(service.coordinator, wanted)
    lines = _removed(done, f"{done.names} names {'would be ' if dry_run else ''}forgotten", "still to be delivered")
    show(done.model_dump(mode="json"), as_json, *lines)


def _removed(done: Forgotten | Erased, what: str, why_kept: str) -> Iterator[str]:
    yield what
    if done.kept:
        yield f"{len(done.kept)} emails kept: {why_kept}"
    if done.behind:
        yield f"not yet applied by {', '.join(done.behind)}; they will when they read it"


@click.command("erase")
@click.argument("who", metavar="ADDRESS_OR_MESSAGE_ID")
@click.option("--dry-run", is_flag=True, help="Only show how many emails would be erased.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def erase_emails(who: str, dry_run: bool, yes: bool) -> None:
    """Erase all emails from an address, or one email, on every machine. Waiting deliveries of them are not sent.

    \b
    mailonce erase ada@example.org --dry-run
    mailonce erase "<1@example.org>" --yes
    """
    wanted = read(Erase, {"who": who, "dry_run": dry_run}, "command")
    if not dry_run and not yes:
        click.confirm("Erase these emails everywhere? They cannot be shown, released or replayed again.", abort=True)
    with open_service() as service:
        done = erase(service, wanted)
    what = f"{done.emails} emails {'would be ' if dry_run else ''}erased"
    show(done.model_dump(mode="json"), False, *_removed(done, what, "being delivered now; erase them again"))


@click.command()
@click.argument("destination")
@click.option("--reason", default="", help="Reason (visible to operators).")
@json_option
def pause(destination: str, reason: str, as_json: bool) -> None:
    """Send nothing to a destination until it is resumed, on any server. New emails for it are queued."""
    with open_service() as service:
        destinations.pause(service, destination, reason, user_name())
    done = f"{destination} is paused within two seconds; new emails wait until: mailonce resume {destination}"
    show({"destination": destination, "status": "paused"}, as_json, done)


@click.command()
@click.argument("destination")
@json_option
def resume(destination: str, as_json: bool) -> None:
    """Send to a paused destination again, starting with its waiting deliveries."""
    with open_service() as service:
        was_paused = destinations.resume(service, destination, user_name())
    done = f"{destination} {'is resumed; waiting deliveries are sent' if was_paused else 'was not paused'}"
    show({"destination": destination, "status": "resumed" if was_paused else "not_paused"}, as_json, done)


@click.command("send-test")
@click.argument("destination")
@json_option
def send_test(destination: str, as_json: bool) -> None:
    """Send a test event to a destination and show its response. Exits with 1 unless that is 2xx.

    The event is signed like any webhook and has "type": "mailonce.test". It belongs to no email: nothing is recorded or
    retried, and it is sent even if the destination is paused or its circuit breaker is open.
    """
    with open_service() as service:
        tested = destinations.send_test(service, destination, user_name())
    answer = tested.error or (f"answered {tested.status_code}" if tested.status_code else "printed")
    done = f"{destination} {'refused' if tested.error else 'accepted'} it after {tested.latency_ms} ms: {answer}"
    result = {"latency_ms": tested.latency_ms, "status_code": tested.status_code, "error": tested.error}
    show({"destination": destination, "taken": not tested.error, **result}, as_json, done)
    if tested.error:
        sys.exit(1)


@click.command()
@json_option
def locks(as_json: bool) -> None:
    """List active publication locks, with their holders and expiry times."""
    with open_service() as service:
        active = service.locks.active_locks()
    rows = [(lock.id, lock.server_id, lock.expires.isoformat(timespec="seconds")) for lock in active]
    page = {"locks": [dict(zip(("id", "server", "until"), row, strict=True)) for row in rows], "more": False}
    show_page(page, as_json, ("LOCK", "SERVER", "UNTIL"), rows)


EMAILS = (decisions, deliveries, why, release_emails, replay_deliveries, reset_names, erase_emails)
COMMANDS = (*EMAILS, pause, resume, send_test, locks)
