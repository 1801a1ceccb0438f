"""Times of day are the local calendar's on every day of the year, those of 23 and 25 hours among them."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ros2_rfm_serving.audit import local_time
from ros2_rfm_serving.audit.explain.moments import moment_of
from ros2_rfm_serving.audit.recording.incident_folders import prune
from ros2_rfm_serving.errors import ConfigurationError

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "America/Sao_Paulo", "UTC")
"""Lord Howe's clocks are set by half an hour."""
SHORT, LONG = datetime.date(2026, 3, 29), datetime.date(2026, 10, 25)
"""Days of 23 and 25 hours in Berlin."""


@pytest.fixture
def zone() -> Iterator[Callable[[str], ZoneInfo]]:
    before = os.environ.get("TZ")

    def enter(name: str) -> ZoneInfo:
        os.environ["TZ"] = name
        time.tzset()
        return ZoneInfo(name)

    yield enter
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


def at(day: datetime.date, hour: int, minute: int = 0, second: float = 0.0, *, zone: ZoneInfo, fold: int = 0) -> float:
    whole = datetime.datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone, fold=fold)
    return whole.timestamp() + second


@pytest.mark.parametrize("name", ZONES)
def test_a_time_of_day_is_that_of_the_calendar_on_every_day_of_the_year(zone: Callable[[str], ZoneInfo], name: str) -> None:
    here = zone(name)
    for number in range(365):
        day = datetime.date(2026, 1, 1) + datetime.timedelta(days=number)
        begins_s = at(day, 0, zone=here)
        following_s = at(day + datetime.timedelta(days=1), 0, zone=here)
        assert moment_of("00:00", begins_s, following_s) == begins_s
        for hour in (4, 12, 23):
            assert moment_of(f"{hour}:15:02.5", begins_s, following_s) == at(day, hour, 15, 2.5, zone=here), day


@pytest.mark.parametrize(
    ("name", "first", "text"),
    [
        ("Europe/Berlin", "2024-02-29", "23:59:59.9"),  # the moment before the recording is near as well
        ("Europe/Berlin", "2026-12-31", "23:59:59.9"),
        ("America/Santiago", "2026-09-06", "0:30"),  # that day begins at 1:00
        ("Africa/Cairo", "2026-04-24", "00:00"),
        ("Pacific/Apia", "2011-12-31", "2:30"),  # the day before was left out
        ("Europe/Berlin", "2026-03-29", "2:30"),
    ],
)
def test_a_time_of_day_is_one_within_the_recording_if_there_is_one(
    zone: Callable[[str], ZoneInfo], name: str, first: str, text: str
) -> None:
    here, day = zone(name), datetime.date.fromisoformat(first)
    begins_s = at(day, 0, zone=here)
    found_s = moment_of(text, begins_s, begins_s + 2 * 86_400.0)
    shown = datetime.datetime.fromtimestamp(found_s, here)
    assert begins_s <= found_s and shown.strftime("%H:%M").lstrip("0") == text[:5].lstrip("0")


def test_on_a_day_of_25_hours_an_hour_comes_twice(zone: Callable[[str], ZoneInfo]) -> None:
    here = zone("Europe/Berlin")
    first_s, second_s = (at(LONG, 2, 30, zone=here, fold=fold) for fold in (0, 1))
    ends_s = at(LONG, 12, zone=here)
    assert second_s - first_s == 3600.0
    assert moment_of("2:30", at(LONG, 1, zone=here), ends_s) == first_s
    assert moment_of("2:30", first_s + 60.0, ends_s) == second_s
    assert moment_of("3:00", at(LONG, 1, zone=here), ends_s) == at(LONG, 1, zone=here) + 3 * 3600.0
    assert moment_of("2026-10-25T02:30:00+01:00", at(LONG, 1, zone=here), ends_s) == second_s


def test_on_a_day_of_23_hours_an_hour_is_not_there(zone: Callable[[str], ZoneInfo]) -> None:
    here = zone("Europe/Berlin")
    begins_s, ends_s = at(SHORT, 1, zone=here), at(SHORT, 12, zone=here)
    assert moment_of("3:00", begins_s, ends_s) == begins_s + 3600.0
    with pytest.raises(ConfigurationError, match=r"set forward over 2:30 on 2026-03-29"):
        moment_of("2:30", begins_s, ends_s)


@pytest.mark.parametrize("text", ["24:00", "12:60", "7:05:61"])
def test_what_no_clock_shows_is_no_time_of_day(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is no time of day"):
        moment_of(text, 0.0, 1e6)


@pytest.mark.parametrize("name", ZONES)
@pytest.mark.parametrize("step_s", [600, 3600, 7200, 14400, 43200, 86400])
def test_marks_of_a_chart_are_at_round_times_of_day(zone: Callable[[str], ZoneInfo], name: str, step_s: int) -> None:
    here = zone(name)
    for day in (SHORT, LONG, datetime.date(2026, 4, 5), datetime.date(2026, 6, 1)):
        begins_s = at(day, 0, 7, zone=here)
        marks = list(local_time.round_moments(begins_s, begins_s + 36 * 3600.0, step_s))
        shown = [datetime.datetime.fromtimestamp(mark) for mark in marks]
        assert marks == sorted(set(marks)) and all(begins_s <= mark <= begins_s + 36 * 3600.0 for mark in marks)
        assert all((one.hour * 3600 + one.minute * 60 + one.second) % step_s == 0 for one in shown)
        assert len(marks) >= 36 * 3600 // step_s - 2


@given(st.datetimes(datetime.datetime(2020, 1, 1), datetime.datetime(2030, 1, 1)))
def test_every_moment_of_a_time_shows_that_time(naive: datetime.datetime) -> None:
    found = local_time.moments(naive)
    assert all(datetime.datetime.fromtimestamp(at_s).replace(fold=0) == naive for at_s in found)


def test_the_oldest_incident_of_the_hour_that_comes_twice_goes(tmp_path: Path) -> None:
    """That of 2:50 was there before that of 2:10, and its name comes after."""
    for number, name in enumerate(("20261025-025000_hold_r", "20261025-021000_hold_r", "20261025-022000_hold_r")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.mcap").write_bytes(bytes(100))
        for path in (tmp_path / name / "a.mcap", tmp_path / name):
            os.utime(path, (1e9 + number, 1e9 + number))
    assert prune(tmp_path, 250, 0.0, 0.0) == ["20261025-025000_hold_r"]


def test_a_date_with_a_time_is_of_the_same_calendar(zone: Callable[[str], ZoneInfo]) -> None:
    """Without an offset, as a time of day: of two, the one in the recording; where there is none, it is refused."""
    here = zone("Europe/Berlin")
    for fold in (0, 1):
        begins_s = at(LONG, 2, 30, zone=here, fold=fold)
        assert moment_of("2026-10-25T02:45:01.5", begins_s, begins_s + 1800.0) == begins_s + 901.5
    begins_s = at(SHORT, 1, 0, zone=here)
    assert moment_of("2026-03-29T03:30", begins_s, begins_s + 7200.0) == at(SHORT, 3, 30, zone=here)
    with pytest.raises(ConfigurationError, match="set forward over 2026-03-29T02:30"):
        moment_of("2026-03-29T02:30", begins_s, begins_s + 7200.0)
