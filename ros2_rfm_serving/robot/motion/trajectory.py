"""Commands ahead of time, for a controller that executes trajectories: the commands of the next periods, ending at rest.

The commands of a robot are control points of a uniform quadratic B-spline, one per control period. Its knots lie halfway between
two control points, and its velocity at a knot is their difference per period. So the curve stays between its control points, its
velocity is never above theirs, and its acceleration is constant from knot to knot and exactly their second difference. A cubic
through two such knots with these velocities *is* that curve. A controller that interpolates positions with velocities by cubics, as
a joint_trajectory_controller does, therefore keeps every limit that the control points keep, between the points too.

Control points follow commands by a lead time, so that a new trajectory begins where the controller has not been yet. Up to there
the curve is the one that was sent before: position and velocity are continuous, and no point lies in the past.

A joint_trajectory_controller that replaces a trajectory sets out from where the old one was one update ago (ros2_controllers
94e74de, `blend_with_active_trajectory` samples at `traj_time_` before that moves on). So each new trajectory is later by one
update, and the lead, which grows by that, shrinks again as fast as `CATCH_UP` and the limits allow.

A continuous joint goes the shortest way, and its numbers continue beyond its border: a controller interpolates between plain
numbers. A controller that was activated again subtracts whole turns when it sets out (`joints_angle_wraparound_`, the same commit).
A binary column only has values that were commanded, without a velocity; the controller goes from one to the next in one control
period.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.robot.columns import ActionColumns
from ros2_rfm_serving.robot.config import RobotConfig, Trajectory
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.robot.motion.shaping import CommandShaper
from ros2_rfm_serving.types import Array
from ros2_rfm_serving.types.state import kept

Values = npt.NDArray[np.float64]

BRIDGE_PERIODS, BRIDGE_UPDATES, BRIDGE_S = 0.5, 3.0, 0.05
"""Least distance of a trajectory's first point, in control periods, updates of the controller, and seconds. On the way there the
controller makes up for the delay of the message, and for the phase of its cycle. If that differs by d from one trajectory to the
next, the acceleration at a velocity v changes by up to 6 v d / bridge^2; docs/measurements/robots.md has figures."""
FREE_PERIODS = 1.5
"""Periods from the first point that is sent to the first control point that may change: it moves only knots after that."""
LONGEST_LEAD_IN_S = 0.5
"""Longest way from where the controller was left to the robot's measured position, when it sets out again."""
CATCH_UP = 0.1
"""Share of each period by which a lead that such a way has made longer shrinks again."""
ROUNDING_S = 1e-9
JITTER_PERIODS = 0.75
"""Time whose planned motion a command may differ by: ticks jitter, trajectories do not."""


