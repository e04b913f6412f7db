"""The time of day, a clock for leases that cannot be set, and the ids of the host and its boot."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from deduplication.values import frozen

_BOOT_RANGE_MS = 1 << 50  # longer than any machine runs, so the ranges of two boots never overlap


@frozen
class Clock:
    """``now_ms`` is the time of day. ``steady_ms`` is for leases: setting the time of day does not change it."""

    now_ms: Callable[[], int]
    steady_ms: Callable[[], int]


def system_clock(boot: int = 0) -> Clock:
    """``boot`` counts the boots of the machine: leases of an earlier boot have ended."""
    base_ms = boot * _BOOT_RANGE_MS
    source = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the former does not stop while a laptop sleeps
    return Clock(
        now_ms=lambda: time.time_ns() // 1_000_000,
        steady_ms=lambda: base_ms + time.clock_gettime_ns(source) // 1_000_000,
    )


def boot_id() -> str:
    """Changes with every boot, or with every process if the system does not have such an id."""
    return _read("/proc/sys/kernel/random/boot_id") or f"unknown {time.time_ns()}"


def host_id() -> str:
    """Identifies the host, so a copied DATA_DIR is noticed; the host name if the system has no such id."""
    return _read("/etc/machine-id") or os.uname().nodename


def _read(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text().strip()
    return ""
