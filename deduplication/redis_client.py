"""Functions for scripts that ask and mark processed emails and subject groups on the service's keys, and connections.

If there is no client, or Redis fails, the caller's ``memory_set`` decides; without one the answer is "not processed": a
script that cannot know must not suppress.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, tzinfo
from logging import Logger, LoggerAdapter
from typing import Any, TypedDict, Unpack, cast
from urllib.parse import unquote, urlsplit

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from deduplication.errors import DeduplicationError, NoAnswer, StoreMisconfigured, StoreUnavailable
from deduplication.subject_group import monthly_scope_group_id
from deduplication.values import frozen

_GONE = ("LOADING", "READONLY", "OOM", "CLUSTERDOWN", "MISCONF", "NOREPLICAS", "MASTERDOWN", "TRYAGAIN", "BUSY")
# Errors whose code is not in their text, because redis-py has a class for them.
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
Client = redis.Redis  # for modules that get a client and do not import redis
Memory = set[str] | None


def is_email_id_processed(
    redis_client: Client | None, email_id: str, logger: Log, processed_ids_key: str, memory_set: Memory = None
) -> bool:
    """``processed_ids_key`` is ``processed_ids:<the email's UTC day>``, or ``processed_ids:undated``."""
    answer = _ask(redis_client, email_id, lambda client: client.sismember(processed_ids_key, email_id), logger)
    return email_id in (memory_set or ()) if answer is None else answer


def mark_email_id_processed(
    redis_client: Client | None, email_id: str, logger: Log, processed_ids_key: str, memory_set: Memory = None
) -> bool:
    """True if it is now remembered somewhere."""
    answer = _ask(redis_client, email_id, lambda client: client.sadd(processed_ids_key, email_id) >= 0, logger)
    return _remember(memory_set, email_id) if answer is None else answer


class GroupOptions(TypedDict, total=False):
    """Under which keys a group is remembered. With ``ttl_seconds`` the TTL key alone decides; the Set is history then.

    Without ``groups_key`` the Set is that of the month in ``tz``; without ``enable_monthly_scope``, one for all months.
    """

    ttl_seconds: int
    ttl_prefix: str
    groups_key: str | None
    enable_monthly_scope: bool
    tz: tzinfo
    memory_set: Memory


def is_subject_group_processed(
    redis_client: Client | None, group_id: str, logger: Log, **options: Unpack[GroupOptions]
) -> bool:
    member, groups_key, ttl_key = _member_and_keys(group_id, options)

    def ask(client: Any) -> Any:
        has_ttl = options.get("ttl_seconds", 0) > 0
        return client.exists(ttl_key) if has_ttl else client.sismember(groups_key, member)

    answer = _ask(redis_client, group_id, ask, logger)
    return member in (options.get("memory_set") or ()) if answer is None else answer


def mark_subject_group_processed(
    redis_client: Client | None, group_id: str, logger: Log, **options: Unpack[GroupOptions]
) -> bool:
    """True if it is now remembered somewhere."""
    member, groups_key, ttl_key = _member_and_keys(group_id, options)

    def mark(client: Any) -> bool:
        pipe = client.pipeline()
        if (ttl_seconds := options.get("ttl_seconds", 0)) > 0:
            pipe.set(ttl_key, "1", ex=ttl_seconds)
        pipe.sadd(groups_key, member)
        pipe.execute()
        return True

    answer = _ask(redis_client, group_id, mark, logger)
    return _remember(options.get("memory_set"), member) if answer is None else answer


def _member_and_keys(group_id: str, options: GroupOptions) -> tuple[str, str, str]:
    """All from one reading of the clock: at a month's end they must not disagree."""
    member, key = group_id, "subject_groups"
    if options.get("enable_monthly_scope", True):
        member = monthly_scope_group_id(group_id, options.get("tz", UTC))
        key = f"{key}:{member.partition(':')[0]}"
    return member, options.get("groups_key") or key, options.get("ttl_prefix", TTL_PREFIX) + member


def _ask(redis_client: Client | None, name: str, ask: Callable[[Any], Any], logger: Log) -> bool | None:
    """None if Redis cannot answer. An empty name is never processed, and never marked."""
    if not name:
        return False
    if redis_client is None:
        logger.warning("REDIS_DEDUP: no Redis client, using the memory set if there is one")
        return None
    try:
        return bool(ask(redis_client))
    except redis.exceptions.RedisError as error:
        logger.error("REDIS_DEDUP: %s, using the memory set if there is one", type(error).__name__)
        return None


def _remember(memory_set: Memory, member: str) -> bool:
    if memory_set is not None:
        memory_set.add(member)
    return memory_set is not None


@frozen
class Address:
    """Where Redis is. ``path`` is the database, or the Sentinels' name for the service and the database."""

    hosts: list[tuple[str, int]]
    login: dict[str, Any]
    path: str
    is_sentinel: bool
    is_cluster: bool