class TrajectoryPlanner:
    """Planner of the trajectory that a controller executes, which knows when another one is needed.

    `plan` replaces it, `stop` ends it at rest within the acceleration limits, and `keeps` checks whether it still matches the
    commands and reaches far enough. Times are those of the robot's clock. Limits count from control point to control point, also
    where commands restart from a measured position.
    """

    KEPT: ClassVar = kept(
        *("is_outdated", "is_under_way"),
        begins_s="_origin_s",
        control_points="_points",
        lead_s="_lead_s",
        commands="_commands",
        commands_begin_s="_commands_s",
        is_whole="_is_whole",
    )

    def __init__(self, config: RobotConfig) -> None:
        self._period_s = 1.0 / config.control_rate_hz
        self._num_actions = len(config.action_names)
        self._update_s = 1.0 / config.controller_rate_hz
        self._bridge_s = max(BRIDGE_PERIODS * self._period_s, BRIDGE_UPDATES * self._update_s, BRIDGE_S)
        self._shortest_lead_s = self._bridge_s + (FREE_PERIODS + 0.5) * self._period_s
        self.is_outdated = False
        """True when the commands after this period's are no longer those of the plan."""
        self.reconfigure(config)
        self._origin_s = -math.inf
        """Time of the first control point."""
        self._points: Values = np.empty((0, self._num_actions))
        """[M, A] control points that were sent, one per period, at rest at the end; empty: nothing was sent yet."""
        self._lead_s = self._shortest_lead_s
        self._commands: Values = np.empty((0, self._num_actions))
        """[K, A] commands that the control points follow, one per period."""
        self._commands_s = -math.inf
        """Time of the first of them."""
        self._is_whole = True
        """True when the plan ends by itself: no commands beyond the horizon were left out."""
        self.is_under_way = False
        """True when, in the last control period, the controller had not reached the end of its trajectory."""

    def reconfigure(self, config: RobotConfig) -> None:
        """Let other limits and another horizon count from the next plan on."""
        columns = self._columns = ActionColumns.of(config)
        counting = ActionColumns.made(columns.kind, columns.names, types=columns.types)
        self._shaper = CommandShaper(_counting(config.limits, columns), counting, self._num_actions, self._period_s)
        self.num_ahead = max(3, math.ceil(config.trajectory_horizon_s / self._period_s))
        """Number of commands in a plan."""
        infinite = (math.inf,) * self._num_actions
        self._max_velocity = np.where(columns.is_binary, math.inf, config.limits.max_velocity or infinite)
        self._max_acceleration = np.where(columns.is_binary, math.inf, config.limits.max_acceleration or infinite)
        self.is_outdated = True

    def is_moving(self, now_s: float) -> bool:
        """Return whether the controller has not reached the end of its trajectory yet."""
        return now_s < self.rests_s

    @property
    def rests_s(self) -> float:
        """Return the time at which the controller reaches the end of its trajectory."""
        return self._knot_s(len(self._points) - 2) if len(self._points) else -math.inf

    def keeps(self, command: Array, now_s: float) -> bool:
        """Return whether the trajectory under way still holds for this command, and for long enough."""
        rounding = 1e-5 * np.maximum(1.0, np.abs(command))
        if not self.is_moving(now_s):
            if self.is_outdated or not len(self._points):
                return False
            return bool((np.abs(self._columns.change(command, self._points[-1])) <= rounding).all())
        if self.is_outdated or not len(self._commands):
            return False
        at = (now_s - self._commands_s) / self._period_s
        if not self._is_whole and at - 2.0 > 0.5 * self.num_ahead:
            return False
        first, last = max(0, math.floor(at - JITTER_PERIODS)), math.ceil(at + JITTER_PERIODS)
        near = self._commands[first : last + 1]
        near = near if len(near) else self._commands[-1:]
        away = self._columns.change(near, near[0])
        here = self._columns.change(command, near[0])
        return bool(((here >= away.min(axis=0) - rounding) & (here <= away.max(axis=0) + rounding)).all())

    def plan(self, commands: Sequence[Array], now_s: float, *, is_whole: bool, measured: Array | None = None) -> Trajectory:
        """Return the trajectory of this period's command and of the next ones, then to a stand.

        is_whole: nothing else would be commanded after them. measured: [A] the robot's position; None: unknown.
        """
        if self.is_moving(now_s):
            self._fall_behind()
        else:
            self._set_out(np.asarray(commands[0], np.float64), now_s, measured)
        begins_s = now_s - 2.0 * self._period_s
        if len(self._commands):
            before = [self._command_at(begins_s + n * self._period_s) for n in (0, 1)]
        else:
            before = [self._points[-1] + self._columns.change(np.asarray(commands[0], np.float64), self._points[-1])] * 2
        self._commands = self._columns.unwrapped(np.array([*before, *commands], np.float64))
        self._commands_s, self._is_whole = begins_s, is_whole
        self.is_outdated = False
        begin = self._first_free(now_s)
        if missing := max(0, begin - len(self._points)):  # it stays at its end until then
            self._points = np.concatenate([self._points, np.repeat(self._points[-1:], missing, axis=0)])
        points = self._followed(begin, now_s + (len(commands) - 1) * self._period_s)
        return self._sent(begin - 2, self._braked(points), now_s)

    def stop(self, now_s: float) -> Trajectory | None:
        """Return a trajectory that ends at rest as soon as the limits allow; None: the one under way is at rest, or ends so."""
        if not self.is_moving(now_s):
            return None
        begin = self._first_free(now_s)
        if begin >= len(self._points):
            return None
        braked = self._braked([self._points[begin - 2], self._points[begin - 1]])
        if begin - 2 + len(braked) >= len(self._points):
            return None  # the trajectory under way ends as soon
        self._commands, self._is_whole = self._commands[:0], True
        self._fall_behind()
        return self._sent(begin - 2, braked, now_s)

    # --- parts of a plan ---

    def _fall_behind(self) -> None:
        """Add the delay of one update that a controller loses when its trajectory is replaced."""
        self._origin_s += self._update_s
        self._lead_s += self._update_s

    def _set_out(self, command: Values, now_s: float, measured: Array | None) -> None:
        """Begin at rest at the controller's position: where it was left, or else the robot's measured one. A controller that is
        further from `command` than one period's way, such as at a pose that the arm sags from, gets the time that the limits
        require."""
        rest, lead_in_s = command, self._bridge_s
        known = self._points[-1] if len(self._points) else measured
        if known is not None:
            switches = self._columns.is_binary
            left: Values = np.where(np.isfinite(known), known, command)
            rest = left + self._columns.change(command, left)
            way = np.where(switches, 0.0, np.abs(rest - left))
            if (way <= np.minimum(self._max_velocity * self._period_s, self._max_acceleration * self._period_s**2)).all():
                rest = np.where(switches, rest, left)
            else:
                limited_s = max(float((1.5 * way / self._max_velocity).max()), _root(6.0 * way / self._max_acceleration))
                lead_in_s = max(lead_in_s, min(limited_s, LONGEST_LEAD_IN_S))
        self._origin_s = now_s + lead_in_s - 0.5 * self._period_s
        self._points = np.array([rest, rest])
        self._lead_s = self._origin_s + 2.0 * self._period_s - now_s
        self._commands = self._commands[:0]

    def _followed(self, begin: int, ends_s: float) -> list[Values]:
        """Return control points from two before `begin` on, which follow the commands within the limits.

        ends_s: of the commands.
        """
        points = [self._points[begin - 2], self._points[begin - 1]]
        wanted = self._command_at(self._point_s(begin - 1) - self._lead_s)
        self._shaper.resume(points[-1], (points[-1] - points[-2]) / self._period_s, wanted)
        at_s = self._point_s(begin)
        while len(points) == 2 or at_s - self._lead_s <= ends_s + ROUNDING_S:
            self._lead_s = max(self._shortest_lead_s, self._lead_s - CATCH_UP * self._period_s)
            self._shaper.shape(self._command_at(at_s - self._lead_s))
            points.append(self._shaper.exact)
            at_s += self._period_s
        return points

    def _sent(self, begin: int, points: list[Values], now_s: float) -> Trajectory:
        """Replace all control points from `begin` on. Past ones that the curve does not need are forgotten."""
        over = max(0, min(begin, math.floor((now_s - self._origin_s) / self._period_s) - 3))
        self._points = np.concatenate([self._points[over:begin], np.array(points)])
        self._origin_s += over * self._period_s
        first = self._first_knot(now_s)
        times_s = np.array([self._knot_s(knot) - now_s for knot in range(first, len(self._points) - 1)])
        before, after = self._points[first:-1], self._points[first + 1 :]
        switches = self._columns.is_binary
        positions, velocities = 0.5 * (before + after), (after - before) / self._period_s
        return Trajectory(times_s, np.where(switches, after, positions), np.where(switches, 0.0, velocities))

    def _braked(self, points: list[Values]) -> list[Values]:
        """Return `points`, [A] each, followed by those that brake to a stand; the last two are equal."""
        points, max_change = list(points), self._max_acceleration * self._period_s**2
        step = np.where(self._columns.is_binary, 0.0, points[-1] - points[-2])
        while step.any():
            step = step - np.clip(step, -max_change, max_change)
            points.append(points[-1] + step)
        points.append(points[-1])
        return points

    def _first_free(self, now_s: float) -> int:
        """Return the first control point that may change, because it has no effect before the first knot that is sent."""
        return self._first_knot(now_s) + 2

    def _first_knot(self, now_s: float) -> int:
        return max(0, math.ceil((now_s + self._bridge_s - ROUNDING_S - self._origin_s) / self._period_s - 0.5))

    def _knot_s(self, knot: int) -> float:
        """Return the time of the knot between two control points, the first of which has the same number."""
        return self._origin_s + (knot + 0.5) * self._period_s

    def _point_s(self, point: int) -> float:
        return self._origin_s + point * self._period_s

    def _command_at(self, time_s: float) -> Values:
        """Return the planned command at this time, on a straight line between two of them, or the nearer one of a binary column."""
        at = min(max((time_s - self._commands_s) / self._period_s, 0.0), len(self._commands) - 1.0)
        before = min(int(at), max(0, len(self._commands) - 2))
        after = min(before + 1, len(self._commands) - 1)
        first, second = self._commands[before], self._commands[after]
        nearer = first if at - before < 0.5 else second
        commanded: Values = np.where(self._columns.is_binary, nearer, first + (second - first) * (at - before))
        return commanded


def _counting(limits: MotionLimits, columns: ActionColumns) -> MotionLimits:
    """Return the limits of control points, in which positions of continuous joints continue beyond their border.

    Commands keep the limit of the jerk already, and braking need not.
    """
    lower = tuple(np.where(columns.wraps, -math.inf, limits.lower).tolist()) if limits.lower else ()
    upper = tuple(np.where(columns.wraps, math.inf, limits.upper).tolist()) if limits.upper else ()
    return replace(limits, lower=lower, upper=upper, max_jerk=())


def _root(squares: Values) -> float:
    return math.sqrt(float(squares.max()))
