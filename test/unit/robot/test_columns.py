"""Action columns of several types, and continuous joints: each column is stopped, eased, interpolated, limited and checked as what
it is. Robots are random mixtures; one is openpi's DROID, seven joint velocities and an absolute gripper."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot import RobotConfig, RobotCore, Sensors, TaskGoal, TickResult
from ros2_rfm_serving.robot.chunk_validation import ChunkValidatorConfig, ChunkValidatorMode
from ros2_rfm_serving.robot.columns import ActionColumns, suggestions
from ros2_rfm_serving.robot.config import CommandType, Motion, Rung
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.robot.motion.chunk_validator import ChunkValidator
from ros2_rfm_serving.robot.motion.command_generator import CommandGenerator
from ros2_rfm_serving.robot.motion.fallback import FallbackLadder, check_ladder
from ros2_rfm_serving.robot.motion.shaping import CommandShaper, Interpolator
from ros2_rfm_serving.robot.motion.smoothness import Smoothness
from ros2_rfm_serving.robot.output import check_stop
from ros2_rfm_serving.types import Array, EncodedImage, ObservationRequest, TaskOutcome
from test.unit.fakes import CONTRACT, JPEG, chunk, grant, observation, schedule
from test.unit.robot.mirrored import stored

POSITION, VELOCITY, DELTA = CommandType.POSITION, CommandType.VELOCITY, CommandType.DELTA
EFFORT, BINARY = CommandType.EFFORT, CommandType.BINARY
PERIOD_S = 0.05
TURN = 2.0 * math.pi
DROID_NAMES = (*(f"joint_{number}" for number in range(1, 8)), "gripper")
LADDERS = (
    "zero",
    "repeat_last:0.2 zero",
    "ramp_down:0.3 zero",
    "repeat_last:0.1 ramp_down:0.2 zero",
    "safe_pose:0.5 zero",
)


def ladder(text: str) -> tuple[Rung, ...]:
    parts = (part.partition(":") for part in text.split())
    return tuple(Rung(Motion(motion), float(seconds or math.inf)) for motion, _, seconds in parts)


def droid(gripper: CommandType = BINARY, **changes: Any) -> RobotConfig:
    fields: dict[str, Any] = {
        "name": "r1",
        "action_names": DROID_NAMES,
        "cameras": ("front",),
        "state_size": 3,
        "control_rate_hz": 1.0 / PERIOD_S,
        "execution_horizon": 3,
        "command_type": VELOCITY,
        "command_types": (*(VELOCITY,) * 7, gripper),
        "limits": MotionLimits(lower=(-2.0,) * 7 + (0.0,), upper=(2.0,) * 7 + (1.0,), max_acceleration=(20.0,) * 7 + (math.inf,)),
        "fallback": ladder("zero"),
        "max_action_age_s": 1.0,
    }
    return RobotConfig(**(fields | changes))


class Rig:
    """A brain of any actions, its server, and the commands that it gave. Time is virtual."""

    def __init__(self, config: RobotConfig, positions: Array | None = None) -> None:
        self.config, self.brain, self.now_s = config, RobotCore(config), 0.0
        self.positions = positions
        self.sent: list[Array] = []
        self.sees = True
        self.brain.on_schedule(schedule(), self.now_s)
        for server, opening in self.tick().opens:
            contract = replace(CONTRACT, action_names=config.action_names)
            self.brain.on_session_opened(opening.component, server, grant(5, contract), self.now_s)
        self.start()

    def start(self) -> None:
        self.brain.start(TaskGoal(task="t", instruction="go", time_budget_s=1e4, reset=False), self.now_s)

    def tick(self, num: int = 1) -> TickResult:
        for _ in range(num):
            self.now_s += PERIOD_S
            self.brain.on_server_status("s1", True, self.now_s)
            tick = self.brain.tick(self._sensors(), self.now_s)
            self.sent += [] if tick.command is None else [tick.command]
        return tick

    def _sensors(self) -> Sensors:
        image = EncodedImage(camera="front", format="jpeg", data=JPEG)
        at_s = self.now_s if self.sees else self.now_s - 10.0
        return Sensors(np.zeros(3, np.float32), at_s, (image,), at_s, positions=self.positions)

    def ask(self) -> ObservationRequest:
        for _ in range(100):
            if requests := self.tick().requests:
                return requests[0][1]
        raise AssertionError("no request")

    def execute(self, rows: np.ndarray) -> None:
        """A chunk arrives, and its first three rows are executed."""
        request = self.ask()
        answer = chunk(request, rows.astype(np.float32))
        assert self.brain.on_reply(replace(answer, action_names=self.config.action_names), self.now_s), self.brain.refused
        self.tick(3)
        assert self.brain.executing


def gripping(config: RobotConfig | None = None, positions: Array | None = None) -> Rig:
    """It moves, and holds something: the gripper was told 0.8."""
    rig = Rig(config or droid(), positions)
    rig.execute(np.array([[0.5] * 7 + [0.8]] * 6))
    assert rig.sent[-1][7] == np.float32(0.8) and rig.sent[-1][:7].any()
    rig.sent.clear()
    return rig


def stands_with_its_grip(rig: Rig) -> None:
    assert rig.sent and not rig.sent[-1][:7].any(), "the arm goes on"
    assert {float(command[7]) for command in rig.sent} == {float(np.float32(0.8))}, "the gripper moved"


# --- a robot as openpi's DROID -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gripper", [BINARY, POSITION])
@pytest.mark.parametrize("event", ["stall", "pause", "cancel", "abort", "blind", "stop", "deactivate", "session lost"])
def test_whatever_stops_the_arm_the_gripper_keeps_its_grip(event: str, gripper: CommandType) -> None:
    rig = gripping(droid(gripper))
    if event == "pause":
        rig.brain.pause(rig.now_s)
    elif event == "cancel":
        rig.brain.cancel(TaskOutcome.CANCELED, "", rig.now_s)
    elif event == "abort":
        rig.brain.abort(rig.now_s)
    elif event == "blind":
        rig.sees = False
    elif event == "session lost":
        rig.brain.on_server_lost("s1", rig.now_s)
    elif event in ("stop", "deactivate"):
        rig.brain.cancel(TaskOutcome.SHUTDOWN, "", rig.now_s)
        command = rig.brain.stop_command()
        assert command is not None
        rig.sent.append(command)
    rig.tick(60)
    stands_with_its_grip(rig)
    if event == "blind":
        rig.sees = True
        rig.tick(10)
        stands_with_its_grip(rig)


@pytest.mark.parametrize("gripper", [BINARY, POSITION])
@pytest.mark.parametrize("rungs", LADDERS)
def test_the_gripper_keeps_its_grip_on_every_rung(rungs: str, gripper: CommandType) -> None:
    pose = (0.3,) * 7 + (math.nan,)
    limits = replace(droid().limits, max_velocity=(math.inf,) * 8)
    rig = gripping(droid(gripper, fallback=ladder(rungs), safe_pose=pose, limits=limits), np.full(8, 0.1, np.float32))
    rig.tick(60)
    assert sum(rig.brain.fallbacks.values()) == len(rig.config.fallback), rig.brain.fallbacks
    stands_with_its_grip(rig)


def test_a_position_that_is_sent_to_the_safe_pose_goes_there_and_a_binary_column_does_not() -> None:
    limits = replace(droid().limits, max_velocity=(math.inf,) * 8)
    for gripper, expected in ((POSITION, 0.25), (BINARY, 0.8)):
        config = droid(gripper, fallback=ladder("safe_pose:1 zero"), safe_pose=(0.3,) * 7 + (0.25,), limits=limits)
        rig = gripping(config, np.full(8, 0.1, np.float32))
        rig.tick(5)
        assert rig.sent[-1][7] == np.float32(expected) and (rig.sent[-1][:7] > 0.0).all()


def test_after_a_reset_nobody_closes_a_gripper_that_the_reset_has_opened() -> None:
    """What it was told before says nothing about what holds it now: until the first action it is told nothing."""
    rig = gripping()
    rig.brain.cancel(TaskOutcome.CANCELED, "", rig.now_s)
    rig.tick(5)
    rig.brain.finish()
    run = rig.brain.start(TaskGoal(task="t", instruction="go", time_budget_s=1e4, reset=True), rig.now_s)
    rig.tick(40)
    assert rig.brain.is_handed_over
    run.reset_begins()
    rig.sent.clear()
    rig.tick(5)
    run.reset_done(True, "", rig.now_s)
    rig.tick(5)
    assert rig.brain.stop_command() is None and not rig.sent
    rig.execute(np.array([[0.5] * 7 + [0.0]] * 6))
    assert rig.sent[-1][7] == 0.0


def test_velocities_brake_within_their_limit_while_the_gripper_keeps_still() -> None:
    rig = gripping(droid(limits=replace(droid().limits, max_acceleration=(2.0,) * 7 + (math.inf,))))
    rig.brain.pause(rig.now_s)
    before = rig.brain._motion._last
    assert before is not None
    rig.tick(20)
    arm = np.array([before, *rig.sent])[:, :7]
    assert (np.abs(np.diff(arm, axis=0)) <= 2.0 * PERIOD_S + 1e-5).all()
    stands_with_its_grip(rig)


def test_a_gripper_that_is_not_measured_keeps_nothing_from_moving() -> None:
    """Its measured position is not a number, as its driver publishes none."""
    positions = np.array([0.1] * 7 + [math.nan], np.float32)
    config = droid(fallback=ladder("safe_pose:1 zero"), safe_pose=(0.3,) * 8)
    rig = gripping(config, positions)
    rig.tick(3)
    assert (rig.sent[-1][:7] > 0.0).all() and rig.sent[-1][7] == np.float32(0.8)


def test_a_recorded_robot_goes_on_as_the_recording_says() -> None:
    """Its columns, its wrapped joint and its limited jerk are in the snapshot, and it decides the same from there."""
    limits = MotionLimits(
        lower=(-2.0,) * 6 + (-math.pi, 0.0),
        upper=(2.0,) * 6 + (math.pi, 1.0),
        max_velocity=(math.inf,) * 6 + (1.0, math.inf),
        max_acceleration=(20.0,) * 7 + (math.inf,),
        max_jerk=(200.0,) * 7 + (math.inf,),
    )
    types = (*(VELOCITY,) * 6, POSITION, BINARY)
    config = droid(command_types=types, turns=(0.0,) * 6 + (TURN, 0.0), limits=limits, fallback=ladder("ramp_down:0.3 zero"))
    rig = Rig(config, np.array([0.0] * 6 + [3.1, 0.5], np.float32))
    rig.execute(np.array([[0.5] * 6 + [-3.1, 0.8]] * 6))
    restored = RobotCore.from_state(stored(config), stored(rig.brain.snapshot()))
    commands = []
    for brain in (rig.brain, restored):
        times_s = (rig.now_s + PERIOD_S * np.arange(1, 30)).tolist()
        ticks = [brain.tick(replace(rig._sensors(), state_s=at_s, images_s=at_s), at_s) for at_s in times_s]
        commands.append([tick.command.tolist() for tick in ticks if tick.command is not None])
    assert commands[0] == commands[1] and len(commands[0]) > 20


# --- any mixture of columns ----------------------------------------------------------------------------------------------------

KINDS = st.lists(st.sampled_from(list(CommandType)), min_size=1, max_size=5)
EVENTS = st.lists(
    st.sampled_from(["chunk", "chunk", "chunk", "stall", "pause", "resume", "blind", "sees", "abort", "gap"]),
    min_size=2,
    max_size=14,
)


@st.composite
def mixtures(draw: st.DrawFn) -> RobotConfig:
    kinds = tuple(draw(KINDS))
    lasting = {VELOCITY, EFFORT} & set(kinds)
    zeroed = lasting or DELTA in kinds
    last = "zero" if lasting else draw(st.sampled_from(["hold", *(["zero"] if zeroed else [])]))
    rungs = [*(["repeat_last:0.1"] if draw(st.booleans()) else []), *(["ramp_down:0.2"] if draw(st.booleans()) else []), last]
    rate = st.sampled_from([0.5, 4.0, math.inf])
    positions = [kind is POSITION for kind in kinds]
    return RobotConfig(
        name="r1",
        action_names=tuple(f"c{index}_{kind.value}" for index, kind in enumerate(kinds)),
        cameras=("front",),
        state_size=3,
        control_rate_hz=1.0 / PERIOD_S,
        interpolation=1 if DELTA in kinds else draw(st.integers(1, 3)),
        execution_horizon=3,
        blend_steps=draw(st.integers(0, 2)),
        command_type=kinds[0],
        command_types=kinds,
        limits=MotionLimits(
            lower=(-1.0,) * len(kinds),
            upper=(1.0,) * len(kinds),
            max_velocity=tuple(draw(rate) if moves else math.inf for moves in positions),
            max_acceleration=tuple(draw(st.sampled_from([8.0, math.inf])) for _ in kinds),
        ),
        fallback=ladder(" ".join(rungs)),
        max_action_age_s=1.0,
    )


def follow(rig: Rig, event: str, rng: np.random.Generator, given: list[float]) -> None:
    """One event. `given` collects the values that the policy gave to binary columns."""
    if event == "chunk":
        rows = rng.uniform(-0.9, 0.9, (6, len(rig.config.action_names))).astype(np.float32)
        given += rows[:, ActionColumns.of(rig.config).is_binary].flatten().tolist()
        for _ in range(10):
            requests = rig.tick().requests
            if requests:
                answer = replace(chunk(requests[0][1], rows), action_names=rig.config.action_names)
                rig.brain.on_reply(answer, rig.now_s)
                break
    elif event == "pause":
        rig.brain.pause(rig.now_s)
    elif event == "resume":
        rig.brain.resume(rig.now_s)
    elif event in ("blind", "sees"):
        rig.sees = event == "sees"
    elif event == "abort":
        rig.brain.abort(rig.now_s)
        rig.tick(2)
        rig.brain.finish()
        rig.start()
    elif event == "gap":
        rig.now_s += 2.0
    rig.tick(30 if event == "stall" else int(rng.integers(1, 6)))


@settings(max_examples=60, deadline=None)
@given(config=mixtures(), events=EVENTS, seed=st.integers(0, 2**16))
def test_every_column_keeps_the_promises_of_its_type(config: RobotConfig, events: list[str], seed: int) -> None:
    """A binary column only ever has values of the policy; a robot that is left alone stands: zero where zero stops, the last value
    elsewhere; and nothing is beyond its limits."""
    columns, rng, given_values = ActionColumns.of(config), np.random.default_rng(seed), list[float]()
    rig = Rig(config, np.zeros(len(config.action_names), np.float32))
    for event in events:
        follow(rig, event, rng, given_values)
    told = set(given_values)
    for command in rig.sent:
        assert np.isfinite(command).all() and (np.abs(command) <= 1.0).all()
        assert set(command[columns.is_binary].tolist()) <= told
    if not rig.sent:
        return
    before = rig.sent[-1]
    rig.sees = True
    rig.brain.pause(rig.now_s)
    rig.tick(40)
    last = rig.sent[-1]
    lasting = columns.is_zeroed & ~columns.is_delta
    assert not last[lasting].any(), "it goes on moving"
    assert np.array_equal(last[columns.is_binary], before[columns.is_binary])
    num = len(rig.sent)
    rig.tick(10)
    assert all(np.array_equal(command[~columns.is_delta], last[~columns.is_delta]) for command in rig.sent[num:])
    assert not any(command[columns.is_delta].any() for command in rig.sent[num:])


@settings(max_examples=60, deadline=None)
@given(config=mixtures(), seed=st.integers(0, 2**16))
def test_rates_are_limited_per_column(config: RobotConfig, seed: int) -> None:
    columns, rng = ActionColumns.of(config), np.random.default_rng(seed)
    made = CommandShaper.of(config)
    assert made is not None
    made.start(np.zeros(len(columns), np.float32))
    wanted = rng.uniform(-0.9, 0.9, (40, len(columns))).astype(np.float32)
    sent = np.array([made.shape(row, PERIOD_S) for row in wanted])
    assert np.array_equal(sent[:, columns.is_binary], wanted[:, columns.is_binary])
    steps = np.diff(sent, axis=0, prepend=np.zeros((1, len(columns))))
    fastest, hardest = np.array(config.limits.max_velocity), np.array(config.limits.max_acceleration)
    position, zeroed = columns.is_position, columns.is_zeroed
    assert (np.abs(steps) <= fastest * PERIOD_S + 1e-5)[:, position].all()
    assert (np.abs(np.diff(steps, axis=0)) <= hardest * PERIOD_S**2 + 1e-5)[:, position].all()
    assert (np.abs(steps) <= hardest * PERIOD_S + 1e-5)[:, zeroed].all()


@pytest.mark.parametrize("changes", [{}, {"interpolation": 4}, {"blend_steps": 2}, {"interpolation": 3, "blend_steps": 2}], ids=str)
def test_a_limited_jerk_costs_its_lag_and_no_speed(changes: dict[str, Any]) -> None:
    """Also where commands go a part of the way from the last one to the next action: that one is as late as the jerk makes it."""
    lag_s, speed = 0.2, 0.5
    limits = MotionLimits(max_velocity=(2.0, math.inf), max_acceleration=(2.0, math.inf), max_jerk=(2.0 / lag_s, math.inf))
    types, names = (POSITION, BINARY), ("joint", "grip")
    config = droid(
        action_names=names, command_type=POSITION, command_types=types, limits=limits, fallback=ladder("hold"), **changes
    )
    rig = Rig(config, np.zeros(2, np.float32))
    for _ in range(80 * config.interpolation):
        task = rig.brain.task
        assert task is not None
        executed, requests = task.executed_steps, rig.tick().requests
        if requests:
            rows = speed / config.step_rate_hz * (executed + 1 + np.arange(12))
            answer = chunk(requests[0][1], np.stack([rows, np.ones(12)], axis=1).astype(np.float32))
            assert rig.brain.on_reply(replace(answer, action_names=names), rig.now_s), rig.brain.refused
    speeds = np.diff([float(command[0]) for command in rig.sent]) / PERIOD_S
    assert np.abs(speeds[len(speeds) // 2 :] - speed).max() < 0.1 * speed, "it moves at its speed, evenly"


def test_rows_are_not_skipped_where_one_column_is_a_displacement() -> None:
    """The state is half as fast as declared: positions would skip every second row, and its displacement with it."""
    config = droid(command_type=DELTA, command_types=(DELTA,) * 7 + (BINARY,), fallback=ladder("hold"), limits=MotionLimits())
    motor = CommandGenerator(config, Counter())
    rows = np.arange(320, dtype=np.float32).reshape(40, 8)
    motor.enqueue(replace(chunk(observation(1), rows), action_names=DROID_NAMES), 0, 0.0, real_delay=0)
    sent = [motor.step(None, 2.0 * PERIOD_S * tick) for tick in range(30)]
    assert np.array_equal(np.array(sent), rows[:30])


# --- what is refused -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("types", "rungs", "problem"),
    [
        ((VELOCITY, BINARY), "hold", "`hold` commands nothing, and the robot would keep its velocity"),
        ((EFFORT, POSITION), "hold", "the robot would keep its effort"),
        ((EFFORT, POSITION), "repeat_last:1 hold", "the robot would keep its effort"),
        ((EFFORT, BINARY), "ramp_down:1", "ends with `ramp_down`: an effort command lasts"),
        ((POSITION, BINARY), "zero", "`zero` is a pose for position (x) and binary (y) commands"),
        ((EFFORT, BINARY), "safe_pose:1 zero", "nothing drives effort (x) and binary (y) commands"),
        ((VELOCITY, BINARY), "safe_pose:1 zero", "`safe_pose` without `limits.lower`"),
    ],
)
def test_a_ladder_that_does_not_stop_every_column_is_refused(types: tuple[CommandType, ...], rungs: str, problem: str) -> None:
    config = droid(
        action_names=("x", "y"), command_types=types, limits=MotionLimits(), fallback=ladder(rungs), safe_pose=(0.0, 0.0)
    )
    with pytest.raises(ConfigurationError) as caught:
        check_ladder(config)
    assert problem in str(caught.value), caught.value


def test_a_sink_that_takes_all_numbers_as_one_type_refuses_others() -> None:
    mixed = ActionColumns.of(droid())
    with pytest.raises(ConfigurationError, match="set the type of gripper to velocity"):
        check_stop(mixed, VELOCITY, (), "a twist")
    with pytest.raises(ConfigurationError, match=r"the velocity 0.5 \(joint_1\)"):
        check_stop(mixed, None, (0.5,) + (0.0,) * 7, "")
    check_stop(mixed, None, (0.0,) * 7 + (0.5,), "")
    positions = ActionColumns.made(POSITION, ("arm", "grip"), types=(POSITION, BINARY))
    check_stop(positions, POSITION, (1.0, 1.0), "a trajectory of positions")
    delta = ActionColumns.made(DELTA, ("x", "grip"), types=(DELTA, BINARY))
    with pytest.raises(ConfigurationError, match=r"the delta 1 \(x\)"):
        check_stop(delta, None, (1.0, 0.0), "", zeroes=True)
    check_stop(delta, None, (0.0, 0.5), "", zeroes=True)


# --- continuous joints -----------------------------------------------------------------------------------------------------------


def around(*, kind: CommandType = POSITION, turn: float = TURN, limits: MotionLimits | None = None) -> ActionColumns:
    return ActionColumns.made(kind, ("wrist",), turns=(turn,), limits=limits or MotionLimits())


def one(value: float) -> Array:
    return np.array([value], np.float32)


def apart(value: float, other: float, turn: float = TURN) -> float:
    """The shortest way between two angles."""
    return abs(math.remainder(value - other, turn))


def test_a_continuous_joint_goes_the_short_way_over_its_border() -> None:
    """A Kinova Gen3's wrist, whose driver and policy speak of -pi to pi: a step of 0.04 rad over the border."""
    made = CommandShaper(MotionLimits(max_velocity=(1.0,), max_acceleration=(4.0,)), around(), 1, PERIOD_S)
    made.start(one(3.10))
    wanted = [math.remainder(3.10 + 0.02 * k, TURN) for k in range(1, 6)] + [-3.10] * 20
    sent = [float(made.shape(one(value), PERIOD_S)[0]) for value in wanted]
    assert max(apart(value, other) for value, other in zip(sent, wanted, strict=True)) < 0.06
    assert apart(sent[11], -3.10) < 0.01 and sent[-1] == pytest.approx(-3.10, abs=1e-4)
    assert min(map(abs, sent)) > 3.0, "it turned the long way round"
    line = Interpolator(5, around())
    line.aim(one(3.13), one(-3.13))
    between = [float(part[0]) for _ in range(5) if (part := line.next()) is not None]
    assert between == pytest.approx([3.1346, 3.1393, -3.1393, -3.1346, -3.13], abs=1e-3)


