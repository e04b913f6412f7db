"""The only reader of the environment. A wrong value stops the start with one line that says what it takes."""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dotenv import dotenv_values
from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from deduplication.redis_client import parse_address
from deduplication.subject_group import GroupMode
from orchestrator.logs import LogFormat
from orchestrator.privacy import PrivacyMode

log = logging.getLogger(__name__)

DOTENV = Path(".env")  # of the folder the service is started in; what the environment says goes before it
SHORTEST_GUESSED = 6  # HOST and PORT are too much like names that others use
STRONG_TOKENS = "tokens of at least 16 characters, 8 of them different"
DELIVERY_BUDGET_S = 8  # what a provider's request waits for all its deliveries
_TOKENS = ("ingress_token", "admin_token", "view_token", "metrics_token")
_HASH_TAG = re.compile(r"\{[^{}]+\}")
_Tokens = Annotated[tuple[str, ...], NoDecode]
_Networks = Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode]


def is_web_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def token_weakness(token: str) -> str:
    """What makes it too easy to guess, in words that do not show it; empty for a strong one."""
    different = len(set(token))
    is_strong = len(token) >= 16 and different >= 8
    return "" if is_strong else f"has {len(token)} characters, {different} of them different"


class SettingsError(Exception):
    """A setting has a wrong value; the message names both."""


class OnFailure(StrEnum):
    """While Redis is away: decide by what this machine knows of the fleet's work, or ask everybody to retry."""

    OPEN = "open"
    CLOSED = "closed"


def environment() -> Mapping[str, str]:
    """The environment and, where that says nothing, .env; for the values of mailonce.toml that say env:NAME."""
    kept = dotenv_values(DOTENV) if DOTENV.is_file() else {}
    return {name: value for name, value in kept.items() if value is not None} | os.environ


