"""Status message of a robot, the same for `/diagnostics`, and the punctuality of its control periods."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus
from rfm_serving import msg

from ros2_rfm_serving.robot import RobotCore
from ros2_rfm_serving.robot.figures import ComponentFigures
from ros2_rfm_serving.robot.parts import RATES_WINDOW_S
from ros2_rfm_serving.ros import following
from ros2_rfm_serving.ros.following import TWO_SCHEDULERS
from ros2_rfm_serving.ros.node.diagnostics import key_values
from ros2_rfm_serving.ros.wire import convert
from ros2_rfm_serving.types import RobotState, TaskPhase
from ros2_rfm_serving.types.histogram import TICK_BOUNDS_S, Histogram

WINDOW_STATES = 40
"""Number of intervals between states whose median gives the rate."""
LOOK_STATES = 10
"""Number of states between two evaluations of the rate."""
FITS = 1.25
"""Factor by which a rate may deviate and still fits."""
WINDOW_TICKS = 2048
"""Number of periods in the statistics of lateness."""

LEVELS = {
    RobotState.CONNECTING: DiagnosticStatus.WARN,
    RobotState.STREAMING: DiagnosticStatus.OK,
    RobotState.DEGRADED: DiagnosticStatus.WARN,
    RobotState.STALLED: DiagnosticStatus.ERROR,
    RobotState.RECONNECTING: DiagnosticStatus.WARN,
    RobotState.DEAD: DiagnosticStatus.ERROR,
}
FIGURES = (
    *("server", "episode", "queue_depth", "staleness_s", "action_rate_hz", "chunk_rate_hz"),
    *("round_trip_p50_s", "round_trip_p99_s", "held_ticks", "retries"),
)
"""Fields of the status that diagnostics repeat."""


class Punctuality:
    """Lateness of control periods, s.

    With a timer it is the delay behind the timer's own grid; a period that is missed altogether is counted and never made up for.
    With periods that follow the robot's state it is the time beyond one period that the robot was without one."""

    def __init__(self, period_s: float, *, on_grid: bool) -> None:
        self.ticks = self.missed = 0
        self._period_s, self._on_grid = period_s, on_grid
        self._due_s: float | None = None
        self._late_s: deque[float] = deque(maxlen=WINDOW_TICKS)
        self.latenesses, self.durations = Histogram(TICK_BOUNDS_S), Histogram(TICK_BOUNDS_S)
        """Histograms of all periods, s: lateness of the start, and computing time."""

    def ticked(self, now_s: float) -> None:
        self.ticks += 1
        due_s = now_s if self._due_s is None else self._due_s
        late_s = max(0.0, now_s - due_s)
        missed = int(late_s / self._period_s)
        if self._due_s is not None:
            self._late_s.append(late_s)
            self.latenesses.add(late_s)
            self.missed += missed
        # A tick before its time shows that the first ones, from which the grid was taken, were late themselves.
        self._due_s = (due_s + missed * self._period_s if self._on_grid and now_s >= due_s else now_s) + self._period_s

    def restart(self) -> None:
        """Start anew: the time between two activations is no period."""
        self._due_s = None

    def late_s(self, *quantiles: float) -> list[float]:
        """Return quantiles of the lateness over the last `WINDOW_TICKS` periods; NaN: there were none."""
        if not self._late_s:
            return [float("nan")] * len(quantiles)
        return [float(late) for late in np.quantile(self._late_s, quantiles)]


class Rhythm:
    """Rate of complete new states, in comparison with `control_rate_hz`."""

    def __init__(self, control_rate_hz: float) -> None:
        self._wanted_hz = control_rate_hz
        self._intervals_s: deque[float] = deque(maxlen=WINDOW_STATES)
        self._came_s: float | None = None
        self._since_looked = 0
        self._said = ""

    def came(self, now_s: float) -> None:
        if self._came_s is not None:
            self._intervals_s.append(now_s - self._came_s)
        self._came_s = now_s
        self._since_looked += 1

    @property
    def rate_hz(self) -> float:
        """Rate by the median interval; NaN: unknown yet."""
        median_s = float(np.median(self._intervals_s)) if len(self._intervals_s) >= WINDOW_STATES // 2 else 0.0
        return 1.0 / median_s if median_s > 0.0 else float("nan")

    @property
    def misfit(self) -> str:
        """Description of a mismatch of the rate, and its effect; empty: the rate fits."""
        rate_hz = self.rate_hz
        declared = f"the state comes at {rate_hz:.3g} Hz, control_rate_hz is {self._wanted_hz:g}"
        if rate_hz > FITS * self._wanted_hz:
            return f"{declared}: readings in between begin no control period"
        if rate_hz < self._wanted_hz / FITS:
            return f"{declared}: a control period per state; positions and velocities keep their time, displacements take longer"
        return ""

    def news(self) -> str:
        """Return `misfit` once for each kind of mismatch; evaluated at intervals, not at every state."""
        if self._since_looked < LOOK_STATES:
            return ""
        self._since_looked = 0
        misfit = self.misfit
        kind = misfit.rpartition(": ")[2]
        if not misfit or kind == self._said:
            return ""
        self._said = kind
        return misfit


