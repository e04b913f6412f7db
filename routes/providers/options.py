"""The settings of providers in mailonce.toml, checked at the start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from orchestrator.config.model import Config
from orchestrator.config.words import problem, reason

MB = 1024 * 1024


def as_list(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _not_empty(secrets: tuple[str, ...]) -> tuple[str, ...]:
    if not secrets or not all(secret.strip() for secret in secrets):
        raise reason("must not be empty")
    return secrets


Secrets = Annotated[tuple[str, ...], BeforeValidator(as_list), AfterValidator(_not_empty), Field(repr=False)]
"""A secret, or a list of them during a rotation. An empty one would let anyone in."""

NonEmpty = Annotated[str, AfterValidator(lambda text: _not_empty((text,))[0])]


class NoOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class HeaderOptions(NoOptions):
    trusted_authserv_ids: Annotated[tuple[str, ...], BeforeValidator(as_list)] = Field(
        default=(), description='a list of hosts such as ["mx.example.org"]'
    )
    """Hosts whose Authentication-Results header counts: those that remove such a header of the sender's own."""

    @field_validator("trusted_authserv_ids")
    @classmethod
    def _in_lower_case(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(host.strip().lower() for host in hosts)


class Options(HeaderOptions):
    """Settings of every provider."""

    attachments: Literal["link", "inline", "metadata"] = "link"
    """What the webhook has of attachments beside name, type, size and SHA-256: a link, or with `inline` the contents.
    With REDIS_URL and no FILES_URL, the default is `inline` up to 1 MB of each email."""
    attachments_max_mb: float = Field(default=5, gt=0, le=100, description="megabytes")
    """Up to how many megabytes of one email's attachments are sent inline."""
    raw: bool = True
    """Whether the webhook has a link to the raw email too, where the provider sends it and attachments are links."""


class LoginOptions(NoOptions):
    username: str = ""
    """The user in the URL that the provider was given."""
    password: Secrets = ()
    """The password in that URL."""

    @model_validator(mode="after")
    def _check_both_or_neither(self) -> Self:
        if bool(self.username) != bool(self.password):
            raise reason("needs username and password together")
        return self


class BasicAuthOptions(Options, LoginOptions):
    username: NonEmpty
    """The user in the URL that the provider was given."""
    password: Secrets
    """The password in that URL."""


AnyOptions = TypeVar("AnyOptions", bound=NoOptions)


def read_options(config: Config, name: str, model: type[AnyOptions], table: Mapping[str, Any]) -> AnyOptions:
    """Raises SettingsError with the first problem of [providers.<name>], never with a value of it."""
    try:
        return model.model_validate(table)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        first = min(found, key=lambda each: each["type"] != "extra_forbidden")  # a typo explains what is missing
        place, text = problem(model, first)
        raise config.error(("providers", name, *place), text) from None
