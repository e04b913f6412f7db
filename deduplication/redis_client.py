"""Connections to Redis, and functions for scripts that use the service's marks of emails and subject groups.

If there is no client, or Redis fails, the caller's ``memory_set`` decides. Without one, the answer is "not processed",
so that a script without Redis suppresses nothing.
"""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, tzinfo
from logging import Logger, LoggerAdapter
from operator import methodcaller
from typing import Any, TypedDict, Unpack, cast
from urllib.parse import unquote, urlsplit

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from deduplication.errors import DeduplicationError, NoAnswer, StoreMisconfigured
from deduplication.subject_group import monthly_scope_group_id
from deduplication.values import frozen

# The codes of errors that count as a missing answer (rule 8). Redis 6 has them inside the text of an error of a script.
_GONE = re.compile(r"(?:^| -|: )(LOADING|READONLY|OOM|CLUSTERDOWN|MISCONF|NOREPLICAS|MASTERDOWN|TRYAGAIN|BUSY)\b")
_NO_CLUSTER = "Cluster mode is not enabled on this node"
_NO_ANSWER = redis.exceptions.ConnectionError | redis.exceptions.TimeoutError
# The latter is raised if no node of a Cluster answers.
REDIS_ERRORS = (redis.exceptions.RedisError, redis.exceptions.RedisClusterException)
TTL_PREFIX = "ttl:subject_groups:"
SOCKET_TIMEOUT_S = 0.25

Log = Logger | LoggerAdapter[Logger]
Client = redis.Redis  # for modules that must not import redis
Memory = set[str] | None


def is_email_id_processed(
    redis_client: Client | None, email_id: str, logger: Log, processed_ids_key: str, memory_set: Memory = None
) -> bool:
    """``processed_ids_key`` is ``processed_ids:<the email's UTC day>``, or ``processed_ids:undated``."""
    return _ask(redis_client, email_id, methodcaller("sismember", processed_ids_key, email_id), logger, memory_set)


def mark_email_id_processed(
    redis_client: Client | None, email_id: str, logger: Log, processed_ids_key: str, memory_set: Memory = None
) -> bool:
    """True if the email is now marked in Redis or in the memory set."""
    add = methodcaller("sadd", processed_ids_key, email_id)
    return _ask(redis_client, email_id, add, logger, memory_set, marks=True)


