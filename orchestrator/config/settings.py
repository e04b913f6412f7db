"""The only reader of the environment. A wrong value stops the start with one line that says what it must be."""

import difflib
import logging
import os
import re
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from dotenv import dotenv_values
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FilePath,
    IPvAnyNetwork,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from deduplication.redis_client import parse_address
from deduplication.subject_group import GroupMode, GroupScope
from orchestrator.config.words import problem, reason
from orchestrator.delivery.signing import check_secret
from orchestrator.logs import LogFormat

log = logging.getLogger(__name__)

DOTENV = Path(".env")  # in the folder where the service is started; the environment takes precedence
SHORTEST_GUESSED = 6  # HOST and PORT are too similar to names that other programs use
STRONG_TOKENS = "tokens of at least 16 characters, 8 of them different, separated by commas"
DELIVERY_BUDGET_S = 8  # how long a provider's request waits for all its deliveries
DAY_MS = 24 * 3600 * 1000
MB = 1024 * 1024
_REDIS = "a redis://, rediss://, unix://, redis+sentinel:// or redis+cluster:// address, empty for none"
_HASH_TAG = re.compile(r"\{[^{}]+\}")


class SettingsError(Exception):
    """A setting has a wrong value; the message says which, and what it must be."""


def passes(check: Callable[[str], object]) -> AfterValidator:
    """For text that is empty, or for which the check raises no ValueError."""

    def validate(text: str) -> str:
        if text:
            check(text)
        return text

    return AfterValidator(validate)


