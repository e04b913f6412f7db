"""Dates as they come in mail, in every notation."""

from __future__ import annotations

import email.utils
import re
from datetime import UTC, datetime, timedelta, timezone

_COMMENT = re.compile(r"\([^()]*\)")
_FRACTION = re.compile(r"(?<=:\d\d)\.\d+")
_OFFSET = re.compile(r"(?<=:\d\d) ?(?:GMT|UTC)? ?([+-])(\d\d?)(?::?(\d\d))?$", re.IGNORECASE)
_HALF_DAY = re.compile(r"\b[ap]\.?m\b", re.IGNORECASE)
_EPOCH = re.compile(r"\d{10}(?:\d{3})?(?:\.\d+)?", re.ASCII)
_JAVASCRIPT = re.compile(r"(\w{3}) (\w{3}) (\d{1,2}) (\d{4}) (\d\d:\d\d:\d\d) (?:GMT|UTC)([+-]\d{4})?")
# Zone names that people's mail programs write and the standard library does not know. Hours from UTC.
_ZONES = {
    "WET": 0, "WEST": 1, "BST": 1, "IST": 5.5, "CET": 1, "MET": 1, "CEST": 2, "MEST": 2, "MESZ": 2, "MEZ": 1,
    "EET": 2, "EEST": 3, "MSK": 3, "JST": 9, "KST": 9, "HKT": 8, "SGT": 8, "AWST": 8, "AEST": 10, "AEDT": 11,
    "NZST": 12, "NZDT": 13, "AKST": -9, "AKDT": -8, "HST": -10,
}  # fmt: skip


def parse_date(date: str) -> datetime | None:
    """The moment in UTC, from any notation seen in mail; None if absent or unreadable.

    A time without a zone is UTC: never the server's own zone.
    """
    text = " ".join(date.split())
    if not text:
        return None
    for read in (_read_epoch, _read_iso, _read_javascript, _read_rfc2822):
        try:
            moment = read(text)
            if moment:
                return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
        except (ValueError, OverflowError, TypeError, IndexError):
            continue
    return None


def _read_epoch(text: str) -> datetime | None:
    if not _EPOCH.fullmatch(text):
        return None
    number = float(text)
    return datetime.fromtimestamp(number / 1000 if number >= 1e11 else number, UTC)


def _read_iso(text: str) -> datetime | None:
    return datetime.fromisoformat(re.sub(r"(?<=\d) (?=[+-]\d)", "", text.removesuffix(" UTC")))


def _read_javascript(text: str) -> datetime | None:
    """Date.toString(): Wed Oct 11 2017 18:31:04 GMT-0700 (Pacific Daylight Time)"""
    match = _JAVASCRIPT.match(text)
    if not match:
        return None
    weekday, month, day, year, clock, offset = match.groups()
    return email.utils.parsedate_to_datetime(f"{weekday}, {day} {month} {year} {clock} {offset or '+0000'}")


def _read_rfc2822(text: str) -> datetime | None:
    bare = _OFFSET.sub(_four_digits, _FRACTION.sub("", " ".join(_COMMENT.sub(" ", text).split())))
    parsed = email.utils.parsedate_tz(bare)
    if parsed is None or _HALF_DAY.search(bare):  # the library takes 6 PM for 6 in the morning
        return None
    zone = bare.rsplit(" ", 1)[-1].upper()
    offset = timedelta(hours=_ZONES[zone]) if zone in _ZONES else timedelta(seconds=parsed[9] or 0)
    return datetime(*parsed[:6], tzinfo=timezone(offset))


def _four_digits(offset: re.Match[str]) -> str:
    """The library takes -07 for seven minutes."""
    sign, hours, minutes = offset.groups()
    return f" {sign}{hours:0>2}{minutes or '00'}"
