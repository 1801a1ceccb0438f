"""A joint_trajectory_controller, as ros2_controllers at 94e74de35f9d04f313aca8f29df66c3a76004aa7 executes what its topic brings.

Written from `joint_trajectory_controller.cpp` and `trajectory.cpp` there; each method names the facts that it follows. It knows
nothing of the sender. The hardware has a position command interface and a position state interface; speed scaling is 1, no joint is
continuous, and no goal of the action is under way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
FLOAT32_EPSILON = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Point:
    """One of trajectory_msgs/JointTrajectoryPoint; a field without numbers is None."""

    time_s: float
    positions: Values | None
    velocities: Values | None = None
    accelerations: Values | None = None


class JointTrajectoryController:
    """`receive` is the callback of `~/joint_trajectory`, `update` one cycle of the controller manager."""

    def __init__(
        self,
        num_joints: int,
        period_s: float,
        *,
        allow_trajectory_replacement: bool = True,
        interpolate_from_desired_state: bool = False,
        allow_nonzero_velocity_at_trajectory_end: bool = False,
        allow_integration_in_goal_trajectories: bool = False,
        positions_upsampling: bool = False,
    ) -> None:
        self._num_joints, self._period_s = num_joints, period_s
        self._replaces, self._from_desired = allow_trajectory_replacement, interpolate_from_desired_state
        self._ends_moving, self._integrates = allow_nonzero_velocity_at_trajectory_end, allow_integration_in_goal_trajectories
        self._upsamples = positions_upsampling
        self.refusal = ""
        """Of the last message; empty: it was accepted."""
        self._new: list[Point] | None = None
        self._points: list[Point] = []
        self._start_s: float | None = None
        """None: it begins with its first sample, for the stamp is zero."""
        self._before = Point(0.0, np.zeros(num_joints))
        self._before_s = self._cursor_s = 0.0
        self._sampled = False
        self._commanded: tuple[float, Point] | None = None

    def receive(self, points: list[Point]) -> None:
        """`topic_callback`, for messages with a zero stamp and all joints in the controller's order."""
        points = self._upsampled(points)
        self.refusal = self._problem(points)
        if not self.refusal:
            self._new = points

    def update(self, now_s: float, measured: Values) -> tuple[Values, Values] | None:
        """`update`: the position and velocity that are written for the next cycle; None: nothing is."""
        if self._new is not None:
            points, self._new = self._new, None
            # "allow_trajectory_replacement && has_active_trajectory() && has_nontrivial_msg() && !rt_is_holding_"
            self._points = self._blended(points) if self._replaces and len(self._points) > 1 else points
            self._start_s, self._sampled = None, False
        if not self._points:
            return None
        if not self._sampled:
            # "if sampling the first time, set the point before you sample"
            state = Point(0.0, measured)
            self._before_s, self._before = self._commanded if self._from_desired and self._commanded is not None else (now_s, state)
            # `set_point_before_trajectory_msg`: without velocities where the first point has some, they are zero.
            if self._before.velocities is None and self._points[0].velocities is not None:
                self._before = replace(self._before, velocities=np.zeros(self._num_joints))
            self._cursor_s = now_s
        else:
            self._cursor_s += self._period_s
        self._sample(self._cursor_s)
        # "Sample setpoint for next control cycle"
        command = self._sample(self._cursor_s + self._period_s)
        self._commanded = now_s, command
        assert command.positions is not None and command.velocities is not None
        return command.positions, command.velocities

    # --- what is taken ---

    def _problem(self, points: list[Point]) -> str:
        """`validate_trajectory_msg`."""
        if not points:
            return "Empty trajectory received."
        last = points[-1].velocities
        if not self._ends_moving and last is not None and (np.abs(last) > FLOAT32_EPSILON).any():
            return "Velocity of last trajectory point of joint is not zero"
        for before, after in pairwise(points):
            if after.time_s <= before.time_s:
                return "Time between points is not strictly increasing"
        for point in points:
            fields = (point.positions, point.velocities, point.accelerations)
            if self._integrates:
                if all(field is None for field in fields):
                    return "The given trajectory has no position, velocity, or acceleration points."
            elif point.positions is None:
                return "Mismatch between joint_names size and positions"
            if any(field is not None and len(field) != self._num_joints for field in fields):
                return "Mismatch between joint_names size and a field"
        return ""

    def _upsampled(self, points: list[Point]) -> list[Point]:
        """`preprocess_incoming_trajectory` with `positions_upsampling.enable`: positions alone get the velocities of a cubic spline
        that is at rest at both of its ends; all else passes unchanged."""
        alone = all(point.positions is not None and point.velocities is None and point.accelerations is None for point in points)
        if not self._upsamples or not alone or len(points) < 2:
            return points
        times = np.array([point.time_s for point in points])
        positions = np.array([point.positions for point in points])
        matrix, right, gaps = np.eye(len(points)), np.zeros_like(positions), np.diff(times)
        for i in range(1, len(points) - 1):
            matrix[i, i - 1 : i + 2] = 1 / gaps[i - 1], 2 * (1 / gaps[i - 1] + 1 / gaps[i]), 1 / gaps[i]
            ahead, behind = positions[i + 1] - positions[i], positions[i] - positions[i - 1]
            right[i] = 3 * (ahead / gaps[i] ** 2 + behind / gaps[i - 1] ** 2)
        velocities = np.linalg.solve(matrix, right)
        return [replace(point, velocities=velocity) for point, velocity in zip(points, velocities, strict=True)]

    # --- what is executed ---

    def _blended(self, points: list[Point]) -> list[Point]:
        """`blend_with_active_trajectory` for a stamp that is not in the future: a point where the old trajectory is at the cursor,
        unless the first new one is not later than that, and then the new ones from there on."""
        bridge = replace(self._sample(self._cursor_s), time_s=0.0)
        return [bridge, *points] if points[0].time_s > 0.0 else list(points)

    def _sample(self, time_s: float) -> Point:
        """`Trajectory::sample` with splines."""
        if not self._sampled:
            self._start_s, self._sampled = time_s, True
        assert self._start_s is not None
        first_s = self._start_s + self._points[0].time_s
        if time_s < first_s:
            return _between(self._before_s, self._before, first_s, self._points[0], time_s)
        for point, following in pairwise(self._points):
            begins_s, ends_s = self._start_s + point.time_s, self._start_s + following.time_s
            if begins_s <= time_s < ends_s:
                return _between(begins_s, point, ends_s, following, time_s)
        # "whole animation has played out": the last point as it is, with zeros for what it lacks.
        last, zeros = self._points[-1], np.zeros(self._num_joints)
        given = zeros if last.velocities is None else last.velocities
        return replace(last, velocities=given, accelerations=zeros if last.accelerations is None else last.accelerations)


def _between(begins_s: float, begin: Point, ends_s: float, end: Point, time_s: float) -> Point:
    """`interpolate_between_points`: a cubic where both points have velocities, else a line; a sampled point has velocities and
    accelerations, so that a quintic would need them in the next one too."""
    assert begin.positions is not None and end.positions is not None
    gap, t = ends_s - begins_s, min(max(time_s - begins_s, 0.0), ends_s - begins_s)
    p, q = begin.positions, end.positions
    if begin.velocities is None or end.velocities is None:
        slope = (q - p) / gap if gap else np.zeros_like(p)
        return Point(0.0, p + slope * t, slope, np.zeros_like(p))
    assert end.accelerations is None, "the senders modelled here send none"
    if not gap:
        return Point(0.0, p, begin.velocities, np.zeros_like(p))
    v, w = begin.velocities, end.velocities
    c2, c3 = (3.0 * (q - p) - (2.0 * v + w) * gap) / gap**2, (2.0 * (p - q) + (v + w) * gap) / gap**3
    return Point(0.0, p + v * t + c2 * t**2 + c3 * t**3, v + 2.0 * c2 * t + 3.0 * c3 * t**2, 2.0 * c2 + 6.0 * c3 * t)