class GroupOptions(TypedDict, total=False):
    """The keys of a group. With ``ttl_seconds``, only the TTL key decides, and the Set is a history.

    Without ``groups_key``, the Set is that of the month in ``tz``, or without ``enable_monthly_scope`` that of all
    months.
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
    has_ttl = options.get("ttl_seconds", 0) > 0
    ask = methodcaller("exists", ttl_key) if has_ttl else methodcaller("sismember", groups_key, member)
    return _ask(redis_client, member, ask, logger, options.get("memory_set"))


def mark_subject_group_processed(
    redis_client: Client | None, group_id: str, logger: Log, **options: Unpack[GroupOptions]
) -> bool:
    """True if the group is now marked in Redis or in the memory set."""
    member, groups_key, ttl_key = _member_and_keys(group_id, options)

    def mark(client: Any) -> None:
        pipe = client.pipeline()
        if (ttl_seconds := options.get("ttl_seconds", 0)) > 0:
            pipe.set(ttl_key, "1", ex=ttl_seconds)
        pipe.sadd(groups_key, member)
        pipe.execute()

    return _ask(redis_client, member, mark, logger, options.get("memory_set"), marks=True)


def _member_and_keys(group_id: str, options: GroupOptions) -> tuple[str, str, str]:
    """Reads the clock only once, so that all three are of the same month. An empty group is an empty member."""
    member, key = group_id or "", "subject_groups"  # a subject without a group has None
    if group_id and options.get("enable_monthly_scope", True):
        member = monthly_scope_group_id(group_id, options.get("tz", UTC))
        key = f"{key}:{member.partition(':')[0]}"
    return member, options.get("groups_key") or key, options.get("ttl_prefix", TTL_PREFIX) + member


def _ask(
    client: Client | None, member: str, ask: Callable[[Any], Any], logger: Log, memory: Memory, *, marks: bool = False
) -> bool:
    """Whether the member is in Redis or, if that cannot answer, in the memory set; ``marks``: ``ask`` adds it. An empty
    member counts as not processed, and is not marked."""
    if not member:
        return False
    try:
        if client is not None:
            return bool(ask(client)) or marks
        logger.warning("REDIS_DEDUP: no Redis client, using the memory set if there is one")
    except redis.exceptions.RedisError as error:
        logger.error("REDIS_DEDUP: %s, using the memory set if there is one", type(error).__name__)
    if marks and memory is not None:
        memory.add(member)
    return member in (memory or ())


@frozen
class Address:
    """``path`` is the database, or with Sentinels ``service/database``."""

    hosts: list[tuple[str, int]]
    login: dict[str, Any]
    path: str
    is_sentinel: bool
    is_cluster: bool


def parse_address(url: str) -> Address:
    """Parses a URL such as ``redis+sentinel://[user:password@]host:26379,host:26379/service[/db]``. Raises
    ValueError."""
    parts = urlsplit(url)
    scheme, _, topology = parts.scheme.partition("+")
    hosts = [urlsplit(f"//{host}") for host in parts.netloc.rpartition("@")[2].split(",") if host]
    topologies = ("", "sentinel", "cluster") if hosts else ("",)
    if scheme not in ("redis", "rediss", "unix") or topology not in topologies:
        raise ValueError("not a Redis address")
    user, password = (unquote(text or "") for text in (parts.username, parts.password))
    login = {"username": user, "password": password, "ssl": scheme == "rediss"}
    default_port = 26379 if topology == "sentinel" else 6379
    return Address(
        hosts=[(host.hostname or "localhost", host.port or default_port) for host in hosts],
        login={key: value for key, value in login.items() if value},
        path=parts.path.strip("/"),
        is_sentinel=topology == "sentinel",
        is_cluster=topology == "cluster" or (not topology and len(hosts) > 1),
    )


def connect(url: str, timeout_s: float = SOCKET_TIMEOUT_S, *, decode_responses: bool = True) -> redis.Redis:
    """A client without retries: only the caller may repeat a claim, because it must use the same owner token.

    It sends no HELLO or CLIENT SETINFO: these are four round trips before the first command, of a second or two each
    while Redis is loading or slow. Over TLS without a password, it sends its name, because the server sends session
    tickets after the handshake, which the pool would take for a stray reply if no answer was read after them.
    """
    address = parse_address(url)
    limits = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s, "retry": Retry(NoBackoff(), 0)}
    options: dict[str, Any] = {**limits, "decode_responses": decode_responses, "protocol": 2, "driver_info": None}
    if address.login.keys() == {"ssl"}:
        options["client_name"] = "mailonce"
    if address.is_sentinel:  # the credentials are for the server only, not for the Sentinels
        service, _, db = address.path.partition("/")
        sentinels = Sentinel(address.hosts, sentinel_kwargs=limits, **options, **address.login)  # type: ignore[no-untyped-call]
        return cast(redis.Redis, sentinels.master_for(service or "mymaster", db=int(db or 0)))  # type: ignore[no-untyped-call]
    if address.is_cluster:
        nodes = [ClusterNode(host, port) for host, port in address.hosts]  # type: ignore[no-untyped-call]
        try:
            return cast(redis.Redis, RedisCluster(startup_nodes=nodes, **options, **address.login))
        except REDIS_ERRORS as error:  # the constructor asks for the nodes
            raise translated(error) from error
    return redis.Redis.from_pool(_Pool.from_url(url, retry_on_timeout=False, **options))


class _Pool(redis.ConnectionPool):
    """A pool without the events and the checks for forks that redis-py adds to each command."""

    def get_connection(self, *_: Any, **__: Any) -> Any:
        try:
            connection: Any = self._available_connections.pop()
        except IndexError:
            return self.make_connection()  # it connects with its first command
        try:
            if connection.is_connected and connection.can_read():  # an unread answer, or Redis has closed it
                connection.disconnect()
        except redis.exceptions.ConnectionError:
            connection.disconnect()
        return connection

    def release(self, connection: Any) -> None:
        self._available_connections.append(connection)


def exchange(client: Any, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Sends scripts together and returns their answers; the answer of a script that Redis refused is the error.

    A pipeline of redis-py costs a new email 70 us more, and in a Cluster asks another node for the keys of each script.
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
            connection.disconnect()  # a late answer would be taken for the answer of another command
        if connection:
            client.connection_pool.release(connection)


def translated(error: Exception) -> DeduplicationError:
    """NoAnswer for errors that count as a missing answer (rule 8), StoreMisconfigured for all others."""
    text = str(error)
    # The error of the node that was asked last. redis-py says "not enabled" whatever that node refused, such as BUSY.
    cause = error.__context__ if text == _NO_CLUSTER else error.__cause__
    if isinstance(error, redis.exceptions.RedisClusterException) and isinstance(cause, Exception):
        return translated(cause)
    if isinstance(error, redis.exceptions.AuthenticationError) or "unauthenticated" in text:
        return StoreMisconfigured(f"Redis refused the credentials: {text}")
    if not isinstance(error, redis.exceptions.RedisError) or isinstance(error, _NO_ANSWER):
        return NoAnswer(f"Redis does not answer: {type(error).__name__}")
    if found := _GONE.search(f"{error.status_code or ''} {text}".lstrip()):
        return NoAnswer(f"Redis cannot be used now: {found[1]}")
    return StoreMisconfigured(f"Redis refused a command: {text}")
