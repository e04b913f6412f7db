"""mailonce send-test: does a destination take what we send?"""

from __future__ import annotations

import json
import sys

import click

from orchestrator.operations.destinations import InvalidPause
from orchestrator.operations.destinations import send_test as post_test
from routes.commands.service import open_parts, user_name
from routes.terminal import one_line


@click.command("send-test")
@click.argument("destination")
@click.option("--json", "as_json", is_flag=True, help="The answer as JSON.")
def send_test(destination: str, as_json: bool) -> None:
    """Send a test event to a destination, and say what it answered. Fails where that is not 2xx.

    The event is signed as webhooks are, and says "type": "mailonce.test". There is no email behind it: nothing is
    recorded or tried again, and neither a pause nor the breaker stops it.

    \b
    mailonce send-test crm
    """
    with open_parts() as parts:
        try:
            tested = post_test(parts, destination, user_name())
        except InvalidPause as error:
            raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps({"destination": destination, "taken": not tested.error, **vars(tested)}))
    elif tested.error:
        click.echo(one_line(f"refused after {tested.latency_ms} ms: {tested.error}"))
    else:
        answered = f"answered {tested.status_code}" if tested.status_code else "only printed"
        click.echo(f"{destination} has taken it: {answered} after {tested.latency_ms} ms")
    if tested.error:
        sys.exit(1)
