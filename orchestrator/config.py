"""mailonce.toml: destinations, routes and subject patterns, checked before anything starts."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from deduplication.media import DEFAULT_HOSTS, IDENTITY_PARAMETERS, MediaMode
from deduplication.subject_group import DEFAULT_PATTERNS, GroupMode, SubjectPattern
from orchestrator.settings import Settings, SettingsError, is_web_address

LOG_URL = "log:"
_DestinationName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]*$")]


def _compilable(regex: str) -> str:
    try:
        re.compile(regex)
    except re.error as error:
        raise ValueError(f"takes a regular expression; {error}") from error
    return regex


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DestinationConfig(_Model):
    """``content_window_s`` None: no content gate for emails, 72 hours for messages; 0: none at all."""

    url: str
    content_window_s: Annotated[int, Field(ge=0, le=366 * 86_400)] | None = None

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        if value != LOG_URL and not is_web_address(value):
            raise ValueError(f'takes an http:// or https:// address, or "{LOG_URL}"')
        return value


class Condition(_Model):
    """One of equals, contains and regex, on one field, accents and case folded."""

    field: Literal["subject", "sender", "body", "provider", "source"]
    equals: str | None = None
    contains: str | None = None
    regex: str | None = None

    @model_validator(mode="after")
    def _check_one_test(self) -> Self:
        if len([test for test in (self.equals, self.contains, self.regex) if test is not None]) != 1:
            raise ValueError("takes exactly one of equals, contains and regex")
        return self

    @field_validator("regex")
    @classmethod
    def _check_regex(cls, value: str | None) -> str | None:
        return value if value is None else _compilable(value)


class RouteConfig(_Model):
    """``subject_groups`` None means: as SUBJECT_GROUPS says."""

    name: str
    match: tuple[Condition, ...] = ()
    any: bool = False
    destinations: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    subject_groups: GroupMode | None = None
    media: MediaMode = MediaMode.LISTED
    realtime_only: bool = False

    @field_validator("destinations")
    @classmethod
    def _check_each_once(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value and len(set(value)) < len(value):
            raise ValueError("takes each destination once")
        return value


class MediaConfig(_Model):
    """``hosts`` replaces the shipped list, ``identity`` adds to the shipped table, ``resolve`` is empty by default."""

    hosts: tuple[str, ...] = DEFAULT_HOSTS
    identity: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    resolve: tuple[str, ...] = ()

    @property
    def identity_parameters(self) -> dict[str, tuple[str, ...]]:
        return {**IDENTITY_PARAMETERS, **self.identity}


class PatternConfig(_Model):
    name: str
    phrases: tuple[str, ...] = ()
    regex: str

    @field_validator("regex")
    @classmethod
    def _check_regex(cls, value: str) -> str:
        if re.compile(_compilable(value)).groups != 1:
            raise ValueError("takes a regex that captures exactly one value")
        return value


UNSUBSCRIBE = RouteConfig(
    name="unsubscribe",
    match=(Condition(field="subject", regex="desabo"),),
    subject_groups=GroupMode.OFF,
)
EVERYTHING_ELSE = RouteConfig(name="everything else")


class Config(_Model):
    """Without a file, or without a section in it, these are the shipped defaults."""

    destinations: dict[_DestinationName, DestinationConfig] = Field(default_factory=dict)
    routes: tuple[RouteConfig, ...] = (UNSUBSCRIBE, EVERYTHING_ELSE)
    subject_patterns: tuple[PatternConfig, ...] | None = None
    media: MediaConfig = MediaConfig()

    @property
    def patterns(self) -> tuple[SubjectPattern, ...]:
        if self.subject_patterns is None:
            return DEFAULT_PATTERNS
        return tuple(SubjectPattern(p.name, p.phrases, p.regex) for p in self.subject_patterns)


def load_config(settings: Settings) -> Config:
    """Raises SettingsError with a line for each thing that is wrong in the file."""
    path = settings.config_path
    config = _read(path) if path else Config()
    if not config.destinations:
        url = settings.webhook_url or LOG_URL
        config = config.model_copy(update={"destinations": {"default": DestinationConfig(url=url)}})
    complaint = _routes_complaint(config)
    if complaint:
        raise SettingsError(f"{path}: {complaint}")
    return config


def _routes_complaint(config: Config) -> str | None:
    known = ", ".join(sorted(config.destinations))
    for route in config.routes:
        if route.destinations is None and len(config.destinations) > 1:
            return f"route {route.name!r}: destinations is needed, one of {known}"
        for name in route.destinations or ():
            if name not in config.destinations:
                return f"route {route.name!r}: destinations takes one of {known}; not {name!r}"
    if not config.routes or config.routes[-1].match:
        return "routes: the last one takes no match, so that every email has a way"
    return None


def _read(path: Path) -> Config:
    try:
        return Config.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise SettingsError(f"{path}: {error}") from error
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, each['loc']))}: {each['msg'].removeprefix('Value error, ')}" for each in error.errors()
        ]
        raise SettingsError(f"{path}: " + "; ".join(lines)) from None
