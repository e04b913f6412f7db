"""All providers, and which of them mailonce.toml enables."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from orchestrator.config.model import Config, load_config
from orchestrator.config.settings import Settings
from orchestrator.config.words import problem
from orchestrator.delivery.fetching import fetch
from orchestrator.item import MESSAGE
from routes.providers.base import Provider, Surroundings
from routes.providers.brevo import Brevo
from routes.providers.cloudmailin import Cloudmailin
from routes.providers.gmail import Gmail
from routes.providers.json_mapping import Json
from routes.providers.mailgun import Mailgun
from routes.providers.mailjet import Mailjet
from routes.providers.mandrill import Mandrill
from routes.providers.message import Messages
from routes.providers.mime import Mime
from routes.providers.postmark import Postmark
from routes.providers.resend import Resend
from routes.providers.sendgrid import Sendgrid
from routes.providers.ses import Ses

AnyProvider = Provider[Any]

_ALL = (Brevo, Cloudmailin, Gmail, Json, Mailgun, Mailjet, Mandrill, Mime, Postmark, Resend, Sendgrid, Ses)
TYPES: Mapping[str, type[AnyProvider]] = {provider.__name__.lower(): provider for provider in _ALL}
ALWAYS_OPEN = ("gmail", "mime")  # they need only the ingress token, which always exists


def open_providers(config: Config, surroundings: Surroundings) -> dict[str, AnyProvider]:
    """By their names. Raises SettingsError if a section is wrong, or lacks what proves a request's origin."""
    opened: dict[str, AnyProvider] = {}
    for name in open_names(config):
        table = dict(config.providers.get(name, {}))
        kind = table.pop("type", name)
        if name == MESSAGE:
            raise config.error(("providers", name), "has no settings: it accepts the ingress token")
        if not isinstance(kind, str) or kind not in TYPES:
            raise config.error(("providers", name, "type"), f"must be one of {', '.join(TYPES)}, got {kind!r}")
        try:
            options = TYPES[kind].options_type.model_validate(table)
        except ValidationError as error:  # its first problem, never with a value
            found = error.errors(include_url=False, include_input=False)
            first = min(found, key=lambda error: error["type"] != "extra_forbidden")  # a typo explains what is missing
            place, text = problem(TYPES[kind].options_type, first)
            raise config.error(("providers", name, *place), text) from None
        opened[name] = TYPES[kind](name, options, surroundings)
    return opened


def open_names(config: Config) -> list[str]:
    """The names of the enabled providers."""
    return list(dict.fromkeys((*ALWAYS_OPEN, *config.providers)))


def known_providers(config: Config) -> dict[str, type[AnyProvider]]:
    """All that have an endpoint, enabled or not, by their names."""
    named = {name: TYPES[table.get("type", name)] for name, table in config.providers.items()}
    return {**TYPES, **named, MESSAGE: Messages}


def checked_config(settings: Settings) -> Config:
    """mailonce.toml, its providers checked. Raises SettingsError."""
    config = load_config(settings)
    open_providers(config, Surroundings((), fetch))
    return config


def missing_setting(name: str) -> str:
    """What enables a provider that is known, but not in mailonce.toml."""
    options = TYPES[name].options_type.model_fields
    needed = " and ".join(option for option, field in options.items() if field.is_required())
    return f"{name} is not set up: mailonce.toml needs [providers.{name}]{needed and f' with {needed}'}"
