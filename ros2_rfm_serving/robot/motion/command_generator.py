"""Motion of the robot: actions of the queue, parts of steps, limits, and the fallback ladder while there is no action."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from ros2_rfm_serving.robot.columns import ActionColumns
from ros2_rfm_serving.robot.config import RobotConfig
from ros2_rfm_serving.robot.motion.action_queue import ActionQueue
from ros2_rfm_serving.robot.motion.chunk_validator import ChunkValidator
from ros2_rfm_serving.robot.motion.fallback import FallbackLadder
from ros2_rfm_serving.robot.motion.pace import ExecutionPace
from ros2_rfm_serving.robot.motion.shaping import CommandShaper, Interpolator
from ros2_rfm_serving.robot.motion.smoothness import Smoothness
from ros2_rfm_serving.robot.motion.trail import CommandTrail
from ros2_rfm_serving.robot.why import CommandOrigin, CommandSource
from ros2_rfm_serving.types import ActionChunk, Array, ExecutionReport
from ros2_rfm_serving.types.histogram import Histogram
from ros2_rfm_serving.types.state import kept

NOTHING, ROW, PART, RUNG, STAND = (
    CommandSource.NONE,
    CommandSource.STEP,
    CommandSource.PARTIAL_STEP,
    CommandSource.FALLBACK,
    CommandSource.STOP,
)
_SHAPE = ("limits", "fallback", "safe_pose", "safe_pose_gain")
"""Fields of a configuration that define ladder and limits."""
STOPPED_AFTER_PERIODS = 1.3
"""Periods without a command after which the robot counts as standing; less is the jitter of one that moves."""


class CommandGenerator:
    """Generator of all commands, within limits. `queue` holds the actions to execute."""

    __slots__ = (  # Python would look up each of more than 30 attributes in a dict, and a tick reads many
        *(
            "queue",
            "ladder",
            "validator",
            "validator_warnings",
            "smoothness",
            "staleness_s",
            "stalenesses",
            "horizons",
            "step_end_s",
        ),
        *(
            "chunk_began_s",
            "command_source",
            "obstacle",
            "pace",
            "_trained",
            "_began_s",
            "_config",
            "_refused",
            "_period_s",
            "_step_s",
        ),
        *("_parts", "_interpolator", "_shaper", "_observed_s", "_at_seam", "_eased_steps", "_last", "_at_rest", "_held"),
        *("_interrupted", "_seen", "_is_steady", "_overdue_s", "_wanted", "_columns", "_trail"),
    )

    KEPT: ClassVar = kept(
        *(
            "queue",
            "ladder",
            "validator",
            "validator_warnings",
            "smoothness",
            "staleness_s",
            "step_end_s",
            "chunk_began_s",
            "obstacle",
        ),
        *("pace",),
        stalenesses_s="stalenesses",
        horizons_s="horizons",
        command_source="command_source",
        training_statistics="_trained",
        action_began_s="_began_s",
        interpolator="_interpolator",
        limiter="_shaper",
        observed_s="_observed_s",
        begins_chunk="_at_seam",
        blended_steps="_eased_steps",
        last_command="_last",
        is_at_rest="_at_rest",
        was_held="_held",
        may_have_been_moved="_interrupted",
        last_reading="_seen",
        is_reading_steady="_is_steady",
        overdue_s="_overdue_s",
        unlimited_command="_wanted",
        recent_commands="_trail",
    )

    def __init__(self, config: RobotConfig, refused: Counter[str]) -> None:
        """Build the parts of the motion. Raises: `ConfigurationError` when limits or ladder do not fit the robot."""
        columns = self._columns = ActionColumns.of(config)
        self.queue = ActionQueue(len(config.action_names), replace=config.replace_queue, compatibility=config.compatibility)
        self.ladder = FallbackLadder(config)
        self.validator = ChunkValidator.of(config)
        self.validator_warnings: Counter[str] = Counter()
        """Chunks that were executed although a check failed, and sessions whose model has no statistics for the gate."""
        self._trained: tuple[tuple[float, ...], tuple[float, ...]] | None = None
        """Statistics of the session's model about its training data; None: there has been no session."""
        self.smoothness = Smoothness(columns, len(config.action_names))
        self.staleness_s = math.nan
        """Age of the observation behind the last executed action."""
        self.stalenesses, self.horizons = Histogram(), Histogram()
        """Staleness of every executed action, and duration of every server's horizon, s."""
        self.step_end_s = -math.inf
        """Time at which the last action has been executed."""
        self.chunk_began_s = math.inf
        """Time at which the first action of the newest chunk began; inf: none has."""
        self._began_s = -math.inf
        """Time at which the last action began."""
        self.begin_period()
        self._config, self._refused = config, refused
        self._period_s = 1.0 / config.control_rate_hz
        self.pace = ExecutionPace(self._period_s)
        self._step_s = 1.0 / config.step_rate_hz
        self._parts = config.interpolation
        self._interpolator = Interpolator(config.interpolation, columns)
        self._shaper = CommandShaper.of(config)
        self._observed_s = -math.inf
        """Time of the observation behind the current step."""
        self._at_seam = False
        """True when the next action is the first of a chunk."""
        self._eased_steps = 0
        """Steps of this chunk that went only part of the way from the last command to the action."""
        self._last: Array | None = None
        """The last command."""
        self._at_rest = True
        """True when nothing was commanded in the last period, so that the next motion sets out from standing."""
        self._held = False
        """True when the last period had nothing to command; after a moment of that the robot stands."""
        self._interrupted = False
        """True when the robot may have been moved externally since the last action."""
        self._seen: tuple[Array, float] | None = None
        """Measured position of the last period, and the time at which it was read."""
        self._is_steady = True
        """True when the newest position fits the last one: an encoder that jumps for a sample gives no valid start."""
        self._overdue_s = 0.0
        """Time that commands cover beyond the executed rows: less than a step."""
        self._trail = CommandTrail(columns)
        """Recent position commands."""

    def prepared(self, config: RobotConfig) -> Callable[[], None]:
        """Return a function that applies other limits, another ladder and another pace from the next command on, in motion.

        Raises: `ConfigurationError` when they do not fit the robot or its current position; then nothing has changed.
        """
        change_gate = self._prepared_validator(config)
        if all(getattr(config, name) == getattr(self._config, name) for name in _SHAPE):
            return change_gate
        ladder, shaper, columns = FallbackLadder(config), CommandShaper.of(config), ActionColumns.of(config)
        if shaper is not None:
            stands = self._at_rest and self._shaper is not None
            shaper.go_on_from(None if stands else self._shaper.last if self._shaper else self._last, self._shaper)

        def apply() -> None:
            change_gate()
            ladder.go_on_from(self.ladder)
            self.ladder, self._shaper, self._columns = ladder, shaper, columns
            self._interpolator.describe(columns)
            self.smoothness.describe(columns)
            self._trail.describe(columns)
            unfit = shaper.unfit(self.queue.rows) if shaper else np.zeros(self.queue.depth, bool)
            self.queue.refuse(unfit)

        return apply

    def forked(self) -> CommandGenerator:
        """Return a copy that may run independently: neither its actions nor its counters have an effect here."""
        shared = {id(part): part for part in (self._config, self.validator, self._columns)}
        return copy.deepcopy(self, {**shared, id(self.stalenesses): Histogram(), id(self.horizons): Histogram()})

    def _prepared_validator(self, config: RobotConfig) -> Callable[[], None]:
        """Return a function that replaces the gate. Evidence about the units is kept as long as the limits stay the same."""
        gate = self.validator
        if (config.gate, config.limits) != (self._config.gate, self._config.limits):
            gate = ChunkValidator.of(config)
            if config.limits == self._config.limits:
                gate.go_on_from(self.validator)

        def apply() -> None:
            is_new, self.validator, self._config = gate is not self.validator, gate, config
            if is_new and self._trained is not None:
                self.trained(*self._trained)

        return apply

    # --- chunks ---

    def trained(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        """Set the statistics of the model's training actions, [A] each; empty: the model has none."""
        self._trained = (mean, std)
        if counter := self.validator.trained(mean, std):
            self.validator_warnings[counter] += 1

    def enqueue(
        self,
        chunk: ActionChunk,
        steps_executed: int,
        observed_s: float,
        *,
        real_delay: int,
        longest: int = 0,
        begun_s: float = math.nan,
    ) -> str:
        """Merge a chunk into the queue. Return the counter under which it is refused, or an empty string when it was merged.

        mark, observed_s: of the observation that its last steps saw, from which row 0 counts.
        longest: number of rows that the session's contract promises, 0 for any; rows beyond it are dropped, which is counted as a
        warning. begun_s: when the observation was taken that the chunk began with.
        """
        robot, model = chunk.chunk_robot, chunk.chunk_model
        if robot.ndim != 2 or robot.shape[1] != len(self._config.action_names) or not len(robot) or model.shape != robot.shape:
            return "bad_shape"
        if robot.size and not (np.isfinite(robot).all() and np.isfinite(model).all()):
            return "non_finite"
        if longest and len(robot) > longest:
            self.validator_warnings["chunk_too_long"] += 1
            robot, model = robot[:longest], model[:longest]
        moved = min(max(real_delay, 0), max(self.queue.steps_executed - steps_executed, 0))
        rows = robot[moved:] if self._config.replace_queue else robot
        refused, warned = self.validator.validate(rows, self._executed_last if self._config.replace_queue else None)
        if warned:
            self.validator_warnings.update(warned)
        if refused:
            return refused
        origin = CommandOrigin(chunk.id, chunk.server, chunk.model_hash, chunk.ended_with, begun_s)
        horizon = chunk.execution_horizon
        self.queue.merge(model, robot, steps_executed, observed_s, real_delay=real_delay, horizon=horizon, origin=origin)
        if horizon:
            self.horizons.add(max(self.queue.horizon - moved, 1) * self._step_s)
        self._at_seam = True
        if self._shaper:
            self.queue.refuse(self._shaper.unfit(self.queue.rows))
        return ""

    @property
    def oldest_staleness_s(self) -> float:
        """Return the age of the observation that the last action's chunk began with; it differs in a pipelined session."""
        origin, _ = self.queue.executed
        return math.nan if origin is None or math.isnan(self.staleness_s) else self._began_s - origin.begun_s

    @property
    def _executed_last(self) -> Array | None:
        """Return [A] where a chunk continues: the last command, or the measured positions of a robot that stands or may have been
        moved. None or NaN: unknown, or a column that sets out from standing."""
        if not (self._at_rest or self._held or self._interrupted):
            return self._last
        if not self._seen or not self._columns.has_position:
            return None
        seen: Array = self._seen[0]
        return np.where(self._columns.is_position, seen, np.float32(np.nan)) if self._columns.mixed else seen

    def report(self, rows_left: int, last_wait_s: float, now_s: float) -> ExecutionReport:
        """Return the report on the execution. rows_left: number of actions that are going to be executed."""
        executed = self.queue.executed_of_chunk
        ends_s = self._began_s + self._step_s + rows_left * self._step_s
        executing_s = now_s - self.chunk_began_s if executed else 0.0
        remaining_s = ends_s - now_s if math.isfinite(ends_s) else 0.0
        return ExecutionReport(executed, executing_s, remaining_s, last_wait_s)

    def drop_stale_step(self, now_s: float) -> None:
        """Drop the rest of a step whose observation is too old, or that was interrupted for too long."""
        if not self._interpolator.pending:
            return
        if self._observed_s < now_s - self._config.max_action_age_s or self._was_told_long_ago(now_s):
            self._interpolator.clear()
            self._refused["stale_action"] += 1

    def drop_stale(self, now_s: float) -> None:
        """Drop actions whose observation is too old (Remote-RTC §9.2); those with a newer one stay."""
        queue, oldest_s = self.queue, now_s - self._config.max_action_age_s
        if queue.is_older_than(oldest_s):
            self._refused["stale_action"] += queue.drop_older()
            if queue.is_older_than(oldest_s):
                self._refused["stale_action"] += queue.depth
                queue.clear()

    def discard(self) -> None:
        """Drop all planned actions."""
        self.queue.clear()
        self._interpolator.clear()

    def interrupt(self) -> None:
        """Drop the plan after a stop or an operator's intervention; the next action sets out from the robot's position by then."""
        self.discard()
        self._interrupted = True

    # --- control periods ---

    def begin_period(self) -> None:
        """Reset the explanation of the command, for a new control period."""
        self.command_source = NOTHING
        """Source of this control period's command."""
        self.obstacle = ""
        """Counter that names why an available action was not begun in this period; empty: it was, or there was none."""
        self._wanted: Array | None = None
        """The command before the limits."""

    @property
    def limited_from(self) -> Array | None:
        """Return [A] the command wanted in this control period; None: nothing was commanded, or the limits changed nothing."""
        wanted, last = self._wanted, self._last
        if wanted is None or last is None or wanted is last:
            return None
        return wanted if 0 in (wanted == last).tobytes() else None  # takes a third of the time of `array_equal`

    def is_between_steps(self, now_s: float) -> bool:
        """Return whether the last action is over, so that the next may begin."""
        return (self._config.tick_is_step or now_s >= self.step_end_s) and not self._interpolator.pending

    def is_period(self, now_s: float) -> bool:
        """Return whether a command may go out. Where ticks are no steps, `is_between_steps` decides alone."""
        return not self._config.tick_is_step or self.pace.is_due(now_s)

    def go_on(self, now_s: float) -> Array | None:
        """Return [A] the next part of the current step; None: nothing is commanded until its end."""
        if not self._interpolator.pending:
            return None
        due, pending = self._parts_due(now_s) if self._config.tick_is_step else 1, self._interpolator.pending
        part = self._interpolator.next(due)
        assert part is not None
        self._overdue_s = max(0, due - pending) * self._period_s
        self.command_source = PART
        return self._shaped(part, now_s, False)

    def step(self, positions: Array | None, now_s: float) -> Array | None:
        """Return [A] the next action of the queue, or the first part of the way to it; None: it must not be executed. positions:
        [A] measured, from which a standing robot sets out."""
        if not self._set_out(positions, now_s, self._interrupted):
            self.step_end_s = now_s + (0.0 if self._config.tick_is_step else self._period_s)
            return None
        observed_s = self.queue.observed_s
        due = self._parts_due(now_s) if self._config.tick_is_step else 1
        rows = 1 + (due - 1) // self._parts
        action, _ = self.queue.pop(rows)
        if not self._config.tick_is_step:
            self.step_end_s = now_s + self._step_s
        self._began_s = now_s
        if self.queue.executed_of_chunk == 1:
            self.chunk_began_s = now_s
        if action is None:
            self.obstacle = "out_of_limits"
            self._refused["out_of_limits"] += 1
            return None
        self.command_source = ROW
        self._interrupted = False
        self._observed_s, self.staleness_s = observed_s, now_s - observed_s
        self.stalenesses.add(self.staleness_s)
        action = self._eased(action)
        if self._parts > 1:
            self._overdue_s = (due - 1) % self._parts * self._period_s
            if self._config.tick_is_step:  # ticks jitter: the next step begins with its tick
                self.step_end_s = now_s + (self._parts - 0.5) * self._period_s
            assert self._shaper is not None
            self._interpolator.aim(self._shaper.before_average, action)
            part = self._interpolator.next()
            assert part is not None
            action = part
        return self._shaped(action, now_s, True)

    def _parts_due(self, now_s: float) -> int:
        """Return the parts of steps that this command covers, where ticks are steps; without interpolation a step is one part.

        They are more than one where the robot ticks more slowly than declared, so that a motion takes the declared time. A
        displacement is made once, whatever the time.
        """
        owed, self._overdue_s = round(self._overdue_s / self._period_s), 0.0
        if self._at_rest:
            self.pace.restart()
        return self._periods(now_s) + owed

    def _periods(self, now_s: float) -> int:
        """Return the control periods that a command sent now covers, where ticks are steps."""
        return 1 if self._columns.has_delta else self.pace.periods(now_s)

    def _eased(self, action: Array) -> Array:
        """Return [A] an action that is blended over the first steps of a chunk: an ever larger part of the way from the last
        command, so that the seam has no jump, however much the robot's observation has changed. A standing robot is not blended."""
        steps = self._config.blend_steps
        if self._at_seam:
            self._eased_steps = 0
        last = self._shaper.before_average if self._shaper else self._last
        if self._at_rest or last is None or self._eased_steps >= steps:
            return action
        self._eased_steps += 1
        columns, share = self._columns, np.float32(self._eased_steps / (steps + 1))
        way: Array = columns.change(action, last)
        eased = last + way * share
        if columns.has_wraps:
            eased = columns.written(eased, last, action)
        return np.where(columns.is_binary, action, eased) if columns.has_binary else eased

    def fall_back(self, positions: Array | None, now_s: float, *, to_pose: bool = False) -> Array | None:
        """Return [A] the ladder's command for this period; None: nothing is commanded."""
        self._interpolator.pending = 0
        if self._was_told_long_ago(now_s):
            self.ladder.stood()
        command = self.ladder.command(None if positions is None else self._known(positions), now_s, to_pose)
        self.command_source = RUNG if self.ladder.motion() else STAND if command is not None else NOTHING
        if command is not None and not self._set_out(positions, now_s):
            command = None
        if command is not None:
            command = self._limited(command, now_s)
        self._held = command is None
        self.ladder.went(command)
        self.smoothness.held(command)
        return command

    def is_stopped(self, now_s: float) -> bool:
        """Return whether the end of the ladder has been reached, and braking within the limits is over."""
        braked = not self._columns.has_lasting or self._shaper is None or self._shaper.at_rest
        return braked and self.ladder.is_stopped(now_s)

    def is_in_safe_state(self, now_s: float) -> bool:
        """Return whether the robot is in its pose; True if it has none."""
        return not self.ladder.has_pose or self.ladder.is_stopped(now_s, to_pose=True)

    def stop_command(self) -> Array | None:
        """Return [A] the command that stops the robot, whatever it did; None: no command is needed. The ladder ends with it."""
        self._interpolator.clear()
        self._stand()
        self.ladder.rest()
        return self.ladder.stop_command()

    def stop(self, now_s: float) -> Array | None:
        """Return [A] `stop_command` as the command of this period: limits count from it. Without one the period counts as empty."""
        command = self.stop_command()
        self.command_source = STAND
        if command is not None:
            self.pace.began(now_s)
        return command

    def hand_over(self, now_s: float) -> Array | None:
        """Return [A] the command that stops the robot, so that another process may move it."""
        self._interrupted = True
        command = self.stop(now_s)
        self.ladder.handed_over()
        if self._shaper:
            self._shaper.start(None)
        self._trail.clear()
        return command

    def begin(self) -> None:
        """Begin an episode. The robot may have been moved since the last one."""
        self._interpolator.clear()
        self._interrupted = True
        if not self.ladder.moved:
            self.ladder.handed_over()
        self.step_end_s, self.staleness_s = -math.inf, math.nan
        self._began_s, self.chunk_began_s = -math.inf, math.inf
        self.smoothness.begin()

    # --- start of a motion ---

    def measured(self, positions: Array | None, read_s: float) -> None:
        """Receive the measured positions, once per control period, whether or not the robot moves. read_s: when they were read."""
        if positions is None:
            self._is_steady, self._seen = True, None
            return
        known, seen = self._known(positions), self._seen
        self._is_steady = True
        if self._shaper and self._shaper.needs_position and known is not None and seen is not None:
            self._is_steady = self._shaper.is_near(known, seen[0], read_s - seen[1])
        self._seen = None if known is None else (known, read_s)

    def _stand(self) -> None:
        """Note that nothing is commanded any more. The last position, where an arm goes on to, stays known until it sets out
        again."""
        if self._shaper:
            self._shaper.stand()
        self._at_rest = True

    def _was_told_long_ago(self, now_s: float) -> bool:
        """Return whether the last command is over: it is older than any step, and older than an unnoticed pause of the computer may
        be."""
        silent_s = self.pace.since_s(now_s)
        return silent_s > self._config.max_observation_age_s and silent_s > 2.0 * self._step_s

    def _set_out(self, positions: Array | None, now_s: float, anew: bool = False) -> bool:
        """Let a robot that stands, or whose last command is old, set out from its measured position, whatever it was commanded
        before. Return False when it must not: its position is unknown, or its limits are out of reach from there."""
        moves = self._columns.has_position
        silent_s, stands_s = self.pace.since_s(now_s), STOPPED_AFTER_PERIODS * self._period_s
        if self._shaper and self._shaper.moves and silent_s <= stands_s:
            anew = False  # still moving: no operator moves it, and its speed must not end at once
            self._at_rest = self._at_rest and not moves
        anew = moves and (anew or self._was_told_long_ago(now_s))
        if self._held and silent_s > stands_s:
            self._stand()
        if not (self._at_rest or anew):
            return True
        if self._shaper is None:
            self.ladder.forget_motion()
            return True
        known = self._known(positions) if moves else None
        if self._shaper.needs_position and (problem := self._unfit_start(known)):
            self._refused[problem] += 1
            self.obstacle = problem
            return False
        self._shaper.start(self._position_now(known), *self._perhaps_at(known), at_rest=self._at_rest)
        self.ladder.forget_motion()
        self._at_rest = True
        return True

    def _position_now(self, known: Array | None) -> Array | None:
        """Return [A] the arm's position, or where it goes without another command, by its reading and the commands since."""
        if known is None or self._seen is None:
            return known
        if self._trail.is_over(self._seen[1], self._period_s):
            self._trail.begin(known, self._seen[1])
        return self._trail.position_now(known, self._seen[1], self._period_s)

    def _perhaps_at(self, known: Array | None) -> list[Array]:
        """Return other possible positions of the arm: its reading, and its last command."""
        return [place for place in (known, self._trail.last) if place is not None]

    def _unfit_start(self, known: Array | None) -> str:
        """Return why no command may set out from there, as the name of a counter; empty: it may."""
        if known is None:
            return "position_unknown"
        if not self._is_steady:
            return "position_unsteady"
        assert self._shaper is not None
        return "" if self._shaper.is_in_reach(known) else "position_out_of_limits"

    def _known(self, positions: Array | None) -> Array | None:
        """Return the measured positions if they can be used; otherwise None."""
        if positions is None or np.shape(positions) != (len(self._config.action_names),):
            return None
        finite = np.isfinite(positions)
        if not finite.all() and not (self._columns.mixed and (finite | self._columns.is_binary).all()):
            return None
        return positions

    def _shaped(self, command: Array, now_s: float, begins: bool) -> Array:
        command = self._limited(command, now_s)
        self.ladder.commanded(command, begins)
        self.smoothness.commanded(command, self._at_seam)
        self._at_seam = False
        return command

    def _limited(self, command: Array, now_s: float) -> Array:
        self._at_rest = self._held = False
        self._wanted = command
        self._last = self._shaper.shape(command, self.pace.elapsed_s(now_s)) if self._shaper else command
        self.pace.began(now_s, self._periods(now_s) if self._config.tick_is_step else 1)
        if self._shaper is not None and self._columns.has_position:
            self._trail.add(self._last, now_s, self._config.max_observation_age_s)
        return self._last
