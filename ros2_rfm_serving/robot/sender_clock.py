"""Estimate of when a reading was taken, on the robot's clock, from the stamps of its sender, whose clock may be any.

Stamps are compared only with one another and with their arrivals. A straight line gives the earliest time, on the robot's clock, at
which a stamp arrives; a reading that comes later is older by the difference, beyond the shortest delay of its path. The line
follows the sender: its clock may run slower or faster than the robot's, be set, stand still or restart.
docs/reference/safety.md lists the cases.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise
from statistics import median
from typing import NamedTuple

DEVICE_DRIFT = 0.025
"""Largest drift, s per s, of the clock of a real device against the robot's; a simulation's clock may run at any rate."""
DEVICE_AFTER_S = 60.0
"""Time after which a sender counts as a device if its clock has run like the robot's."""
WINDOW, LONGEST_WINDOW_S = 0.9, 2.0
"""Share of the largest allowed age that a change is judged from, and the longest such window, s."""
BUCKETS, FEWEST_BUCKETS = 9, 4
"""Parts of such a window, each with its most punctual reading, and the fewest of them that a judgement needs."""
TOLERANCE = 0.1
"""Share of the window by which readings may be off a line and still count as on it."""
LEAST_S = 0.002
"""Lateness up to which a reading is punctual."""
CATCH_UP, UNSTEADY = 4.0, 10.0
"""Numbers of windows: a backlog that will be gone within the first number is waited for; readings that are late, each by another
amount, set a new line after the second."""
HISTORY = 24
"""Windows from which the pace is estimated."""
BURST = 4.0
"""Ratio of stamp distance to arrival distance above which readings are a backlog."""
PACES = (1e-3, 1e3)
"""Range of plausible paces; a line beyond it fits by chance."""


class ClockPoint(NamedTuple):
    """Stamp and arrival of one reading."""

    stamp_s: float
    """Time by its sender's clock."""
    now_s: float
    """Time of arrival by the robot's clock."""


class ArrivalLine(NamedTuple):
    """Line of the earliest arrival of each stamp."""

    stamp_s: float
    now_s: float
    """Earliest arrival of this stamp."""
    pace: float
    """Seconds of the sender's clock per second of the robot's."""

    def due_s(self, stamp_s: float) -> float:
        return self.now_s + (stamp_s - self.stamp_s) / self.pace

    def late_s(self, point: ClockPoint) -> float:
        return point.now_s - self.due_s(point.stamp_s)

    def shifted(self, by_s: float) -> ArrivalLine:
        return ArrivalLine(self.stamp_s, self.now_s + by_s, self.pace)


class Bucket:
    """Readings of one part of the window."""

    __slots__ = ("best", "excess_s", "first", "last_stamp_s", "num_readings")

    def __init__(self, point: ClockPoint) -> None:
        self.best = self.first = point
        """Most punctual reading, and first one."""
        self.last_stamp_s = point.stamp_s
        self.num_readings = 1
        self.excess_s = 0.0
        """Sum of how much later than the best reading the others came."""

    def add(self, point: ClockPoint, line: ArrivalLine, most_s: float) -> None:
        """Add a reading. most_s: largest contribution of one reading, which may be an outlier."""
        later_s = line.late_s(point) - line.late_s(self.best)
        if later_s < 0.0:
            self.best = point
            self.excess_s += min(-later_s, most_s) * self.num_readings
        else:
            self.excess_s += min(later_s, most_s)
        self.num_readings += 1
        self.last_stamp_s = point.stamp_s


class FormerLine(NamedTuple):
    """Line before two stamps that were ahead of it, both of which may have been outliers."""

    line: ArrivalLine
    settled: bool
    until_s: float
    """Time, by the robot's clock, before which new readings on this line show that the clock was not set."""


