"""Times as a person reads them."""

from datetime import UTC, datetime


def shown_duration(seconds: int) -> str:
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds // length_s} {unit}"
    return f"{seconds} s"


def shown_moment(moment_ms: int, timespec: str = "seconds") -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec=timespec)
