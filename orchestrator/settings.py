"""The only reader of the environment. A wrong value stops the start with one line that says what it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from deduplication.subject_group import GroupMode

DELIVERY_BUDGET_S = 8  # connect 3 s + read 5 s
_Tokens = Annotated[tuple[str, ...], NoDecode]


class SettingsError(Exception):
    """A setting has a value it does not take; the message names both."""


class Settings(BaseSettings):
    """Every setting with its default; the README's table explains them."""

    model_config = SettingsConfigDict(frozen=True, env_ignore_empty=True, case_sensitive=False)

    redis_url: str = Field("", description="redis://, rediss:// or unix:// address, empty for the embedded store")
    redis_timeout_ms: int = Field(250, ge=10, le=60_000, description="10 to 60000 milliseconds")
    key_prefix: str = Field("", description="any text put in front of every Redis key")
    data_dir: Path = Field(Path("data"), description="a folder that can be written")
    ingress_token: _Tokens = Field((), description="tokens of at least 16 characters, several with commas")
    admin_token: _Tokens = Field((), description="tokens of at least 16 characters, several with commas")
    webhook_url: str = Field("", description="an http:// or https:// address, empty for the log destination")
    mailonce_config: Path | None = Field(None, description="the path of a file that exists")
    timezone: str = Field("UTC", description="an IANA time zone such as Europe/Paris")
    subject_groups: GroupMode = Field(GroupMode.ALL, description="all, patterns or off")
    subject_group_ttl_seconds: int = Field(0, ge=0, description="seconds, 0 for the calendar month")
    processed_ids_days: int = Field(0, ge=0, description="days, 0 for ever")
    lease_seconds: float = Field(60, ge=1, le=3600, description="1 to 3600 seconds")
    max_body_mb: float = Field(25, gt=0, le=1024, description="megabytes up to 1024")
    memory_limit_mb: int = Field(512, ge=1, description="megabytes")
    log_level: str = Field("INFO", description="DEBUG, INFO, WARNING or ERROR")
    host: str = Field("127.0.0.1", description="an address to listen on")
    port: int = Field(8000, ge=1, le=65535, description="1 to 65535")
    web_concurrency: int = Field(2, ge=1, le=64, description="1 to 64 worker processes")
    web_threads: int = Field(8, ge=1, le=256, description="1 to 256 threads for each worker")

    @field_validator("ingress_token", "admin_token", mode="before")
    @classmethod
    def _split_tokens(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        tokens = tuple(token.strip() for token in value.split(",") if token.strip())
        if any(len(token) < 16 for token in tokens):
            raise ValueError("a token is too short")
        return tokens

    @field_validator("redis_url")
    @classmethod
    def _check_redis_url(cls, value: str) -> str:
        if value and not value.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("not a Redis address")
        return value

    @field_validator("webhook_url")
    @classmethod
    def _check_webhook_url(cls, value: str) -> str:
        if value and not value.startswith(("http://", "https://")):
            raise ValueError("not a web address")
        return value

    @field_validator("timezone")
    @classmethod
    def _check_timezone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError("not a time zone") from error
        return value

    @field_validator("log_level")
    @classmethod
    def _check_log_level(cls, value: str) -> str:
        if value.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise ValueError("not a level")
        return value.upper()

    @field_validator("mailonce_config")
    @classmethod
    def _check_config_exists(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_file():
            raise ValueError("no such file")
        return value

    @property
    def tz(self) -> ZoneInfo:
        return ZoneInfo(self.timezone)

    @property
    def lease_ms(self) -> int:
        return int(self.lease_seconds * 1000)

    @property
    def ids_kept_ms(self) -> int | None:
        return self.processed_ids_days * 24 * 3600 * 1000 or None

    @property
    def config_path(self) -> Path | None:
        """MAILONCE_CONFIG, or ./mailonce.toml where that exists."""
        default = Path("mailonce.toml")
        return self.mailonce_config or (default if default.is_file() else None)


_SECRET = ("ingress_token", "admin_token", "redis_url", "webhook_url")


def load_settings(**given: Any) -> Settings:
    """Settings from the environment; ``given`` ones win. Raises SettingsError."""
    try:
        return Settings(**given)
    except ValidationError as error:
        raise SettingsError("; ".join(_complaint(dict(each)) for each in error.errors())) from None


def _complaint(error: dict[str, Any]) -> str:
    name = str(error["loc"][0])
    takes = Settings.model_fields[name].description
    shown = "its value" if name in _SECRET else repr(error["input"])
    return f"{name.upper()} takes {takes}; {shown} is not that"