class Settings(BaseSettings):
    """Every setting: its description completes "NAME takes ...", the text below it says what it does.

    docs/configuration.md and deploy/env.example are written from here (make docs-reference).
    """

    model_config = SettingsConfigDict(
        frozen=True,
        env_ignore_empty=True,
        case_sensitive=False,
        env_file=DOTENV,
        env_file_encoding="utf-8",
        extra="ignore",  # .env may hold what others read
    )

    redis_url: str = Field(
        "",
        description="a redis://, rediss://, unix://, redis+sentinel:// or redis+cluster:// address, empty for none",
    )
    """The Redis that all machines share; without it, each machine decides by its own journal in DATA_DIR."""
    redis_timeout_ms: int = Field(2000, ge=10, le=60_000, description="10 to 60000 milliseconds")
    """How long to wait for an answer of Redis; after that, the provider is asked to retry."""
    key_prefix: str = Field("", description="any text put in front of every Redis key")
    """Keeps several services on one Redis apart; on a Cluster it is a hash tag, `{mailonce}:` if empty."""
    data_dir: Path = Field(Path("data"), description="a folder that can be written")
    """The folder for the journal of this machine, generated tokens and audit.log; one for each machine, never
    shared or copied."""
    ingress_token: _Tokens = Field((), description=f"{STRONG_TOKENS}, several with commas")
    """For those who send emails in; if empty, one is made at the first start and kept in DATA_DIR."""
    admin_token: _Tokens = Field((), description=f"{STRONG_TOKENS}, several with commas")
    """For operators, on the page and below `/api/admin`; if empty, one is made at the first start and kept in
    DATA_DIR."""
    view_token: _Tokens = Field(
        (), description=f"{STRONG_TOKENS} and other than ADMIN_TOKEN's, several with commas, empty for none"
    )
    """For those who may look and not act, on the page and by GET below `/api/admin`."""
    metrics_token: _Tokens = Field((), description=f"{STRONG_TOKENS}, several with commas")
    """Opens `GET /metrics` and nothing else; ADMIN_TOKEN opens it, too."""
    webhook_url: str = Field("", description="an http:// or https:// address, empty for the log destination")
    """Where the webhook goes; if empty, it is printed to the log. Not beside destinations in mailonce.toml."""
    webhook_secret: _Tokens = Field(
        (), description="Standard Webhooks secrets (whsec_... or whsk_...), several with commas"
    )
    """Signs the webhook with each of them, by Standard Webhooks; if empty, it is not signed."""
    queue_url: str = Field(
        "", description="a redis://, rediss://, unix:// or redis+sentinel:// or amqp(s):// address, empty for inline"
    )
    """Where deliveries are announced to `mailonce worker`; if empty, or while the queue is out of reach, requests
    deliver."""
    worker_processes: int = Field(1, ge=1, le=64, description="1 to 64 processes")
    """Processes of one `mailonce worker`."""
    worker_threads: int = Field(8, ge=1, le=256, description="1 to 256 threads for each destination")
    """Threads for each destination in each process of `mailonce worker`."""
    worker_metrics_port: int = Field(0, ge=0, le=65535, description="1 to 65535, 0 for none")
    """Where a worker on a machine of its own answers `GET /metrics`, on HOST; a web server on the same DATA_DIR
    tells of its workers anyway."""
    dead_letter_days: float = Field(30, gt=0, le=3660, description="days up to 3660")
    """How long dead letters are kept with their payload."""
    decision_days: float = Field(7, ge=1, le=366, description="1 to 366 days")
    """How long it is known what became of an email and why, with its subject and sender."""
    privacy: PrivacyMode = Field(PrivacyMode.NORMAL, description="normal or strict")
    """With `strict`, subject and sender stand in no entry, list or log, only in payloads while these are needed."""
    keep_suppressed: bool = Field(True, description="1 or 0")
    """Whether what a gate stopped keeps its payload, so that it can be released."""
    delivered_payload_days: float = Field(0, ge=0, le=3660, description="days up to 3660, 0 for not at all")
    """How long the payload of what was delivered is kept for a forced replay."""
    payload_mb: float | None = Field(
        None,
        gt=0,
        le=1 << 20,
        description="megabytes up to 1048576, empty for a quarter of what Redis may use, else 1024",
    )
    """How much Redis stores of emails that are still to be sent; beyond that, providers are asked to retry what cannot
    be delivered at once."""
    stream_mb: float = Field(256, ge=1, le=1 << 20, description="1 to 1048576 megabytes")
    """How much of Redis the stream of outcomes may use, by which every machine learns what the others did."""
    disk_free_mb: float = Field(512, ge=0, le=1 << 30, description="megabytes up to 1073741824, 0 for no floor")
    """How much of the disk is left free: below that, providers are asked to retry."""
    mailonce_config: Path | None = Field(None, description="the path of a file that exists")
    """The file with destinations, routes, subject patterns, providers and alerts; if empty, ./mailonce.toml where
    that exists."""
    timezone: str = Field("UTC", description="an IANA time zone such as Europe/Paris")
    """Decides when a month begins, for subject groups, and in which time decisions are told."""
    subject_groups: GroupMode = Field(GroupMode.PATTERNS, description="patterns, all or off")
    """Which subjects make a group: those that match a pattern, every one (`all`), or none (`off`)."""
    subject_group_ttl_seconds: int = Field(
        0, ge=0, le=10 * 366 * 86_400, description="seconds up to ten years, 0 for the calendar month"
    )
    """How long a subject group stops others; 0 is to the end of the month."""
    processed_ids_days: int = Field(0, ge=0, le=36_600, description="days up to 36600, 0 for ever")
    """How long the ids of processed emails are kept; 0 is for ever."""
    on_store_failure: OnFailure = Field(OnFailure.OPEN, description="open or closed")
    """While Redis is away: `open` decides by what this machine knows of the whole fleet, `closed` asks providers to
    retry."""
    lease_seconds: float = Field(25, ge=2, le=3600, description="2 to 3600 seconds")
    """How long a crashed request blocks its email; receivers get at most 8 s of it, and at most two fifths."""
    max_body_mb: float = Field(25, gt=0, le=1024, description="megabytes up to 1024")
    """The largest request that is taken."""
    memory_limit_mb: int = Field(512, ge=1, description="megabytes")
    """The memory of a web process above which `/health` is degraded."""
    log_level: str = Field("INFO", description="DEBUG, INFO, WARNING or ERROR")
    """What is logged, from this level up."""
    log_format: LogFormat = Field("text", description="text or json")
    """Readable lines, or with `json` one object a line, gunicorn's lines included."""
    trusted_proxies: _Networks = Field(
        (), description="addresses or networks of proxies such as 127.0.0.1 or 10.0.0.0/8, several with commas"
    )
    """Whose X-Forwarded-For is believed, so that the log names who was refused and one guesser locks out nobody
    else."""
    service_started_at: datetime | None = Field(
        None, description="a date and time with its zone, such as 2026-11-16T09:00:00Z"
    )
    """What routes with `realtime_only` take as new is newer than this; if empty, the start of the server."""
    host: str = Field("127.0.0.1", description="an address to listen on")
    """Where the web server listens; 0.0.0.0 is every network of this machine."""
    port: int = Field(8000, ge=1, le=65535, description="1 to 65535")
    """The port it listens on."""
    public_url: str = Field("", description="an http:// or https:// address without a query, empty for HOST and PORT")
    """Where providers reach the service, for the URLs that the page shows."""
    web_concurrency: int = Field(2, ge=1, le=64, description="1 to 64 worker processes")
    """Processes of the web server."""
    web_threads: int = Field(8, ge=1, le=256, description="1 to 256 threads for each worker")
    """Requests that each of these processes works on at a time."""

    @field_validator(*_TOKENS, mode="before")
    @classmethod
    def _split_tokens(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        tokens = tuple(token.strip() for token in value.split(",") if token.strip())
        for number, token in enumerate(tokens, 1):
            if weakness := token_weakness(token):
                raise ValueError(f"token {number} {weakness}")
        return tokens

    @field_validator("webhook_secret", "trusted_proxies", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("queue_url")
    @classmethod
    def _check_queue_url(cls, value: str) -> str:
        if value and urlsplit(value).scheme not in ("amqp", "amqps") and parse_address(value).is_cluster:
            raise ValueError("Dramatiq takes no Redis Cluster")
        return value

    @field_validator("redis_url")
    @classmethod
    def _check_redis_url(cls, value: str) -> str:
        if value:
            parse_address(value)
        return value

    @field_validator("webhook_url")
    @classmethod
    def _check_webhook_url(cls, value: str) -> str:
        if value and not is_web_address(value):
            raise ValueError("not a web address")
        return value

    @field_validator("public_url")
    @classmethod
    def _check_public_url(cls, value: str) -> str:
        if value and (not is_web_address(value) or set(value) & set("?#@ ")):
            raise ValueError("not a web address")
        return value.rstrip("/")

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

    @model_validator(mode="after")
    def _check_hash_tag(self) -> Self:
        if self.redis_url and parse_address(self.redis_url).is_cluster and not _HASH_TAG.match(self.redis_prefix):
            raise ValueError("KEY_PREFIX takes a hash tag such as {mailonce}: on a Redis Cluster")
        return self

    @model_validator(mode="after")
    def _check_view_token(self) -> Self:
        if set(self.view_token) & {*self.admin_token, *self.ingress_token}:
            raise ValueError("VIEW_TOKEN takes tokens that are neither ADMIN_TOKEN's nor INGRESS_TOKEN's")
        return self

    @property
    def bind(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def address(self) -> str:
        """Where the service is, from this machine."""
        return f"http://{self.bind}"

    @property
    def tz(self) -> ZoneInfo:
        return ZoneInfo(self.timezone)

    @property
    def redis_prefix(self) -> str:
        """On a Cluster the keys of one step must share a slot, which a hash tag sees to."""
        if self.redis_url and not self.key_prefix and parse_address(self.redis_url).is_cluster:
            return "{mailonce}:"
        return self.key_prefix

    @property
    def lease_ms(self) -> int:
        return int(self.lease_seconds * 1000)

    @property
    def delivery_budget_s(self) -> float:
        """How long a provider's request waits for all its deliveries."""
        return min(DELIVERY_BUDGET_S, 0.4 * self.lease_seconds)

    @property
    def lease_margin_s(self) -> float:
        """How much longer than a POST its lease is: 15 s, by default."""
        return 0.6 * self.lease_seconds

    @property
    def ids_kept_ms(self) -> int | None:
        return self.processed_ids_days * 24 * 3600 * 1000 or None

    @property
    def dead_letter_ms(self) -> int:
        return int(self.dead_letter_days * 24 * 3600 * 1000)

    @property
    def decision_ms(self) -> int:
        return int(self.decision_days * 24 * 3600 * 1000)

    @property
    def delivered_payload_ms(self) -> int:
        return int(self.delivered_payload_days * 24 * 3600 * 1000)

    @property
    def payload_bytes(self) -> int | None:
        return None if self.payload_mb is None else int(self.payload_mb * 1024 * 1024)

    @property
    def stream_bytes(self) -> int:
        return int(self.stream_mb * 1024 * 1024)

    @property
    def disk_free_bytes(self) -> int:
        return int(self.disk_free_mb * 1024 * 1024)

    @property
    def config_path(self) -> Path | None:
        """MAILONCE_CONFIG, or ./mailonce.toml where that exists."""
        default = Path("mailonce.toml")
        return self.mailonce_config or (default if default.is_file() else None)


_SECRET = (*_TOKENS, "redis_url", "queue_url", "webhook_url", "public_url", "webhook_secret")


def load_settings(**given: Any) -> Settings:
    """Settings from the environment; ``given`` ones win. Raises SettingsError."""
    try:
        return Settings(**given)
    except ValidationError as error:
        raise SettingsError("; ".join(_complaint(dict(each)) for each in error.errors())) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{DOTENV.resolve()} takes settings that can be read, in UTF-8; {error}") from None


def log_where_settings_come_from() -> None:
    """Whether .env was read, and what looks like a slip of the pen."""
    if DOTENV.is_file():
        log.info("settings also come from %s", DOTENV.resolve())
    for name, meant in misspelt(environment()).items():
        log.warning("WARNING: %s is not a setting; did you mean %s?", name, meant)


def misspelt(names: Iterable[str]) -> dict[str, str]:
    """Names that are almost a setting's, with the setting that was meant."""
    ours = {name.upper() for name in Settings.model_fields}
    found = {}
    for name in sorted(each for each in names if each.upper() not in ours):
        bare = name.upper().removeprefix("MAILONCE_")
        like = [each for each in ours if len(each) >= SHORTEST_GUESSED and abs(len(each) - len(bare)) <= 1]
        for meant in difflib.get_close_matches(bare, like, n=1, cutoff=0.8):
            found[name] = meant
    return found


def _complaint(error: dict[str, Any]) -> str:
    if not error["loc"]:
        return str(error["ctx"]["error"])
    name = str(error["loc"][0])
    takes = Settings.model_fields[name].description
    if name in _TOKENS and "error" in error.get("ctx", {}):
        return f"{name.upper()} takes {takes}; {error['ctx']['error']}"
    shown = "its value" if name in _SECRET else repr(error["input"])
    return f"{name.upper()} takes {takes}; {shown} is not that"
