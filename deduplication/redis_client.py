"""The small door for scripts: ask and mark processed emails and subject groups, on the keys the service uses.

Redis first. Without a client, or if it fails, the caller's ``memory_set`` decides if one is given; otherwise the
answer is "not processed": a script that cannot know must not suppress.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, tzinfo
from logging import Logger, LoggerAdapter
from typing import Any

import redis

from deduplication.subject_group import month_of, monthly_scope_group_id

TTL_PREFIX = "ttl:subject_groups:"

Log = Logger | LoggerAdapter[Logger]


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
    member = monthly_scope_group_id(group_id, tz) if enable_monthly_scope else group_id
    key = groups_key or _groups_key(tz, enable_monthly_scope)

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
    member = monthly_scope_group_id(group_id, tz) if enable_monthly_scope else group_id
    key = groups_key or _groups_key(tz, enable_monthly_scope)

    def mark(client: redis.Redis) -> bool:
        pipe = client.pipeline()
        if ttl_seconds > 0:
            pipe.set(ttl_prefix + member, "1", ex=ttl_seconds)
        pipe.sadd(key, member)
        pipe.execute()
        return True

    return _ask(redis_client, mark, logger, lambda: _remember(memory_set, member))


def _groups_key(tz: tzinfo, enable_monthly_scope: bool) -> str:
    return f"subject_groups:{month_of(tz)}" if enable_monthly_scope else "subject_groups"


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
