"""Parses dates in all notations that occur in mail."""

import email.utils
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone

MAX_DATE_CHARS = 1000
ASSUMED_UTC = timezone(timedelta(), "UTC?")  # of a time without a zone

_COMMENT = re.compile(r"\(([^()]*)\)")
_EPOCH = re.compile(r"\d{10}(?:\d{3})?(?:\.\d+)?", re.ASCII)
_CLOCK = re.compile(
    r"(?:\b(?P<half_before>[ap])\.?m\b\.? )?(?<![\d:.])(?P<hour>\d{1,2})([:.])(?P<minute>\d{1,2})"
    r"(?:\3(?P<second>\d{1,2})(?:[.,]\d+)?)?(?![\d:])(?: ?(?P<half>[ap])\.?m\b\.?)?",
    re.IGNORECASE | re.ASCII,
)
_SPACE_BEFORE_ZONE = re.compile(r"(?<=\d) (?=[+-]\d)")
_OFFSET = re.compile(r"(?<![\d+-])([+-])(\d\d?)(?::?(\d\d))?(?![\d+-])", re.ASCII)
_YEAR = re.compile(r"(?<![\d+-])\d{4}\b", re.ASCII)
_YEAR_FIRST = re.compile(
    r"(?:[a-z]{3,9}\W+)?(\d{4})[/.-](\d\d?)[/.-](\d\d?)(?:\W+[a-z]{3,9}|t)?", re.IGNORECASE | re.ASCII
)

# Hours from UTC. Ambiguous names have the meaning that mail programs give them.
_ZONES = {
    "0000": 0, "Z": 0, "UT": 0, "UTC": 0, "GMT": 0, "WET": 0, "WEST": 1, "BST": 1, "CET": 1, "MET": 1, "MEZ": 1,
    "CEST": 2, "MEST": 2, "MESZ": 2, "MET DST": 2, "CET DST": 2, "EET": 2, "EEST": 3, "SAST": 2, "IDT": 3, "MSK": 3,
    "PKT": 5, "IST": 5.5, "ICT": 7, "WIB": 7, "HKT": 8, "SGT": 8, "PHT": 8, "AWST": 8, "JST": 9, "KST": 9, "ACST": 9.5,
    "AEST": 10, "ACDT": 10.5, "AEDT": 11, "NZST": 12, "NZDT": 13, "NST": -3.5, "NDT": -2.5, "AST": -4, "ADT": -3,
    "EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7, "AKST": -9, "AKDT": -8,
    "HST": -10, "GREENWICH MEAN TIME": 0, "COORDINATED UNIVERSAL TIME": 0, "BRITISH SUMMER TIME": 1,
}  # fmt: skip


def parse_date(date: str) -> datetime | None:
    """The moment in UTC; None if the date is absent, unreadable or in an unknown zone.

    A time without a zone is taken as UTC, not as the server's local time; its tzinfo is ASSUMED_UTC.
    """
    text = " ".join(date[:MAX_DATE_CHARS].split())
    for parse in (_parse_numeric, _parse_words):
        with suppress(ValueError, OverflowError, TypeError, IndexError):
            if moment := parse(text):
                return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=ASSUMED_UTC)
    return None


def _parse_numeric(text: str) -> datetime:
    """Seconds or milliseconds since 1970, or ISO 8601."""
    if _EPOCH.fullmatch(text):
        number = float(text)
        return datetime.fromtimestamp(number / 1000 if number >= 1e11 else number, UTC)
    moment = datetime.fromisoformat(_SPACE_BEFORE_ZONE.sub("", text.removesuffix(" UTC")))
    return moment.replace(tzinfo=UTC) if text.endswith(" UTC") and not moment.tzinfo else moment


def _parse_words(text: str) -> datetime | None:
    """A day and a time, then zone and year in any order, such as Wed, 11 Oct 2017 18:31:04 -0700 (PDT)."""
    bare = " ".join(_COMMENT.sub(" ", text).split())
    clock = _CLOCK.search(bare)
    if clock is None:
        return None
    day, zone = bare[: clock.start()].rstrip(" ,").removesuffix(" at"), bare[clock.end() :].partition("(")[0].strip()
    if not _YEAR.search(day) and (year := _YEAR.search(zone)):
        day, zone = f"{day} {year[0]}", (zone[: year.start()] + zone[year.end() :]).strip()
    zone = zone or next((comment for comment in _COMMENT.findall(text) if _offset(comment) is not None), "")
    offset = _offset(zone) if zone else timedelta()
    midnight = _midnight(day)
    if offset is None or midnight is None:
        return None
    hour = int(clock["hour"])
    if half := clock["half"] or clock["half_before"]:
        is_afternoon = half in "pP"
        if hour > 12 and not is_afternoon:
            return None
        hour = hour if hour > 12 else hour % 12 + 12 * is_afternoon
    minute, second = int(clock["minute"]), int(clock["second"] or 0)
    return midnight.replace(hour=hour, minute=minute, second=second, tzinfo=timezone(offset) if zone else None)


def _midnight(day: str) -> datetime | None:
    """Reads 2002/09/14 itself, and dates with the name of a month by the library. 09/14/2002 is ambiguous: None."""
    if numbers := _YEAR_FIRST.fullmatch(day):
        return datetime(int(numbers[1]), int(numbers[2]), int(numbers[3]))
    parsed = email.utils.parsedate_tz(f"{day} 00:00:00 +0000")
    if parsed is None:
        return None
    year, month, day_of_month = parsed[:3]
    return datetime(year + 1900 if 100 <= year < 1000 else year, month, day_of_month)  # RFC 5322 4.3: 102 is 2002


def _offset(zone: str) -> timedelta | None:
    """A number in the zone takes precedence over its name. None if the zone is unknown."""
    if numeric := _OFFSET.search(zone):
        sign, hours, minutes = numeric.groups()
        return (-1 if sign == "-" else 1) * timedelta(hours=int(hours), minutes=int(minutes or 0))
    hours_from_utc = _ZONES.get(zone.strip().upper())
    return None if hours_from_utc is None else timedelta(hours=hours_from_utc)
