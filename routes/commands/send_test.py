"""mailonce send-test: send a test event to a destination."""

from __future__ import annotations

import json
import sys

import click

from orchestrator.operations.destinations import InvalidPause
from orchestrator.operations.destinations import send_test as post_test
from routes.commands.service import open_service, user_name
from routes.terminal import one_line


@click.command("send-test")
@click.argument("destination")
@click.option("--json", "as_json", is_flag=True, help="Print the response as JSON.")
def send_test(destination: str, as_json: bool) -> None:
    """Send a test event to a destination and show its response. Fails unless that is 2xx.

    The event is signed like any webhook and has "type": "mailonce.test". It belongs to no email: nothing is recorded or
    retried, and it is sent even if the destination is paused or its circuit breaker is open.

    \b
    mailonce send-test crm
    """
    with open_service() as service:
        try:
            tested = post_test(service, destination, user_name())
        except InvalidPause as error:
            raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps({"destination": destination, "taken": not tested.error, **vars(tested)}))
    elif tested.error:
        click.echo(one_line(f"refused after {tested.latency_ms} ms: {tested.error}"))
    else:
        answered = f"answered {tested.status_code}" if tested.status_code else "printed"
        click.echo(f"{destination} accepted it: {answered} after {tested.latency_ms} ms")
    if tested.error:
        sys.exit(1)
