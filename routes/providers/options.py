"""What mailonce.toml says about a provider, checked before anything starts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from orchestrator.config.model import Config

MB = 1024 * 1024


def as_list(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _given(secrets: tuple[str, ...]) -> tuple[str, ...]:
    if not secrets or not all(secret.strip() for secret in secrets):
        raise PydanticCustomError("missing", "is needed")
    return secrets


Several = Annotated[tuple[str, ...], BeforeValidator(as_list), AfterValidator(_given), Field(repr=False)]
"""A secret, or a list of them while one is rotated out. An empty one would be an open door, so it counts as absent."""

Given = Annotated[str, AfterValidator(lambda text: _given((text,))[0])]


class NoOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Options(NoOptions):
    """What every provider takes. Of attachments only the description is kept, unless they are wanted inline."""

    attachments: Literal["metadata", "inline"] = "metadata"
    """What is handed on of attachments: name, type, size and SHA-256, or with `inline` their contents, too."""
    attachments_max_mb: Annotated[float, Field(gt=0, le=100)] = 5
    """Up to how many megabytes of one email's attachments are handed on inline."""

    @property
    def inline_attachment_bytes(self) -> int:
        """Up to how many bytes of one email's attachments are handed on."""
        return int(self.attachments_max_mb * MB) if self.attachments == "inline" else 0


class BasicAuthOptions(Options):
    username: Given
    """The user in the URL that the provider is given."""
    password: Several
    """The password in that URL."""


AnyOptions = TypeVar("AnyOptions", bound=NoOptions)


def checked(config: Config, name: str, model: type[AnyOptions], table: Mapping[str, Any]) -> AnyOptions:
    """Raises SettingsError with the first thing missing or wrong in [providers.<name>], never with a value of it."""
    try:
        return model.model_validate(table)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        first = min(found, key=lambda each: each["type"] != "extra_forbidden")  # a slip explains what is then missing
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
