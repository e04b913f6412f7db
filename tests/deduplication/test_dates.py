"""Dates in every notation seen in mail, and in some that mean nothing."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deduplication.dates import ASSUMED_UTC, parse_date

MOMENT = datetime(2017, 10, 12, 1, 31, 4, tzinfo=UTC)


@pytest.fixture(params=["UTC", "Asia/Tokyo", "America/Los_Angeles"])
def server_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


DAYS = (
    "Wed, 11 Oct 2017", "11 Oct 2017", "Wednesday, October 11, 2017 at", "Wed Oct 11 2017", "Oct 11, 2017,",
    "2017/10/11", "2017/10/11 Wed", "Wed, 2017/10/11", "2017-10-11", "Wed, 11 Oct 117", "WED, 11 OCT 2017",
)  # fmt: skip
CLOCKS = (
    "18:31:04", "18:31:4", "18.31.04", "6:31:04 PM", "06:31:04\u202fpm", "6:31:04 p.m.", "PM 06:31:04", "18:31:04 PM",
)  # fmt: skip
ZONES = (
    "-0700", "-07:00", "-700", "PDT", "-0700 (PDT)", "-0700\r\n (Pacific (Daylight) Time)", "(PDT)", "GMT-0700",
    "GMT-7", "PDT -0700", "-0700 XYZ", "MST",
)  # fmt: skip


@pytest.mark.usefixtures("server_zone")
def test_a_day_a_time_and_a_zone_in_any_notation_are_one_moment_in_every_zone_of_the_server() -> None:
    dates = [f"{day} {clock} {zone}" for day, clock, zone in product(DAYS, CLOCKS, ZONES)]
    assert {date for date in dates if parse_date(date) != MOMENT} == set()


@pytest.mark.parametrize(
    "date",
    [
        "Thu, 12 Oct 2017 01:31:04 -0000", "Thu, 12 Oct 2017 01:31:04", "Thu, 12 Oct 2017 1:31:4 0000",
        "Thu, 12 Oct 2017 01:31:04 (added by postmaster@example.org)", "Thu, 12 Oct 2017 10:31:04 JST",
        "Thu, 12 Oct 2017 03:31:04 MET DST", "Thu, 12 Oct 2017 02:31:04 British Summer Time",
        "Thu Oct 12 2017 01:31:04 GMT+0000 (Coordinated Universal Time)", "Thu Oct 12 01:31:04 2017",
        "Wed Oct 11 18:31:04 PDT 2017", "20171012T013104", "  2017-10-12T01:31:04.000Z  ",
        "2017-10-12T03:31:04.000 +0200", "2017-10-12 01:31:04 UTC", "1507771864", "1507771864000",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("server_zone")
def test_every_other_notation_is_that_moment_too(date: str) -> None:
    assert parse_date(date) == MOMENT


@pytest.mark.parametrize(
    "date",
    [
        "", "   ", "yesterday", "Wed, 31 Feb 2017 18:31:04 -0700", "Thu, 12 Oct 2017 25:31:04 +0000",
        "Wed, 11 Oct 2017 24:31:04 -0700", "Thu, 12 Oct 2017 01:31:04 +9999", "12345", "99999999999999",
        "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-12:00", "Thu, 12 Oct 2017 01:31:04 XYZ",
        "Thu, 12 Oct 2017 01:31:04 Middle Earth Standard Time", "Thu, 12 Oct 2017 01:31:04 Q",
        "2017/10/12 01:31:04 XYZ", "Thu, 12 Oct 2017 13:31:04 AM", "10/12/2017 01:31:04",
        "2017/10/11 some time 08:31:04 CDT", "Wed, 11 Oct 2017 18:31:04 +0-700", "Wed, 11 Oct 2017 18:31:04 0700",
        "12.10.2017 01:31:04", "12 Oct 01:31:04 +0000", "01:31:04", "Thu, 12 Oct 2017", "(" * 10_000,
    ],
)  # fmt: skip
def test_an_absent_or_unreadable_date_is_none(date: str) -> None:
    assert parse_date(date) is None


_ALMOST_DATES = st.text(alphabet="0123456789:+-TZ,. ()WedOctGMTCEST", max_size=40)


@given(st.one_of(st.text(), _ALMOST_DATES))
@example("0000000000")
@example("Wed, 11 Oct 99999 18:31:04 -0700")
@example("Wed, 11 Oct 2017 18:31:04 -99999999999999")
def test_no_text_breaks_the_reading_of_a_date(date: str) -> None:
    moment = parse_date(date)
    assert moment is None or moment.tzinfo is UTC


@given(
    st.datetimes(min_value=datetime(1000, 1, 2), max_value=datetime(2999, 12, 30)),
    st.integers(min_value=-24 * 60 + 1, max_value=24 * 60 - 1),
)
def test_the_notation_of_nearly_all_mail_says_when_and_so_do_its_relatives(time_there: datetime, minutes: int) -> None:
    moment = time_there.replace(microsecond=0, tzinfo=timezone(timedelta(minutes=minutes)))
    usual = format_datetime(moment)
    for date in (usual, usual.partition(", ")[2], f"{usual} (CEST)", usual.upper(), usual.replace(",", "day,")):
        assert parse_date(date) == moment


@pytest.mark.parametrize(
    ("clock", "hour"), [("12:00:00 AM", 0), ("12:30 am", 0), ("12:00:00 PM", 12), ("09:00:00 PM", 21), ("1:00 a.m.", 1)]
)
def test_halves_of_the_day_are_told_apart(clock: str, hour: int) -> None:
    moment = parse_date(f"Sat, 14 Sep 2002 {clock} GMT")
    assert moment is not None
    assert moment.hour == hour


@pytest.mark.parametrize(
    ("date", "names_a_zone"),
    [
        ("Thu, 12 Oct 2017 01:31:04 -0000", True),
        ("Thu, 12 Oct 2017 01:31:04 (UTC)", True),
        ("Thu, 12 Oct 2017 03:31:04 CEST", True),
        ("2017-10-12 01:31:04 UTC", True),
        ("2017-10-12T01:31:04Z", True),
        ("1507771864", True),
        ("Thu, 12 Oct 2017 01:31:04", False),
        ("Thu, 12 Oct 2017 01:31:04 (added by postmaster@example.org)", False),
        ("20171012T013104", False),
    ],
)
def test_a_time_that_names_no_zone_can_be_told_from_others(date: str, names_a_zone: bool) -> None:
    moment = parse_date(date)
    assert moment == MOMENT
    assert (moment.tzinfo is not ASSUMED_UTC) is names_a_zone