class ClockFit(NamedTuple):
    """Line through the readings of one window."""

    pace: float
    spread_s: float
    """Largest distance between the readings, across the line."""
    span_s: float
    """Time from the first to the last arrival."""

    def growth(self, line: ArrivalLine) -> float:
        """Return the s per s by which readings come later and later by another line; 0: it may be chance."""
        growth = 1.0 - self.pace / line.pace
        return growth if abs(growth) * self.span_s > max(2.0 * self.spread_s, DEVICE_DRIFT * self.span_s) else 0.0


class SenderClock:
    """Clock of one sender, as its stamps show it. It is used by one thread; times `now_s` never decrease."""

    def __init__(self, max_age_s: float) -> None:
        """Begin without a reading. max_age_s: largest allowed age of a reading; after a change of the sender's clock, readings are
        refused for about this long."""
        self._window_s = min(WINDOW * max_age_s, LONGEST_WINDOW_S)
        self.num_changes = 0
        """Number of times that the clock is known to have been set or to have changed its pace."""
        self.forget()

    def forget(self) -> None:
        """Begin again, as with a sender without readings."""
        self._line: ArrivalLine | None = None
        self._last_stamp_s = math.nan
        self._settled, self._simulated_s = False, -math.inf
        self._jitter_s = self._excess_s = self._spacing_s = 0.0
        self._late_since_s = math.inf
        self._early: deque[ClockPoint] = deque(maxlen=3)
        self._confirmed = False
        """True when a second reading was on the line."""
        self._contradiction: ClockPoint | None = None
        """The last reading, if it is on the line that may replace this one."""
        self._former: FormerLine | None = None
        self._clear()

    def _clear(self) -> None:
        self._window: deque[Bucket] = deque()
        self._last_late_s = 0.0
        self._held: ClockPoint | None = None
        """A reading that is much less late than the one before it; the next one shows whether its stamp is an outlier."""
        self._history: deque[ClockPoint] = deque(maxlen=HISTORY)

    # --- estimates ---

    @property
    def is_known(self) -> bool:
        return self._line is not None

    @property
    def pace(self) -> float:
        """Return the seconds of the sender's clock per second of the robot's."""
        return self._line.pace if self._line else 1.0

    def offset_s(self, now_s: float) -> float:
        """Return how far the sender's clock is ahead of the robot's, except for the shortest delay; NaN: unknown."""
        if self._line is None:
            return math.nan
        return self._line.stamp_s + (now_s - self._line.now_s) * self._line.pace - now_s

    # --- readings ---

    def begin(self, stamp_s: float, taken_s: float) -> None:
        """Begin again with a reading whose time on the robot's clock is known."""
        self.forget()
        self._line, self._confirmed = ArrivalLine(stamp_s, taken_s, 1.0), True

    def taken_s(self, stamp_s: float, now_s: float) -> float:
        """Return when the reading was taken, at most `now_s`. stamp_s: by its sender's clock; 0: none, so that the arrival
        counts."""
        if stamp_s == 0.0 or not math.isfinite(stamp_s):
            return now_s
        if self._line is None:
            self._line = ArrivalLine(stamp_s, now_s, 1.0)
        if stamp_s != self._last_stamp_s:  # otherwise it is the same reading again
            self._last_stamp_s = stamp_s
            self._receive(ClockPoint(stamp_s, now_s), self._line)
        return min(now_s, self._line.due_s(stamp_s))

    def _receive(self, point: ClockPoint, line: ArrivalLine) -> None:
        late_s = line.late_s(point)
        if late_s < -self._tolerance_s:
            self._on_early(point, line)
            return
        if late_s <= self._tolerance_s:
            self._early.clear()
            self._confirmed = self._confirmed or point != (line.stamp_s, line.now_s)
        elif self._rests_on_outliers(point, line, late_s):
            return
        if late_s < 0.0:
            self._line = ArrivalLine(point.stamp_s, point.now_s, line.pace)
        if self._is_in_line(point, late_s):
            self._collect(point)

    def _rests_on_outliers(self, point: ClockPoint, line: ArrivalLine, late_s: float) -> bool:
        """Return whether two readings show that the line rests on outliers. Another line then replaces it: the former one, or a new
        one if the very first stamp was an outlier."""
        former = self._former
        if former and point.now_s > former.until_s:
            self._former = former = None
        behind = former.line if former else line.shifted(late_s) if not self._confirmed and late_s > self._window_s else None
        if behind is None or abs(behind.late_s(point)) > self._tolerance_s:
            self._contradiction = None
            return False
        before, self._contradiction = self._contradiction, point
        if before is None or abs(behind.late_s(before)) > self._tolerance_s or not _is_no_backlog(before, point):
            return False
        self._line, self._settled, self._late_since_s = behind, former.settled if former else False, math.inf
        self.num_changes -= 1 if former else 0
        self._confirmed, self._contradiction, self._former = True, None, None
        self._clear()
        return True

    def _is_in_line(self, point: ClockPoint, late_s: float) -> bool:
        """Return whether a reading was collected. A stamp before an earlier one is dropped, to keep a late window even."""
        held, self._held = self._held, None
        if held and held.stamp_s < point.stamp_s:
            self._collect(held)
        last_late_s, self._last_late_s = self._last_late_s, late_s
        if self._tolerance_s < late_s < last_late_s - self._window_s:
            self._held = point
        return self._held is None

    @property
    def _tolerance_s(self) -> float:
        return max(TOLERANCE * self._window_s, self._jitter_s)

    def _on_early(self, point: ClockPoint, line: ArrivalLine) -> None:
        """Handle a reading that is ahead of the line: no delay is negative, so the clock was set forward or runs faster, unless
        this stamp alone is an outlier."""
        early = self._early
        if early and point.stamp_s <= early[-1].stamp_s:
            early.clear()
        early.append(point)
        ahead_s = [-line.late_s(one) for one in early]
        agree_s = self._tolerance_s if self._settled else 0.5 * self._window_s
        if len(early) > 1 and abs(ahead_s[-1] - ahead_s[-2]) <= agree_s:
            best = early[-1] if ahead_s[-1] >= ahead_s[-2] else early[-2]
            self._on_earlier(ArrivalLine(*best, line.pace), point, ahead_s[-1])
        elif len(early) == 3 and abs(ahead_s[0] - 2.0 * ahead_s[1] + ahead_s[2]) <= self._tolerance_s:
            pace = _pace(early)
            if PACES[0] < pace < PACES[1]:
                self._begin(ArrivalLine(*point, pace))

    def _on_earlier(self, line: ArrivalLine, point: ClockPoint, ahead_s: float) -> None:
        if self._settled or ahead_s > self._window_s:
            self._begin(line)
        else:  # the first readings were late, or the pace is not known yet
            self._line = line
            self._early.clear()
            self._collect(point)

    def _begin(self, line: ArrivalLine) -> None:
        """Begin another line and forget all readings. The former line returns if readings are on it again at once."""
        if self._line and self._confirmed:
            self._former = FormerLine(self._line, self._settled, line.now_s + self._window_s)
        self._line, self._settled, self._late_since_s, self._confirmed = line, False, math.inf, True
        self.num_changes += 1
        self._early.clear()
        self._clear()

    # --- the window ---

    def _collect(self, point: ClockPoint) -> None:
        window, line = self._window, self._line
        assert line is not None
        if not window or point.now_s - window[-1].first.now_s >= self._window_s / BUCKETS:
            window.append(Bucket(point))
            self._judge(point.now_s)
        else:
            window[-1].add(point, line, self._window_s)

    def _judge(self, now_s: float) -> None:
        """Check once per bucket whether the line still holds."""
        window = self._window
        while len(window) > FEWEST_BUCKETS and window[1].first.now_s <= now_s - self._window_s:
            window.popleft()
        if len(window) < FEWEST_BUCKETS or window[0].first.now_s > now_s - self._window_s:
            return
        line = self._line
        assert line is not None
        points = [bucket.best for bucket in window]
        if not self._settled or min(map(line.late_s, points)) > max(LEAST_S, self._jitter_s):
            points = _without_outlier(points, TOLERANCE * self._window_s)
        fit = _fit(points)
        if not self._settled:
            self._settle(fit, points)
        elif (least_late_s := min(map(line.late_s, points))) <= max(LEAST_S, self._jitter_s):
            self._on_line(fit, points, least_late_s, now_s)
        else:
            self._on_late(fit, points, least_late_s, now_s)

    def _settle(self, fit: ClockFit | None, points: list[ClockPoint]) -> None:
        """Adjust the line to the first full window after a beginning."""
        assert self._line is not None
        if fit is None:
            return
        self._settled, self._jitter_s = True, min(fit.spread_s, 0.5 * self._window_s)
        if fit.growth(self._line):
            self._line = _line_below(points, fit.pace)
        else:
            self._line = _line_below(points, self._line.pace)
        self._spacing_s, self._excess_s = self._stamps_apart_s(), self._window_excess_s()
        if abs(self._line.pace - 1.0) > DEVICE_DRIFT:
            self._simulated_s = points[-1].now_s

    def _on_line(self, fit: ClockFit | None, points: list[ClockPoint], least_late_s: float, now_s: float) -> None:
        """Adjust the line, because some of the window's readings are as punctual as possible."""
        line = self._line
        assert line is not None
        self._late_since_s = math.inf
        if fit is None:
            return
        if fit.growth(line) < 0.0 and self._is_steady(fit):
            self._change_pace(fit, points)
            return
        self._jitter_s += (min(fit.spread_s, 0.5 * self._window_s) - self._jitter_s) / BUCKETS
        self._excess_s += (self._window_excess_s() - self._excess_s) / BUCKETS
        self._spacing_s += (self._stamps_apart_s() - self._spacing_s) / BUCKETS
        self._line = line.shifted(min(least_late_s, DEVICE_DRIFT * self._window_s / BUCKETS))
        if not self._history or now_s - self._history[-1].now_s >= self._window_s:
            self._refine(points)

    def _refine(self, points: list[ClockPoint]) -> None:
        """Estimate the pace from all windows since the last change."""
        line = self._line
        assert line is not None
        best = min(points, key=line.late_s)
        if not self._history or best.now_s > self._history[-1].now_s:
            self._history.append(best)
        if len(self._history) >= FEWEST_BUCKETS:
            pace = _pace(self._history)
            if PACES[0] < pace < PACES[1]:
                self._line = line = _line_below(points, pace)
        if abs(line.pace - 1.0) > DEVICE_DRIFT:
            self._simulated_s = points[-1].now_s

    def _is_steady(self, fit: ClockFit) -> bool:
        """Return whether the readings come as evenly as before. On a congested path each takes another time."""
        least_s = TOLERANCE * self._window_s
        return fit.spread_s <= max(least_s, 2.0 * self._jitter_s) and self._window_excess_s() <= max(
            0.5 * least_s, 3.0 * self._excess_s
        )

    def _window_excess_s(self) -> float:
        """Return how much later than the best ones readings come on average."""
        return sum(one.excess_s for one in self._window) / sum(one.num_readings for one in self._window)

    def _on_late(self, fit: ClockFit | None, points: list[ClockPoint], least_late_s: float, now_s: float) -> None:
        """Handle a window without a punctual reading: the clock has changed, or the path takes longer."""
        line = self._line
        assert line is not None
        self._late_since_s = min(self._late_since_s, points[0].now_s)
        if fit is None:  # the same readings repeat
            return
        if not self._is_steady(fit):
            if now_s - self._late_since_s > UNSTEADY * self._window_s:
                self._shift(points, least_late_s)
            return
        growth = fit.growth(line)
        if growth == 0.0:
            self._shift(points, least_late_s)
        elif growth < 0.0:
            gone_in_s = line.late_s(points[-1]) / -growth
            if gone_in_s > CATCH_UP * self._window_s:
                self._change_pace(fit, points)
        elif now_s - self._simulated_s < DEVICE_AFTER_S or self._is_denser(fit) or least_late_s > self._window_s:
            self._change_pace(fit, points)

    def _is_denser(self, fit: ClockFit) -> bool:
        """Return whether stamps are closer together than before: a clock that slows down has this effect, whereas a growing queue
        delivers the same stamps more slowly."""
        assert self._line is not None
        return self._stamps_apart_s() < 0.5 * (1.0 + fit.pace / self._line.pace) * self._spacing_s

    def _stamps_apart_s(self) -> float:
        window = self._window
        return (window[-1].last_stamp_s - window[0].first.stamp_s) / max(1, sum(one.num_readings for one in window) - 1)

    def _shift(self, points: list[ClockPoint], by_s: float) -> None:
        """Shift the line: the clock was set back or stood still, or the path takes longer from now on."""
        assert self._line is not None
        self._line = self._line.shifted(by_s)
        self._late_since_s = math.inf
        if by_s > self._tolerance_s:
            self.num_changes += 1
            self._history.clear()

    def _change_pace(self, fit: ClockFit, points: list[ClockPoint]) -> None:
        self._line = _line_below(points, fit.pace)
        self._late_since_s, self._simulated_s = math.inf, points[-1].now_s
        self._spacing_s = self._stamps_apart_s()
        self.num_changes += 1
        self._history.clear()