def check_web_address(text: str) -> None:
    """Raises ValueError if it is none."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("not a web address")


def environment() -> dict[str, str]:
    """The variables of .env and of the process, which take precedence, for env:NAME in mailonce.toml as well. Empty
    ones count as absent: a compose file may pass REDIS_URL=${REDIS_URL:-} on."""
    sources = (dotenv_values(DOTENV) if DOTENV.is_file() else {}, os.environ)
    return {name: value for source in sources for name, value in source.items() if value}


def _split(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def check_tokens(tokens: tuple[str, ...]) -> tuple[str, ...]:
    """Raises ValueError if one is too easy to guess, without showing it."""
    for number, token in enumerate(tokens, 1):
        if len(token) < 16 or len(set(token)) < 8:
            why = f"token {number} has {len(token)} characters, {len(set(token))} of them different"
            raise reason(f"must be {STRONG_TOKENS}; {why}")
    return tokens


Secret = Annotated[str, AfterValidator(check_secret)]
_Secrets = Annotated[tuple[Secret, ...], BeforeValidator(_split)]
_Tokens = Annotated[tuple[str, ...], BeforeValidator(_split), AfterValidator(check_tokens)]
_Networks = Annotated[tuple[IPvAnyNetwork, ...], BeforeValidator(_split)]
WebAddress = Annotated[str, passes(check_web_address)]
_no_slash_at_end = AfterValidator(lambda text: text.rstrip("/"))
_PublicUrl = Annotated[WebAddress, Field(pattern=r"\A[^?#@ ]*\z"), _no_slash_at_end]
_FilesUrl = Annotated[str, Field(pattern=r"\A(s3://[a-z0-9][a-z0-9.-]{2,62}(/[\w./-]*)?)?\z"), _no_slash_at_end]
_LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(str.upper)]


class Settings(BaseModel):
    """Every setting: its description completes "NAME must be ...", the text below it says what it does.

    docs/configuration.md and deploy/env.example are written from here (make docs-reference). Values of fields with
    repr=False are secret, and shown nowhere.
    """

    model_config = ConfigDict(frozen=True, validate_default=True)

    redis_url: Annotated[str, passes(parse_address)] = Field("", repr=False, description=_REDIS)
    """The Redis that all machines share; without it, each machine decides by its own journal in DATA_DIR."""
    redis_timeout_ms: int = Field(2000, ge=10, le=60_000, description="milliseconds")
    """How long to wait for Redis; after that, the provider is asked to retry."""
    key_prefix: str = Field("", description="any text, put in front of every Redis key")
    """Separates several services on one Redis; on a Cluster it is a hash tag, `{mailonce}:` if empty."""
    on_store_failure: Literal["open", "closed"] = Field("open", description="open or closed")
    """While Redis is away: `open` decides by what this machine knows of the fleet, `closed` asks providers to retry."""
    data_dir: Path = Field(Path("data"), description="a writable folder")
    """The folder of the journal, generated tokens and audit.log; one for each machine, never shared or copied."""
    stream_mb: float = Field(256, ge=1, le=1 << 20, description="megabytes")
    """How much of Redis the stream of outcomes may use, from which each machine learns what the others did."""
    ingress_token: _Tokens = Field((), repr=False, description=STRONG_TOKENS)
    """For clients that send emails in; if empty, one is generated at the first start and stored in DATA_DIR."""
    admin_token: _Tokens = Field((), repr=False, description=STRONG_TOKENS)
    """For operators, on the page and below `/api/admin`; if empty, one is generated and stored like INGRESS_TOKEN."""
    view_token: _Tokens = Field((), repr=False, description=f"{STRONG_TOKENS}, other than ADMIN_TOKEN's")
    """Read-only access, to the page and to GET requests below `/api/admin`."""
    metrics_token: _Tokens = Field((), repr=False, description=STRONG_TOKENS)
    """Access to `GET /metrics` only, which ADMIN_TOKEN has too."""
    trusted_proxies: _Networks = Field((), description="addresses or networks such as 10.0.0.0/8, separated by commas")
    """Proxies whose X-Forwarded-For is trusted, so that the log shows the client's address and one client that guesses
    tokens does not lock out the others."""
    webhook_url: WebAddress = Field("", repr=False, description="an http:// or https:// address")
    """Where the webhook goes; if empty, it is printed to the log. Not together with destinations in mailonce.toml."""
    webhook_secret: _Secrets = Field((), repr=False, description="Standard Webhooks secrets, separated by commas")
    """Signs the webhook with each of them, as Standard Webhooks; if empty, it is not signed."""
    mailonce_config: FilePath | None = Field(None, description="the path of an existing file")
    """The file with destinations, routes, patterns, providers and alerts; if empty, ./mailonce.toml if it exists."""
    deliver_by: Literal["requests", "workers"] = Field("requests", description="requests or workers")
    """Whether the requests that receive emails deliver them, or store them for `mailonce worker` on any machine."""
    worker_processes: int = Field(1, ge=1, le=64, description="processes")
    """Processes of one `mailonce worker`."""
    worker_threads: int = Field(8, ge=1, le=256, description="threads for each destination")
    """Threads for each destination in each process of `mailonce worker`."""
    worker_metrics_port: int = Field(0, ge=0, le=65535, description="(0 for none)")
    """Where a worker on a machine of its own answers `GET /metrics`, on HOST; a web server on the same DATA_DIR
    includes the metrics of its workers."""
    subject_groups: GroupMode = Field(GroupMode.PATTERNS, description="patterns, all or off")
    """Which subjects form a group: those that match a pattern, every one (`all`), or none (`off`)."""
    group_scope: GroupScope = Field(GroupScope.DOMAIN, description="domain, sender or everyone")
    """Among whose emails a subject group counts, and a file on a route with `media`: of one domain (at public mail
    providers, of one address), of one address, or of everyone. With `everyone` anyone can suppress the emails of
    others, and groups suppress replies."""
    subject_group_ttl_seconds: int = Field(0, ge=0, le=3660 * 86_400, description="seconds, 0 for the calendar month")
    """How long a subject group suppresses others; 0 is to the end of the month."""
    timezone: ZoneInfo = Field(ZoneInfo("UTC"), description="an IANA time zone such as Europe/Paris")
    """Decides when a month begins, for subject groups, and in which time zone decisions are shown."""
    lease_seconds: float = Field(25, ge=2, le=3600, description="seconds")
    """How long a crashed request blocks its email; receivers get at most 8 s of it, and at most two fifths."""
    service_started_at: AwareDatetime | None = Field(None, description="a time such as 2026-11-16T09:00:00Z")
    """Routes with `realtime_only` skip emails older than this; if empty, the start of the server."""
    processed_ids_days: int = Field(0, ge=0, le=36_600, description="days, 0 for ever")
    """How long the ids of processed emails are kept."""
    decision_days: float = Field(7, ge=1, le=366, description="days")
    """How long the decision about each email is kept, with its subject, sender and recipient."""
    dead_letter_days: float = Field(30, gt=0, le=3660, description="days")
    """How long dead letters are kept with their payload."""
    delivered_payload_days: float = Field(0, ge=0, le=3660, description="days, 0 for not at all")
    """How long payloads are kept after delivery, for a forced replay."""
    keep_suppressed: bool = Field(True, description="1 or 0")
    """Whether suppressed emails keep their payload, so that they can be released."""
    privacy: Literal["normal", "strict"] = Field("normal", description="normal or strict")
    """With `strict`, subjects, senders and recipients are in no entry, list or log, only in payloads while needed."""
    payload_mb: float | None = Field(None, gt=0, le=1 << 20, description="megabytes")
    """How much Redis stores of undelivered emails; beyond that, providers are asked to retry emails that cannot be
    delivered at once. If empty, a quarter of Redis' maxmemory, or 1024 if it has none."""
    files_url: _FilesUrl = Field("", description="an address such as s3://bucket/prefix, empty for DATA_DIR")
    """Where attachments and raw emails behind links are kept; S3 (the extra `s3`) if several machines share them."""
    files_days: float = Field(7, gt=0, le=366, description="days")
    """How long links to attachments and raw emails work."""
    files_mb: float = Field(1024, gt=0, le=1 << 30, description="megabytes")
    """How much room their files may take on each machine; one sender domain can take at most four fifths of it."""
    disk_free_mb: float = Field(512, ge=0, le=1 << 30, description="megabytes, 0 for no limit")
    """How much of the disk is left free: below that, providers are asked to retry."""
    host: str = Field("127.0.0.1", description="an address to listen on")
    """Where the web server listens; 0.0.0.0 is every network of this machine."""
    port: int = Field(8000, ge=1, le=65535)
    """The port it listens on."""
    public_url: _PublicUrl = Field("", repr=False, description="an http:// or https:// address without a query")
    """Where the service is reached, for links to files and the URLs that the page shows; if empty, HOST and PORT."""
    web_concurrency: int = Field(2, ge=1, le=64, description="worker processes")
    """Processes of the web server."""
    web_threads: int = Field(8, ge=1, le=256, description="threads for each worker")
    """Requests that each of these processes handles at a time."""
    max_body_mb: float = Field(25, gt=0, le=1024, description="megabytes")
    """The largest request that is accepted."""
    memory_limit_mb: int = Field(512, ge=1, description="megabytes")
    """The memory of a web process above which `/health` is degraded."""
    log_format: LogFormat = Field("text", description="text or json")
    """Readable lines, or with `json` one object a line, gunicorn's lines included."""
    log_level: _LogLevel = Field("INFO", description="DEBUG, INFO, WARNING or ERROR")
    """Lines below this level are not logged."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.redis_url and parse_address(self.redis_url).is_cluster and not _HASH_TAG.match(self.redis_prefix):
            raise reason("KEY_PREFIX must begin with a hash tag such as {mailonce}: on a Redis Cluster")
        if set(self.view_token) & {*self.admin_token, *self.ingress_token}:
            raise reason("VIEW_TOKEN must differ from the tokens of ADMIN_TOKEN and INGRESS_TOKEN")
        return self

    @property
    def bind(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def address(self) -> str:
        """Where the service is, from this machine."""
        return f"http://{self.bind}"

    @property
    def links_reach_files(self) -> bool:
        """Without S3, a link of one machine may reach another one of its fleet."""
        return bool(self.files_url or not self.redis_url)

    @property
    def redis_prefix(self) -> str:
        """On a Cluster the keys of one step must share a slot, which a hash tag sees to."""
        if self.redis_url and not self.key_prefix and parse_address(self.redis_url).is_cluster:
            return "{mailonce}:"
        return self.key_prefix

    @cached_property
    def lease_ms(self) -> int:
        return int(self.lease_seconds * 1000)

    @cached_property
    def ids_kept_ms(self) -> int | None:
        return self.processed_ids_days * DAY_MS or None

    @property
    def decision_ms(self) -> int:
        return int(self.decision_days * DAY_MS)

    @property
    def disk_free_bytes(self) -> int:
        return int(self.disk_free_mb * MB)


def load_settings(**given: Any) -> Settings:
    """From the environment, whatever the case of their names; ``given`` ones take precedence. Raises SettingsError."""
    try:
        found = {name.lower(): value for name, value in environment().items()}
        return Settings(**{name: found[name] for name in found.keys() & Settings.model_fields} | given)
    except ValidationError as error:
        raise SettingsError("; ".join(map(_in_words, error.errors()))) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{DOTENV.resolve()} must be readable, in UTF-8; {error}") from None


def _in_words(error: ErrorDetails) -> str:
    loc, text = problem(Settings, error)
    if not loc:
        return text
    is_shown = Settings.model_fields[str(loc[0])].repr
    return f"{str(loc[0]).upper()} {text}" + (f", got {error['input']!r}" if is_shown else "")


def log_where_settings_come_from() -> None:
    """Logs whether .env was read, and names that look like typing errors."""
    if DOTENV.is_file():
        log.info("settings also come from %s", DOTENV.resolve())
    for name, meant in misspelt(environment()).items():
        log.warning("WARNING: %s is not a setting; did you mean %s?", name, meant)


def misspelt(names: Iterable[str]) -> dict[str, str]:
    """Names that are almost a setting's, with the setting that was meant."""
    known = [name.upper() for name in Settings.model_fields]
    guessed = [name for name in known if len(name) >= SHORTEST_GUESSED]
    meant = partial(difflib.get_close_matches, possibilities=guessed, n=1, cutoff=0.88)
    unknown = sorted(name for name in names if name.upper() not in known)
    return {name: found for name in unknown for found in meant(name.upper().removeprefix("MAILONCE_"))}
