"""What moves the robot: actions of the queue, steps between them, limits, and the fallback ladder when there is no action."""

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
from ros2_rfm_serving.robot.motion.fallback import FallbackLadder
from ros2_rfm_serving.robot.motion.gate import ChunkGate
from ros2_rfm_serving.robot.motion.pace import Pace
from ros2_rfm_serving.robot.motion.shaping import CommandShaper, Interpolator
from ros2_rfm_serving.robot.motion.smoothness import Smoothness
from ros2_rfm_serving.robot.motion.trail import CommandTrail
from ros2_rfm_serving.robot.why import By, Origin
from ros2_rfm_serving.types import Array, Chunk, ExecutionReport
from ros2_rfm_serving.types.histogram import Histogram
from ros2_rfm_serving.types.state import kept

NOTHING, ROW, PART, RUNG, STAND = By.NOTHING, By.ROW, By.PART, By.RUNG, By.STAND
_SHAPE = ("limits", "fallback", "safe_pose", "safe_pose_gain")
"""Of a configuration: what ladder and limits consist of."""
STANDS_AFTER_PERIODS = 1.3
"""Without a command, a robot that was told nothing counts as standing: less is the jitter of one that moves."""


class Motor:
    """Every command leaves through here, within limits. `queue` holds what is to be executed."""

    __slots__ = (  # of more than 30 attributes Python would look up each in a dict, and a tick asks for many
        *("queue", "ladder", "gate", "gate_warnings", "smoothness", "staleness_s", "stalenesses", "horizons", "step_ends_s"),
        *("chunk_began_s", "by", "obstacle", "pace", "_trained", "_began_s", "_config", "_refused", "_period_s", "_step_s"),
        *("_parts", "_interpolator", "_shaper", "_observed_s", "_at_seam", "_eased_steps", "_last", "_at_rest", "_held"),
        *("_interrupted", "_seen", "_is_steady", "_owed_s", "_wanted", "_columns", "_trail"),
    )

    KEPT: ClassVar = kept(
        *("queue", "ladder", "gate", "gate_warnings", "smoothness", "staleness_s", "step_ends_s", "chunk_began_s", "obstacle"),
        *("pace",),
        stalenesses_s="stalenesses",
        horizons_s="horizons",
        command_source="by",
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
        time_owed_s="_owed_s",
        wanted_command="_wanted",
        recent_commands="_trail",
    )

    def __init__(self, config: RobotConfig, refused: Counter[str]) -> None:
        """Raises: `ConfigurationError` when limits or ladder do not fit the robot."""
        columns = self._columns = ActionColumns.of(config)
        self.queue = ActionQueue(len(config.action_names), replace=config.replace_queue, compatibility=config.compatibility)
        self.ladder = FallbackLadder(config)
        self.gate = ChunkGate.of(config)
        self.gate_warnings: Counter[str] = Counter()
        """Chunks that were executed although the gate found something; sessions whose model has no statistics for it."""
        self._trained: tuple[tuple[float, ...], tuple[float, ...]] | None = None
        """What the model of the session says of its training data; None: there has been no session."""
        self.smoothness = Smoothness(columns, len(config.action_names))
        self.staleness_s = math.nan
        """Age of the observation behind the last executed action."""
        self.stalenesses, self.horizons = Histogram(), Histogram()
        """Of every executed action."""
        self.step_ends_s = -math.inf
        """Until then the last action is being executed."""
        self.chunk_began_s = math.inf
        """When the first action of the newest chunk began to be executed; inf: none has."""
        self._began_s = -math.inf
        """When the last action began to be executed."""
        self.looks()
        self._config, self._refused = config, refused
        self._period_s = 1.0 / config.control_rate_hz
        self.pace = Pace(self._period_s)
        self._step_s = 1.0 / config.step_rate_hz
        self._parts = config.interpolation
        self._interpolator = Interpolator(config.interpolation, columns)
        self._shaper = CommandShaper.of(config)
        self._observed_s = -math.inf
        """When the observation behind the step under way was taken."""
        self._at_seam = False
        """The next action is the first of a chunk."""
        self._eased_steps = 0
        """Of this chunk: steps that went only part of the way from the last command to the action."""
        self._last: Array | None = None
        """The last command."""
        self._at_rest = True
        """Nothing was commanded in the last period: what follows sets out from standing."""
        self._held = False
        """Nothing was to be commanded when last asked: once that has lasted for a moment, it stands."""
        self._interrupted = False
        """Hands may have been on the robot since the last action."""
        self._seen: tuple[Array, float] | None = None
        """The last period's measured position, and when it was read."""
        self._is_steady = True
        """The newest one fits to that: an encoder that jumps for a sample is nowhere to set out from."""
        self._owed_s = 0.0
        """Time that commands stand for beyond the rows that were executed: less than a step."""
        self._trail = CommandTrail(columns)
        """Of position commands."""

    def prepared(self, config: RobotConfig) -> Callable[[], None]:
        """What makes other limits, another ladder and another pace count from the next command on; the motion goes on.

        Raises: `ConfigurationError` when they do not fit the robot, or where it is; then nothing has changed.
        """
        change_gate = self._prepared_gate(config)
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

    def forked(self) -> Motor:
        """Return a copy that may go on by itself: nothing that it does or counts is seen here."""
        shared = {id(part): part for part in (self._config, self.gate, self._columns)}
        return copy.deepcopy(self, {**shared, id(self.stalenesses): Histogram(), id(self.horizons): Histogram()})

    def _prepared_gate(self, config: RobotConfig) -> Callable[[], None]:
        """What has been seen of the units stays known as long as it is measured by the same limits."""
        gate = self.gate
        if (config.gate, config.limits) != (self._config.gate, self._config.limits):
            gate = ChunkGate.of(config)
            if config.limits == self._config.limits:
                gate.go_on_from(self.gate)

        def apply() -> None:
            is_new, self.gate, self._config = gate is not self.gate, gate, config
            if is_new and self._trained is not None:
                self.trained(*self._trained)

        return apply

    # --- chunks ---

    def trained(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        """[A] each, of the actions that the model was trained on; empty: it does not say."""
        self._trained = (mean, std)
        if counter := self.gate.trained(mean, std):
            self.gate_warnings[counter] += 1

    def take(
        self, chunk: Chunk, mark: int, observed_s: float, *, real_delay: int, longest: int = 0, begun_s: float = math.nan
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
            self.gate_warnings["chunk_too_long"] += 1
            robot, model = robot[:longest], model[:longest]
        moved = min(max(real_delay, 0), max(self.queue.mark - mark, 0))
        rows = robot[moved:] if self._config.replace_queue else robot
        refused, warned = self.gate.admit(rows, self._executed_last if self._config.replace_queue else None)
        if warned:
            self.gate_warnings.update(warned)
        if refused:
            return refused
        origin = Origin(chunk.id, chunk.server, chunk.model_hash, chunk.ended_with, begun_s)
        horizon = chunk.execution_horizon
        self.queue.merge(model, robot, mark, observed_s, real_delay=real_delay, horizon=horizon, origin=origin)
        if horizon:
            self.horizons.add(max(self.queue.horizon - moved, 1) * self._step_s)
        self._at_seam = True
        if self._shaper:
            self.queue.refuse(self._shaper.unfit(self.queue.rows))
        return ""

    @property
    def oldest_staleness_s(self) -> float:
        """As `staleness_s`, of the observation that its chunk began with; the same unless the session is pipelined."""
        origin, _ = self.queue.executed
        return math.nan if origin is None or math.isnan(self.staleness_s) else self._began_s - origin.begun_s

    @property
    def _executed_last(self) -> Array | None:
        """[A] what a chunk goes on from: the last command, or, of positions, where a robot is that stands or was in people's hands;
        None or NaN: not known, or a column that sets out from standing."""
        if not (self._at_rest or self._held or self._interrupted):
            return self._last
        if not self._seen or not self._columns.has_position:
            return None
        seen: Array = self._seen[0]
        return np.where(self._columns.is_position, seen, np.float32(np.nan)) if self._columns.mixed else seen

    def report(self, rows_left: int, last_wait_s: float, now_s: float) -> ExecutionReport:
        """rows_left: that are going to be executed."""
        executed = self.queue.executed_of_chunk
        ends_s = self._began_s + self._step_s + rows_left * self._step_s
        executing_s = now_s - self.chunk_began_s if executed else 0.0
        remaining_s = ends_s - now_s if math.isfinite(ends_s) else 0.0
        return ExecutionReport(executed, executing_s, remaining_s, last_wait_s)

    def drop_stale_step(self, now_s: float) -> None:
        """Nor is the rest of one, nor that of one that stood still on its way."""
        if not self._interpolator.pending:
            return
        if self._observed_s < now_s - self._config.max_action_age_s or self._was_told_long_ago(now_s):
            self._interpolator.clear()
            self._refused["stale_action"] += 1

    def drop_stale(self, now_s: float) -> None:
        """No action is executed whose observation is too old (Remote-RTC §9.2); what comes from a newer one stays."""
        queue, oldest_s = self.queue, now_s - self._config.max_action_age_s
        if queue.is_older_than(oldest_s):
            self._refused["stale_action"] += queue.drop_older()
            if queue.is_older_than(oldest_s):
                self._refused["stale_action"] += queue.depth
                queue.clear()

    def discard(self) -> None:
        """Nothing of what was planned is executed any more."""
        self.queue.clear()
        self._interpolator.clear()

    def interrupt(self) -> None:
        """People, or a stop, come between: what was planned is over, and the next action sets out from where the robot is then."""
        self.discard()
        self._interrupted = True

    # --- control periods ---

    def looks(self) -> None:
        """Somebody asks what to do now."""
        self.by = NOTHING
        """What the command of this control period comes from."""
        self.obstacle = ""
        """Why the action that was there was not begun in it, as the name of a counter; empty: it was, or none was there."""
        self._wanted: Array | None = None
        """The command before the limits."""

    @property
    def limited_from(self) -> Array | None:
        """[A] what was wanted in this control period; None: nothing was commanded, or the limits changed nothing."""
        wanted, last = self._wanted, self._last
        if wanted is None or last is None or wanted is last:
            return None
        return wanted if 0 in (wanted == last).tobytes() else None  # a third of the time of `array_equal`

    def is_between_steps(self, now_s: float) -> bool:
        """The last action is over, the next may begin."""
        return (self._config.tick_is_step or now_s >= self.step_ends_s) and not self._interpolator.pending

    def is_period(self, now_s: float) -> bool:
        """A command may go out. Where ticks are no steps, `is_between_steps` decides alone."""
        return not self._config.tick_is_step or self.pace.is_due(now_s)

    def go_on(self, now_s: float) -> Array | None:
        """[A] the next part of a step under way; None: nothing is to be said until its end."""
        if not self._interpolator.pending:
            return None
        due, pending = self._parts_due(now_s) if self._config.tick_is_step else 1, self._interpolator.pending
        part = self._interpolator.next(due)
        assert part is not None
        self._owed_s = max(0, due - pending) * self._period_s
        self.by = PART
        return self._shaped(part, now_s, False)

    def step(self, positions: Array | None, now_s: float) -> Array | None:
        """[A] the next action of the queue, or the first part of the way to it; None: it must not be executed.
        positions: [A] measured, where a robot that stands sets out from."""
        if not self._set_out(positions, now_s, self._interrupted):
            self.step_ends_s = now_s + (0.0 if self._config.tick_is_step else self._period_s)
            return None
        observed_s = self.queue.observed_s
        due = self._parts_due(now_s) if self._config.tick_is_step else 1
        rows = 1 + (due - 1) // self._parts
        action, _ = self.queue.pop(rows)
        if not self._config.tick_is_step:
            self.step_ends_s = now_s + self._step_s
        self._began_s = now_s
        if self.queue.executed_of_chunk == 1:
            self.chunk_began_s = now_s
        if action is None:
            self.obstacle = "out_of_limits"
            self._refused["out_of_limits"] += 1
            return None
        self.by = ROW
        self._interrupted = False
        self._observed_s, self.staleness_s = observed_s, now_s - observed_s
        self.stalenesses.add(self.staleness_s)
        action = self._eased(action)
        if self._parts > 1:
            self._owed_s = (due - 1) % self._parts * self._period_s
            if self._config.tick_is_step:  # ticks jitter: the next step begins with its tick
                self.step_ends_s = now_s + (self._parts - 0.5) * self._period_s
            assert self._shaper is not None
            self._interpolator.aim(self._shaper.before_average, action)
            part = self._interpolator.next()
            assert part is not None
            action = part
        return self._shaped(action, now_s, True)

    def _parts_due(self, now_s: float) -> int:
        """Return the parts of steps that this command stands for, where ticks are steps; without interpolation a step is one part.

        They are more than one where the robot ticks more slowly than it was declared to, so that a motion takes the time that was
        declared. A displacement is made once, whatever the time.
        """
        owed, self._owed_s = round(self._owed_s / self._period_s), 0.0
        if self._at_rest:
            self.pace.restart()
        return self._periods(now_s) + owed

    def _periods(self, now_s: float) -> int:
        """Return the control periods that a command of now stands for, where ticks are steps."""
        return 1 if self._columns.has_delta else self.pace.periods(now_s)

    def _eased(self, action: Array) -> Array:
        """[A] Over the first steps of a chunk an ever larger part of the way from the last command to the action, so that nothing
        jumps at the seam, however much the robot's view of things has changed. A robot that stands sets out as it is told."""
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
        """[A] what the ladder says for this period; None: nothing."""
        self._interpolator.pending = 0
        if self._was_told_long_ago(now_s):
            self.ladder.stood()
        command = self.ladder.command(None if positions is None else self._known(positions), now_s, to_pose)
        self.by = RUNG if self.ladder.motion() else STAND if command is not None else NOTHING
        if command is not None and not self._set_out(positions, now_s):
            command = None
        if command is not None:
            command = self._limited(command, now_s)
        self._held = command is None
        self.ladder.went(command)
        self.smoothness.held(command)
        return command

    def stands(self, now_s: float) -> bool:
        """The end of the ladder has been reached, and braking within the limits is over."""
        braked = not self._columns.has_lasting or self._shaper is None or self._shaper.at_rest
        return braked and self.ladder.stands(now_s)

    def is_in_safe_state(self, now_s: float) -> bool:
        """In its pose, where it has one."""
        return not self.ladder.has_pose or self.ladder.stands(now_s, to_pose=True)

    def stop_command(self) -> Array | None:
        """[A] what makes the robot stand, whatever it did; None: saying nothing does. No ladder is gone down after that."""
        self._interpolator.clear()
        self._stand()
        self.ladder.rest()
        return self.ladder.stop_command()

    def stand(self, now_s: float) -> Array | None:
        """[A] the same, as the command of this period: limits count from it. Where nothing is said, nothing was commanded now."""
        command = self.stop_command()
        self.by = STAND
        if command is not None:
            self.pace.began(now_s)
        return command

    def hand_over(self, now_s: float) -> Array | None:
        """[A] what makes the robot stand, so that somebody else may move it."""
        self._interrupted = True
        command = self.stand(now_s)
        self.ladder.handed_over()
        if self._shaper:
            self._shaper.start(None)
        self._trail.clear()
        return command

    def begin(self) -> None:
        """A new episode. The robot may have been moved since the last one."""
        self._interpolator.clear()
        self._interrupted = True
        if not self.ladder.moved:
            self.ladder.handed_over()
        self.step_ends_s, self.staleness_s = -math.inf, math.nan
        self._began_s, self.chunk_began_s = -math.inf, math.inf
        self.smoothness.begin()

    # --- where it sets out from ---

    def measured(self, positions: Array | None, read_s: float) -> None:
        """Once per control period, whether or not it moves. read_s: when the positions were read."""
        if positions is None:
            self._is_steady, self._seen = True, None
            return
        known, seen = self._known(positions), self._seen
        self._is_steady = True
        if self._shaper and self._shaper.needs_position and known is not None and seen is not None:
            self._is_steady = self._shaper.is_near(known, seen[0], read_s - seen[1])
        self._seen = None if known is None else (known, read_s)

    def _stand(self) -> None:
        """Nothing is commanded any more. Where an arm goes on to its last position, that is known until it sets out again."""
        if self._shaper:
            self._shaper.stand()
        self._at_rest = True

    def _was_told_long_ago(self, now_s: float) -> bool:
        """Whatever it was told is over: longer than any step, or than its computer may stand still unnoticed."""
        silent_s = self.pace.since_s(now_s)
        return silent_s > self._config.max_observation_age_s and silent_s > 2.0 * self._step_s

    def _set_out(self, positions: Array | None, now_s: float, anew: bool = False) -> bool:
        """A robot that stands, or whose last command is long ago, sets out from where it is measured to be, whatever it was told
        before. False: it must not, because nobody knows where that is, or because its limits are out of reach from there."""
        moves = self._columns.has_position
        silent_s, stands_s = self.pace.since_s(now_s), STANDS_AFTER_PERIODS * self._period_s
        if self._shaper and self._shaper.moves and silent_s <= stands_s:
            anew = False  # still on its way: nobody's hands are on it, and its speed must not end at once
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
        """Return [A] where the arm is, or goes to without another command, by its reading and by what has been commanded since."""
        if known is None or self._seen is None:
            return known
        if self._trail.is_over(self._seen[1], self._period_s):
            self._trail.begin(known, self._seen[1])
        return self._trail.position_now(known, self._seen[1], self._period_s)

    def _perhaps_at(self, known: Array | None) -> list[Array]:
        """Return where else the arm may be: at its reading, or at its last command."""
        return [place for place in (known, self._trail.last) if place is not None]

    def _unfit_start(self, known: Array | None) -> str:
        """Why no command may set out from there, as the name of a counter; empty: it may."""
        if known is None:
            return "position_unknown"
        if not self._is_steady:
            return "position_unsteady"
        assert self._shaper is not None
        return "" if self._shaper.is_in_reach(known) else "position_out_of_limits"

    def _known(self, positions: Array | None) -> Array | None:
        """What was measured, if it can be used."""
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
