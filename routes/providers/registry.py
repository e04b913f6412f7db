"""Which providers there are, and which of them mailonce.toml opens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.config.model import Config, load_config
from orchestrator.config.settings import Settings
from orchestrator.delivery.fetching import fetch
from routes.providers.base import Provider, Surroundings
from routes.providers.brevo import Brevo
from routes.providers.cloudmailin import Cloudmailin
from routes.providers.gmail import Gmail
from routes.providers.json_mapping import JsonMapping
from routes.providers.mailgun import Mailgun
from routes.providers.mailjet import Mailjet
from routes.providers.mandrill import Mandrill
from routes.providers.mime import Mime
from routes.providers.options import checked
from routes.providers.postmark import Postmark
from routes.providers.resend import Resend
from routes.providers.sendgrid import Sendgrid
from routes.providers.ses import Ses

AnyProvider = Provider[Any]

TYPES: Mapping[str, type[AnyProvider]] = {
    "brevo": Brevo,
    "cloudmailin": Cloudmailin,
    "gmail": Gmail,
    "json": JsonMapping,
    "mailgun": Mailgun,
    "mailjet": Mailjet,
    "mandrill": Mandrill,
    "mime": Mime,
    "postmark": Postmark,
    "resend": Resend,
    "sendgrid": Sendgrid,
    "ses": Ses,
}
ALWAYS_OPEN = ("gmail", "mime")  # they ask for the ingress token, which there always is
NOT_A_PROVIDER = "message"


def open_providers(config: Config, surroundings: Surroundings) -> dict[str, AnyProvider]:
    """By their names. Raises SettingsError if a section is wrong, or lacks what proves a request's origin."""
    return {
        name: _open(name, dict(config.providers.get(name, {})), config, surroundings) for name in open_names(config)
    }


def open_names(config: Config) -> list[str]:
    """Of those that ``open_providers`` opens."""
    return list(dict.fromkeys((*ALWAYS_OPEN, *config.providers)))


def known_providers(config: Config) -> dict[str, type[AnyProvider]]:
    """Those that there is a door for, open or shut, by their names."""
    named = {name: TYPES[table.get("type", name)] for name, table in config.providers.items()}
    return dict(TYPES) | named


def check_providers(config: Config) -> None:
    """Raises SettingsError as ``open_providers`` does."""
    open_providers(config, Surroundings((), fetch))


def checked_config(settings: Settings) -> Config:
    """mailonce.toml with its providers. Raises SettingsError."""
    config = load_config(settings)
    check_providers(config)
    return config


def _open(name: str, table: dict[str, Any], config: Config, surroundings: Surroundings) -> AnyProvider:
    if name == NOT_A_PROVIDER:
        raise config.error(("providers", name), "takes no settings: it is open to the ingress token")
    kind = table.pop("type", name)
    if not isinstance(kind, str) or kind not in TYPES:
        raise config.error(("providers", name, "type"), f"takes one of {', '.join(TYPES)}")
    provider = TYPES[kind]
    return provider(name, checked(config, name, provider.options_type, table), surroundings)


def missing_setting(name: str) -> str:
    """What opens a provider that is known, but not in mailonce.toml."""
    needs = TYPES[name].needs
    return f"{name} is not set up: mailonce.toml takes [providers.{name}]" + (
        f" with {needs.rstrip(',')}" if needs else ""
    )
