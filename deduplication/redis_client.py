"""The small door for scripts: ask and mark processed emails and subject groups, on the keys the service uses.

Redis first. Without a client, or if it fails, the caller's ``memory_set`` decides if one is given; otherwise the
answer is "not processed": a script that cannot know must not suppress.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, tzinfo
from logging import Logger, LoggerAdapter
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from deduplication.errors import DeduplicationError, NoAnswer, StoreMisconfigured, StoreUnavailable
from deduplication.subject_group import monthly_scope_group_id

_GONE = ("LOADING", "READONLY", "OOM", "CLUSTERDOWN", "MISCONF", "NOREPLICAS", "MASTERDOWN", "TRYAGAIN", "BUSY")
# Their code is not in the text: redis-py makes a class of it.
_GONE_CLASSES = (
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.MasterDownError,
)
TTL_PREFIX = "ttl:subject_groups:"
SOCKET_TIMEOUT_S = 0.25

Log = Logger | LoggerAdapter[Logger]
Client = redis.Redis  # for those who are handed one and do not import redis


def is_email_id_processed(
    redis_client: redis.Redis | None,
    email_id: str,
    logger: Log,
    processed_ids_key: str,
    memory_set: set[str] | None = None,
) -> bool:
    """``processed_ids_key`` is ``processed_ids:<the email's UTC day>``, or ``processed_ids:undated``."""
    if not email_id:
        return False
    return _ask(
        redis_client,
        lambda client: bool(client.sismember(processed_ids_key, email_id)),
        logger,
        lambda: memory_set is not None and email_id in memory_set,
    )


def mark_email_id_processed(
    redis_client: redis.Redis | None,
    email_id: str,
    logger: Log,
    processed_ids_key: str,
    memory_set: set[str] | None = None,
) -> bool:
    """True if it is now remembered somewhere."""
    if not email_id:
        return False
    return _ask(
        redis_client,
        lambda client: client.sadd(processed_ids_key, email_id) >= 0,
        logger,
        lambda: _remember(memory_set, email_id),
    )


def is_subject_group_processed(
    redis_client: redis.Redis | None,
    group_id: str,
    logger: Log,
    *,
    ttl_seconds: int = 0,
    ttl_prefix: str = TTL_PREFIX,
    groups_key: str | None = None,
    enable_monthly_scope: bool = True,
    tz: tzinfo = UTC,
    memory_set: set[str] | None = None,
) -> bool:
    """With ``ttl_seconds`` the TTL key alone decides; the Set is history then."""
    if not group_id:
        return False
    member, monthly_key = _member_and_key(group_id, tz, enable_monthly_scope)
    key = groups_key or monthly_key

    def ask(client: redis.Redis) -> bool:
        if ttl_seconds > 0:
            return bool(client.exists(ttl_prefix + member))
        return bool(client.sismember(key, member))

    return _ask(redis_client, ask, logger, lambda: memory_set is not None and member in memory_set)


def mark_subject_group_processed(
    redis_client: redis.Redis | None,
    group_id: str,
    logger: Log,
    *,
    ttl_seconds: int = 0,
    ttl_prefix: str = TTL_PREFIX,
    groups_key: str | None = None,
    enable_monthly_scope: bool = True,
    tz: tzinfo = UTC,
    memory_set: set[str] | None = None,
) -> bool:
    """True if it is now remembered somewhere."""
    if not group_id:
        return False
    member, monthly_key = _member_and_key(group_id, tz, enable_monthly_scope)
    key = groups_key or monthly_key

    def mark(client: redis.Redis) -> bool:
        pipe = client.pipeline()
        if ttl_seconds > 0:
            pipe.set(ttl_prefix + member, "1", ex=ttl_seconds)
        pipe.sadd(key, member)
        pipe.execute()
        return True

    return _ask(redis_client, mark, logger, lambda: _remember(memory_set, member))


def _member_and_key(group_id: str, tz: tzinfo, enable_monthly_scope: bool) -> tuple[str, str]:
    """Both from one look at the clock: at a month's end they must not disagree."""
    if not enable_monthly_scope:
        return group_id, "subject_groups"
    member = monthly_scope_group_id(group_id, tz)
    return member, f"subject_groups:{member.partition(':')[0]}"


def _ask(
    redis_client: redis.Redis | None,
    ask: Callable[[Any], bool],
    logger: Log,
    otherwise: Callable[[], bool],
) -> bool:
    if redis_client is None:
        logger.warning("REDIS_DEDUP: no Redis client, using the memory set if there is one")
        return otherwise()
    try:
        return ask(redis_client)
    except redis.exceptions.RedisError as error:
        logger.error("REDIS_DEDUP: %s, using the memory set if there is one", type(error).__name__)
        return otherwise()