@settings(max_examples=100, deadline=None)
@given(
    turn=st.sampled_from([TURN, 360.0, 2.0]),
    ends=st.sampled_from([(-0.5, 0.5), (0.0, 1.0), None]),
    walk=st.lists(st.floats(-0.49, 0.49), min_size=3, max_size=40),
    start=st.floats(0.0, 0.99),
)
def test_commands_turn_no_faster_than_allowed_and_stay_in_the_drivers_numbers(
    turn: float, ends: tuple[float, float] | None, walk: list[float], start: float
) -> None:
    """Whatever way the policy goes round, in turns, and whichever numbers its driver takes."""
    limits = MotionLimits(max_velocity=(turn,), max_acceleration=(20.0 * turn,))
    if ends is not None:
        limits = replace(limits, lower=(ends[0] * turn,), upper=(ends[1] * turn,))
    made = CommandShaper(limits, around(turn=turn, limits=limits), 1, PERIOD_S)
    low = (ends or (-0.5, 0.5))[0] * turn
    wanted = [low + ((place - low) % turn) for place in np.cumsum([start * turn, *(turn * step for step in walk)])]
    made.start(one(wanted[0]))
    sent = [wanted[0], *(float(made.shape(one(value), PERIOD_S)[0]) for value in wanted)]
    rounding = 1e-5 * turn
    for before, value in pairwise(sent):
        assert apart(value, before, turn) <= turn * PERIOD_S + rounding
    if ends is not None:
        assert all(low - rounding <= value <= low + turn + rounding for value in sent)
    for _ in range(60):
        last = float(made.shape(one(wanted[-1]), PERIOD_S)[0])
    assert apart(last, wanted[-1], turn) <= 1e-3 * turn, "it does not arrive"