def status_message(brain: RobotCore, task: str, punctuality: Punctuality, now_s: float) -> Any:
    run = brain.task
    actions_hz, chunks_hz = brain.rates(now_s)
    p50_s, p99_s = np.quantile(brain.round_trips_s or [np.nan], (0.5, 0.99))
    state, reason = brain.state, brain.reason
    status = msg.RobotStatus(
        state=int(state),
        reason=reason,
        phase=int(run.phase if run else TaskPhase.IDLE),
        task=task,
        instruction=brain.instruction,
        verdict=run.verdict if run else "",
        episode=brain.episode,
        scheduler=brain.schedule_follower.scheduler,
        schedule_epoch=brain.schedule_follower.epoch,
        server=brain.system1_server,
        queue_depth=brain.queue_depth,
        staleness_s=brain.staleness_s,
        oldest_staleness_s=brain.oldest_staleness_s,
        action_rate_hz=actions_hz,
        chunk_rate_hz=chunks_hz,
        window_s=RATES_WINDOW_S,
        round_trip_p50_s=float(p50_s),
        round_trip_p99_s=float(p99_s),
        retries=brain.retries,
        stop_reason=brain.stop_reason,
        paused=brain.paused,
        held_ticks=brain.held_ticks,
        refused=convert.counters_to(brain.refused),
        admitted_by=brain.admission.scheduler,
        admitted_task=brain.admission.task,
        components=[_figures_message(name, figures, brain.slo_s(name)) for name, figures in sorted(brain.figures.items())],
        transitions=convert.counters_to({_change(*change): count for change, count in brain.state_changes.items()}),
        fallbacks=convert.counters_to(brain.fallbacks),
        histograms=[
            convert.histogram_to("staleness_s", brain.stalenesses),
            convert.histogram_to("horizon_s", brain.horizons),
            convert.histogram_to("tick_s", punctuality.durations),
            convert.histogram_to("tick_late_s", punctuality.latenesses),
            *(convert.histogram_to("round_trip_s", part.round_trips, name) for name, part in sorted(brain.figures.items())),
        ],
    )
    status.header.frame_id = brain.config.name
    return status


def _change(before: RobotState, after: RobotState) -> str:
    return f"{before.name} to {after.name}"


def _figures_message(component: str, figures: ComponentFigures, slo_s: float) -> Any:
    return msg.ComponentFigures(
        component=component,
        slo_s=slo_s if slo_s < math.inf else 0.0,
        in_time=figures.in_time,
        late=figures.late,
        words=convert.counters_to(figures.words),
    )


def diagnosis(
    status: Any,
    brain: RobotCore,
    punctuality: Punctuality,
    rhythm: Rhythm,
    errors: int,
    readings: Mapping[str, object],
    now_s: float,
) -> DiagnosticStatus:
    """Return the diagnostics of `<robot>: robot`. The level is OK when it streams, WARN when it works with restrictions, ERROR
    when it stands still or waits for an operator. readings: values about its sensors."""
    state, phase = RobotState(status.state), TaskPhase(status.phase)
    level, message = LEVELS[state], status.reason or state.name.lower()
    if phase is TaskPhase.WAITING:
        level, message = DiagnosticStatus.ERROR, f"waits for a person: {status.stop_reason}"
    elif level == DiagnosticStatus.OK and (phase is TaskPhase.STOPPED or status.paused):
        level, message = DiagnosticStatus.WARN, status.stop_reason or "paused"
    elif level == DiagnosticStatus.OK and brain.schedule_follower.num_rivals(now_s):
        level, message = DiagnosticStatus.WARN, TWO_SCHEDULERS
    elif level == DiagnosticStatus.OK and brain.refusals:
        level, message = DiagnosticStatus.WARN, "; ".join(f"{name}: {why}" for name, why in brain.refusals.items())
    p50_s, p99_s = punctuality.late_s(0.5, 0.99)
    values = {
        "state": state.name,
        "phase": phase.name.lower(),
        "paused": status.paused,
        **following.values(brain.schedule_follower, now_s),
        **{name: getattr(status, name) for name in FIGURES},
        "ticks": punctuality.ticks,
        "missed_periods": punctuality.missed,
        "tick_late_p50_ms": 1e3 * p50_s,
        "tick_late_p99_ms": 1e3 * p99_s,
        "control_rate_hz": brain.config.control_rate_hz,
        "state_rate_hz": rhythm.rate_hz,
        "state_rate_misfit": rhythm.misfit,
        "callback_errors": errors,
        "model_mismatch": brain.mismatch,
        "conditioning": brain.conditioning.value if brain.conditioning else "none",
        **{f"not served {component}": why for component, why in brain.refusals.items()},
        **readings,
        **{_change(*change): count for change, count in sorted(brain.state_changes.items())},
        **{f"warned {name}": count for name, count in sorted(brain.validator_warnings.items())},
        **{f"{part.component} in time": part.in_time for part in status.components},
        **{f"{part.component} late": part.late for part in status.components},
        **{f"refused {counter.name}": counter.count for counter in status.refused},
    }
    name = brain.config.name
    return DiagnosticStatus(level=level, name=f"{name}: robot", message=message, hardware_id=name, values=key_values(values))
