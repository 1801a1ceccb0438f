"""Times of day in the local calendar, on days of 23, 24 and 25 hours."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator

HOUR_S, DAY_S = 3600, 86_400


def moments(naive: datetime.datetime) -> list[float]:
    """Return the moments at which local clocks show this time, in s since 1970.

    There are two where clocks were set back over it, and none where they were set forward over it.
    """
    found = sorted({naive.replace(fold=fold).timestamp() for fold in (0, 1)})
    return [at_s for at_s in found if datetime.datetime.fromtimestamp(at_s).replace(fold=0) == naive]


def round_moments(begins_s: float, ends_s: float, step_s: int) -> Iterator[float]:
    """Yield the moments in between at which local clocks show a multiple of `step_s`, a divisor of a day, since midnight."""
    if step_s < HOUR_S:  # time zones differ by quarters of an hour, and clocks are set by half an hour and more
        yield from _within_hours(begins_s, ends_s, step_s)
        return
    day = datetime.datetime.fromtimestamp(begins_s).date()
    last = datetime.datetime.fromtimestamp(ends_s).date()
    found: set[float] = set()
    while day <= last:
        midnight = datetime.datetime.combine(day, datetime.time())
        for of_day_s in range(0, DAY_S, step_s):
            found.update(moments(midnight + datetime.timedelta(seconds=of_day_s)))
        day += datetime.timedelta(days=1)
    yield from (at_s for at_s in sorted(found) if begins_s <= at_s <= ends_s)


def _within_hours(begins_s: float, ends_s: float, step_s: int) -> Iterator[float]:
    began = datetime.datetime.fromtimestamp(begins_s)
    of_hour_s = began.minute * 60 + began.second + began.microsecond / 1e6
    first_s = begins_s - of_hour_s + math.ceil(of_hour_s / step_s) * step_s
    yield from (first_s + number * step_s for number in range(int((ends_s - first_s) // step_s) + 1))