def test_numbers_that_count_turns_go_on_counting() -> None:
    """A driver that does not wrap: a command is never a whole turn from the one before."""
    made = CommandShaper(MotionLimits(max_velocity=(1.0,)), around(), 1, PERIOD_S)
    made.start(one(37.0))
    sent = [float(made.shape(one(37.0 + 0.04 * k), PERIOD_S)[0]) for k in range(20)]
    assert np.allclose(np.diff(sent), 0.04, atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(start=st.floats(-3.1, 3.1), way=st.floats(-3.0, 3.0), parts=st.integers(2, 8))
def test_interpolated_parts_are_equal_and_the_short_way(start: float, way: float, parts: int) -> None:
    line, target = Interpolator(parts, around()), math.remainder(start + way, TURN)
    line.aim(one(start), one(target))
    sent = [start, *(float(part[0]) for _ in range(parts) if (part := line.next()) is not None)]
    for before, value in pairwise(sent):
        assert apart(value, before) == pytest.approx(abs(way) / parts, abs=1e-4)
    assert sent[-1] == np.float32(target) and all(abs(value) <= math.pi + 1e-4 for value in sent)


def wrist(kind: CommandType = POSITION, **changes: Any) -> RobotConfig:
    limits = MotionLimits(lower=(-math.pi,), upper=(math.pi,), max_velocity=(1.0,)) if kind is POSITION else MotionLimits()
    fields: dict[str, Any] = {
        "action_names": ("yaw",),
        "command_type": kind,
        "command_types": (),
        "turns": (TURN,),
        "limits": limits,
        "fallback": ladder("hold"),
    }
    return droid(**(fields | changes))


def test_blending_into_a_chunk_goes_the_short_way() -> None:
    config = wrist(limits=MotionLimits(), blend_steps=3)
    rig = Rig(config, one(3.1))
    rig.execute(np.full((6, 1), 3.1))
    rig.sent.clear()
    rig.execute(np.full((6, 1), -3.1))
    assert len(rig.sent) >= 3 and min(abs(float(command[0])) for command in rig.sent) > 3.0


def test_other_limits_of_a_robot_at_work_are_the_numbers_of_its_commands() -> None:
    """From -pi to pi, then from 0 to 2 pi; and limits that a continuous joint cannot have are refused without a trace."""
    rig = Rig(wrist(), one(-3.0))
    rig.execute(np.full((6, 1), -3.0))
    limits = MotionLimits(lower=(-1.0,), upper=(1.0,), max_velocity=(1.0,))
    with pytest.raises(ConfigurationError, match="it cannot go round"):
        rig.brain.prepared(replace(rig.config, limits=limits))
    rig.brain.prepared(replace(rig.config, limits=MotionLimits(lower=(0.0,), upper=(TURN,), max_velocity=(1.0,))))()
    rig.execute(np.full((6, 1), 3.2))
    assert apart(float(rig.sent[-1][0]), 3.2) < 0.1


def test_ramping_down_over_the_border_runs_on_the_same_way() -> None:
    made = FallbackLadder(wrist(fallback=ladder("ramp_down:0.3 hold")))
    for value in (3.12, -3.14):
        made.commanded(one(value))
    told = []
    for tick in range(4):
        command = made.command(None, tick * PERIOD_S)
        made.went(command)
        told += [] if command is None else [float(command[0])]
    assert np.allclose(np.sign(np.diff([-3.14, *told])), 1.0) and max(told) < -3.0


@pytest.mark.parametrize("kind", [VELOCITY, DELTA, POSITION])
def test_the_way_to_the_safe_pose_is_the_short_one(kind: CommandType) -> None:
    limits = (
        MotionLimits(lower=(-3.2,), upper=(3.2,), max_velocity=(1.0,))
        if kind is POSITION
        else MotionLimits(lower=(-1.0,), upper=(1.0,))
    )
    rungs = ladder("safe_pose:5 zero" if kind is VELOCITY else "safe_pose")
    motor = CommandGenerator(wrist(kind, limits=limits, fallback=rungs, safe_pose=(-3.0,)), Counter())
    at, now_s = 3.0, 0.0
    for _ in range(60):
        now_s += PERIOD_S
        motor.measured(one(at), now_s)
        command = motor.fall_back(one(at), now_s, to_pose=True)
        assert command is not None
        moved = float(command[0]) * (PERIOD_S if kind is VELOCITY else 1.0)
        at = moved if kind is POSITION else math.remainder(at + moved, TURN)
        assert abs(at) > 2.9, "it turned the long way round"
    assert apart(at, -3.0) < 0.05


def test_after_a_pause_it_sets_out_from_the_other_side_of_the_border() -> None:
    """It was told 3.13, and is measured at -3.13: it has hardly moved, and the next command is near."""
    rig = Rig(wrist(), one(3.13))
    rig.execute(np.full((6, 1), 3.13))
    rig.brain.pause(rig.now_s)
    rig.positions = one(-3.13)
    rig.tick(20)
    rig.sent.clear()
    rig.brain.resume(rig.now_s)
    rig.execute(np.full((6, 1), 3.12))
    assert rig.brain.refused["position_unsteady"] == 0
    assert rig.sent and min(abs(float(command[0])) for command in rig.sent) > 3.1


def test_the_gate_sees_no_jump_at_the_border() -> None:
    rows = np.array([[3.10], [3.13], [-3.12], [-3.09]], np.float32)
    gates = ChunkValidatorConfig(
        jump=ChunkValidatorMode.REFUSE, max_jump=(0.1,), velocity=ChunkValidatorMode.REFUSE, max_velocity=(1.0,),
        statistics=ChunkValidatorMode.REFUSE,
        acceleration=ChunkValidatorMode.REFUSE, max_acceleration=(2.0,), action_mean=(-3.1,), action_std=(0.1,), max_deviations=4.0,
        workspace=ChunkValidatorMode.REFUSE, workspace_lower=(2.8,), workspace_upper=(3.5,),
    )  # fmt: skip
    admitted = ChunkValidator(gates, MotionLimits(), 1, PERIOD_S, columns=around()).validate(rows, one(-3.14))
    assert admitted == ("", ())
    plain = ActionColumns.made(POSITION, ("wrist",))
    assert ChunkValidator(gates, MotionLimits(), 1, PERIOD_S, columns=plain).validate(rows, one(-3.14))[0] == "gate_jump"


def test_a_binary_column_is_not_judged_by_how_fast_it_changes() -> None:
    rows = np.array([[0.0, 0.0], [0.01, 1.0], [0.02, 0.0]], np.float32)
    columns = ActionColumns.made(POSITION, ("arm", "grip"), types=(POSITION, BINARY))
    most = (1.0, 1.0)
    gates = ChunkValidatorConfig(
        jump=ChunkValidatorMode.REFUSE, max_jump=most, velocity=ChunkValidatorMode.REFUSE, max_velocity=most,
        acceleration=ChunkValidatorMode.REFUSE, max_acceleration=most, jerk=ChunkValidatorMode.REFUSE, max_jerk=most,
        statistics=ChunkValidatorMode.REFUSE, action_mean=(0.0, 0.0), action_std=(1.0, 0.01),
    )  # fmt: skip
    gate = ChunkValidator(gates, MotionLimits(), 2, PERIOD_S, columns=columns)
    assert gate.validate(rows, np.array([0.0, 1.0], np.float32)) == ("", ())
    assert gate.validate(rows[:, ::-1], np.array([0.0, 1.0], np.float32))[0]


def test_velocities_are_judged_as_they_are_beside_positions() -> None:
    columns = ActionColumns.made(POSITION, ("arm", "base"), types=(POSITION, VELOCITY))
    gate = ChunkValidator(
        ChunkValidatorConfig(velocity=ChunkValidatorMode.REFUSE, max_velocity=(1.0, 1.0)),
        MotionLimits(),
        2,
        PERIOD_S,
        columns=columns,
    )
    assert gate.validate(np.array([[5.0, 0.9], [5.01, -0.9]], np.float32), None) == ("", ())
    assert gate.validate(np.array([[5.0, 1.1], [5.01, 0.0]], np.float32), None)[0] == "gate_velocity"
    assert gate.validate(np.array([[5.0, 0.0], [5.1, 0.0]], np.float32), None)[0] == "gate_velocity"


def test_figures_of_smoothness_know_borders_and_switches() -> None:
    columns = ActionColumns.made(POSITION, ("yaw", "grip"), types=(POSITION, BINARY), turns=(TURN, 0.0))
    made = Smoothness(columns, 2)
    for index, yaw in enumerate((3.10, 3.12, 3.14, -3.1232, -3.1032)):
        made.commanded(np.array([yaw, index % 2], np.float32), at_seam=True)
    assert made.seam_jump == pytest.approx([0.02, 0.0], abs=1e-3)
    assert made.mean_squared_jerk == pytest.approx([0.0, 0.0], abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"limits": MotionLimits(lower=(-1.0,), upper=(1.0,))}, "it cannot go round"),
        ({"limits": MotionLimits(lower=(-TURN,), upper=(TURN,))}, "more than its turn of 6.2832: it does not go round"),
        ({"limits": MotionLimits(lower=(-180.0,), upper=(180.0,))}, "more than its turn .* write wrist=360 if these are degrees"),
        ({"limits": MotionLimits(lower=(-180.0,), upper=(270.0,)), "turn": 360.0}, "more than its turn of 360"),
        ({"limits": MotionLimits(lower=(-4.0,))}, "has one limit"),
        ({"kind": BINARY}, "a binary column, which is no angle"),
        ({"turn": -1.0}, "a turn of -1"),
        ({"turn": math.inf}, "a turn of inf"),
    ],
)
def test_a_joint_that_cannot_go_round_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        around(**fields)
    assert caught.value.key == "continuous_joints" and "wrist" in str(caught.value)


@pytest.mark.parametrize(
    ("ends", "hint"),
    [
        ((-math.pi, math.pi), "continuous_joints: [wrist]"),
        ((-3.14, 3.14), "continuous_joints: [wrist]"),
        ((0.0, 6.283), "continuous_joints: [wrist]"),
        ((-180.0, 180.0), "continuous_joints: [wrist=360]"),
        ((-TURN, TURN), ""),
        ((-3.1, 3.1), ""),
        ((-1.0, 1.0), ""),
    ],
)
def test_limits_that_span_a_turn_suggest_a_continuous_joint(ends: tuple[float, float], hint: str) -> None:
    limits = MotionLimits(lower=ends[:1], upper=ends[1:], max_velocity=(1.0,))
    (*found,) = suggestions(ActionColumns.made(POSITION, ("wrist",), limits=limits), limits)
    assert bool(found) is bool(hint) and all(hint in text for text in found)
    assert not list(suggestions(ActionColumns.made(VELOCITY, ("wrist",), limits=limits), limits))
