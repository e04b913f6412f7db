"""The command mailonce."""

from datetime import UTC, datetime
from typing import Any

import click

from deduplication.errors import DeduplicationError
from orchestrator.build import check_start
from orchestrator.config.model import load_config
from orchestrator.config.settings import SettingsError
from orchestrator.data_dir import ensure_tokens, is_trial_service
from orchestrator.delivery.fetching import fetch
from orchestrator.delivery.signing import new_secret, public_keys
from orchestrator.importing.sources import Unreadable
from orchestrator.operations.destinations import InvalidAction
from orchestrator.worker import supervise
from routes.commands.check import check
from routes.commands.import_mail import import_mail
from routes.commands.listen import listen
from routes.commands.operate import COMMANDS
from routes.commands.service import read_settings
from routes.commands.stats import stats
from routes.payload import InvalidPayload
from routes.providers.base import Surroundings
from routes.providers.registry import TYPES, missing_setting, open_providers
from routes.providers.samples import curl_line, sample_letter

# Errors that a person can correct: reported in one line, without a traceback.
EXPECTED_ERRORS = (SettingsError, DeduplicationError, InvalidAction, InvalidPayload, Unreadable)


class Mailonce(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except EXPECTED_ERRORS as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Mailonce, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mailonce")
def main() -> None:
    """Every inbound email fires its downstream webhooks once.

    Commands read their settings from the environment and .env, destinations and routes from mailonce.toml. They find
    the service by DATA_DIR: run them in its folder, or with its environment.
    """


@main.command()
def serve() -> None:
    """Run the web server. SIGTERM ends it gracefully, SIGHUP reloads mailonce.toml."""
    settings = read_settings(serves=True)
    from routes.server import Server  # gunicorn reads the environment on import; wrong settings are reported first

    Server(settings).run()


@main.command()
def worker() -> None:
    """Deliver queued emails (DELIVER_BY=workers). SIGTERM ends it gracefully, SIGHUP reloads mailonce.toml."""
    settings = read_settings(serves=True)
    if settings.deliver_by != "workers":
        raise SettingsError(f"DELIVER_BY must be workers for mailonce worker, got {settings.deliver_by!r}")
    config = load_config(settings)
    check_start(settings, config)
    from routes.metrics import serving_metrics  # imports Flask, which no other command needs

    with serving_metrics(settings, config):
        supervise(settings)


@main.command("sample")
@click.argument("provider", default="")
@click.option("--url", help="The address of the service. Default: HOST and PORT.")
def signed_sample(provider: str, url: str | None) -> None:
    """Print a signed sample request of a provider, as a curl command that works against the running service.

    \b
    mailonce sample mailgun | sh
    """
    if not provider:
        raise click.UsageError(f"PROVIDER must be one of {', '.join(TYPES)}, or another name from mailonce.toml")
    settings = read_settings()
    if not settings.ingress_token:
        is_trial_service(settings)  # its token is in DATA_DIR
    config = load_config(settings)
    opened = open_providers(config, Surroundings(ensure_tokens(settings).ingress, fetch))
    if provider not in opened:
        known = f"; {missing_setting(provider)}" if provider in TYPES else ""
        raise click.ClickException(f"PROVIDER must be one of {', '.join(sorted(opened))}{known}")
    if opened[provider].no_sample:
        raise click.ClickException(opened[provider].no_sample)
    now = datetime.now(UTC)
    click.echo(curl_line(opened[provider].sample(sample_letter(now), now), url or settings.address))


@main.command("new-secret")
@click.option("--private", is_flag=True, help="Create an ed25519 key: receivers verify with its public key.")
def show_new_secret(private: bool) -> None:
    """Print a new secret for signing webhooks: for `secret` of a destination, and for its receiver."""
    secret = new_secret(is_private=private)
    click.echo(secret)
    for key in public_keys([secret]):
        click.echo(f"{key}  (public key, for the receiver)", err=True)


for command in (*COMMANDS, check, import_mail, listen, stats):
    main.add_command(command)
