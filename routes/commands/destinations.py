"""Commands on destinations: pause, resume, send-test."""

from __future__ import annotations

import json
import sys

import click

from orchestrator.operations import destinations
from routes.commands.emails import json_option
from routes.commands.service import open_service, user_name
from routes.terminal import one_line


@click.command()
@click.argument("destination")
@click.option("--reason", default="", help="Reason (visible to operators).")
@json_option
def pause(destination: str, reason: str, as_json: bool) -> None:
    """Send nothing to a destination until it is resumed, on any server. New emails for it are queued.

    \b
    mailonce pause crm --reason "moves to another host"
    """
    with open_service() as service:
        destinations.pause(service, destination, reason, user_name())
    done = f"{destination} is paused; new emails for it are queued until: mailonce resume {destination}"
    click.echo(json.dumps({"destination": destination, "status": "paused"}) if as_json else done)


@click.command()
@click.argument("destination")
@json_option
def resume(destination: str, as_json: bool) -> None:
    """Send to a paused destination again, starting with its waiting deliveries."""
    with open_service() as service:
        was_paused = destinations.resume(service, destination, user_name())
    done = f"{destination} {'is resumed; waiting deliveries are sent' if was_paused else 'was not paused'}"
    status = "resumed" if was_paused else "not_paused"
    click.echo(json.dumps({"destination": destination, "status": status}) if as_json else done)


@click.command("send-test")
@click.argument("destination")
@json_option
def send_test(destination: str, as_json: bool) -> None:
    """Send a test event to a destination and show its response. Exits with 1 unless that is 2xx.

    The event is signed like any webhook and has "type": "mailonce.test". It belongs to no email: nothing is recorded or
    retried, and it is sent even if the destination is paused or its circuit breaker is open.

    \b
    mailonce send-test crm
    """
    with open_service() as service:
        tested = destinations.send_test(service, destination, user_name())
    if as_json:
        click.echo(json.dumps({"destination": destination, "taken": not tested.error, **vars(tested)}))
    elif tested.error:
        click.echo(one_line(f"refused after {tested.latency_ms} ms: {tested.error}"))
    else:
        answered = f"answered {tested.status_code}" if tested.status_code else "printed"
        click.echo(f"{destination} accepted it: {answered} after {tested.latency_ms} ms")
    if tested.error:
        sys.exit(1)


COMMANDS = (pause, resume, send_test)