def parse_address(url: str) -> Address:
    """Such as ``redis+sentinel://[user:password@]host:26379,host:26379/service[/db]``. Raises ValueError."""
    parts = urlsplit(url)
    scheme, _, topology = parts.scheme.partition("+")
    if scheme not in ("redis", "rediss", "unix") or topology not in ("", "sentinel", "cluster"):
        raise ValueError("not a Redis address")
    login, _, netloc = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    given = {"username": unquote(user), "password": unquote(password), "ssl": scheme == "rediss"}
    sites = [urlsplit(f"//{site}") for site in netloc.split(",") if site]
    default_port = 26379 if topology == "sentinel" else 6379
    return Address(
        hosts=[(site.hostname or "localhost", site.port or default_port) for site in sites],
        login={key: value for key, value in given.items() if value},
        path=parts.path.strip("/"),
        is_sentinel=topology == "sentinel",
        is_cluster=topology == "cluster" or (not topology and len(sites) > 1),
    )


def connect(url: str, timeout_s: float = SOCKET_TIMEOUT_S, *, decode_responses: bool = True) -> redis.Redis:
    """A client that never retries on its own: a repeated claim must carry its owner token on purpose.

    Nor does it introduce itself (HELLO, CLIENT SETINFO...), which takes four round trips before the first command, of a
    second or two each while Redis is loading or slow. Over TLS without a password it sends its name: the server sends
    session tickets after the handshake, which the pool takes for a stray reply unless an answer was read after them.
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
    if address.is_sentinel:  # the credentials are for the server; the Sentinels are asked without them
        service, _, db = address.path.partition("/")
        timeouts = {name: options[name] for name in ("socket_timeout", "socket_connect_timeout", "retry")}
        sentinels = Sentinel(address.hosts, sentinel_kwargs=timeouts, **options, **address.login)  # type: ignore[no-untyped-call]
        client = sentinels.master_for(service or "mymaster", db=int(db or 0))  # type: ignore[no-untyped-call]
        return cast(redis.Redis, client)
    if address.is_cluster:
        nodes = [ClusterNode(host, port) for host, port in address.hosts]  # type: ignore[no-untyped-call]
        try:
            return cast(redis.Redis, RedisCluster(startup_nodes=nodes, **options, **address.login))
        except redis.exceptions.RedisClusterException as error:  # its constructor asks for the nodes
            raise StoreUnavailable(str(error)) from error
    return redis.Redis.from_pool(_Pool.from_url(url, retry_on_timeout=False, **options))


class _Pool(redis.ConnectionPool):
    """Without what redis-py's own adds to each command for observers that nobody has here, and for forks."""

    def get_connection(self, *_: Any, **__: Any) -> Any:
        try:
            connection: Any = self._available_connections.pop()
        except IndexError:
            return self.make_connection()  # it connects when it sends
        if connection.is_connected:
            try:
                is_stale = connection.can_read()  # an answer that nobody has read, or the end: Redis has closed it
            except redis.exceptions.ConnectionError:
                is_stale = True
            if is_stale:
                connection.disconnect()
        return connection

    def release(self, connection: Any) -> None:
        self._available_connections.append(connection)


def exchange(client: Any, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Sends commands in one go and returns their answers, with an error in the place of a command that Redis refused.

    redis-py itself takes three times the processor time: it measures, retries and converts what never applies here.
    """
    connection: Any = None if isinstance(client, RedisCluster) else client.connection_pool.get_connection()
    answers: list[Any] = []
    try:
        if connection:
            packed = b"".join(hiredis.pack_command(tuple(command)) for command in commands)
            connection.send_packed_command([packed], check_health=False)
        for command in commands:
            try:
                answers.append(connection.read_response() if connection else client.execute_command(*command))
            except redis.exceptions.ResponseError as error:
                answers.append(error)
        return answers
    finally:
        if connection and len(answers) < len(commands):
            connection.disconnect()  # an answer that comes later would be taken for that of another command
        if connection:
            client.connection_pool.release(connection)


def translated(error: redis.exceptions.RedisError) -> DeduplicationError:
    """What counts as "gone" (rule 8); everything else is a wrong setting or a bug, and loud."""
    text, kind = str(error), type(error).__name__
    if isinstance(error, redis.exceptions.AuthenticationError) or "unauthenticated" in text:
        return StoreMisconfigured(f"Redis refused the credentials: {text}")
    if isinstance(error, redis.exceptions.ConnectionError | redis.exceptions.TimeoutError):
        return NoAnswer(f"Redis does not answer: {kind}")
    if isinstance(error, _GONE_CLASSES):
        return NoAnswer(f"Redis cannot be used now: {kind}")
    if text.startswith(_GONE) or any(f" -{word}" in text or f": {word} " in text for word in _GONE):
        return NoAnswer(f"Redis cannot be used now: {text.split()[0]}")
    return StoreMisconfigured(f"Redis refused a command: {text}")