def _is_no_backlog(before: ClockPoint, after: ClockPoint) -> bool:
    """Return whether two readings came apart from each other; a backlog arrives all at once."""
    return 0.0 < after.stamp_s - before.stamp_s < BURST * (after.now_s - before.now_s)


def _pace(points: Sequence[ClockPoint]) -> float:
    """Return the median pace between any two readings (Theil and Sen): a third of them may be late without changing it."""
    pairs = [(after.stamp_s - before.stamp_s, after.now_s - before.now_s) for before, after in combinations(points, 2)]
    return median(stamps_s / arrivals_s if arrivals_s > 0.0 else math.inf for stamps_s, arrivals_s in pairs)


def _without_outlier(points: list[ClockPoint], tolerance_s: float) -> list[ClockPoint]:
    """Return the readings without the one, if any, that does not fit the others."""
    fit = _fit(points)
    if len(points) <= FEWEST_BUCKETS or (fit and fit.spread_s <= tolerance_s):
        return points
    others = [points[:index] + points[index + 1 :] for index in range(1, len(points) - 1)]
    fits = [(found.spread_s, rest) for rest in others if (found := _fit(rest))]
    spread_s, rest = min(fits, default=(math.inf, points))
    return rest if spread_s <= tolerance_s else points


def _fit(points: Sequence[ClockPoint]) -> ClockFit | None:
    """Return the line through the readings; None: the stamps decrease, or the pace is implausible."""
    if any(after.stamp_s <= before.stamp_s for before, after in pairwise(points)):
        return None
    pace = _pace(points)
    if not PACES[0] < pace < PACES[1]:
        return None
    line = ArrivalLine(*points[0], pace)
    late_s = sorted(map(line.late_s, points))
    furthest_s = late_s[-2] if len(late_s) > 5 else late_s[-1]  # a single late reading does not count
    return ClockFit(pace, furthest_s - late_s[0], points[-1].now_s - points[0].now_s)


def _line_below(points: Iterable[ClockPoint], pace: float) -> ArrivalLine:
    """Return the line of this pace that has no reading before it."""
    return ArrivalLine(*min(points, key=lambda point: point.now_s - point.stamp_s / pace), pace)