def _remember(memory_set: set[str] | None, member: str) -> bool:
    if memory_set is None:
        return False
    memory_set.add(member)
    return True


@dataclass(frozen=True)
class Address:
    """Where Redis is. ``service`` is what the Sentinels call it; several hosts without one are a Cluster."""

    url: str
    hosts: list[tuple[str, int]]
    login: dict[str, Any]
    path: str
    is_sentinel: bool
    is_cluster: bool


def parse_address(url: str) -> Address:
    """Raises ValueError if it is none. ``redis+sentinel://[user:password@]host:26379,host:26379/service[/db]``."""
    parts = urlsplit(url)
    scheme, _, topology = parts.scheme.partition("+")
    if scheme not in ("redis", "rediss", "unix") or topology not in ("", "sentinel", "cluster"):
        raise ValueError("not a Redis address")
    login, _, netloc = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    given = {"username": unquote(user), "password": unquote(password), "ssl": scheme == "rediss"}
    hosts = [_host_and_port(each, 26379 if topology == "sentinel" else 6379) for each in netloc.split(",") if each]
    return Address(
        url=url,
        hosts=hosts,
        login={key: value for key, value in given.items() if value},
        path=parts.path.strip("/"),
        is_sentinel=topology == "sentinel",
        is_cluster=topology == "cluster" or (not topology and len(hosts) > 1),
    )


def _host_and_port(text: str, default_port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    return parts.hostname or "localhost", parts.port or default_port


def connect(url: str, timeout_s: float = SOCKET_TIMEOUT_S, *, decode_responses: bool = True) -> redis.Redis:
    """A client that never retries by itself: a repeated claim must carry its owner token knowingly.

    Nor does it introduce itself (HELLO, CLIENT SETINFO...): four answers to wait for before the first one that matters,
    and a Redis that is loading or slow takes a second or two for each. Over TLS without a password it says its name:
    behind the handshake the server sends session tickets, which the pool takes for a reply to nothing unless an answer
    was read after them.
    """
    address = parse_address(url)
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": decode_responses,
        "protocol": 2,
        "driver_info": None,
    }
    if address.login.keys() == {"ssl"}:
        options["client_name"] = "mailonce"
    if address.is_sentinel:
        return _sentinel_client(address, options)
    if address.is_cluster:
        nodes = [ClusterNode(host, port) for host, port in address.hosts]  # type: ignore[no-untyped-call]
        try:
            return cast(redis.Redis, RedisCluster(startup_nodes=nodes, **options, **address.login))
        except redis.exceptions.RedisClusterException as error:  # its constructor asks for the nodes
            raise StoreUnavailable(str(error)) from error
    return redis.Redis.from_url(url, retry_on_timeout=False, **options)


def _sentinel_client(address: Address, options: dict[str, Any]) -> redis.Redis:
    """The credentials are the server's; the Sentinels are asked without."""
    service, _, db = address.path.partition("/")
    timeouts = {name: options[name] for name in ("socket_timeout", "socket_connect_timeout", "retry")}
    sentinels = Sentinel(address.hosts, sentinel_kwargs=timeouts, **options, **address.login)  # type: ignore[no-untyped-call]
    client = sentinels.master_for(service or "mymaster", db=int(db or 0))  # type: ignore[no-untyped-call]
    return cast(redis.Redis, client)


def ping(client: redis.Redis) -> None:
    """Raises NoAnswer, or StoreMisconfigured if the credentials are refused."""
    try:
        client.ping()
    except redis.exceptions.RedisError as error:
        raise translated(error) from error


def translated(error: redis.exceptions.RedisError) -> DeduplicationError:
    """What counts as "gone" (rule 8); everything else is a wrong setting or a bug, and loud."""
    if isinstance(error, redis.exceptions.AuthenticationError) or "unauthenticated" in str(error):
        return StoreMisconfigured(f"Redis refused the credentials: {error}")
    if isinstance(error, redis.exceptions.ConnectionError | redis.exceptions.TimeoutError):
        return NoAnswer(f"Redis does not answer: {type(error).__name__}")
    text = str(error)
    if isinstance(error, _GONE_CLASSES):
        return NoAnswer(f"Redis cannot be used now: {type(error).__name__}")
    if text.startswith(_GONE) or any(f" -{word}" in text or f": {word} " in text for word in _GONE):
        return NoAnswer(f"Redis cannot be used now: {text.split()[0]}")
    return StoreMisconfigured(f"Redis refused a command: {text}")
