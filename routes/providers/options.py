"""The settings of providers in mailonce.toml, checked at the start."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from orchestrator.config.model import Config

MB = 1024 * 1024


def as_list(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _not_empty(secrets: tuple[str, ...]) -> tuple[str, ...]:
    if not secrets or not all(secret.strip() for secret in secrets):
        raise ValueError("must not be empty")
    return secrets


Several = Annotated[tuple[str, ...], BeforeValidator(as_list), AfterValidator(_not_empty), Field(repr=False)]
"""A secret, or a list of them during a rotation. An empty one would let anyone in."""

Given = Annotated[str, AfterValidator(lambda text: _not_empty((text,))[0])]


class NoOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Options(NoOptions):
    """Settings of every provider."""

    attachments: Literal["metadata", "inline"] = "metadata"
    """What the webhook has of attachments: name, type, size and SHA-256, or with `inline` their contents as well."""
    attachments_max_mb: Annotated[float, Field(gt=0, le=100)] = 5
    """Up to how many megabytes of one email's attachments are sent inline."""


class LoginOptions(NoOptions):
    username: str = ""
    """The user in the URL that the provider was given."""
    password: Several = ()
    """The password in that URL."""

    @model_validator(mode="after")
    def _check_both_or_neither(self) -> Self:
        if bool(self.username) != bool(self.password):
            raise ValueError("needs username and password together")
        return self


class BasicAuthOptions(Options, LoginOptions):
    username: Given
    """The user in the URL that the provider was given."""
    password: Several
    """The password in that URL."""


AnyOptions = TypeVar("AnyOptions", bound=NoOptions)


def checked(config: Config, name: str, model: type[AnyOptions], table: Mapping[str, Any]) -> AnyOptions:
    """Raises SettingsError with the first problem of [providers.<name>], never with a value of it."""
    try:
        return model.model_validate(table)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        first = min(found, key=lambda each: each["type"] != "extra_forbidden")  # a typo explains what is missing
        place = (part for part in first["loc"] if isinstance(part, str))
        raise config.error(("providers", name, *place), _complaint(first, model)) from None


def _complaint(error: ErrorDetails, model: type[NoOptions]) -> str:
    match error["type"]:
        case "missing":
            return "is needed"
        case "extra_forbidden":
            close = difflib.get_close_matches(str(error["loc"][-1]), model.model_fields, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            return f"is not one of its settings, which are {', '.join(model.model_fields)}{hint}"
        case "value_error":
            return error["msg"].removeprefix("Value error, ")
    return f"is wrong: {error['msg'][:1].lower()}{error['msg'][1:]}"
